"""Counts steps with a non-finite loss or gradient. Such steps do not change the weights."""

from collections.abc import Callable

import tensorflow as tf

from bert_tf.runtime.files import InputError


class NonfiniteSteps:
    """The non-finite steps of a run, up to the first one that exceeds the limit.

    Construct it in the strategy's scope.

    Args:
      allowed: the largest number of non-finite steps to skip.
    """

    def __init__(self, allowed: int) -> None:
        self._allowed = allowed
        self._count, self._steps = (
            tf.Variable(initial, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
            for initial in (tf.constant(0, tf.int64), tf.fill([allowed + 1], tf.constant(-1, tf.int64)))
        )
        self._reported: set[int] = set()

    @property
    def count(self) -> int:
        """The number of non-finite steps of the run."""
        return int(self._count.numpy())

    def state(self) -> dict[str, tf.Variable]:
        """Returns the variable by its name in checkpoints."""
        return {"nonfinite_steps": self._count}

    def add(self, step: tf.Tensor, is_bad: tf.Tensor) -> None:
        """Counts a step if it is bad. Call it in a replica."""
        count = tf.identity(self._count)
        slots = tf.range(self._allowed + 1, dtype=tf.int64)
        steps = tf.identity(self._steps)
        # An earlier process may have skipped more steps than are allowed now.
        is_here = is_bad & (slots == tf.minimum(count, self._allowed)) & (steps < 0)
        steps = tf.where(is_here, step, steps)
        tf.raw_ops.AssignVariableOp(resource=self._steps.handle, value=steps)
        tf.raw_ops.AssignVariableOp(resource=self._count.handle, value=count + tf.cast(is_bad, tf.int64))

    def take(self, describe: Callable[[int], str]) -> list[int]:
        """Returns the steps that were skipped since the last call.

        Args:
          describe: returns a description of a step's data.

        Raises:
          InputError: if the number of non-finite steps exceeds the limit.
        """
        *skipped, step = self._steps.numpy().tolist()
        if step >= 0:
            limit = f" The limit --max_nonfinite_steps={self._allowed} was already reached." if self._allowed else ""
            raise InputError(
                f"the loss or the gradient of step {step} is not finite.{limit} This step has not changed the weights, "
                "and the last checkpoint is intact. Use a smaller --learning_rate, more --num_warmup_steps or "
                "--dtype=float32, with --allow_changed_settings. Or skip the step with "
                f"--max_nonfinite_steps={self._allowed + 1}. Data of the step: {describe(step)}."
            )
        new = [step for step in skipped if step >= 0 and step not in self._reported]
        self._reported.update(new)
        return new
