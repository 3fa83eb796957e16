"""What all estimators share: how they are made, trained, evaluated, saved and exported."""

import abc
import contextlib
import math
import os
import random
import re
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

from bert_tf import checkpoints
from bert_tf.checkpoints import pretrained, run_directory, saver
from bert_tf.config import BertConfig
from bert_tf.estimators import rows
from bert_tf.export import export_run
from bert_tf.finetuning import workflow
from bert_tf.finetuning.feature_sets import FeatureSet
from bert_tf.finetuning.hyperparameters import Hyperparameters
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.finetuning.selection import SelectionConfig
from bert_tf.finetuning.task import ModelOutputs
from bert_tf.finetuning.workflow import ReportingTask, WorkflowConfig
from bert_tf.optimization import TRAINING_STATE, OptimizerConfig
from bert_tf.runtime import files
from bert_tf.runtime.distribution import DistributionConfig
from bert_tf.runtime.files import InputError
from bert_tf.serving.saved_model import ExportConfig
from bert_tf.tasks import tables
from bert_tf.tasks.table import DataConfig
from bert_tf.tokenization import FullTokenizer
from bert_tf.training import log
from bert_tf.training.contract import TrainingConfig

# The folder, in that of the run, of the data that `fit` was given.
DATA_FOLDER = "data"


class Estimator(abc.ABC):
    """A pre-trained model with an output layer for a task; made by `from_pretrained` or `load`.

    Attributes:
      output_dir: the folder of the run: checkpoints, metrics and the training data. Unless one was named, it is a
        temporary folder, which is removed with the estimator.
      config: of the encoder.
      tokenizer: of the model.
    """

    _TASK: ClassVar[str]
    _SUFFIX: ClassVar[str] = ".jsonl"

    def __init__(
        self,
        init_checkpoint: str | None,
        config: BertConfig,
        tokenizer: FullTokenizer,
        output_dir: str | None,
        labels: Sequence[str | int] | None,
        flags: Mapping[str, Any],
        distribution_strategy: str = "one_device",
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.output_dir = output_dir or self._temporary_folder()
        self._init_checkpoint = init_checkpoint
        self._labels = None if labels is None else list(labels)
        # The settings under the names of the flags that they have in the programs.
        self._flags = dict(flags)
        self._distribution = DistributionConfig(distribution_strategy)
        self._trained: FinetuningRun | None = None

    def _temporary_folder(self) -> str:
        folder = tempfile.TemporaryDirectory(prefix="bert_tf-")
        weakref.finalize(self, folder.cleanup)
        return folder.name

    @classmethod
    def from_pretrained(
        cls,
        path: str,
        labels: Sequence[str | int] | None = None,
        *,
        output_dir: str | None = None,
        max_seq_length: int = 128,
        do_lower_case: bool | None = None,
        dtype: str = "float32",
        distribution_strategy: str = "one_device",
        **settings: Any,
    ) -> Self:
        """An estimator that starts from a pre-trained model, with a fresh output layer.

        Args:
          path: of the model, as `bert_tf.load` takes it.
          labels: the classes; by default those of the training data.
          output_dir: the folder of the run. A run that was interrupted there goes on when `fit` is called again.
          max_seq_length: longer sequences are cut.
          do_lower_case: the tokenizer's casing; by default what the model's folder says.
          dtype: "float32", "bfloat16" or "float16": the type that products are computed in.
          distribution_strategy: "one_device", "mirrored" or "tpu".
          settings: what else the class says.

        Raises:
          InputError: if something is missing, or doesn't fit together.
        """
        checkpoint, config, tokenizer = pretrained.find_model(path, "from_pretrained()", do_lower_case)
        if tokenizer is None:
            raise InputError(f"from_pretrained(): there is no vocab.txt beside {checkpoint}.")
        flags = {"max_seq_length": max_seq_length, "dtype": dtype, **cls._checked(settings)}
        return cls(checkpoint, config, tokenizer, output_dir, labels, flags, distribution_strategy)

    @classmethod
    def load(cls, folder: str, distribution_strategy: str = "one_device") -> Self:
        """The estimator that `save` wrote, or that a program trained.

        Args:
          folder: of the run.
          distribution_strategy: see `from_pretrained`.

        Raises:
          InputError: if the folder isn't that of a finished run of this kind of task.
        """
        folder = run_directory.folder_of_model(folder)
        recorded = run_directory.read(folder)
        settings = recorded["resume_settings"]
        if settings.get("task") != cls._TASK:
            raise InputError(f"load(): {folder} holds a run of {settings.get('task')!r}, not of {cls._TASK!r}.")
        _, config, tokenizer = pretrained.find_model(folder, "load()", settings["do_lower_case"])
        flags = {**recorded["flags"], "max_seq_length": settings["max_seq_length"]}
        return cls(None, config, tokenizer, folder, settings.get("labels"), flags, distribution_strategy)

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        validation_split: float = 0.0,
        validation_data: tuple[Any, Any] | None = None,
        epochs: float = 3.0,
        batch_size: int = 32,
        learning_rate: float = 5e-5,
        warmup_proportion: float = 0.1,
        seed: int = 12345,
        keep_best: bool = False,
        early_stopping_patience: int = 0,
        evaluate_every: str = "epoch",
        group_by_length: bool | None = None,
        bias_correction: bool = False,
        **training: Any,
    ) -> dict[str, float]:
        """Trains, with the loop and the defaults of `run_classifier.py`.

        Called again in the same folder with the same data and settings, it goes on where it was interrupted.

        Args:
          x: the examples; see the class. Or a `tf.data.Dataset` of pairs (example, label), if `y` is None.
          y: their labels.
          validation_split: the share of the examples to evaluate on; they are drawn by the seed, and not trained on.
          validation_data: examples and labels to evaluate on, in place of a share of `x`.
          epochs: how often each example is seen.
          batch_size: examples in a step.
          learning_rate: the peak.
          warmup_proportion: the share of the steps in which the learning rate rises.
          seed: of the output layer, the order of the data, dropout, and the validation split.
          keep_best: use the weights with the best score on the validation data, not the last ones.
          early_stopping_patience: evaluations without a better score after which training stops; 0 for never.
          evaluate_every: when the validation data are looked at: "epoch", "end", or a number of steps.
          group_by_length: see `bert_tf.finetuning.run.FinetuningRun`.
          bias_correction: see `bert_tf.optimization.OptimizerConfig`.
          training: further fields of `bert_tf.training.contract.TrainingConfig`.

        Returns:
          The scores on the validation data, named as in eval_results.txt; nothing if there are no such data.

        Raises:
          InputError: if the data can't be used, or the folder holds a run with other data or settings.
        """
        train = self._table(*rows.with_labels(x, y, "x"))
        dev = [] if validation_data is None else self._table(*rows.with_labels(*validation_data, "validation_data"))
        if validation_split and not dev:
            train, dev = _split(train, validation_split, seed)
        if (keep_best or early_stopping_patience) and not dev:
            raise InputError("fit(): keep_best and early_stopping_patience need validation data, but there are none.")
        self._flags |= self._learned_settings(train)
        folder = os.path.join(self.output_dir, DATA_FOLDER)
        self._write_once(folder, "train", train)
        if dev:
            self._write_once(folder, "dev", dev)
        optimizer = OptimizerConfig(learning_rate, num_train_steps=1, bias_correction=bias_correction)
        training_config = TrainingConfig(
            self.output_dir, optimizer, batch_size, seed=seed, dtype=self._flags["dtype"], **training
        )
        config = WorkflowConfig(
            do_train=True,
            do_eval=bool(dev),
            do_predict=False,
            candidates=[Hyperparameters(batch_size, learning_rate, epochs, seed)],
            warmup_proportion=warmup_proportion,
            selection=SelectionConfig(evaluate_every, early_stopping_patience, keep_best),
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
        task, examples = self._read("dev", self._table(*rows.with_labels(x, y, "x")))
        outputs, features = self._outputs(task, examples, batch_size)
        return task.scores(outputs, features)

    def history(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl: what was measured during training, and when."""
        return log.read_metrics(self.output_dir)

    def save(self, folder: str) -> None:
        """Writes the trained model into a new folder, whole or not at all; `load` and all programs read it.

        Raises:
          InputError: if nothing was trained yet, or the folder isn't new.
        """
        trained = self._check_trained()
        if files.exists(folder) and (not files.is_folder(folder) or files.list_folder(folder)):
            raise InputError(f"save(): {folder} is there already; name a new folder.")
        source = checkpoints.open_checkpoint(trained, "save()")
        weights = [name for name in source.shapes if not re.fullmatch(TRAINING_STATE, name)]
        names = (run_directory.CONFIG_FILE, run_directory.VOCAB_FILE, run_directory.RUN_FILE, run_directory.LABELS_FILE)
        with files.replacing_folder(folder) as new:
            for name in names:
                files.copy(os.path.join(self.output_dir, name), os.path.join(new, name))
            tensors = {name: source.read(name) for name in (*weights, "global_step")}
            saver.CheckpointSaver(new, keep_checkpoint_max=1).save(int(tensors["global_step"]), tensors)

    def export(self, folder: str, **options: Any) -> None:
        """Exports the trained model as a SavedModel that takes raw texts; see `bert_tf.export.export_run`.

        Args:
          folder: a new one.
          options: fields of `bert_tf.export.ExportConfig`.
        """
        self._check_trained()
        export_run(self.output_dir, folder, ExportConfig(**options))

    # What a kind of estimator brings.

    @classmethod
    def _checked(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of this class, under the names of their flags."""
        if settings:
            raise TypeError(f"{cls.__name__} has no setting {next(iter(settings))!r}.")
        return {}

    @abc.abstractmethod
    def _table(self, examples: Sequence[Any], labels: Sequence[Any] | None) -> list[dict[str, Any]]:
        """The rows that the task reads."""

    def _learned_settings(self, table: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What the training data decide, under the names of flags."""
        return {}

    def _data_config(self, folder: str) -> DataConfig:
        return DataConfig(self._TASK, folder)

    # What is the same for all.

    def _task(self, folder: str, do_train: bool) -> ReportingTask:
        return self._data_config(folder).build_task(self.output_dir, do_train)

    def _run(self, task: ReportingTask, config: TrainingConfig, group_by_length: bool | None = None) -> FinetuningRun:
        return FinetuningRun(
            task,
            self.config,
            self.tokenizer,
            self._flags["max_seq_length"],
            config,
            self._distribution,
            init_checkpoint=self._init_checkpoint,
            group_by_length=group_by_length,
        )

    def _write(self, path: str, table: Sequence[Mapping[str, Any]]) -> None:
        tables.write_table(path, table)

    def _write_once(self, folder: str, split: str, table: Sequence[Mapping[str, Any]]) -> None:
        """Writes a split, unless a run that has begun would go on with other data than it had."""
        path = os.path.join(folder, split + self._SUFFIX)
        files.make_folder(folder)
        if saver.latest_checkpoint(self.output_dir) and files.exists(path):
            with tempfile.TemporaryDirectory() as other:
                new = os.path.join(other, split + self._SUFFIX)
                self._write(new, table)
                if files.read_text(new, "fit()") != files.read_text(path, "fit()"):
                    raise InputError(
                        f"fit(): {self.output_dir} holds a run that was trained on other data ({path}). Use another "
                        "output_dir; to go on from its weights, make a new estimator with from_pretrained()."
                    )
        self._write(path, table)

    @contextlib.contextmanager
    def _written(self, split: str, table: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        with tempfile.TemporaryDirectory() as folder:
            self._write(os.path.join(folder, split + self._SUFFIX), table)
            yield folder

    def _read(self, split: str, table: Sequence[Mapping[str, Any]]) -> tuple[ReportingTask, list[Any]]:
        """The task of a finished run, and the examples that it makes of a table."""
        self._check_trained()
        if not table:
            raise InputError("x has no examples.")
        with self._written(split, table) as folder:
            task = self._task(folder, do_train=False)
            return task, task.examples(split)

    def _outputs(
        self, task: ReportingTask, examples: Sequence[Any], batch_size: int
    ) -> tuple[ModelOutputs, FeatureSet]:
        features = task.featurize(examples, self.tokenizer, self._flags["max_seq_length"])
        return self._model_of(task).predict(features, batch_size, shown=False), features

    def _check_trained(self) -> str:
        """The checkpoint that the run is judged with.

        Raises:
          InputError: if there is none yet.
        """
        checkpoint = saver.latest_checkpoint(run_directory.judged_folder(self.output_dir))
        if checkpoint is None:
            raise InputError(f"{type(self).__name__}: there is no trained model yet; call fit() or load() first.")
        return checkpoint

    def _model_of(self, task: ReportingTask) -> FinetuningRun:
        """A run with the trained weights; built again only if the task has other classes than the last one."""
        if self._trained is None or task.labels != self._trained.task.labels:
            config = TrainingConfig(self.output_dir, OptimizerConfig(1.0, 1), 1, dtype=self._flags["dtype"])
            self._trained = self._run(task, config)
            self._trained.restore()
        return self._trained


def _split(table: list[dict[str, Any]], share: float, seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Draws a share of the rows; both parts keep the order of the rows."""
    count = math.ceil(len(table) * share)
    if not 0 < share < 1 or count == len(table):
        raise InputError(f"validation_split is {share} of {len(table)} examples; both parts need at least one.")
    drawn = set(random.Random(seed).sample(range(len(table)), count))
    return (
        [row for number, row in enumerate(table) if number not in drawn],
        [row for number, row in enumerate(table) if number in drawn],
    )
