"""Training and using BERT from Python, on data in memory.

- `run_folder`: what everything that trains has: `history`, `save`, `export`.
- `in_python`: errors as callers in Python expect them: messages name arguments, and Ctrl-C is Ctrl-C.
- `base`: what all estimators share: `from_pretrained`, `load`, `make_run`, `fit`.
- `row_estimator`: training, `evaluate` and `score` of the tasks of `run_classifier.py`.
- `sentences`: `Classifier`, `Regressor`, `MultipleChoice`.
- `token_classifier`: `TokenClassifier`.
- `question_answerer`: `QuestionAnswerer`.
- `sentence_encoder`: `SentenceEncoder`, which gives vectors of texts.
- `pretrainer`: `Pretrainer`, which makes an encoder from TFRecords.
- `in_memory`: reads lists, NumPy arrays, pandas objects and `tf.data` data sets.

An estimator passes its data to the task of `run_classifier.py` or `run_squad.py`, and trains with the same loop. The
same data and the same seed give the same weights, and the programs evaluate and export the run directory of an
estimator. The names are offered by `bert_tf` itself. Nothing below this folder imports it.
"""

from bert_tf.api.base import Estimator
from bert_tf.api.pretrainer import Pretrainer
from bert_tf.api.question_answerer import QuestionAnswerer
from bert_tf.api.sentence_encoder import SentenceEncoder
from bert_tf.api.sentences import Classifier, MultipleChoice, Regressor
from bert_tf.api.token_classifier import TokenClassifier

__all__ = [
    "Classifier",
    "Estimator",
    "MultipleChoice",
    "Pretrainer",
    "QuestionAnswerer",
    "Regressor",
    "SentenceEncoder",
    "TokenClassifier",
]
