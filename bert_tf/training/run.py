"""A training run: its model, its run directory and its devices. Pre-training and fine-tuning add the data."""

import abc
import functools
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from bert_tf.checkpoints import run_directory, run_record
from bert_tf.config import DTYPES, BertConfig
from bert_tf.distribution import hardware, strategies
from bert_tf.model.base_layers import initial_values_from
from bert_tf.runtime import files
from bert_tf.training import resume, worker_checks
from bert_tf.training.evaluation import BatchEvaluator
from bert_tf.training.interface import TrainableModel
from bert_tf.training.settings import Compilation, Shapes, TrainingConfig


class Run(abc.ABC):
    """A training run: its devices, its model and its directory. `loop.train` trains it.

    Devices are initialised by `connect`, or when `strategy` is first used.

    Attributes:
      settings: the settings of the program: a `PretrainingConfig` or a `FinetuningConfig`.
      training_config: the training settings, with the numbers of steps.
      config: the encoder's config.
      vocab_file: the vocabulary; "" if unknown.
      rules: the rules of the tokenizer; None if unknown.
      new_variables: a pattern of the variables that are not restored from `init_checkpoint`; "" if there are none.
      output_weights: the name of the weights that only a fine-tuned model has; "" for pre-training.
      is_short: see `TrainingData`.
      several_hosts: see `strategies.build_strategy`.
      data_counts: numbers of examples, tokens and so on, to record. They are not compared.
    """

    settings: Any
    training_config: TrainingConfig
    config: BertConfig
    vocab_file: str
    rules: Mapping[str, bool] | None
    new_variables = ""
    output_weights = ""
    is_short = False
    several_hosts = False
    data_counts: Mapping[str, Any] = {}

    @functools.cached_property
    def strategy(self) -> tf.distribute.Strategy:
        """The distribution strategy; its first use initialises the devices."""
        return strategies.build_strategy(self.settings.distribution, self.several_hosts)

    def connect(self) -> tf.distribute.Strategy:
        """Initialises the devices and connects the workers. Several workers must connect before TensorFlow is used."""
        return self.strategy

    @property
    def init_checkpoint(self) -> str | None:
        """The model to start from; ignored if the directory has a checkpoint of this run."""
        return self.settings.model.init_checkpoint

    @functools.cached_property
    def compilation(self) -> Compilation:
        """The functions that XLA compiles in training.

        XLA generates different random numbers for dropout, so "auto" keeps the choice of an interrupted run. A run of
        an earlier version that compiled the blocks also resumes in this form with "yes".
        """
        choice, directory = self.training_config.jit_compile, self.training_config.output_dir
        if choice == "no":
            return Compilation.NONE
        recorded = run_record.recorded(directory).get("jit_compile") if files.exists(directory) else None
        if recorded or (recorded is not None and choice == "auto"):
            return Compilation(recorded)
        is_gpu = strategies.devices(self.strategy)["device"] == "GPU"
        return Compilation.STEP if choice == "yes" or is_gpu else Compilation.NONE

    @abc.abstractmethod
    def build_model(self, **options: Any) -> TrainableModel:
        """Returns the model. Called in the strategy's scope. See `BertEncoder` for the options."""

    @functools.cached_property
    def model(self) -> TrainableModel:
        """The model, built on first use, with initial values that depend on the seed."""
        with self.strategy.scope(), initial_values_from(self.training_config.seed):
            return self.build_model(
                use_one_hot_embeddings=hardware.is_tpu(self.strategy),
                gradient_checkpointing=self.training_config.gradient_checkpointing,
                jit_compile=self.compilation is Compilation.BLOCKS,
                dtype=DTYPES[self.training_config.dtype],
            )

    @abc.abstractmethod
    def data_settings(self) -> dict[str, Any]:
        """Returns the data and the settings that influence the weights, except `training_config`."""

    @functools.cached_property
    def _resume_settings(self) -> dict[str, Any]:
        training = self.training_config.resume_settings(self.strategy)
        settings = {**self.data_settings(), **training, "jit_compile": self.compilation.value}
        return run_record.all_settings(self.config, self.vocab_file, settings)

    def check_workers(self, **others: Any) -> None:
        """Checks that all workers have the same settings, data and code, before the model is built.

        If the shapes of the variables differed, building the model would never end. The path of `init_checkpoint` may
        differ between workers. The restored weights are compared later.

        Args:
          **others: further settings to compare.

        Raises:
          WorkersError: if the workers differ; see `worker_checks.require`.
        """
        worker_checks.require(self.strategy, lambda: self._resume_settings | {"init_checkpoint": None} | others)

    @functools.cached_property
    def _settings_to_record(self) -> dict[str, Any]:
        return run_record.compared(
            self.training_config.output_dir,
            self._resume_settings,
            devices=strategies.devices(self.strategy),
            allow_changed_settings=self.settings.allow_changed_settings,
        )

    def check_directory(self) -> None:
        """Compares the settings with those in the run directory, if the run is resumed. See `run_record.compared`.

        Raises:
          InputError: if the directory contains a run with other settings and `allow_changed_settings` is False.
        """
        if strategies.is_chief(self.strategy):
            self._settings_to_record  # noqa: B018 (compares them)

    def record(self) -> None:
        """Writes config, vocabulary and settings to the run directory, on the chief. Raises as `check_directory`."""
        run_record.write(
            self.training_config.output_dir,
            self.config,
            self.vocab_file,
            self.settings.flag_values() | self.settings.flags,
            self._settings_to_record,
            rules=self.rules,
            devices=strategies.devices(self.strategy),
            data_counts=self.data_counts,
        )

    @property
    def shapes(self) -> Shapes:
        """The shapes of the training batches, which depend only on the settings and the devices."""
        if hardware.is_tpu(self.strategy) or self.compilation is not Compilation.NONE:
            return Shapes.ONE
        with self.strategy.scope():
            return Shapes.FEW if hardware.compiles_parts() and not self.is_short else Shapes.ANY

    @functools.cached_property
    def evaluator(self) -> BatchEvaluator:
        """The evaluator, which is compiled once for all evaluations of the run."""
        return BatchEvaluator(self.model, self.strategy)

    def restore(self) -> int:
        """Loads the weights for evaluation and prediction into the model, and returns their global step.

        Loads the first of these weights that exist:

        1. the weights with the best score in the evaluations during training;
        2. the run's newest checkpoint;
        3. `init_checkpoint`.
        """
        directory = run_directory.evaluated_directory(self.training_config.output_dir)
        return resume.restore_for_evaluation(self.model, directory, self.init_checkpoint, self.output_weights)
