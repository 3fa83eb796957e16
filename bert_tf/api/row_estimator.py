"""Training, evaluation and prediction of the estimators of the tasks of `run_classifier.py`."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

from bert_tf.api import in_memory
from bert_tf.api.base import Estimator
from bert_tf.api.in_python import errors_in_python
from bert_tf.checkpoints import run_directory
from bert_tf.finetuning.feature_sets import FeatureSet
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.finetuning.task import ModelOutputs, ReportingTask
from bert_tf.runtime.files import InputError
from bert_tf.runtime.reporting import report_truncation
from bert_tf.tasks import registry
from bert_tf.tasks.data_config import DataConfig


class RowEstimator(Estimator):
    """An estimator of one of the tasks of `run_classifier.py`; subclasses bring the rows."""

    _trained: FinetuningRun | None = None

    def _training_task(
        self, train: Sequence[dict[str, Any]], dev: Sequence[dict[str, Any]] | None, dev_fraction: float
    ) -> ReportingTask:
        return self._task(do_train=True, train_file=train, dev_file=dev, dev_fraction=dev_fraction)

    def _forget_model(self) -> None:
        self._trained = None

    def evaluate(self, x: Any, y: Any = None, *, batch_size: int = 8) -> dict[str, float]:
        """The task's scores on examples with labels, and the mean loss.

        Args:
          x: the examples; see `fit`.
          y: their labels.
          batch_size: Number of examples that all devices together compute at a time.
        """
        task, examples = self._read("dev", self._table(*in_memory.with_labels(x, y, "x", self._RANK)))
        outputs, features = self._outputs(task, examples, batch_size)
        return task.scores(outputs, features)

    def score(self, x: Any, y: Any = None) -> float:
        """The one of the scores of `evaluate` that models are chosen by.

        It is the accuracy of classes and choices, the Pearson correlation of numbers, the F1 of labels and entities.
        """
        scores = self.evaluate(x, y)
        return scores[self._trained.task.selection_metric]

    @abc.abstractmethod
    def _data_config(self, **data: Any) -> DataConfig:
        """Returns the task's settings; `data` are fields of `DataConfig`."""

    def _task(self, do_train: bool, **data: Any) -> ReportingTask:
        config = self._data_config(**data)
        if not (do_train or config.labels or self._trained_checkpoint):
            config = config.replace(labels=self._labels_before())
        return registry.build_task(config, self.output_dir, do_train)

    def _labels_before(self) -> Sequence[str] | None:
        """The classes of the model of `from_pretrained`; None if the task has none."""
        return None

    def _labels_now(self) -> Sequence[str] | None:
        """The classes with which the model predicts: those of training, or else of the model of `from_pretrained`."""
        self._check_usable()
        trained = self._trained_checkpoint
        return (run_directory.recorded_labels(self.output_dir) or self._labels) if trained else self._labels_before()

    @errors_in_python()
    def _read(self, split: str, table: Sequence[Mapping[str, Any]]) -> tuple[ReportingTask, list[Any]]:
        """Returns the task of a trained model, and the examples that it makes of rows."""
        self._check_usable()
        if not table:
            raise InputError("x has no examples. Give some.")
        task = self._task(do_train=False, **{f"{split}_file": table})
        return task, task.examples(split)

    @errors_in_python()
    def _outputs(
        self, task: ReportingTask, examples: Sequence[Any], batch_size: int
    ) -> tuple[ModelOutputs, FeatureSet]:
        features = task.featurize(examples, self.tokenizer, self._flags["max_seq_length"])
        report_truncation(features.num_truncated, len(features), "x", self._flags["max_seq_length"])
        return self._model_of(task).predict(features, batch_size, shown=False), features

    def _model_of(self, task: ReportingTask) -> FinetuningRun:
        """A run with the trained weights; built again only if the task has other classes than the last one."""
        if self._trained is None or task.labels != self._trained.task.labels:
            run = self._predicting_run(task)
            run.restore()
            self._trained = run
        return self._trained
