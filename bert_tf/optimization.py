"""The released optimizer: Adam with decoupled weight decay and without bias correction, and its schedule.

Everything works on plain `tf.Variable`s inside a replica, so it runs the same on one device, on several (after the
gradients are summed over the replicas), and compiled by XLA.
"""

import dataclasses
import re
from collections.abc import Sequence

import keras
import tensorflow as tf

from bert_tf.files import InputError

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
        doesn't; it makes fine-tuning on small data sets more stable (Mosbach et al., 2021).
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

    def __post_init__(self) -> None:
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


class AdamWeightDecay:
    """The release's `AdamWeightDecayOptimizer` with clipping and schedule.

    Variables without a gradient (the pooler in SQuAD) are left alone: they are neither decayed nor given slots, so
    they must not be among `variables`.

    Args:
      config: rates and constants.
      variables: what is trained; slots `<path>/adam_m` and `<path>/adam_v` are made for each.

    Raises:
      ValueError: if a variable is given twice.
    """

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
        """The optimizer's variables by their names in the released checkpoints."""
        named = {"global_step": self.global_step}
        for variable, mean, squared_mean in zip(self.variables, self.means, self.squared_means, strict=True):
            named[f"{variable.path}/adam_m"] = mean
            named[f"{variable.path}/adam_v"] = squared_mean
        return named

    def apply(self, gradients: Sequence[tf.Tensor], norm: tf.Tensor) -> tf.Tensor:
        """Clips and updates, in a replica, with gradients that are already summed over the replicas.

        Args:
          gradients: dense, one for each variable.
          norm: their global norm.

        Returns:
          The learning rate of this update.
        """
        config = self.config
        step = self.global_step.read_value() if hasattr(self.global_step, "read_value") else self.global_step
        rate = learning_rate(config, step)
        # As tf.clip_by_global_norm, but without a pass over every gradient where nothing is clipped.
        gradients = tf.cond(
            norm > config.clip_norm,
            lambda: [gradient * (config.clip_norm / norm) for gradient in gradients],
            lambda: [tf.identity(gradient) for gradient in gradients],
        )
        count = tf.cast(step + 1, tf.float32)
        power_1 = config.beta_1**count if config.bias_correction else tf.constant(0.0)
        power_2 = config.beta_2**count if config.bias_correction else tf.constant(0.0)
        for variable, mean, squared_mean, gradient, decayed in zip(
            self.variables, self.means, self.squared_means, gradients, self.decayed, strict=True
        ):
            # The release subtracts rate * (m / (sqrt(v) + epsilon) + decay * w): the decay part first, on its own,
            # and the rest by TensorFlow's fused Adam, whose bias correction vanishes with powers of 0.
            handle = variable.value.handle
            if decayed and config.weight_decay_rate:
                shrunk = variable.value * (1.0 - rate * config.weight_decay_rate)
                with tf.control_dependencies([shrunk]):
                    tf.raw_ops.AssignVariableOp(resource=handle, value=shrunk)
            tf.raw_ops.ResourceApplyAdam(
                var=handle,
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
        return rate
