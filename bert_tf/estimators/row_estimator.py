"""Training, evaluation and prediction of the estimators that learn from rows."""

import abc
import dataclasses
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from bert_tf.estimators import rows
from bert_tf.estimators.base import DATA_FOLDER, Estimator
from bert_tf.finetuning import workflow
from bert_tf.finetuning.feature_sets import FeatureSet
from bert_tf.finetuning.hyperparameters import Hyperparameters
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.finetuning.selection import SelectionConfig
from bert_tf.finetuning.task import ModelOutputs
from bert_tf.finetuning.workflow import ReportingTask, WorkflowConfig
from bert_tf.optimization import OptimizerConfig
from bert_tf.runtime.files import InputError
from bert_tf.tasks import tables
from bert_tf.tasks.registry import DataConfig
from bert_tf.training.settings import TrainingConfig


class RowEstimator(Estimator):
    """An estimator of one of the tasks of `run_classifier.py`; subclasses bring the rows."""

    _SUFFIX = ".jsonl"
    _RANK = 0  # of an example; see `rows.as_list`
    _trained: FinetuningRun | None = None

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        sample_weight: Any = None,
        validation_split: float = 0.0,
        validation_data: tuple[Any, Any] | tf.data.Dataset | None = None,
        epochs: float = 3.0,
        max_steps: int = 0,
        batch_size: int = 32,
        learning_rate: float = 5e-5,
        warmup_proportion: float = 0.1,
        seed: int = 12345,
        keep_best: bool = False,
        early_stopping_patience: int = 0,
        evaluate_every: str | int = "epoch",
        group_by_length: bool | None = None,
        bias_correction: bool = False,
        **training: Any,
    ) -> dict[str, float]:
        """Trains, with the loop and the defaults of `run_classifier.py`.

        Called again in the same folder with the same data and settings, it goes on where it was interrupted.

        Args:
          x: the examples; see the class. Or a `tf.data.Dataset` of pairs (example, label), or of triples (example,
            label, weight), if `y` is None.
          y: their labels.
          sample_weight: a number of at least 0 for each example, by which its loss is multiplied before the mean over
            the batch, as in Keras; for classes and numbers only. Scores don't use weights.
          validation_split: the share of the examples to evaluate on; they are drawn by the seed, and not trained on.
          validation_data: a pair of examples and labels to evaluate on, or a data set as for `x`, in place of a share
            of `x`.
          epochs: how often each example is seen.
          max_steps: if it isn't 0, the number of steps, whatever `epochs` says.
          batch_size: examples in a step.
          learning_rate: the peak.
          warmup_proportion: the share of the steps in which the learning rate rises.
          seed: of the output layer, the order of the data, dropout, and the validation split.
          keep_best: use the weights with the best score on the validation data, not the last ones.
          early_stopping_patience: evaluations without a better score after which training stops; 0 for never.
          evaluate_every: when the validation data are looked at: "epoch", "end", or a number of steps.
          group_by_length: see `bert_tf.finetuning.run.FinetuningRun`.
          bias_correction: see `bert_tf.optimization.OptimizerConfig`.
          training: further fields of `bert_tf.training.settings.TrainingConfig`.

        Returns:
          The scores on the validation data, named as in eval_results.txt; nothing if there are no such data.

        Raises:
          InputError: if the data can't be used, or the folder holds a run with other data or settings.
          TypeError: if there is no such argument.
        """
        examples, labels, weights = rows.with_weights(x, y, sample_weight, "x", self._RANK)
        train = self._table(examples, labels)
        dev = [] if validation_data is None else self._table(*rows.validation(validation_data, self._RANK))
        optimizer = OptimizerConfig(learning_rate, num_train_steps=1, bias_correction=bias_correction)
        training_config = self._training_config(optimizer, batch_size, seed, training)
        folder, before = os.path.join(self.output_dir, DATA_FOLDER), dict(self._flags)
        try:
            self._weigh(train, weights)
            needs_dev = keep_best or early_stopping_patience
            train, dev = rows.train_and_validation(train, dev, validation_split, seed, needs_dev)
            self._flags |= self._learned_settings(train)
            self._write_once(folder, "train", train)
            if dev:
                self._write_once(folder, "dev", dev)
        except BaseException:
            self._flags = before  # what was trained before is used as it was trained
            raise
        config = WorkflowConfig(
            do_train=True,
            do_eval=bool(dev),
            do_predict=False,
            candidates=[Hyperparameters(batch_size, learning_rate, epochs, seed)],
            warmup_proportion=warmup_proportion,
            max_steps=max_steps,
            selection=SelectionConfig(str(evaluate_every), early_stopping_patience, keep_best),
            flags=self._flags,
        )
        results = workflow.carry_out(self._run(self._task(folder, True), training_config, group_by_length), config)
        self._trained = None
        return results["eval"].get("dev", {})

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
        """The one of the scores of `evaluate` that models are chosen by, as scikit-learn's tools expect it.

        It is the accuracy of classes and choices, the Pearson correlation of numbers, the F1 of labels and entities.
        """
        scores = self.evaluate(x, y)
        return scores[self._trained.task.selection_metric]

    @abc.abstractmethod
    def _table(self, examples: Sequence[Any], labels: Sequence[Any] | None) -> list[dict[str, Any]]:
        """The rows that the task reads."""

    def _weigh(self, table: Sequence[dict[str, Any]], weights: Sequence[float] | None) -> None:
        """Adds the weights of the training rows to them.

        Raises:
          InputError: if there are weights, but the task has none.
        """
        if weights is not None:
            raise InputError(
                f"{type(self).__name__}.fit(): sample_weight is given, but only Classifier and Regressor weigh "
                "examples. Omit it."
            )

    def _learned_settings(self, table: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What the training data decide, under the names of flags."""
        return {}

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

    def _read(self, split: str, table: Sequence[Mapping[str, Any]]) -> tuple[ReportingTask, list[Any]]:
        """The task of a trained model, and the examples that it makes of a table."""
        self._check_usable()
        if not table:
            raise InputError("x has no examples.")
        with tempfile.TemporaryDirectory() as folder:
            self._write(os.path.join(folder, split + self._SUFFIX), table)
            task = self._task(folder, do_train=False)
            return task, task.examples(split)

    def _outputs(
        self, task: ReportingTask, examples: Sequence[Any], batch_size: int
    ) -> tuple[ModelOutputs, FeatureSet]:
        features = task.featurize(examples, self.tokenizer, self._flags["max_seq_length"])
        return self._model_of(task).predict(features, batch_size, shown=False), features

    def _model_of(self, task: ReportingTask) -> FinetuningRun:
        """A run with the trained weights; built again only if the task has other classes than the last one."""
        if self._trained is None or task.labels != self._trained.task.labels:
            config = TrainingConfig(self.output_dir, OptimizerConfig(1.0, 1), 1, dtype=self._flags["dtype"])
            self._trained = self._run(task, config)
            self._trained.restore()
        return self._trained
