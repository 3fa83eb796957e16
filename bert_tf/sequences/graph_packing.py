"""[CLS] A [SEP] B [SEP] inside a graph: what `packing` does to lists, done to a batch of tokenized texts.

Axis letters: B texts.
"""

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from bert_tf.sequences import packing


class TokenBatch(NamedTuple):
    """Sequences end to end, without padding.

    Attributes:
      ids: [n] int32.
      segments: [n] int32.
      visible: [n] int32, 0 for tokens that may not be attended to.
      lengths: [B] int32, how many tokens each sequence has; none has 0.
    """

    ids: tf.Tensor
    segments: tf.Tensor
    visible: tf.Tensor
    lengths: tf.Tensor

    @classmethod
    def from_padded(cls, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> "TokenBatch":
        """[B, T] each -> the tokens up to the last one of each row that is not masked; of rows that are masked, all."""
        length = tf.shape(input_ids)[1]
        places = tf.range(length)
        lengths = tf.reduce_max(tf.where(input_mask > 0, places + 1, 0), axis=1)
        lengths = tf.where(lengths > 0, lengths, length)
        kept = places < lengths[:, tf.newaxis]
        return cls(*(tf.boolean_mask(values, kept) for values in (input_ids, segment_ids, input_mask)), lengths)

    def first(self, values: tf.Tensor) -> tf.Tensor:
        """[n, ...] -> [B, ...], what belongs to the first token of each sequence."""
        return tf.gather(values, tf.cumsum(self.lengths, exclusive=True))

    def ragged(self, values: tf.Tensor) -> tf.RaggedTensor:
        """[n, ...] -> [B, (T), ...]."""
        return tf.RaggedTensor.from_row_lengths(values, self.lengths, validate=False)

    def padded(
        self, values: tf.Tensor, padding: float | str | None = None, length: tf.Tensor | None = None
    ) -> tf.Tensor:
        """[n, ...] -> [B, T, ...], padded (with zeros) behind each end, to the longest or to a length."""
        shape = None if length is None else tf.stack([-1, length, *values.shape[1:]])
        return self.ragged(values).to_tensor(padding, shape=shape)


class KeptPieces(NamedTuple):
    """How many pieces of each text fit; [B] int64 each. A second text of which nothing is kept has no [SEP].

    Attributes:
      first: of the first, or only, text.
      second: of the second text.
      truncated: whether pieces were left out.
    """

    first: tf.Tensor
    second: tf.Tensor
    truncated: tf.Tensor


class GraphPacker:
    """Packs as `packing.fit_segments` and `packing.join_segments` do.

    Args:
      vocab: piece -> id.
      max_seq_length: longer sequences are cut, pairs from the end of the longer text.
    """

    def __init__(self, vocab: Mapping[str, int], max_seq_length: int) -> None:
        packing.check_max_seq_length(max_seq_length)
        self.max_seq_length = max_seq_length
        self._cls, self._sep = vocab["[CLS]"], vocab["[SEP]"]

    def fit(self, first: tf.RaggedTensor, second: tf.RaggedTensor) -> KeptPieces:
        """See `packing.fit_segments`; [B, (pieces)] each, no pieces in `second` where there is no second text."""
        lengths = first.row_lengths(), second.row_lengths()
        is_pair = lengths[1] > 0
        room = tf.where(is_pair, self.max_seq_length - 3, self.max_seq_length - 2)
        half = room // 2
        room, half = tf.cast(room, tf.int64), tf.cast(half, tf.int64)
        total = lengths[0] + lengths[1]
        # The case of `packing.truncated_lengths` where both are too long; a text shorter than its share gives the rest.
        kept_second = tf.where(total <= room, lengths[1], tf.minimum(lengths[1], tf.maximum(half, room - lengths[0])))
        kept_first = tf.minimum(lengths[0], room - kept_second)
        return KeptPieces(kept_first, kept_second, total > room)

    def pack(self, first: tf.RaggedTensor, second: tf.RaggedTensor, kept: KeptPieces) -> TokenBatch:
        """Ids [B, (pieces)] -> the sequences that the model reads."""
        ids = self.arrange(first, second, kept, self._cls, self._sep)
        lengths = ids.row_lengths()
        places = tf.ragged.range(lengths).flat_values
        behind_first = tf.repeat(kept.first + 2, lengths)
        segments = tf.cast(places >= behind_first, tf.int32)
        return TokenBatch(ids.flat_values, segments, tf.ones_like(segments), tf.cast(lengths, tf.int32))

    @staticmethod
    def arrange(
        first: tf.RaggedTensor, second: tf.RaggedTensor, kept: KeptPieces, cls: int, sep: int
    ) -> tf.RaggedTensor:
        """Puts what is known of each piece in the order of the sequences.

        Args:
          first: [B, (pieces)] of the first texts.
          second: [B, (pieces)] of the second texts.
          kept: see `fit`.
          cls: what stands for [CLS].
          sep: what stands for [SEP].

        Returns:
          [B, (tokens)].
        """
        dtype = first.dtype
        column = tf.ones_like(kept.first, dtype)[:, tf.newaxis]
        last = tf.RaggedTensor.from_row_lengths(
            tf.fill(tf.math.count_nonzero(kept.second, keepdims=True), tf.constant(sep, dtype)),
            tf.cast(kept.second > 0, tf.int64),
            validate=False,
        )
        return tf.concat(
            [cls * column, _beginning(first, kept.first), sep * column, _beginning(second, kept.second), last], 1
        )


def _beginning(pieces: tf.RaggedTensor, kept: tf.Tensor) -> tf.RaggedTensor:
    """The first few of each row."""
    lengths = pieces.row_lengths()
    places = tf.ragged.range(lengths).flat_values
    values = tf.boolean_mask(pieces.flat_values, places < tf.repeat(kept, lengths))
    return tf.RaggedTensor.from_row_lengths(values, kept, validate=False)
