"""Means of metrics that are summed on the devices during the steps."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from bert_tf.training.interface import MetricSums


class MetricMeans:
    """Weighted means. Each replica has its own sums, which are added up when the means are read.

    Args:
      names: the names of the metrics.

    Attributes:
      names: the names of the metrics.
      taken: the sums of all calls of `take` [metrics, 2]. The caller may reset them to 0.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names: tuple[str, ...] = tuple(names)
        self.taken: np.ndarray = np.zeros((len(self.names), 2))
        self._sums = tf.Variable(
            tf.zeros([len(self.names), 2]),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )

    def add(self, sums: MetricSums) -> None:
        """Adds the sums of one replica. They must contain every metric."""
        self._sums.assign_add(tf.stack([tf.stack([tf.cast(x, tf.float32) for x in sums[n]]) for n in self.names]))

    def sums(self) -> np.ndarray:
        """Returns the weighted sums and the sums of weights since `take` was last called [metrics, 2]."""
        return self._sums.numpy() if hasattr(self._sums, "numpy") else tf.convert_to_tensor(self._sums).numpy()

    def take(self) -> dict[str, float]:
        """Returns the means since the last call and resets them.

        As in the original code, the mean is 0 if the sum of the weights is 0.
        """
        sums = self.sums()
        self.taken += sums
        self._sums.assign(tf.zeros_like(sums))
        return {
            name: float(total / weight) if weight else 0.0
            for name, (total, weight) in zip(self.names, sums, strict=True)
        }
