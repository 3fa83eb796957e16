"""Means of metrics, summed on the devices while steps run."""

from collections.abc import Sequence

import tensorflow as tf

from bert_tf.training.contract import MetricSums


class MetricMeans:
    """Weighted means that each replica adds to without talking to the others; read and reset from outside.

    Args:
      names: the metrics.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._sums = tf.Variable(
            tf.zeros([len(self.names), 2]),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )

    def add(self, sums: MetricSums) -> None:
        """Adds one replica's sums; every name must be there."""
        self._sums.assign_add(tf.stack([tf.stack([tf.cast(x, tf.float32) for x in sums[n]]) for n in self.names]))

    def take(self) -> dict[str, float]:
        """The means since the last call; a metric without weight is 0, as in the release."""
        sums = self._sums.numpy() if hasattr(self._sums, "numpy") else tf.convert_to_tensor(self._sums).numpy()
        self._sums.assign(tf.zeros_like(sums))
        return {
            name: float(total / weight) if weight else 0.0
            for name, (total, weight) in zip(self.names, sums, strict=True)
        }
