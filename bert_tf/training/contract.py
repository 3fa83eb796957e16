"""What the training loop and those who use it agree on: model, settings, data, evaluation."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Protocol

import keras
import tensorflow as tf

from bert_tf.optimization import OptimizerConfig
from bert_tf.runtime import distribution
from bert_tf.runtime.files import InputError

Batch = Mapping[str, tf.Tensor]
# name -> (sum over examples, sum of their weights); the metric is their quotient, over any number of batches.
MetricSums = Mapping[str, tuple[tf.Tensor, tf.Tensor]]

DTYPES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


class TrainableModel(Protocol):
    """What the loop needs of a model.

    Losses are divided by totals over the *global* batch, so that it doesn't matter how the batch was split: into
    replicas, into micro-batches, or not at all.

    Attributes:
      variables: all of them, by their released paths.
      trained_variables: those that the loss reaches.
      metric_names: what `loss` reports.
    """

    variables: list[keras.Variable]
    trained_variables: list[keras.Variable]
    metric_names: tuple[str, ...]

    def flops(self, batch: Batch) -> tf.Tensor:
        """Floating-point operations of a training step on a part of a batch."""

    def totals(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Scalars by which losses are divided, for a part of a batch; they are summed over the parts."""

    def loss(
        self, batch: Batch, totals: Mapping[str, tf.Tensor], seed: tf.Tensor | None
    ) -> tuple[tf.Tensor, MetricSums]:
        """This part's share of the loss (shares are summed), and its metrics; dropout if there is a seed."""


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How a model is trained, whatever the task.

    Attributes:
      output_dir: checkpoints, logs and summaries go there.
      optimizer: rates, schedule and clipping; holds the number of steps.
      train_batch_size: examples in a step, over all replicas and micro-batches.
      save_checkpoints_steps: how often a checkpoint is saved; the last step always is.
      keep_checkpoint_max: how many checkpoints are kept; 0 for all.
      iterations_per_loop: steps between two looks at the device: on TPU they run in one go.
      log_steps: how often metrics are written.
      seed: of initial values, data order and dropout.
      dtype: "float32", "bfloat16" or "float16": what products are computed in.
      jit_compile: compile the step with XLA.
      gradient_accumulation_steps: micro-batches that each replica's part of a batch is split into.
      recompute_gradients: see `BertEncoder`.
      peak_tflops: what all devices together can do at best, in 10^12 operations a second, to report how much of it is
        used; 0 if it isn't known.

    Raises:
      InputError: if a number is out of range, or there is no such dtype.
    """

    output_dir: str
    optimizer: OptimizerConfig
    train_batch_size: int
    save_checkpoints_steps: int = 1000
    keep_checkpoint_max: int = 5
    iterations_per_loop: int = 1000
    log_steps: int = 100
    seed: int = 12345
    dtype: str = "float32"
    jit_compile: bool = False
    gradient_accumulation_steps: int = 1
    recompute_gradients: bool = False
    peak_tflops: float = 0.0

    def __post_init__(self) -> None:
        smallest = {
            "train_batch_size": 1,
            "save_checkpoints_steps": 1,
            "iterations_per_loop": 1,
            "log_steps": 1,
            "gradient_accumulation_steps": 1,
            "keep_checkpoint_max": 0,
        }
        for name, least in smallest.items():
            if getattr(self, name) < least:
                raise InputError(f"--{name} is {getattr(self, name)}, but at least {least} is expected.")
        if self.dtype not in DTYPES:
            raise InputError(f"--dtype is {self.dtype!r}, but one of {', '.join(DTYPES)} is expected.")

    @property
    def num_train_steps(self) -> int:
        """The step at which training ends."""
        return self.optimizer.num_train_steps

    def check_batch(self, strategy: tf.distribute.Strategy) -> None:
        """Raises an InputError if a batch can't be split evenly into replicas, and their parts into micro-batches."""
        size = distribution.per_replica_batch_size(self.train_batch_size, strategy, "--train_batch_size")
        if size % self.gradient_accumulation_steps:
            raise InputError(
                f"--train_batch_size={self.train_batch_size} gives each of {strategy.num_replicas_in_sync} replicas "
                f"{size} examples, which is not a multiple of "
                f"--gradient_accumulation_steps={self.gradient_accumulation_steps}."
            )

    def resume_settings(self) -> dict[str, object]:
        """The settings that change the weights, be it by other dropout: a run that resumes must have the same."""
        return {
            **dataclasses.asdict(self.optimizer),
            "train_batch_size": self.train_batch_size,
            "seed": self.seed,
            "dtype": self.dtype,
            "jit_compile": self.jit_compile,
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
        }


@dataclasses.dataclass(frozen=True)
class TrainingData:
    """What the loop reads.

    Attributes:
      from_step: per-pipeline batches without end, from those of a step on.
      boundaries: steps at which the batches change their shape, as between the two phases of pre-training.
      describe: names the data of a step, for messages.
      describe_reading: names what is read for a step, where that may be more than what the step is given.
    """

    from_step: Callable[[int, tf.distribute.InputContext], tf.data.Dataset]
    boundaries: tuple[int, ...] = ()
    describe: Callable[[int], str] = lambda step: "unknown"
    describe_reading: Callable[[int], str] | None = None


@dataclasses.dataclass(frozen=True)
class PeriodicEvaluation:
    """An evaluation while training goes on.

    Attributes:
      evaluate: gets the step and gives named scores.
      every: after how many steps; it also runs at the end.
      should_stop: asked at the start and after each evaluation; True ends training, with a checkpoint.
      table: whether all scores are printed as a table at the end.
    """

    evaluate: Callable[[int], Mapping[str, float]]
    every: int
    should_stop: Callable[[], bool] = lambda: False
    table: bool = True

    def is_due(self, step: int, last_step: int) -> bool:
        """Whether it runs after a step."""
        return step % self.every == 0 or step == last_step
