"""The training settings that all tasks share."""

import enum
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from bert_tf.distribution import devices
from bert_tf.optimization.settings import OptimizerConfig
from bert_tf.runtime.errors import InputError
from bert_tf.runtime.lazy_imports import check_installed
from bert_tf.runtime.settings import MODEL, PROGRAMS, WEIGHTS, WEIGHTS_IF_SET, WORKERS, FiniteFromZero, Settings, about

if TYPE_CHECKING:
    import tensorflow as tf

    from bert_tf.encoder import BertEncoder


class Shapes(enum.Enum):
    """The shapes of a run's batches, and how they are compiled.

    ONE: all batches have one shape, for which XLA compiles the step or its blocks.
    FEW: the step is traced for each shape. On a CPU, graphs with fixed shapes are faster (see `model.cpu_kernels`), but
      take seconds to trace, so there are few shapes.
    ANY: one graph is used for all shapes.
    """

    ONE = 1
    FEW = 2
    ANY = 3


class Compilation(enum.Enum):
    """The functions that XLA compiles in training. The values are recorded in run.json.

    NONE: nothing. On a CPU, some small functions are compiled in any case (see `model.cpu_kernels`).
    BLOCKS: each block of the encoder. Only runs of earlier versions have this value.
    STEP: the gradients of a replica, and the update of the weights.
    """

    NONE = False
    BLOCKS = True
    STEP = "step"


class SecondBatch(Settings, frozen=True):
    """The batch size from some step on, if it changes during training.

    Attributes:
      start: the first step with these batches.
      train_batch_size: see `TrainingConfig`.
      gradient_accumulation_steps: see `TrainingConfig`.
    """

    start: int
    train_batch_size: int
    gradient_accumulation_steps: int


class TrainingConfig(Settings, frozen=True):
    """The training settings that all tasks share.

    Attributes:
      output_dir: the run directory, for checkpoints, logs and summaries.
      optimizer: the optimizer's settings, with the learning-rate schedule and the number of steps.
      second_batch: the batch size of the second phase; None if it stays the same.
      gradient_sum_dtype: with bfloat16, each gradient is rounded before the sum, and the sum is rounded.
      max_nonfinite_steps: the next non-finite step after this number ends the run.
      peak_tflops: used to report the utilisation.

    Raises:
      InputError: if a value is out of bounds, or settings contradict each other.
    """

    output_dir: Annotated[
        str, about("Directory for checkpoints, logs and results.", group="Model and directories"), PROGRAMS
    ] = ""
    optimizer: Annotated[OptimizerConfig, WEIGHTS] = OptimizerConfig()
    train_batch_size: Annotated[
        int, about("Examples in a training step, on all devices.", ge=1, group="Training"), WEIGHTS
    ] = 32
    save_checkpoints_steps: Annotated[int, about("Number of steps between checkpoints.", ge=1), WORKERS] = 1000
    keep_checkpoint_max: Annotated[int, about("Number of checkpoints to keep; 0 for all.", ge=0)] = 5
    iterations_per_loop: Annotated[
        int, about("Largest number of steps that a TPU runs in one call.", ge=1), WORKERS
    ] = 1000
    log_steps: Annotated[int, about("Steps between records in metrics.jsonl and TensorBoard.", ge=1), WORKERS] = 100
    report_to: Annotated[
        str, about("More loggers: mlflow, wandb or both.", pattern="^(mlflow|wandb|mlflow,wandb|wandb,mlflow)?$")
    ] = ""
    seed: Annotated[
        int, about("Seed of initial values, data order and dropout.", ge=0, flag="random_seed"), WEIGHTS
    ] = 12345
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16", "mixed_bfloat16", "mixed_float16"],
        about("Type of matrix multiplications. mixed_bfloat16 is bfloat16; mixed_float16 is float16."),
        MODEL,
        WEIGHTS,
    ] = "float32"
    gradient_sum_dtype: Annotated[
        Literal["float32", "bfloat16"], about("Type in which replicas sum their gradients."), WEIGHTS_IF_SET
    ] = "float32"
    jit_compile: Annotated[
        Literal["auto", "yes", "no"],
        about("Compile training steps with XLA. auto: on GPUs."),
        WEIGHTS,
    ] = "auto"
    gradient_accumulation_steps: Annotated[
        int, about("Split each batch into this many micro-batches, computed one after another.", ge=1), WEIGHTS
    ] = 1
    pad_to_max_seq_length: Annotated[
        bool, about("Pad each sequence to --max_seq_length, as the original does; slower."), WEIGHTS_IF_SET
    ] = False
    gradient_checkpointing: Annotated[bool, about("Recompute activations in the backward pass to save memory.")] = False
    freeze_layers: Annotated[
        int, about("Freeze the embeddings and this number of the lowest layers; -1 for none.", ge=-1), WEIGHTS_IF_SET
    ] = -1
    freeze_encoder: Annotated[bool, about("Freeze the complete encoder, including its pooler."), WEIGHTS_IF_SET] = False
    max_nonfinite_steps: Annotated[
        int, about("Number of steps with a non-finite loss or gradient to skip.", ge=0), WORKERS
    ] = 0
    peak_tflops: Annotated[
        FiniteFromZero, about("Peak TFLOP/s of all devices; 0 for the known peak of the GPUs, if any.")
    ] = 0.0
    profile_steps: Annotated[
        str,
        about("Steps to trace for TensorBoard: 100:105 traces 5 steps after step 100.", pattern="^([0-9]+:[0-9]+)?$"),
        WORKERS,
    ] = ""
    second_batch: Annotated[SecondBatch | None, WEIGHTS] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        msgspec.structs.force_setattr(self, "dtype", self.dtype.removeprefix("mixed_"))
        if self.traced_steps and self.traced_steps[0] >= self.traced_steps[1]:
            raise InputError(f"--profile_steps is {self.profile_steps}. Use a larger second number.", "--profile_steps")
        for name in filter(None, self.report_to.split(",")):
            check_installed(name, "--report_to")
        if self.freeze_encoder and self.freeze_layers >= 0:
            raise InputError("--freeze_layers: --freeze_encoder is also given. Omit one of them.", "--freeze_layers")

    @property
    def traced_steps(self) -> tuple[int, ...]:
        """The first step to trace and the step after the last one; empty without a trace."""
        return tuple(map(int, self.profile_steps.split(":"))) if self.profile_steps else ()

    @property
    def num_train_steps(self) -> int:
        """The step at which training ends."""
        return self.optimizer.num_train_steps

    def check_batch(self, strategy: "tf.distribute.Strategy | None" = None, name: str = "train_batch_size") -> None:
        """Checks that a batch can be split evenly into replicas and micro-batches.

        Args:
          strategy: the strategy; None if the number of replicas is not known yet.
          name: the flag that gave the batch size, for messages.

        Raises:
          InputError: if the batch can't be split evenly.
        """
        for prefix, batch in (("", self), ("second_", self.second_batch)):
            if batch is None:
                continue
            flag_name, size = f"--{prefix}{name}", batch.train_batch_size
            if strategy:
                size = devices.per_replica_batch_size(size, strategy, flag_name)
            micro_batches = batch.gradient_accumulation_steps
            if micro_batches < 1 or size % micro_batches:
                raise InputError(
                    f"{flag_name}={batch.train_batch_size}: a replica's {size} examples are not a multiple of "
                    f"--{prefix}gradient_accumulation_steps={micro_batches}. Change one of them."
                )

    def freeze(self, encoder: "BertEncoder") -> None:
        """Freezes the parts of an encoder selected by `freeze_layers` and `freeze_encoder`.

        Raises:
          InputError: if the encoder has fewer than `freeze_layers` layers.
        """
        if self.freeze_encoder:
            encoder.trainable = False
        elif self.freeze_layers >= 0:
            encoder.freeze(self.freeze_layers)

    def batch_at(self, step: int) -> "TrainingConfig | SecondBatch":
        """Returns an object with the batch size and the number of micro-batches after `step` finished steps."""
        second = self.second_batch
        return second if second and step >= second.start else self

    def resume_settings(self, strategy: "tf.distribute.Strategy") -> dict[str, Any]:
        """Returns the settings that influence the weights. A resumed run must have the same settings."""
        clips_own = self.optimizer.clip_gradients == "per_replica"
        rounds_sums = self.gradient_sum_dtype != "float32"
        replicas = {"replicas": strategy.num_replicas_in_sync} if clips_own or rounds_sums else {}
        changed = self.values_of(WEIGHTS_IF_SET, only_changed=True).items()
        in_order = sorted(changed, key=lambda item: item[0] == "pad_to_max_seq_length")  # as in older runs
        return replicas | dict(in_order) | self.values_of(WEIGHTS)
