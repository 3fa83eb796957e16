"""The settings of the optimizers and the learning-rate schedule."""

from typing import Annotated, Literal, get_args

from bert_tf.runtime.errors import InputError
from bert_tf.runtime.messages import say_once
from bert_tf.runtime.settings import FiniteAboveZero, FiniteFromZero, Settings, about

# Training with a higher learning rate diverges.
HIGHEST_LEARNING_RATE = 0.02
OptimizerName = Literal["adamw", "lamb"]
OPTIMIZERS: tuple[OptimizerName, ...] = get_args(OptimizerName)


def warn_of_rate(name: str, rate: float) -> None:
    """Prints a warning if the learning rate that the flag `name` sets is too high."""
    if rate > HIGHEST_LEARNING_RATE:
        say_once(f"Warning: --{name}={rate}: training will probably diverge. For BERT, use 1e-5 to 1e-3.")


class SecondSchedule(Settings, frozen=True):
    """A schedule that begins at a later step, such as LAMB's second pre-training phase (You et al., 2020).

    Attributes:
      start: the first step.
      learning_rate: the peak learning rate.
      num_warmup_steps: the number of steps during which the learning rate rises linearly from 0.
      reset_moments: whether to reset the first and second moments to 0.
    """

    start: int
    learning_rate: Annotated[FiniteAboveZero, about(flag="second_learning_rate")]
    num_warmup_steps: Annotated[int, about(ge=0, flag="second_num_warmup_steps")] = 0
    reset_moments: bool = False


class OptimizerConfig(Settings, frozen=True):
    """The arguments and constants of the original `create_optimizer`.

    Attributes:
      num_train_steps: the step at which the learning rate reaches 0.
      num_warmup_steps: the number of steps during which the learning rate rises linearly from 0; 0 for no warm-up.
      weight_decay_rate: see `optimizers.is_decayed`.
      bias_correction: corrects the bias of moments that start at 0 (Kingma and Ba, 2015). This makes fine-tuning on
        small data sets more stable (Mosbach et al., 2021). The original code has no correction; LAMB always has one.
      layerwise_lr_decay: "discriminative fine-tuning" of ULMFiT (Howard and Ruder, 2018); see `optimizers.layer_rates`.
      clip_gradients: with "per_replica", each replica clips the gradient of the loss over its part of the batch. The
        clipped gradients are summed, but not divided by their number, as in the original code on a TPU.
      second_schedule: replaces the schedule from its `start` step on. The first schedule then reaches 0 at this step.

    Raises:
      InputError: if a value is out of bounds, or if the second schedule begins at the start or the end of training.
    """

    learning_rate: Annotated[FiniteAboveZero, about("Peak learning rate.", group="Training")] = 5e-5
    num_train_steps: Annotated[int, about(ge=1)] = 1
    num_warmup_steps: Annotated[int, about(ge=0)] = 0
    weight_decay_rate: Annotated[FiniteFromZero, about("Rate of the decoupled weight decay.")] = 0.01
    beta_1: Annotated[float, about("Decay rate of the first moments.", ge=0, lt=1, flag="adam_beta_1")] = 0.9
    beta_2: Annotated[float, about("Decay rate of the second moments.", ge=0, lt=1, flag="adam_beta_2")] = 0.999
    epsilon: Annotated[
        FiniteAboveZero, about("Adam epsilon, added to the square root of the second moments.", flag="adam_epsilon")
    ] = 1e-6
    clip_norm: Annotated[float, about("Largest global norm of the gradients; inf for no clipping.", gt=0)] = 1.0
    bias_correction: Annotated[bool, about("Correct the bias of Adam's moments.")] = False
    optimizer: Annotated[OptimizerName, about("The original AdamW, or LAMB.")] = "adamw"
    lr_decay_power: Annotated[FiniteFromZero, about("Power of the learning-rate decay; 1: linear, 0: none.")] = 1.0
    layerwise_lr_decay: Annotated[float, about("Learning-rate factor for each layer below the top.", gt=0, le=1)] = 1.0
    clip_gradients: Annotated[
        Literal["global", "per_replica"], about("Scope of gradient clipping: the batch or each replica.")
    ] = "global"
    second_schedule: SecondSchedule | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        second = self.second_schedule
        warn_of_rate("learning_rate", self.learning_rate)
        if second:
            warn_of_rate("second_learning_rate", second.learning_rate)
        if second and not 0 < second.start < self.num_train_steps:
            raise InputError(
                f"the second phase begins after step {second.start} of {self.num_train_steps}. With "
                "--second_learning_rate, use a proportion that leaves at least one step for each phase.",
                "--second_phase_proportion",
            )

    @property
    def never_warm(self) -> bool:
        """Whether the warm-up is longer than the training, so the learning rate never reaches its peak."""
        return self.num_warmup_steps >= self.num_train_steps > 0
