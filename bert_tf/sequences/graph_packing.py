"""[CLS] A [SEP] B [SEP] inside a graph: does for a batch of tokenized texts what `packing` does for lists.

Axis letters: B texts.
"""

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from bert_tf.sequences import packing
from bert_tf.sequences.long_documents import TextSpans
from bert_tf.tokenization.vocabulary import CLS, SEP


class TokenBatch(NamedTuple):
    """Sequences one after the other, without padding; n is the number of all tokens.

    Attributes:
      ids: [n] int32.
      segments: [n] int32.
      visible: [n] int32, 0 for tokens that no token may attend to.
      lengths: [B] int32, the number of tokens of each sequence, at least 1.
    """

    ids: tf.Tensor
    segments: tf.Tensor
    visible: tf.Tensor
    lengths: tf.Tensor

    @classmethod
    def from_padded(cls, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> "TokenBatch":
        """Reads padded inputs [B, T]: each row up to its last visible token, or all of it if none is visible."""
        length = tf.shape(input_ids)[1]
        places = tf.range(length)
        lengths = tf.reduce_max(tf.where(input_mask > 0, places + 1, 0), axis=1)
        lengths = tf.where(lengths > 0, lengths, length)
        kept = places < lengths[:, tf.newaxis]
        return cls(*(tf.boolean_mask(values, kept) for values in (input_ids, segment_ids, input_mask)), lengths)

    def first(self, values: tf.Tensor) -> tf.Tensor:
        """[n, ...] -> [B, ...], the values of the first token of each sequence."""
        return tf.gather(values, tf.cumsum(self.lengths, exclusive=True))

    def ragged(self, values: tf.Tensor) -> tf.RaggedTensor:
        """[n, ...] -> [B, (T), ...]."""
        return tf.RaggedTensor.from_row_lengths(values, self.lengths, validate=False)

    def padded(
        self, values: tf.Tensor, padding: float | str | None = None, length: tf.Tensor | None = None
    ) -> tf.Tensor:
        """[n, ...] -> [B, T, ...], padded at the end (with zeros) to the longest sequence, or to a given length."""
        shape = None if length is None else tf.stack([-1, length, *values.shape[1:]])
        return self.ragged(values).to_tensor(padding, shape=shape)


class KeptPieces(NamedTuple):
    """The number of pieces of each text that fit. A second text without pieces has no [SEP].

    Attributes:
      first: [B] int64, of the first or only text.
      second: [B] int64, of the second text.
      truncated: [B] bool, whether pieces were left out.
    """

    first: tf.Tensor
    second: tf.Tensor
    truncated: tf.Tensor


class GraphPacker:
    """Does what `packing.fit_segments` and `packing.join_segments` do.

    Args:
      vocab: piece -> id.
      max_seq_length: longest sequence, including [CLS] and [SEP].
      keeps_ends: see `packing.fit_segments`.
    """

    def __init__(self, vocab: Mapping[str, int], max_seq_length: int, keeps_ends: bool = False) -> None:
        packing.check_max_seq_length(max_seq_length)
        self.max_seq_length = max_seq_length
        self._head_length = packing.head_length if keeps_ends else tf.identity
        self._cls, self._sep = vocab[CLS], vocab[SEP]

    def fit(self, first: tf.RaggedTensor, second: tf.RaggedTensor) -> KeptPieces:
        """Applies `packing.fitting_lengths` to [B, (pieces)]; a missing second text has no pieces."""
        lengths = first.row_lengths(), second.row_lengths()
        kept = packing.fitting_lengths(*lengths, self.max_seq_length, xp=tf)
        return KeptPieces(*kept, truncated=tf.add(*kept) < tf.add(*lengths))

    def pack(self, first: tf.RaggedTensor, second: tf.RaggedTensor, kept: KeptPieces) -> TokenBatch:
        """Ids [B, (pieces)] of both texts -> the sequences that the model reads."""
        column = tf.ones_like(kept.first, first.dtype)[:, tf.newaxis]
        last = tf.RaggedTensor.from_row_lengths(
            tf.fill(tf.math.count_nonzero(kept.second, keepdims=True), tf.constant(self._sep, first.dtype)),
            tf.cast(kept.second > 0, tf.int64),
            validate=False,
        )
        pieces_a, pieces_b = self._shortened(first, kept.first), self._shortened(second, kept.second)
        ids = tf.concat([self._cls * column, pieces_a, self._sep * column, pieces_b, last], 1)
        lengths = ids.row_lengths()
        places = tf.ragged.range(lengths).flat_values
        behind_first = tf.repeat(kept.first + 2, lengths)
        segments = tf.cast(places >= behind_first, tf.int32)
        return TokenBatch(ids.flat_values, segments, tf.ones_like(segments), tf.cast(lengths, tf.int32))

    def _shortened(self, pieces: tf.RaggedTensor, kept: tf.Tensor) -> tf.RaggedTensor:
        """Returns `kept` [B] values of each row: the first ones, or those of both ends."""
        lengths, head = pieces.row_lengths(), self._head_length(kept)
        places = tf.ragged.range(lengths).flat_values
        is_kept = (places < tf.repeat(head, lengths)) | (places >= tf.repeat(lengths - kept + head, lengths))
        return tf.RaggedTensor.from_row_lengths(tf.boolean_mask(pieces.flat_values, is_kept), kept, validate=False)


def window_places(texts: tf.RaggedTensor, spans: TextSpans) -> tf.RaggedTensor:
    """Returns the positions [W, (pieces)] in the flat values of texts [B, (pieces)] that the windows show."""
    first = tf.repeat(texts.row_starts(), spans.counts) + spans.begins
    return tf.ragged.range(first, first + spans.lengths)
