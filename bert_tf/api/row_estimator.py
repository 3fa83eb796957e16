"""The base of the estimators for the tasks of `run_classifier.py`: training, evaluation and prediction."""

import abc
from collections.abc import Sequence
from typing import Any

from bert_tf.api import in_memory
from bert_tf.api.base import Estimator, Rows
from bert_tf.checkpoints import run_directory
from bert_tf.finetuning.feature_sets import FeatureSet
from bert_tf.finetuning.task import ModelOutputs, ReportingTask
from bert_tf.runtime.errors import InputError
from bert_tf.runtime.reporting import report_truncation
from bert_tf.tasks.data_config import DataConfig
from bert_tf.tasks.registry import build_task

# The model's task, the examples made from the rows, their features, and the model's outputs.
Outputs = tuple[ReportingTask, list[Any], FeatureSet, ModelOutputs]


class RowEstimator(Estimator):
    """An estimator for a task of `run_classifier.py`. Subclasses create the rows."""

    def _training_task(self, train: Rows, dev: Rows | None, dev_fraction: float, metric: str | None) -> ReportingTask:
        data = {"train_file": train, "dev_file": dev, "dev_fraction": dev_fraction, "selection_metric": metric}
        return build_task(self._data_config(train, **data), self._folder, do_train=True)

    def evaluate(self, x: Any, y: Any = None, *, batch_size: int = 8) -> dict[str, float]:
        """Returns the task's scores and the mean loss on labelled examples.

        Args:
          x: the examples; see `fit`.
          y: their labels.
          batch_size: number of examples per batch, across all devices.

        Raises:
          InputError: if there is no trained model, or an example or a label can't be used.
        """
        table = self._table(*in_memory.with_labels(*self._by_name(x, y, "x"), "x", self._RANK))
        task, _, features, outputs = self._outputs("dev", table, batch_size)
        return task.scores(outputs, features)

    def score(self, x: Any, y: Any = None) -> float:
        """Returns the score of `evaluate` that selects models.

        It is accuracy for classes and choices, the Pearson correlation for numbers, and F1 for multi-label tasks and
        entities.

        Args:
          x: see `evaluate`.
          y: see `evaluate`.
        """
        scores = self.evaluate(x, y)
        return scores[self._predicting.task.selection_metric]

    @abc.abstractmethod
    def _data_config(self, table: Rows, **data: Any) -> DataConfig:
        """Returns the task's settings.

        Args:
          table: the rows to read.
          data: fields of `DataConfig`.
        """

    def _labels_before(self) -> Sequence[str] | None:
        """Returns the classes of the model passed to `from_pretrained`; None if the task has none."""
        return None

    def _labels_now(self) -> Sequence[str] | None:
        """Returns the classes of the model, or of the initial model if it has not been trained."""
        self._check_usable()
        trained = self._trained_checkpoint
        return (run_directory.recorded_labels(self._folder) or self._labels) if trained else self._labels_before()

    def _outputs(self, split: str, table: Rows, batch_size: int) -> Outputs:
        """Returns the outputs for examples of a split."""
        self._check_usable()
        if not table:
            raise InputError("x has no examples. Give some.", "x")
        config = self._data_config(table, **{f"{split}_file": table})
        if not (config.labels or self._trained_checkpoint):
            config = config.replace(labels=self._labels_before())
        task = build_task(config, self._folder, do_train=False)
        examples = task.examples(split)
        # Rebuild the model only if the classes have changed.
        if self._predicting is None or task.labels != self._predicting.task.labels:
            self._predicting = self._run(task)
            self._predicting.restore()
        features = self._predicting.data.featurize(examples)
        report_truncation(features.num_truncated, len(features), "x", self._settings.max_seq_length)
        return task, examples, features, self._predicting.predict(features, batch_size, shown=False)

    def _predicted(self, x: Any, batch_size: int) -> Outputs:
        return self._outputs("test", self._table(in_memory.as_list(x, "x", self._RANK), None), batch_size)
