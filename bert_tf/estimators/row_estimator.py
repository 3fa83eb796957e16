"""Training, evaluation and prediction of the estimators of the tasks of `run_classifier.py`."""

import dataclasses
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from bert_tf.checkpoints import run_directory
from bert_tf.estimators import rows
from bert_tf.estimators.base import Estimator
from bert_tf.estimators.in_python import errors_in_python
from bert_tf.finetuning import workflow
from bert_tf.finetuning.feature_sets import FeatureSet
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.finetuning.task import ModelOutputs
from bert_tf.finetuning.workflow import ReportingTask, WorkflowConfig
from bert_tf.runtime import files
from bert_tf.runtime.files import InputError
from bert_tf.tasks import tables
from bert_tf.tasks.registry import DataConfig


class RowEstimator(Estimator):
    """An estimator of one of the tasks of `run_classifier.py`; subclasses bring the rows."""

    _TASK: ClassVar[str]  # its name in --task_name
    _SUFFIX = ".jsonl"
    _trained: FinetuningRun | None = None

    def _training_task(self, paths: Sequence[str]) -> ReportingTask:
        return self._task(os.path.dirname(paths[0]), do_train=True)

    def carry_out(self, run: FinetuningRun, config: WorkflowConfig) -> dict[str, float]:
        """See `Estimator.carry_out`."""
        self._trained = None
        return workflow.carry_out(run, config)["eval"].get(run.task.dev_splits[0], {})

    def evaluate(self, x: Any, y: Any = None, *, batch_size: int = 8) -> dict[str, float]:
        """The task's scores on examples with labels, and the mean loss.

        Args:
          x: the examples; see `fit`.
          y: their labels.
          batch_size: examples that are computed together, on each device.
        """
        task, examples = self._read("dev", self._table(*rows.with_labels(x, y, "x", self._RANK)))
        outputs, features = self._outputs(task, examples, batch_size)
        return task.scores(outputs, features)

    def score(self, x: Any, y: Any = None) -> float:
        """The one of the scores of `evaluate` that models are chosen by.

        It is the accuracy of classes and choices, the Pearson correlation of numbers, the F1 of labels and entities.
        """
        scores = self.evaluate(x, y)
        return scores[self._trained.task.selection_metric]

    def _data_config(self, folder: str) -> DataConfig:
        return DataConfig(self._TASK, folder)

    def _write(self, path: str, table: Sequence[Mapping[str, Any]]) -> None:
        tables.write_table(path, table)

    def _task(self, folder: str, do_train: bool) -> ReportingTask:
        config = self._data_config(folder)
        if not (do_train or config.labels or self._trained_checkpoint):
            config = dataclasses.replace(config, labels=self._labels_before())
        return config.build_task(self.output_dir, do_train)

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
        """The task of a trained model, and the examples that it makes of a table."""
        self._check_usable()
        if not table:
            raise InputError("x has no examples.")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, split + self._SUFFIX)
            self._write(path, table)
            task = self._task(folder, do_train=False)
            try:
                return task, task.examples(split)
            except InputError as error:
                # The caller has no files.
                line, lines = re.escape(path) + r", line (\d+)", files.read_text(path, "x").split("\n")
                message = re.sub(line, lambda found: self._example_at(lines, int(found[1])), str(error))
                raise InputError(message.replace(path, "x")) from None

    def _example_at(self, lines: Sequence[str], number: int) -> str:
        """The name of the example in a line, counted from 1, of a file that `_write` wrote."""
        return f"example {number - 1}"

    @errors_in_python()
    def _outputs(
        self, task: ReportingTask, examples: Sequence[Any], batch_size: int
    ) -> tuple[ModelOutputs, FeatureSet]:
        features = task.featurize(examples, self.tokenizer, self._flags["max_seq_length"])
        return self._model_of(task).predict(features, batch_size, shown=False), features

    def _model_of(self, task: ReportingTask) -> FinetuningRun:
        """A run with the trained weights; built again only if the task has other classes than the last one."""
        if self._trained is None or task.labels != self._trained.task.labels:
            run = self._predicting_run(task)
            run.restore()
            self._trained = run
        return self._trained
