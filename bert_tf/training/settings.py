"""The settings of training that are the same for all tasks."""

import dataclasses
from typing import TYPE_CHECKING

from bert_tf.distribution import devices
from bert_tf.optimization.settings import OptimizerConfig
from bert_tf.runtime.errors import InputError, require_choice, require_whole

if TYPE_CHECKING:
    import tensorflow as tf

DTYPES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}
GRADIENT_SUM_DTYPES = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class SecondBatch:
    """The batches from some step on, if they differ from those before.

    Attributes:
      start: the first step with these batches.
      train_batch_size: see `TrainingConfig`.
      gradient_accumulation_steps: see `TrainingConfig`.
    """

    start: int
    train_batch_size: int
    gradient_accumulation_steps: int


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """The settings of training that are the same for all tasks.

    Attributes:
      output_dir: the folder for checkpoints, logs and summaries.
      optimizer: the optimizer's settings, with the learning rate's schedule and the number of steps.
      train_batch_size: number of examples per step, over all replicas and micro-batches.
      save_checkpoints_steps: number of steps between two checkpoints; the last step is always saved.
      keep_checkpoint_max: how many checkpoints are kept; 0 for all.
      iterations_per_loop: largest number of steps between two readings of metrics; a TPU runs them in one loop.
      log_steps: number of steps between two lines of metrics.
      seed: the seed of initial values, data order and dropout.
      dtype: the type of matrix products: "float32", "bfloat16" or "float16".
      gradient_sum_dtype: the type in which the gradients of several replicas are added up: "float32", or "bfloat16" to
        send half of the bytes. Each gradient is then rounded before the sum, and the sum is rounded.
      jit_compile: whether the step is compiled with XLA.
      gradient_accumulation_steps: number of micro-batches per replica and step.
      recompute_gradients: see `BertEncoder`.
      max_nonfinite_steps: how many steps with a loss or a gradient that is not finite are skipped in the whole run; one
        more ends it.
      peak_tflops: peak performance of all devices together, in 10^12 operations per second. It serves to report the
        utilisation; 0 if it isn't known.
      detailed_metrics: log also what `details` measures, and the share of the time that is spent waiting for batches.
      profile_steps: the steps of which a trace is written, from the first number up to before the second one; None for
        no trace.
      second_batch: the size of the batches and their parts from some step on; None if they stay the same.

    Raises:
      InputError: if a number is out of range, or if the dtype is unknown.
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
    gradient_sum_dtype: str = "float32"
    jit_compile: bool = False
    gradient_accumulation_steps: int = 1
    recompute_gradients: bool = False
    max_nonfinite_steps: int = 0
    peak_tflops: float = 0.0
    detailed_metrics: bool = False
    profile_steps: tuple[int, int] | None = None
    second_batch: SecondBatch | None = None

    def __post_init__(self) -> None:
        minimums = {
            "train_batch_size": 1,
            "save_checkpoints_steps": 1,
            "iterations_per_loop": 1,
            "log_steps": 1,
            "gradient_accumulation_steps": 1,
            "keep_checkpoint_max": 0,
            "max_nonfinite_steps": 0,
        }
        for name, minimum in minimums.items():
            require_whole(f"--{name}", getattr(self, name), minimum)
        require_whole("--random_seed", self.seed, 0)
        require_choice("--dtype", self.dtype, DTYPES)
        require_choice("--gradient_sum_dtype", self.gradient_sum_dtype, GRADIENT_SUM_DTYPES)
        if self.profile_steps and not 0 <= self.profile_steps[0] < self.profile_steps[1]:
            first, last = self.profile_steps
            raise InputError(f"--profile_steps is {first}:{last}, but the second number must be larger than the first.")

    @property
    def num_train_steps(self) -> int:
        """The step at which training ends."""
        return self.optimizer.num_train_steps

    def check_batch(self, strategy: "tf.distribute.Strategy") -> None:
        """Checks that a batch can be split evenly into replicas and micro-batches.

        Raises:
          InputError: if it can't.
        """
        for prefix, batch in (("", self), ("second_", self.second_batch)):
            if batch is None:
                continue
            flag_name = f"--{prefix}train_batch_size"
            size = devices.per_replica_batch_size(batch.train_batch_size, strategy, flag_name)
            parts = batch.gradient_accumulation_steps
            if parts < 1 or size % parts:
                raise InputError(
                    f"{flag_name}={batch.train_batch_size} gives each of {strategy.num_replicas_in_sync} replicas "
                    f"{size} examples, which is not a multiple of --{prefix}gradient_accumulation_steps={parts}."
                )

    def batch_at(self, step: int) -> "TrainingConfig | SecondBatch":
        """The `train_batch_size` and the `gradient_accumulation_steps` after `step` finished steps."""
        second = self.second_batch
        return second if second and step >= second.start else self

    def meeting_settings(self) -> dict[str, object]:
        """The settings that say after which steps workers meet, and with what. They change no weight."""
        names = ("save_checkpoints_steps", "iterations_per_loop", "log_steps", "max_nonfinite_steps")
        return {name: getattr(self, name) for name in (*names, "detailed_metrics", "profile_steps")}

    def resume_settings(self, strategy: "tf.distribute.Strategy") -> dict[str, object]:
        """The settings that influence the weights, for example through dropout. A resumed run must have the same."""
        clips_own = self.optimizer.clip_gradients == "per_replica"
        rounds_sums = self.gradient_sum_dtype != "float32"
        return {
            **({"replicas": strategy.num_replicas_in_sync} if clips_own or rounds_sums else {}),
            **({"gradient_sum_dtype": self.gradient_sum_dtype} if rounds_sums else {}),
            **dataclasses.asdict(self.optimizer),
            "train_batch_size": self.train_batch_size,
            "seed": self.seed,
            "dtype": self.dtype,
            "jit_compile": self.jit_compile,
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
            "second_batch": self.second_batch and dataclasses.asdict(self.second_batch),
        }
