"""The released optimizer (Adam with decoupled weight decay and without bias correction), LAMB, schedule, loss scale.

Everything works on plain `tf.Variable`s inside a replica, so it runs the same on one device, on several (after the
gradients are summed over the replicas), and compiled by XLA.
"""

import abc
import dataclasses
import re
from collections.abc import Sequence

import keras
import tensorflow as tf

from bert_tf.runtime.files import InputError

# Variables with one of these in their name aren't decayed (the release's list).
NOT_DECAYED = ("LayerNorm", "layer_norm", "bias")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """What the release's `create_optimizer` takes, and what it fixes.

    Attributes:
      learning_rate: the peak, reached at the end of warm-up.
      num_train_steps: the learning rate falls linearly to 0 at this step.
      num_warmup_steps: the learning rate rises linearly from 0 over these steps; 0 for no warm-up.
      weight_decay_rate: decoupled decay; see `NOT_DECAYED`.
      beta_1: decay of the gradient's running mean.
      beta_2: decay of the squared gradient's running mean.
      epsilon: added to the root of the squared mean.
      clip_norm: gradients are scaled down to this global norm.
      bias_correction: correct the running means for their zero start (Kingma and Ba, 2015), which the release
        doesn't; it makes fine-tuning on small data sets more stable (Mosbach et al., 2021). LAMB always does.
      optimizer: one of `OPTIMIZERS`.
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

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise InputError(f"--optimizer is {self.optimizer!r}, but one of {', '.join(OPTIMIZERS)} is expected.")
        if self.num_train_steps < 1:
            raise InputError(f"--num_train_steps is {self.num_train_steps}, but at least 1 is expected.")
        if self.num_warmup_steps < 0:
            raise InputError(f"--num_warmup_steps is {self.num_warmup_steps}, but at least 0 is expected.")
        if not self.learning_rate > 0:
            raise InputError(f"--learning_rate is {self.learning_rate}, but a number above 0 is expected.")


def learning_rate(config: OptimizerConfig, step: tf.Tensor) -> tf.Tensor:
    """The rate of the update that follows `step` finished ones, as released.

    Linear decay from the peak, which warm-up overrides for the first steps. So the first warm-up step has rate 0,
    and the rate jumps down at the end of warm-up, because decay has counted from step 0.
    """
    step = tf.cast(step, tf.float32)
    peak = tf.constant(config.learning_rate, tf.float32)
    # A product with the reciprocal, as TensorFlow's graph optimizer made of the release's division: near the end of
    # training the two differ by more than float32's last digit.
    reciprocal = tf.constant(1.0 / config.num_train_steps, tf.float32)
    decayed = peak * (1.0 - tf.minimum(step, config.num_train_steps) * reciprocal)
    if config.num_warmup_steps == 0:
        return decayed
    return tf.where(step < config.num_warmup_steps, peak * (step / config.num_warmup_steps), decayed)


def is_decayed(path: str) -> bool:
    """The released rule, applied to a variable's name as it stands in the checkpoint."""
    return not any(re.search(pattern, path) for pattern in NOT_DECAYED)


class Optimizer(abc.ABC):
    """What both optimizers share: slots, clipping, schedule, and which variables are decayed.

    Variables without a gradient (the pooler in SQuAD) are left alone: they are neither decayed nor given slots, so
    they must not be among `variables`.

    Args:
      config: rates and constants.
      variables: what is trained; two slots are made for each, `<path>/<slot_prefix>_m` and `<path>/<slot_prefix>_v`.

    Raises:
      ValueError: if two variables have the same path.
    """

    slot_prefix: str  # of the slots' names in checkpoints

    def __init__(self, config: OptimizerConfig, variables: Sequence[keras.Variable]) -> None:
        paths = [variable.path for variable in variables]
        if len(set(paths)) != len(paths):
            raise ValueError(f"variables of the same name: {sorted(p for p in paths if paths.count(p) > 1)}")
        self.config = config
        self.variables = list(variables)
        self.decayed = [is_decayed(path) for path in paths]
        self.global_step = tf.Variable(
            0, trainable=False, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
        )
        self.means = [self._slot(variable) for variable in variables]
        self.squared_means = [self._slot(variable) for variable in variables]

    @staticmethod
    def _slot(variable: keras.Variable) -> tf.Variable:
        return tf.Variable(tf.zeros(variable.shape, tf.float32), trainable=False)

    def state(self) -> dict[str, tf.Variable]:
        """The optimizer's variables by their names in checkpoints; AdamWeightDecay's are the release's."""
        named = {"global_step": self.global_step}
        for variable, mean, squared_mean in zip(self.variables, self.means, self.squared_means, strict=True):
            named[f"{variable.path}/{self.slot_prefix}_m"] = mean
            named[f"{variable.path}/{self.slot_prefix}_v"] = squared_mean
        return named

    def apply(self, gradients: Sequence[tf.Tensor], norm: tf.Tensor) -> tf.Tensor:
        """Clips and updates, in a replica, with gradients that are already summed over the replicas.

        Args:
          gradients: dense, one for each variable.
          norm: their global norm.

        Returns:
          The learning rate of this update.
        """
        step = tf.identity(self.global_step)
        rate = learning_rate(self.config, step)
        # As tf.clip_by_global_norm, but without a pass over every gradient where nothing is clipped.
        gradients = tf.cond(
            norm > self.config.clip_norm,
            lambda: [gradient * (self.config.clip_norm / norm) for gradient in gradients],
            lambda: [tf.identity(gradient) for gradient in gradients],
        )
        count = tf.cast(step + 1, tf.float32)
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
        """Updates one variable and its slots; `count` is the number of updates with this one."""


class AdamWeightDecay(Optimizer):
    """The release's `AdamWeightDecayOptimizer`: rate * (m / (sqrt(v) + epsilon) + decay * w) is subtracted from w."""

    slot_prefix = "adam"

    def _update(self, variable, mean, squared_mean, gradient, decayed, rate, count) -> None:  # noqa: ANN001
        config = self.config
        # The decay part first, on its own, and the rest by TensorFlow's fused Adam, whose bias correction vanishes
        # with powers of 0.
        if decayed and config.weight_decay_rate:
            shrunk = variable.value * (1.0 - rate * config.weight_decay_rate)
            tf.raw_ops.AssignVariableOp(resource=variable.value.handle, value=shrunk)
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
            epsilon=config.epsilon * tf.sqrt(1.0 - power_2),  # inside the corrected root, as in the paper
            grad=gradient,
        )


class Lamb(Optimizer):
    """LAMB (You et al., 2020), for batches of tens of thousands: Adam whose step is scaled to each variable's norm.

    Layer normalisation's variables and biases, which aren't decayed, aren't scaled either.
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
    """Dynamic loss scaling for float16: halved when a gradient overflows, doubled after many that don't.

    Args:
      enabled: False gives the constant 1.
    """

    _GROWTH_STEPS = 2000

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        options = {"trainable": False, "aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA}
        self.scale = tf.Variable(2.0**15 if enabled else 1.0, **options)
        self.good_steps = tf.Variable(0, dtype=tf.int64, **options)

    def state(self) -> dict[str, tf.Variable]:
        """The variables to save, by name."""
        return {"loss_scale/scale": self.scale, "loss_scale/good_steps": self.good_steps} if self.enabled else {}

    def can_shrink(self) -> tf.Tensor:
        """Whether gradients that overflow may yet become finite."""
        return self.scale.value() > 1.0

    def update(self, finite: tf.Tensor) -> None:
        """Counts a step, in a replica."""
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

# The names, as a pattern, of the variables that training adds to a model's weights in a checkpoint.
TRAINING_STATE = rf"(global_step|.*/({'|'.join(kind.slot_prefix for kind in OPTIMIZERS.values())})_[mv]|loss_scale/.*)"


def build_optimizer(config: OptimizerConfig, variables: Sequence[keras.Variable]) -> Optimizer:
    """The optimizer that a config names."""
    return OPTIMIZERS[config.optimizer](config, variables)
