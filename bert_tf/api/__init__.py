"""Training and using BERT from Python, on data in memory.

- `arguments`: keyword arguments as settings.
- `run_folder`: what everything that trains has: runs and their directories, `history`, `save`, `export`.
- `base`: what all estimators share: `from_pretrained`, `load`, `fit`.
- `row_estimator`: training, `evaluate` and `score` of the tasks of `run_classifier.py`.
- `sentences`: `Classifier`, `Regressor`, `MultipleChoice`.
- `token_classifier`: `TokenClassifier`.
- `question_answerer`: `QuestionAnswerer`.
- `sentence_encoder`: `SentenceEncoder`, which gives vectors of texts.
- `pretrainer`: `Pretrainer`, which makes an encoder from TFRecords.
- `in_memory`: reads lists, NumPy arrays, pandas objects and `tf.data` data sets.

The estimators and the programs make the same tasks and settings and call the same `finetune`. The same data and the
same settings give the same weights, and the programs evaluate and export the run directory of an estimator. The names
are offered by `bert_tf` itself. Nothing below this package imports it.

Messages name a setting as its flag does, such as --num_train_epochs. The argument has the same name without dashes.
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
