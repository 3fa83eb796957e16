"""Training and using BERT from Python, on data in memory.

- `run_folder`: what everything that trains has: `history`, `save`, `export`.
- `in_python`: errors as callers in Python expect them: messages name arguments, and Ctrl-C is Ctrl-C.
- `base`: what all estimators share: `from_pretrained`, `load`, `make_run`, `fit`.
- `row_estimator`: training, `evaluate` and `score` of the tasks of `run_classifier.py`.
- `sentences`: `Classifier`, `Regressor`, `MultipleChoice`.
- `tagger`: `Tagger`.
- `question_answerer`: `QuestionAnswerer`.
- `sentence_encoder`: `Encoder`, which gives vectors of texts.
- `pretrainer`: `Pretrainer`, which makes an encoder from TFRecords.
- `rows`: reads lists, NumPy arrays, pandas objects and `tf.data` data sets.

An estimator passes its data to the task of `run_classifier.py` or `run_squad.py`, and trains with the same loop. The
same data and the same seed give the same weights, and the programs evaluate and export the run directory of an
estimator. The names are offered by `bert_tf` itself. Nothing below this folder imports it.
"""

from bert_tf.estimators.base import Estimator
from bert_tf.estimators.pretrainer import Pretrainer
from bert_tf.estimators.question_answerer import QuestionAnswerer
from bert_tf.estimators.sentence_encoder import Encoder
from bert_tf.estimators.sentences import Classifier, MultipleChoice, Regressor
from bert_tf.estimators.tagger import Tagger

__all__ = [
    "Classifier",
    "Encoder",
    "Estimator",
    "MultipleChoice",
    "Pretrainer",
    "QuestionAnswerer",
    "Regressor",
    "Tagger",
]
