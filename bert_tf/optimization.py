"""The released optimizer (Adam with decoupled weight decay, without bias correction), LAMB, schedule and loss scale.

The code updates plain `tf.Variable`s inside a replica. It works in the same way on one device, on several devices (the
gradients must be summed over the replicas first), and in a step that XLA compiles.
"""

import abc
import dataclasses
import math
import numbers
import re
from collections.abc import Sequence

import keras
import tensorflow as tf

from bert_tf.runtime.files import InputError

# There is no weight decay for variables with one of these words in their names (the list is the release's).
NOT_DECAYED = ("LayerNorm", "layer_norm", "bias")
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
      weight_decay_rate: the rate of the decoupled weight decay; see `NOT_DECAYED`.
      beta_1: decay rate of the running mean of the gradients.
      beta_2: decay rate of the running mean of the squared gradients.
      epsilon: added to the square root of the mean of the squared gradients.
      clip_norm: the largest global norm of the gradients; larger gradients are scaled down to it.
      bias_correction: correct the running means for their start at 0 (Kingma and Ba, 2015). The release doesn't do
        this. It makes fine-tuning on small data sets more stable (Mosbach et al., 2021). LAMB always does it.
      optimizer: one of `OPTIMIZERS`.
      lr_decay_power: the power of the learning rate's polynomial decay; 1 is linear, 0 is no decay.
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
            ("lr_decay_power", self.lr_decay_power, 0 <= self.lr_decay_power < math.inf, "at least 0"),
        ):
            if not is_good:
                raise InputError(f"--{name} is {value}, but {expected} is expected.")


def _check_schedule(prefix: str, peak: float, num_warmup_steps: int) -> None:
    if num_warmup_steps < 0:
        raise InputError(f"--{prefix}num_warmup_steps is {num_warmup_steps}, but at least 0 is expected.")
    if not (isinstance(peak, numbers.Real) and peak > 0):
        raise InputError(f"--{prefix}learning_rate is {peak}, but a number above 0 is expected.")


def learning_rate(config: OptimizerConfig, step: tf.Tensor) -> tf.Tensor:
    """The learning rate of the next update after `step` finished steps, as in the release.

    The rate decays from the peak, in the release linearly; during warm-up it rises linearly instead. The first step of
    warm-up has rate 0. The rate jumps down at the end of warm-up, because the decay begins at step 0.
    """
    step = tf.cast(step, tf.float32)
    second, power = config.second_schedule, config.lr_decay_power
    if second is None:
        return _polynomial(step, config.learning_rate, config.num_warmup_steps, config.num_train_steps, power)
    return tf.where(
        step < second.start,
        _polynomial(step, config.learning_rate, config.num_warmup_steps, second.start, power),
        _polynomial(
            step - second.start,
            second.learning_rate,
            second.num_warmup_steps,
            config.num_train_steps - second.start,
            power,
        ),
    )


def _polynomial(step: tf.Tensor, peak: float, num_warmup_steps: int, num_steps: int, power: float) -> tf.Tensor:
    """Linear warm-up to a peak, and polynomial decay, which reaches 0 at `num_steps`."""
    # TensorFlow's graph optimizer turned the release's division into a product with the reciprocal. Near the end of
    # training, the two differ by more than the last digit of a float32.
    rest = 1.0 - tf.minimum(step, num_steps) * tf.constant(1.0 / num_steps, tf.float32)
    peak = tf.constant(peak, tf.float32)
    decayed = peak * (rest if power == 1 else rest**power)
    if num_warmup_steps == 0:
        return decayed
    return tf.where(step < num_warmup_steps, peak * (step / num_warmup_steps), decayed)


def is_decayed(path: str) -> bool:
    """Whether the released rule applies weight decay to a variable with this name in the checkpoint."""
    return not any(re.search(pattern, path) for pattern in NOT_DECAYED)


class Optimizer(abc.ABC):
    """The common part of both optimizers: slots, clipping, schedule, and the choice of the variables with weight decay.

    Variables without a gradient, such as the pooler in SQuAD, have no weight decay and no slots. They must not be in
    `variables`.

    Args:
      config: the settings.
      variables: the trained variables. Each gets two slots: `<path>/<slot_prefix>_m` and `<path>/<slot_prefix>_v`.

    Raises:
      ValueError: if two variables have the same path.
    """

    slot_prefix: str  # of the slots' names in checkpoints

    def __init__(self, config: OptimizerConfig, variables: Sequence[keras.Variable]) -> None:
        paths = [variable.path for variable in variables]
        if len(set(paths)) != len(paths):
            raise ValueError(f"several variables have the same name: {sorted(p for p in paths if paths.count(p) > 1)}")
        self.config = config
        self.variables = list(variables)
        self.decayed = [is_decayed(path) for path in paths]
        # Finished steps, and how many of them don't count as updates of the means: those that have changed no weights,
        # and all before the means were reset.
        self.global_step, self.skipped_steps = (
            tf.Variable(0, trainable=False, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
            for _ in range(2)
        )
        self.means = [self._slot(variable) for variable in variables]
        self.squared_means = [self._slot(variable) for variable in variables]

    @staticmethod
    def _slot(variable: keras.Variable) -> tf.Variable:
        return tf.Variable(tf.zeros(variable.shape, tf.float32), trainable=False)

    def state(self) -> dict[str, tf.Variable]:
        """The optimizer's variables by their names in checkpoints; for AdamWeightDecay these are the released names."""
        named = {"global_step": self.global_step}
        for variable, mean, squared_mean in zip(self.variables, self.means, self.squared_means, strict=True):
            named[f"{variable.path}/{self.slot_prefix}_m"] = mean
            named[f"{variable.path}/{self.slot_prefix}_v"] = squared_mean
        return named

    def begin_phase(self, step: int) -> None:
        """Resets the running means if a second schedule that asks for this begins after `step` finished steps."""
        second = self.config.second_schedule
        if second and second.reset_moments and step == second.start:
            for slot in (*self.means, *self.squared_means):
                slot.assign(tf.zeros(slot.shape))
            self.skipped_steps.assign(step)

    def apply(self, gradients: Sequence[tf.Tensor], norm: tf.Tensor | None) -> tf.Tensor:
        """Clips the gradients and updates the variables. Call it in a replica.

        Args:
          gradients: a dense gradient for each variable, summed over the replicas.
          norm: the global norm of the gradients; None if they have been clipped already.

        Returns:
          The learning rate of this update.
        """
        step = tf.identity(self.global_step)
        rate = learning_rate(self.config, step)
        # The result is that of tf.clip_by_global_norm, but the gradients are not multiplied if no clipping is needed.
        if norm is not None:
            gradients = tf.cond(
                norm > self.config.clip_norm,
                lambda: [gradient * (self.config.clip_norm / norm) for gradient in gradients],
                lambda: [tf.identity(gradient) for gradient in gradients],
            )
        count = tf.cast(step + 1 - tf.identity(self.skipped_steps), tf.float32)
        for update in zip(self.variables, self.means, self.squared_means, gradients, self.decayed, strict=True):
            self._update(*update, rate=rate, count=count)
        return rate

    @abc.abstractmethod
    def _update(
        self,
        variable: keras.Variable,
        mean: tf.Variable,
        squared_mean: tf.Variable,
        gradient: tf.Tensor,
        decayed: bool,
        rate: tf.Tensor,
        count: tf.Tensor,
    ) -> None:
        """Updates one variable and its slots; `count` is the number of updates since the means were 0,
        including this one."""


class AdamWeightDecay(Optimizer):
    """The release's `AdamWeightDecayOptimizer`: rate * (m / (sqrt(v) + epsilon) + decay * w) is subtracted from w."""

    slot_prefix = "adam"

    def _update(self, variable, mean, squared_mean, gradient, decayed, rate, count) -> None:  # noqa: ANN001
        config = self.config
        # First the weight decay by itself, then the rest with TensorFlow's fused Adam. If the powers of beta are 0, it
        # does no bias correction.
        if decayed and config.weight_decay_rate:
            decayed_value = variable.value * (1.0 - rate * config.weight_decay_rate)
            tf.raw_ops.AssignVariableOp(resource=variable.value.handle, value=decayed_value)
        power_1 = config.beta_1**count if config.bias_correction else tf.constant(0.0)
        power_2 = config.beta_2**count if config.bias_correction else tf.constant(0.0)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.value.handle,
            m=mean.handle,
            v=squared_mean.handle,
            beta1_power=power_1,
            beta2_power=power_2,
            lr=rate,
            beta1=config.beta_1,
            beta2=config.beta_2,
            epsilon=config.epsilon
            * tf.sqrt(1.0 - power_2),  # as in the paper, where epsilon is added to the corrected root
            grad=gradient,
        )


class Lamb(Optimizer):
    """LAMB (You et al., 2020): Adam with a step that is scaled to the norm of each variable.

    It is meant for batches of tens of thousands of examples. The step is not scaled for variables without weight decay,
    which are biases and the variables of layer normalisation.
    """

    slot_prefix = "lamb"

    def _update(self, variable, mean, squared_mean, gradient, decayed, rate, count) -> None:  # noqa: ANN001
        config = self.config
        value = variable.value.read_value()
        next_mean = config.beta_1 * mean.read_value() + (1.0 - config.beta_1) * gradient
        next_squared = config.beta_2 * squared_mean.read_value() + (1.0 - config.beta_2) * tf.square(gradient)
        corrected = next_mean / (1.0 - config.beta_1**count)
        step = corrected / (tf.sqrt(next_squared / (1.0 - config.beta_2**count)) + config.epsilon)
        if decayed:
            step += config.weight_decay_rate * value
            norm, step_norm = tf.norm(value), tf.norm(step)
            rate *= tf.where((norm > 0) & (step_norm > 0), norm / step_norm, 1.0)
        tf.raw_ops.AssignVariableOp(resource=variable.value.handle, value=value - rate * step)
        tf.raw_ops.AssignVariableOp(resource=mean.handle, value=next_mean)
        tf.raw_ops.AssignVariableOp(resource=squared_mean.handle, value=next_squared)


class LossScale:
    """Dynamic loss scale for float16: halved after a gradient overflow, doubled after many steps without one.

    Args:
      enabled: False for the constant scale 1.
    """

    _GROWTH_STEPS = 2000

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        options = {"trainable": False, "aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA}
        self.scale = tf.Variable(2.0**15 if enabled else 1.0, **options)
        self.good_steps = tf.Variable(0, dtype=tf.int64, **options)

    def state(self) -> dict[str, tf.Variable]:
        """The variables by their names in checkpoints; empty if the scale is constant."""
        return {"loss_scale/scale": self.scale, "loss_scale/good_steps": self.good_steps} if self.enabled else {}

    def can_shrink(self) -> tf.Tensor:
        """Whether the scale can be reduced, after which the gradients may be finite."""
        return self.scale.value() > 1.0

    def update(self, finite: tf.Tensor) -> None:
        """Updates the scale after a step. Call it in a replica.

        Args:
          finite: whether the loss and the gradients of the step were finite.
        """
        if not self.enabled:
            return
        good = tf.where(finite, self.good_steps.value() + 1, tf.constant(0, tf.int64))
        grown = good >= self._GROWTH_STEPS
        factor = tf.where(finite, tf.where(grown, 2.0, 1.0), 0.5)
        scale = tf.clip_by_value(self.scale.value() * factor, 1.0, 2.0**24)
        tf.raw_ops.AssignVariableOp(resource=self.scale.handle, value=scale)
        good = tf.where(grown, tf.constant(0, tf.int64), good)
        tf.raw_ops.AssignVariableOp(resource=self.good_steps.handle, value=good)


# What --optimizer may name. A new optimizer is a class above and a line here.
OPTIMIZERS: dict[str, type[Optimizer]] = {"adamw": AdamWeightDecay, "lamb": Lamb}

# The names of the optimizers' slots in a checkpoint, as a pattern with the variable, the slot prefix, and m or v.
SLOTS = rf"(.*)/({'|'.join(kind.slot_prefix for kind in OPTIMIZERS.values())})_([mv])"
# Those of the variables that a checkpoint has only with some settings, such as --dtype=float16.
OPTIONAL_STATE = r"loss_scale/.*|skipped_steps|nonfinite_steps"
# Those of all variables that training adds to a model's weights.
TRAINING_STATE = rf"(?:global_step|{SLOTS}|{OPTIONAL_STATE})"


def build_optimizer(config: OptimizerConfig, variables: Sequence[keras.Variable]) -> Optimizer:
    """Makes the optimizer that `config.optimizer` names."""
    return OPTIMIZERS[config.optimizer](config, variables)
