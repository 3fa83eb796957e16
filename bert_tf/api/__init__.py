"""The Python API: training and using BERT on data in memory.

- `arguments`: converts keyword arguments to settings.
- `recorded_run`: the base of all classes that train: run directories, `history`, `save` and `export`.
- `predicting_run`: the base of all classes that predict: `evaluate`, `score`, `errors`, `explain`.
- `base`: the base of all estimators: `from_pretrained`, `load`, `fit`.
- `ranking`: `rank`, for models of pairs.
- `sentences`: `Classifier`, `Regressor`, `MultipleChoice`.
- `token_classifier`: `TokenClassifier`.
- `question_answerer`: `QuestionAnswerer`.
- `sentence_encoder`: `SentenceEncoder`, which computes text embeddings.
- `vector_trainer`: `VectorTrainer`, which trains the encoder of a `SentenceEncoder`.
- `pretrainer`: `Pretrainer`, which pre-trains an encoder on TFRecords.
- `setting_types`: the types of the keyword arguments, generated from the settings.
- `class_labels`: the labels of `Classifier`, as given and as recorded.
- `in_memory`: reads lists, NumPy arrays, pandas objects and `tf.data` data sets.

The estimators and the programs use the same tasks and settings and call the same `finetune`. With the same data and
settings, they compute the same weights. The programs can evaluate and export the run directory of an estimator. All
names except `Estimator` are also available from `bert_tf`. No lower layer imports this package.

The messages of public methods contain the names of arguments: `epochs` instead of --num_train_epochs (see
`arguments.NamesArguments`).
"""

from bert_tf.runtime import lazy_imports

lazy_imports.prepare_tensorflow()

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
