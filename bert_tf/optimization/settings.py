"""The settings of the optimizers and of the learning rate's schedule."""

import dataclasses
import math
import numbers

from bert_tf.runtime.files import InputError

OPTIMIZERS = ("adamw", "lamb")
CLIPPINGS = ("global", "per_replica")


@dataclasses.dataclass(frozen=True)
class SecondSchedule:
    """A schedule that begins anew at some step, as in the second phase of LAMB's pre-training (You et al., 2020).

    Attributes:
      start: the first step.
      learning_rate: the peak learning rate.
      num_warmup_steps: the number of steps over which the learning rate rises linearly from 0.
      reset_moments: whether the running means begin at 0 again, as if training began anew with the weights.
    """

    start: int
    learning_rate: float
    num_warmup_steps: int = 0
    reset_moments: bool = False


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """The arguments of the release's `create_optimizer`, and the constants in it.

    Attributes:
      learning_rate: the peak learning rate, at the end of warm-up.
      num_train_steps: the step at which the learning rate has fallen to 0.
      num_warmup_steps: the number of steps over which the learning rate rises linearly from 0; 0 for no warm-up.
      weight_decay_rate: the rate of the decoupled weight decay; see `optimizers.is_decayed`.
      beta_1: decay rate of the running mean of the gradients.
      beta_2: decay rate of the running mean of the squared gradients.
      epsilon: added to the square root of the mean of the squared gradients.
      clip_norm: the largest global norm of the gradients; larger gradients are scaled down to it.
      bias_correction: correct the running means for their start at 0 (Kingma and Ba, 2015). The release doesn't do
        this. It makes fine-tuning on small data sets more stable (Mosbach et al., 2021). LAMB always does it.
      optimizer: one of `OPTIMIZERS`.
      lr_decay_power: the power of the learning rate's polynomial decay; 1 is linear, 0 is no decay.
      layerwise_lr_decay: the factor of the learning rate from each block to the one below it (ULMFiT's "discriminative
        fine-tuning"; Howard and Ruder, 2018); 1 for the same rate everywhere, as in the release. See
        `optimizers.layer_rates`.
      clip_gradients: what is clipped. "global": the gradient of the loss over the whole batch. "per_replica": each
        replica's gradient of the loss over its own part of the batch; the results are added up. This is the release on
        a TPU, where the part of each core is a batch of its own, and the sum is not divided by the number of cores.
      second_schedule: replaces the schedule from some step on. The first one then falls to 0 at this step.

    Raises:
      InputError: if a number is out of range, or if the optimizer is unknown.
    """

    learning_rate: float
    num_train_steps: int
    num_warmup_steps: int = 0
    weight_decay_rate: float = 0.01
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-6
    clip_norm: float = 1.0
    bias_correction: bool = False
    optimizer: str = "adamw"
    lr_decay_power: float = 1.0
    layerwise_lr_decay: float = 1.0
    clip_gradients: str = "global"
    second_schedule: SecondSchedule | None = None

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise InputError(f"--optimizer is {self.optimizer!r}, but one of {', '.join(OPTIMIZERS)} is expected.")
        if self.clip_gradients not in CLIPPINGS:
            raise InputError(
                f"--clip_gradients is {self.clip_gradients!r}, but one of {', '.join(CLIPPINGS)} is expected."
            )
        if self.num_train_steps < 1:
            raise InputError(f"--num_train_steps is {self.num_train_steps}, but at least 1 is expected.")
        _check_schedule("", self.learning_rate, self.num_warmup_steps)
        if self.second_schedule:
            if not 0 < self.second_schedule.start < self.num_train_steps:
                raise InputError(
                    f"--second_phase_proportion begins the second phase after step {self.second_schedule.start} of "
                    f"{self.num_train_steps}, but with --second_learning_rate both phases must have steps."
                )
            _check_schedule("second_", self.second_schedule.learning_rate, self.second_schedule.num_warmup_steps)
        for name, value, is_good, expected in (
            ("adam_beta_1", self.beta_1, 0 <= self.beta_1 < 1, "a number of at least 0 and below 1"),
            ("adam_beta_2", self.beta_2, 0 <= self.beta_2 < 1, "a number of at least 0 and below 1"),
            ("adam_epsilon", self.epsilon, 0 < self.epsilon < math.inf, "a number above 0"),
            ("weight_decay_rate", self.weight_decay_rate, 0 <= self.weight_decay_rate < math.inf, "at least 0"),
            ("clip_norm", self.clip_norm, self.clip_norm > 0, "a number above 0, or inf for no clipping,"),
            ("layerwise_lr_decay", self.layerwise_lr_decay, 0 < self.layerwise_lr_decay <= 1, "above 0, up to 1,"),
            ("lr_decay_power", self.lr_decay_power, 0 <= self.lr_decay_power < math.inf, "at least 0"),
        ):
            if not is_good:
                raise InputError(f"--{name} is {value}, but {expected} is expected.")


def _check_schedule(prefix: str, peak: float, num_warmup_steps: int) -> None:
    if num_warmup_steps < 0:
        raise InputError(f"--{prefix}num_warmup_steps is {num_warmup_steps}, but at least 0 is expected.")
    if not (isinstance(peak, numbers.Real) and peak > 0):
        raise InputError(f"--{prefix}learning_rate is {peak}, but a number above 0 is expected.")
