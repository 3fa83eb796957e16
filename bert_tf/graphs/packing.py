"""Makes [CLS] A [SEP] B [SEP] inside a graph, like `packing`, for a batch of tokenized texts.

Axis letters: B texts.
"""

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from bert_tf.sequences import packing
from bert_tf.sequences.text_packer import TextSpans
from bert_tf.text.vocabulary import CLS, SEP


class TokenBatch(NamedTuple):
    """Concatenated sequences without padding; n is the number of all tokens.

    Attributes:
      ids: [n] int32.
      segments: [n] int32.
      visible: [n] int32, 0 for tokens that must not be attended to.
      lengths: [B] int32, the number of tokens of each sequence, at least 1.
    """

    ids: tf.Tensor
    segments: tf.Tensor
    visible: tf.Tensor
    lengths: tf.Tensor

    @classmethod
    def from_padded(cls, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> "TokenBatch":
        """Removes padding from inputs [B, T].

        Each row is kept up to its last visible token. A row without visible tokens is kept completely.
        """
        length = tf.shape(input_ids)[1]
        positions = tf.range(length)
        lengths = tf.reduce_max(tf.where(input_mask > 0, positions + 1, 0), axis=1)
        lengths = tf.where(lengths > 0, lengths, length)
        is_kept = positions < lengths[:, tf.newaxis]
        return cls(*(tf.boolean_mask(values, is_kept) for values in (input_ids, segment_ids, input_mask)), lengths)

    def first(self, values: tf.Tensor) -> tf.Tensor:
        """Returns the values [B, ...] of the first token of each sequence, for values [n, ...]."""
        return tf.gather(values, tf.cumsum(self.lengths, exclusive=True))

    def ragged(self, values: tf.Tensor) -> tf.RaggedTensor:
        """Splits values [n, ...] by sequence: [B, (T), ...]."""
        return tf.RaggedTensor.from_row_lengths(values, self.lengths, validate=False)

    def padded(
        self, values: tf.Tensor, padding: float | str | None = None, length: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Pads values [n, ...] to [B, T, ...]. T is the length of the longest sequence or `length`."""
        shape = None if length is None else tf.stack([-1, length, *values.shape[1:]])
        return self.ragged(values).to_tensor(padding, shape=shape)


class FittedLengths(NamedTuple):
    """The number of tokens to keep of each text. A second text without tokens has no [SEP].

    Attributes:
      first: [B] int64, for the first or only text.
      second: [B] int64, for the second text.
      truncated: [B] bool, whether tokens were removed.
    """

    first: tf.Tensor
    second: tf.Tensor
    truncated: tf.Tensor


class GraphPacker:
    """The graph version of `packing.pack`.

    Args:
      vocab: maps tokens to ids.
      max_seq_length: longest sequence, including [CLS] and [SEP].
      keeps_ends: see `packing.pack`.
    """

    def __init__(self, vocab: Mapping[str, int], max_seq_length: int, keeps_ends: bool = False) -> None:
        packing.check_max_seq_length(max_seq_length)
        self.max_seq_length = max_seq_length
        self._head_length = packing.head_length if keeps_ends else tf.identity
        self._cls, self._sep = vocab[CLS], vocab[SEP]

    def fit(self, first: tf.RaggedTensor, second: tf.RaggedTensor) -> FittedLengths:
        """Applies `packing.fitting_lengths` to token ids [B, (tokens)]. A missing second text has no tokens."""
        lengths = first.row_lengths(), second.row_lengths()
        fitted = packing.fitting_lengths(*lengths, self.max_seq_length, ops=tf)
        return FittedLengths(*fitted, truncated=tf.add(*fitted) < tf.add(*lengths))

    def pack(self, first: tf.RaggedTensor, second: tf.RaggedTensor, fitted: FittedLengths) -> TokenBatch:
        """Returns the model's input sequences for the ids [B, (tokens)] of both texts."""
        column = tf.ones_like(fitted.first, first.dtype)[:, tf.newaxis]
        sep = tf.constant(self._sep, first.dtype)
        last = by_row(tf.fill(tf.math.count_nonzero(fitted.second, keepdims=True), sep), fitted.second > 0)
        pieces_a, pieces_b = self._shortened(first, fitted.first), self._shortened(second, fitted.second)
        ids = tf.concat([self._cls * column, pieces_a, self._sep * column, pieces_b, last], 1)
        lengths = ids.row_lengths()
        positions = tf.ragged.range(lengths).flat_values
        begins_b = tf.repeat(fitted.first + 2, lengths)
        segments = tf.cast(positions >= begins_b, tf.int32)
        return TokenBatch(ids.flat_values, segments, tf.ones_like(segments), tf.cast(lengths, tf.int32))

    def _shortened(self, pieces: tf.RaggedTensor, new_lengths: tf.Tensor) -> tf.RaggedTensor:
        """Returns `new_lengths` [B] values of each row: the first values, or values at both ends."""
        lengths, head = pieces.row_lengths(), self._head_length(new_lengths)
        positions = tf.ragged.range(lengths).flat_values
        tail_begin = lengths - new_lengths + head
        is_kept = (positions < tf.repeat(head, lengths)) | (positions >= tf.repeat(tail_begin, lengths))
        return by_row(tf.boolean_mask(pieces.flat_values, is_kept), new_lengths)


def by_row(values: tf.Tensor, counts: tf.Tensor) -> tf.RaggedTensor:
    """Splits values [n, ...] into rows of `counts` values: [B, (counts), ...]."""
    return tf.RaggedTensor.from_row_lengths(values, tf.cast(counts, tf.int64), validate=False)


def window_positions(texts: tf.RaggedTensor, spans: TextSpans) -> tf.RaggedTensor:
    """Returns the positions [W, (tokens)] of the windows' tokens in the flat values of texts [B, (tokens)]."""
    first = tf.repeat(texts.row_starts(), spans.counts) + spans.begins
    return tf.ragged.range(first, first + spans.lengths)
