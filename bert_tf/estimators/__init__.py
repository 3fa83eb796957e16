"""Fine-tuning, for the programs and from Python, and using BERT from Python on data in memory.

- `run_folder`: what everything that trains has: `history`, `save`, `export`.
- `in_python`: errors as callers in Python expect them: messages name arguments, and Ctrl-C is Ctrl-C.
- `data_folder`: the data of `fit` as files, with the held-out part of them.
- `base`: what all estimators share: `from_pretrained`, `load`, `make_run`, `fit`.
- `row_estimator`: `carry_out`, `evaluate` and `score` of the tasks of `run_classifier.py`.
- `sentences`: `Classifier`, `Regressor`, `MultipleChoice`.
- `tagger`: `Tagger`.
- `question_answerer`: `QuestionAnswerer`.
- `sentence_encoder`: `Encoder`, which gives vectors of texts.
- `pretrainer`: `Pretrainer`, which makes an encoder from TFRecords.
- `rows`: reads lists, NumPy arrays, pandas objects and `tf.data` data sets.

An estimator writes its data in the format that `run_classifier.py` or `run_squad.py` reads, and runs the same code with
the same settings. So the same data and the same seed give the same weights, and the folder of an estimator is the
folder of a run: both can resume, evaluate and export what the other has trained. The names are offered by `bert_tf`
itself. Nothing below this folder imports it.
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


def of_task(task: str, problem: str) -> type[Estimator]:
    """The estimator of a task of `run_classifier.py`, which is what the program trains.

    Args:
      task: the value of --task_name.
      problem: the value of --problem.
    """
    return next(kind for kind in (Classifier, Regressor, MultipleChoice, Tagger) if kind.fits(task, problem))
