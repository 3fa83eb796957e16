"""The additional metrics of --detailed_metrics."""

import os
import re
from collections.abc import Sequence

import keras
import tensorflow as tf

from bert_tf.training.interface import Batch, MetricSums

_PARTS = re.compile(r"bert/(embeddings|pooler|encoder/(layer_\d+))/")


def part_of(path: str) -> str:
    """Returns the part of the model that a variable belongs to: embeddings, layer_0 and so on, pooler, or heads."""
    found = _PARTS.match(path)
    return (found.group(2) or found.group(1)) if found else "heads"


class DetailedMetrics:
    """The gradient norm of each part of the model, and the largest loss of a step.

    It must be constructed in the strategy's scope.

    Args:
      variables: the trained variables.
    """

    def __init__(self, variables: Sequence[keras.Variable]) -> None:
        self._parts = [part_of(variable.path) for variable in variables]
        self.names = tuple(f"gradient_norm/{part}" for part in dict.fromkeys(self._parts))
        self._largest_loss = tf.Variable(
            -float("inf"), trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
        )

    def add(self, loss: tf.Tensor, gradients: Sequence[tf.Tensor], finite: tf.Tensor) -> MetricSums:
        """Records the loss of a step, and returns the norms of its gradients. Call it in a replica.

        Args:
          loss: the loss, a scalar, summed over the replicas.
          gradients: a gradient for each variable, summed over the replicas and not clipped.
          finite: whether all of them are finite; otherwise the step is ignored.
        """
        largest = tf.maximum(tf.identity(self._largest_loss), tf.where(finite, loss, -float("inf")))
        tf.raw_ops.AssignVariableOp(resource=self._largest_loss.handle, value=largest)
        sums = {}
        for name in self.names:
            own = [g for part, g in zip(self._parts, gradients, strict=True) if name == f"gradient_norm/{part}"]
            norm = tf.linalg.global_norm(own)
            sums[name] = tf.where(finite, norm, 0.0), tf.where(finite, 1.0, 0.0)
        return sums

    def take(self) -> dict[str, float]:
        """Returns the largest loss since the last call and, on Linux, the memory of this process in 10^9 bytes."""
        largest = float(self._largest_loss.numpy())
        self._largest_loss.assign(-float("inf"))
        try:
            with open("/proc/self/statm", encoding="ascii") as reader:
                pages = int(reader.read().split()[1])
        except FileNotFoundError:  # not Linux
            return {"largest_loss": largest}
        return {"largest_loss": largest, "memory_gb": pages * os.sysconf("SC_PAGE_SIZE") / 1e9}


def timed_next(batches: tf.data.Iterator) -> tuple[Batch, tf.Tensor]:
    """Returns the next batch and the seconds it took to get it. Call it in a graph."""
    begin = tf.timestamp()
    with tf.control_dependencies([begin]):
        batch = next(batches)
    with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
        return batch, tf.timestamp() - begin
