"""A batch's tokens end to end: nothing between two attention layers is computed for padding.

Axis letters: B batch, T tokens of the longest sequence, n rows for the tokens of all sequences, H hidden.
"""

from collections.abc import Callable
from typing import NamedTuple, Self

import tensorflow as tf


class TokenRows(NamedTuple):
    """Maps a padded batch [B*T, ...] to rows [n, ...] without padding, and back.

    Rows that hold no token, and positions that hold padding, are zero in the result and in the gradient, so they
    contribute nothing to any sum over rows.

    Attributes:
      positions: [n] the position in the padded batch of each row; B*T for rows without a token.
      rows: [B*T] the row of each position; n for padding.
    """

    positions: tf.Tensor
    rows: tf.Tensor

    @classmethod
    def at(cls, positions: tf.Tensor, size: tf.Tensor | int) -> Self:
        """Builds the map.

        Args:
          positions: [n], integers, the positions of all tokens in the padded batch; `size` in rows without a token.
          size: B*T.
        """
        count = positions.shape[0] or tf.shape(positions)[0]
        rows = tf.tensor_scatter_nd_update(tf.fill([size + 1], count), positions[:, tf.newaxis], tf.range(count))
        return cls(positions, rows[:-1])

    def unpad(self, x: tf.Tensor) -> tf.Tensor:
        """[B*T, H] -> [n, H]."""
        return _gather(x, self.positions, self.rows)

    def pad(self, x: tf.Tensor) -> tf.Tensor:
        """[n, H] -> [B*T, H]."""
        return _gather(x, self.rows, self.positions)


def _gather(x: tf.Tensor, rows: tf.Tensor, inverse: tf.Tensor) -> tf.Tensor:
    """The given rows of x; the gradient is gathered too, which is faster than TensorFlow's sum over rows."""

    @tf.custom_gradient
    def gathered(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return _rows_or_zero(x, rows), lambda upstream: _rows_or_zero(upstream, inverse)

    return gathered(x)


def _rows_or_zero(x: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    return tf.gather(tf.concat([x, tf.zeros([1, x.shape[-1]], x.dtype)], axis=0), rows)
