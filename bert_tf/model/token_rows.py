"""Rows without padding: only attention pads the tokens of a batch; all other layers skip padding.

Axis letters: B batch, T tokens of the longest sequence, n rows for the tokens of all sequences, H hidden; B_g and T_g
of one group.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import tensorflow as tf


class TokenRows(NamedTuple):
    """Maps padded sequences [P, ...] to rows [n, ...] without padding, and back.

    The P positions are the positions of the batch (B*T), or of `groups` of its sequences, each with its own length.
    Rows without a token and padding positions are zero in the result and in the gradient, so they contribute nothing to
    any sum over rows.

    Attributes:
      positions: [n], the position of each row; P for rows without a token.
      rows: [P], the row of each position; n for padding.
    """

    positions: tf.Tensor
    rows: tf.Tensor

    @classmethod
    def at(cls, positions: tf.Tensor, size: tf.Tensor | int) -> Self:
        """Builds the map from the positions of the rows.

        Args:
          positions: [n], integers, the positions of all tokens; `size` in rows without a token.
          size: P.
        """
        count = positions.shape[0] or tf.shape(positions)[0]
        rows = tf.tensor_scatter_nd_update(tf.fill([size + 1], count), positions[:, tf.newaxis], tf.range(count))
        return cls(positions, rows[:-1])

    def unpad(self, x: tf.Tensor) -> tf.Tensor:
        """Converts padded positions [P, H] to rows [n, H]."""
        return _gather(x, self.positions, self.rows)

    def pad(self, x: tf.Tensor) -> tf.Tensor:
        """Converts rows [n, H] to padded positions [P, H]."""
        return _gather(x, self.rows, self.positions)


class Unpadded(NamedTuple):
    """How attention pads the tokens of a batch: in groups of sequences, each padded to its own length.

    Attributes:
      rows: the map of the tokens. Its positions are the concatenated positions of all groups.
      biases: the attention bias of each group, [B_g, 1, 1 or T_g, T_g].
      firsts: the map of the rows [n] to the first token of each sequence [B], if only these tokens attend.
    """

    rows: TokenRows
    biases: Sequence[tf.Tensor]
    firsts: TokenRows | None = None

    def split(self, short_bias: tf.Tensor) -> Self:
        """Splits the only group in two: the sequences of `short_bias` [S, 1, 1 or U, U], and the others."""
        (bias,) = self.biases
        (count, short), (sequences, length) = _sizes(short_bias), _sizes(bias)
        end, saved = count * length, count * (length - short)
        positions = self.rows.positions
        moved = tf.where(positions < end, positions // length * short + positions % length, positions - saved)
        rows = TokenRows.at(moved, sequences * length - saved)
        return self._replace(rows=rows, biases=[short_bias, bias[count:]])

    def of_block(self, is_last: bool) -> Self:
        """Returns the padding of a block. Only in the last block, the attending tokens may be restricted."""
        return self if is_last else self._replace(firsts=None)

    def queries(self, x: tf.Tensor) -> tf.Tensor:
        """Selects the rows of the attending tokens: [n, H] -> [n or B, H]."""
        return x if self.firsts is None else self.firsts.unpad(x)

    def groups(self, x: tf.Tensor) -> list[tf.Tensor]:
        """Splits rows [n, H] into padded groups [B_g*T_g, H]."""
        return tf.split(self.rows.pad(x), [sequences * length for sequences, length in map(_sizes, self.biases)])

    def query_groups(self, x: tf.Tensor) -> list[tf.Tensor]:
        """Splits the rows of the attending tokens into padded groups."""
        return self.groups(x) if self.firsts is None else tf.split(x, [_sizes(bias)[0] for bias in self.biases])

    def joined(self, groups: Sequence[tf.Tensor]) -> tf.Tensor:
        """Joins groups; the inverse of `query_groups`."""
        x = tf.concat(groups, axis=0)
        return self.rows.unpad(x) if self.firsts is None else x


def _sizes(bias: tf.Tensor) -> list[tf.Tensor | int]:
    """Returns the number of sequences of a group and their length."""
    return [bias.shape[axis] or tf.shape(bias)[axis] for axis in (0, -1)]


def _gather(x: tf.Tensor, rows: tf.Tensor, inverse: tf.Tensor) -> tf.Tensor:
    """Returns the given rows of x. The gradient is gathered too, which is faster than TensorFlow's sum over rows."""

    @tf.custom_gradient
    def gathered(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return _rows_or_zero(x, rows), lambda upstream: _rows_or_zero(upstream, inverse)

    return gathered(x)


def _rows_or_zero(x: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    return tf.gather(tf.concat([x, tf.zeros([1, x.shape[-1]], x.dtype)], axis=0), rows)
