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
        for name, names in (("optimizer", OPTIMIZERS), ("clip_gradients", CLIPPINGS)):
            _check(name, getattr(self, name), getattr(self, name) in names, f"one of {', '.join(names)}")
        second = self.second_schedule
        if second and not 0 < second.start < self.num_train_steps:
            raise InputError(
                f"--second_phase_proportion begins the second phase after step {second.start} of "
                f"{self.num_train_steps}, but with --second_learning_rate both phases must have steps."
            )
        for prefix, schedule in (("", self), *([("second_", second)] if second else [])):
            rate, warmup = schedule.learning_rate, schedule.num_warmup_steps
            is_number = isinstance(rate, numbers.Real)
            _check(f"{prefix}learning_rate", rate, is_number and rate > 0, "a number above 0")
            _check(f"{prefix}num_warmup_steps", warmup, warmup >= 0, "at least 0")
        _check("num_train_steps", self.num_train_steps, self.num_train_steps >= 1, "at least 1")
        for name, beta in (("adam_beta_1", self.beta_1), ("adam_beta_2", self.beta_2)):
            _check(name, beta, 0 <= beta < 1, "a number of at least 0 and below 1")
        _check("adam_epsilon", self.epsilon, 0 < self.epsilon < math.inf, "a number above 0")
        _check("clip_norm", self.clip_norm, self.clip_norm > 0, "a number above 0, or inf for no clipping,")
        decay = self.layerwise_lr_decay
        _check("layerwise_lr_decay", decay, 0 < decay <= 1, "a number above 0 and at most 1")
        for name in ("weight_decay_rate", "lr_decay_power"):
            _check(name, getattr(self, name), 0 <= getattr(self, name) < math.inf, "a number of at least 0")

    @property
    def never_warm(self) -> bool:
        """Whether the warm-up lasts longer than the training, so that the learning rate never reaches its peak."""
        return self.num_warmup_steps >= self.num_train_steps > 0


def _check(name: str, value: object, is_good: bool, expected: str) -> None:
    if not is_good:
        raise InputError(f"--{name} is {value!r}, but {expected} is expected.")
