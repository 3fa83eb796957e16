"""The loss scale for float16, which prevents gradients from underflowing."""

import tensorflow as tf


class LossScale:
    """Dynamic loss scale for float16: halved after a gradient overflow, doubled after many steps without one.

    Args:
      enabled: False for the constant scale 1.
    """

    _GROWTH_STEPS = 2000

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        options = {"trainable": False, "aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA}
        self.scale: tf.Variable = tf.Variable(2.0**15 if enabled else 1.0, **options)
        self.good_steps: tf.Variable = tf.Variable(0, dtype=tf.int64, **options)

    def state(self) -> dict[str, tf.Variable]:
        """Returns the variables by their names in checkpoints; empty if the scale is constant."""
        return {"loss_scale/scale": self.scale, "loss_scale/good_steps": self.good_steps} if self.enabled else {}

    def can_shrink(self) -> tf.Tensor:
        """Returns whether the scale can be reduced. With a smaller scale, the gradients may be finite."""
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
