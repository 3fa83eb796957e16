"""The original optimizer (Adam with decoupled weight decay, without bias correction), and LAMB.

The code updates plain `tf.Variable`s inside a replica. It works the same way on one device, on several devices, and in
a step compiled by XLA. The gradients must be summed over the replicas first.
"""

import abc
import re
from collections.abc import Sequence

import keras
import tensorflow as tf

from bert_tf.distribution import hardware, tensorflow_internals
from bert_tf.optimization.schedule import learning_rate
from bert_tf.optimization.settings import OPTIMIZERS, OptimizerConfig

# Variables with one of these words in their names have no weight decay (the list is the original's).
NOT_DECAYED = ("LayerNorm", "layer_norm", "bias")


def is_decayed(path: str) -> bool:
    """Returns whether the original rule applies weight decay to a variable with this name in the checkpoint."""
    return not any(re.search(pattern, path) for pattern in NOT_DECAYED)


def layer_rates(paths: Sequence[str], decay: float) -> list[float]:
    """Returns the factors of the learning rate for variables with these names in the checkpoint.

    The factor is 1 for the output layers and the pooler, `decay` for the top block, `decay` squared for the next block,
    and so on down to the embeddings.
    """
    blocks = [re.match(r"bert/encoder/layer_(\d+)/", path) for path in paths]
    count = 1 + max((int(block.group(1)) for block in blocks if block), default=-1)

    def depth(path: str, block: re.Match | None) -> int:
        if block:
            return count - int(block.group(1))
        return count + 1 if path.startswith("bert/embeddings/") else 0

    return [decay ** depth(path, block) for path, block in zip(paths, blocks, strict=True)]


class Optimizer(abc.ABC):
    """The base of both optimizers: slots, clipping, schedule, and the selection of the variables with weight decay.

    Variables without a gradient, such as the pooler in SQuAD, have no weight decay and no slots. Exclude them from
    `variables`.

    Args:
      config: the settings.
      variables: the trained variables. Each gets two slots: `<path>/<slot_prefix>_m` and `<path>/<slot_prefix>_v`.

    Raises:
      ValueError: if two variables have the same path.
    """

    slot_prefix: str  # a part of the slots' names in checkpoints

    global_step: tf.Variable
    skipped_steps: tf.Variable

    def __init__(self, config: OptimizerConfig, variables: Sequence[keras.Variable]) -> None:
        paths = [variable.path for variable in variables]
        if len(set(paths)) != len(paths):
            raise ValueError(f"several variables have the same name: {sorted(p for p in paths if paths.count(p) > 1)}")
        self.config = config
        self.variables: list[keras.Variable] = list(variables)
        self.decayed: list[bool] = [is_decayed(path) for path in paths]
        self._layer_rates = layer_rates(paths, config.layerwise_lr_decay)
        # The number of finished steps, and how many of them the moments do not include: steps that changed no weights,
        # and all steps before the moments were reset.
        self.global_step, self.skipped_steps = (
            tf.Variable(0, trainable=False, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
            for _ in range(2)
        )
        self.means: list[tf.Variable] = [self._slot(variable) for variable in variables]
        self.squared_means: list[tf.Variable] = [self._slot(variable) for variable in variables]

    @staticmethod
    def _slot(variable: keras.Variable) -> tf.Variable:
        return tf.Variable(tf.zeros(variable.shape, tf.float32), trainable=False)

    def state(self) -> dict[str, tf.Variable]:
        """Returns the optimizer's variables by their names in checkpoints; AdamWeightDecay uses the original names."""
        named = {"global_step": self.global_step}
        for variable, mean, squared_mean in zip(self.variables, self.means, self.squared_means, strict=True):
            named[f"{variable.path}/{self.slot_prefix}_m"] = mean
            named[f"{variable.path}/{self.slot_prefix}_v"] = squared_mean
        return named

    def begin_phase(self, step: int) -> None:
        """Resets the moments if a second schedule with `reset_moments` begins after `step` finished steps."""
        second = self.config.second_schedule
        if second and second.reset_moments and step == second.start:
            for slot in (*self.means, *self.squared_means):
                slot.assign(tf.zeros(slot.shape))
            self.skipped_steps.assign(step)

    def apply(
        self, gradients: Sequence[tf.Tensor], norm: tf.Tensor | None = None, is_finite: tf.Tensor | bool = True
    ) -> None:
        """Clips the gradients and updates the variables. Call it in a replica.

        Args:
          gradients: a dense gradient for each variable, summed over the replicas.
          norm: the global norm of the gradients, a scalar; None if they are already clipped.
          is_finite: whether the loss and the gradients are finite, a scalar. If not, no variable and no slot changes.
        """
        step = tf.identity(self.global_step)
        count = tf.cast(step + 1 - tf.identity(self.skipped_steps), tf.float32)
        # After a non-finite step, these factors leave all values unchanged. A branch would take longer to trace.
        rate = tf.where(is_finite, learning_rate(self.config, step), 0.0)
        betas = [tf.where(is_finite, beta, 1.0) for beta in (self.config.beta_1, self.config.beta_2)]
        clipping = 1.0 if norm is None else tf.minimum(self.config.clip_norm / norm, 1.0)
        gradients = _in_one_vector(_scaled(gradients, tf.where(is_finite, clipping, 0.0)))
        # Variables with the same learning rate share their scalars, because each operation adds to the tracing time.
        rates = {factor: rate if factor == 1 else rate * factor for factor in self._layer_rates}
        scalars = {factor: self._scalars(layer_rate, *betas, count) for factor, layer_rate in rates.items()}
        updates = zip(self.variables, self.means, self.squared_means, gradients, self.decayed, strict=True)
        for update, factor in zip(updates, self._layer_rates, strict=True):
            self._update(*update, scalars[factor])

    @abc.abstractmethod
    def _scalars(self, rate: tf.Tensor, beta_1: tf.Tensor, beta_2: tf.Tensor, count: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the values that updates of all variables with the same learning rate share.

        Args:
          rate: the learning rate.
          beta_1: the fraction of the first moment that is kept.
          beta_2: the fraction of the second moment that is kept.
          count: the number of updates since the moments were 0, including this one.
        """

    @abc.abstractmethod
    def _update(
        self,
        variable: keras.Variable,
        mean: tf.Variable,
        squared_mean: tf.Variable,
        gradient: tf.Tensor,
        decayed: bool,
        scalars: dict[str, tf.Tensor],
    ) -> None:
        """Updates a variable and its slots. `scalars` is the result of `_scalars` for the variable's learning rate."""


class AdamWeightDecay(Optimizer):
    """The original `AdamWeightDecayOptimizer`: subtracts rate * (m / (sqrt(v) + epsilon) + decay * w) from w."""

    slot_prefix = "adam"

    def _scalars(self, rate, beta_1, beta_2, count) -> dict[str, tf.Tensor]:  # noqa: ANN001
        config = self.config
        # If the powers of beta are 0, TensorFlow's fused Adam does no bias correction.
        power_1, power_2 = (
            beta**count if config.bias_correction else tf.constant(0.0) for beta in (config.beta_1, config.beta_2)
        )
        return {
            "kept": 1.0 - rate * config.weight_decay_rate,
            "beta1_power": power_1,
            "beta2_power": power_2,
            "lr": rate,
            "beta1": beta_1,
            "beta2": beta_2,
            # as in the Adam paper, where epsilon is added to the root of the corrected second moment
            "epsilon": config.epsilon * tf.sqrt(1.0 - power_2),
        }

    def _update(self, variable, mean, squared_mean, gradient, decayed, scalars) -> None:  # noqa: ANN001
        # The weight decay is applied separately, because the fused Adam has none.
        decay, adam = scalars["kept"], {name: value for name, value in scalars.items() if name != "kept"}
        if decayed and self.config.weight_decay_rate:
            tf.raw_ops.AssignVariableOp(resource=variable.value.handle, value=variable.value * decay)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.value.handle, m=mean.handle, v=squared_mean.handle, grad=gradient, **adam
        )


class Lamb(Optimizer):
    """LAMB (You et al., 2020): Adam with a step that is scaled to the norm of each variable.

    It is meant for batches of tens of thousands of examples. The step is not scaled for variables without weight decay
    (biases and layer normalisation).
    """

    slot_prefix = "lamb"

    def _scalars(self, rate, beta_1, beta_2, count) -> dict[str, tf.Tensor]:  # noqa: ANN001
        correction_1, correction_2 = (1.0 - beta**count for beta in (self.config.beta_1, self.config.beta_2))
        corrections = {"correction_1": correction_1, "correction_2": correction_2}
        return {"rate": rate, "beta_1": beta_1, "beta_2": beta_2, **corrections}

    def _update(self, variable, mean, squared_mean, gradient, decayed, scalars) -> None:  # noqa: ANN001
        config, rate, beta_1, beta_2 = self.config, *map(scalars.get, ("rate", "beta_1", "beta_2"))
        value = variable.value.read_value()
        next_mean = beta_1 * mean.read_value() + (1.0 - config.beta_1) * gradient
        next_squared = beta_2 * squared_mean.read_value() + (1.0 - config.beta_2) * tf.square(gradient)
        corrected = next_mean / scalars["correction_1"]
        step = corrected / (tf.sqrt(next_squared / scalars["correction_2"]) + config.epsilon)
        if decayed:
            step += config.weight_decay_rate * value
            norm, step_norm = tf.norm(value), tf.norm(step)
            rate *= tf.where((norm > 0) & (step_norm > 0), norm / step_norm, 1.0)
        tf.raw_ops.AssignVariableOp(resource=variable.value.handle, value=value - rate * step)
        tf.raw_ops.AssignVariableOp(resource=mean.handle, value=next_mean)
        tf.raw_ops.AssignVariableOp(resource=squared_mean.handle, value=next_squared)


def global_norm(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the norm of all gradients together."""
    if not hardware.compiles_for_gpu():
        return tf.linalg.global_norm(gradients)
    # XLA takes two kernels for the square norm of each gradient, and one for a sum over one axis.
    squares = [tf.square(gradient) for gradient in gradients]
    sums = [tf.reduce_sum(x, axis=-1) if x.shape.rank > 1 else x for x in squares]
    (vector,) = tensorflow_internals.optimization_barrier([tf.concat([tf.reshape(x, [-1]) for x in sums], axis=0)])
    return tf.sqrt(tf.reduce_sum(vector))


def _in_one_vector(gradients: list[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the same gradients. On a GPU, vectors become parts of one vector.

    XLA then updates 15 variables in a kernel, because the updates read the same vector.
    """
    sizes = [gradient.shape[0] for gradient in gradients if gradient.shape.rank == 1]
    if not hardware.compiles_for_gpu() or not sizes:
        return gradients
    vector = tf.concat([gradient for gradient in gradients if gradient.shape.rank == 1], axis=0)
    parts_of_vector = iter(tf.split(*tensorflow_internals.optimization_barrier([vector]), sizes))
    return [next(parts_of_vector) if gradient.shape.rank == 1 else gradient for gradient in gradients]


def _scaled(gradients: Sequence[tf.Tensor], factor: tf.Tensor) -> list[tf.Tensor]:
    """Returns the gradients, times a factor from 0 to 1. NaN times 0 is 0."""

    def products() -> list[tf.Tensor]:
        return [tf.math.multiply_no_nan(gradient, factor) for gradient in gradients]

    if hardware.compiles_all():  # XLA fuses a multiplication into the update, but not a branch
        return products()
    return tf.cond(factor < 1.0, products, lambda: list(gradients))


_CLASSES: dict[str, type[Optimizer]] = dict(zip(OPTIMIZERS, (AdamWeightDecay, Lamb), strict=True))

# The names of the optimizers' slots in a checkpoint, as a pattern with the variable, the slot prefix, and m or v.
SLOTS = rf"(.*)/({'|'.join(kind.slot_prefix for kind in _CLASSES.values())})_([mv])"
# The names of the variables that a checkpoint has only with --dtype=float16, or after skipped steps.
OPTIONAL_STATE = r"loss_scale/.*|skipped_steps|nonfinite_steps"
# The names of variables of other trainers for TensorFlow 1: below the name of a weight, the slots of any optimizer and
# moving averages; and scalars.
_OTHER_STATE = (
    r".*/(?:kernel|bias|gamma|beta|output_weights|output_bias|\w+_embeddings)"
    r"/(?!lora|adapter|mask|threshold|\w*quant)\w[\w/]*"  # other names change the outputs of a layer
    r"|(?:.*/)?(?:beta[12]_power|(?:current_)?loss_scale|good_steps|bad_steps|learning_rate|batch_finite)"
    r"|(?:.*/)?(?:global|local)_step(?:_\d+)?"
)
# The names of all variables that training adds to a model's weights.
TRAINING_STATE = rf"(?:global_step|{SLOTS}|{OPTIONAL_STATE}|{_OTHER_STATE})"


def build_optimizer(config: OptimizerConfig, variables: Sequence[keras.Variable]) -> Optimizer:
    """Returns the optimizer selected by `config.optimizer`."""
    return _CLASSES[config.optimizer](config, variables)
