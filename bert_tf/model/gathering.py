"""Gathering of table rows and tokens.

Axis letters: B batch, T tokens, P positions, H hidden, V vocabulary; with packed rows, R rows, L positions of a row and
S sequences.
"""

from collections.abc import Callable, Mapping

import tensorflow as tf


@tf.custom_gradient
def gather_rows(table: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Returns rows [n] of a table [V, H] as [n, H], with a dense gradient.

    TensorFlow's own gradient is `tf.IndexedSlices`. If a head also uses the table as output weights, the dense gradient
    of the head would become slices too. Clipping would then use the norm of the slices before they are summed.
    """

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
        return tf.math.unsorted_segment_sum(upstream, rows, tf.shape(table)[0]), None

    return tf.gather(table, rows), gradient


def last_tokens(states: tf.Tensor, input_mask: tf.Tensor) -> tf.Tensor:
    """Returns the state [B, H] of each sequence's last token for states [B, T, H] and input_mask [B, T]."""
    positions = tf.range(tf.shape(input_mask)[1]) * tf.cast(input_mask > 0, tf.int32)
    return tf.gather(states, tf.reduce_max(positions, axis=1), batch_dims=1)


def encoder_inputs(batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns the inputs of `BertEncoder` in packed rows or padded sequences."""
    names = ("input_ids", "input_mask", "segment_ids", "position_ids", "sequence_ids")
    return {name: batch[name] for name in names if name in batch}


def ends(batch: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the positions of the first and the last token of each sequence [S], in the flattened batch.

    Args:
      batch: packed rows (see `sequences.packed_rows.pack`), or padded sequences with an input_mask [B, T].
    """
    if "sequence_starts" in batch:
        first = batch["sequence_starts"]
        return first, first + tf.maximum(batch["sequence_lengths"], 1) - 1
    mask = batch["input_mask"]
    count, length = (known or size for known, size in zip(mask.shape, tf.unstack(tf.shape(mask)), strict=True))
    first = tf.range(count) * length
    return first, first + tf.reduce_max(tf.range(length) * tf.cast(mask > 0, tf.int32), axis=1)


def lengths(batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Returns the number of tokens of each sequence [S] of packed rows or of padded sequences."""
    if "sequence_lengths" in batch:
        return batch["sequence_lengths"]
    return tf.reduce_sum(batch["input_mask"], axis=1)


def exists(batch: Mapping[str, tf.Tensor], choices: int = 1) -> tf.Tensor:
    """Returns 1 for each example and 0 for unused slots of packed rows: [S], or [S / C] with C choices."""
    tokens = tf.reduce_sum(tf.reshape(lengths(batch), [-1, choices]), axis=1)
    return tf.cast(tokens > 0, tf.float32) if "sequence_lengths" in batch else tf.ones(tf.shape(tokens))


def unpack(states: tf.Tensor, batch: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Converts packed rows to padded sequences; `repack` reverses this.

    Args:
      states: [R, L, H].
      batch: see `ends`.

    Returns:
      The states [S, L, H], which are zero for padding, and the input_mask [S, L]. Padded sequences are not changed.
    """
    if "sequence_ids" not in batch:
        return states, batch["input_mask"]
    to_sequences, to_rows, mask = _maps(batch)
    padded = _rearrange(tf.reshape(states, [-1, states.shape[-1]]), to_sequences, to_rows)
    return tf.reshape(padded, tf.concat([tf.shape(mask), [states.shape[-1]]], axis=0)), tf.cast(mask, tf.int32)


def repack(states: tf.Tensor, batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Converts states [S, L, H] of padded sequences to states [R, L, H] of packed rows; `unpack` reverses this."""
    if "sequence_ids" not in batch:
        return states
    to_sequences, to_rows, _ = _maps(batch)
    packed = _rearrange(tf.reshape(states, [-1, states.shape[-1]]), to_rows, to_sequences)
    return tf.reshape(packed, tf.concat([tf.shape(batch["sequence_ids"]), [states.shape[-1]]], axis=0))


def _maps(batch: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns two index maps and the mask of padded sequences.

    Returns:
      For each position of the padded sequences [S * L], the position in the rows; for each position of the rows
      [R * L], the position in the padded sequences; and the mask [S, L], True for tokens.
    """
    numbers, starts = batch["sequence_ids"], batch["sequence_starts"]
    size, length = tf.size(numbers), tf.shape(numbers)[1]
    mask = tf.range(length) < batch["sequence_lengths"][:, tf.newaxis]
    to_sequences = tf.where(mask, starts[:, tf.newaxis] + tf.range(length), size)
    to_rows = tf.where(numbers > 0, (numbers - 1) * length + batch["position_ids"], tf.size(mask))
    return tf.reshape(to_sequences, [-1]), tf.reshape(to_rows, [-1]), mask


def _rearrange(x: tf.Tensor, indices: tf.Tensor, inverse: tf.Tensor) -> tf.Tensor:
    """Returns the rows of x [n, H] at `indices`, and zeros for the index n.

    The gradient gathers with the inverse map, which is faster than a sum.
    """

    @tf.custom_gradient
    def gathered(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return _rows_or_zero(x, indices), lambda upstream: _rows_or_zero(upstream, inverse)

    return gathered(x)


def _rows_or_zero(x: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    return tf.gather(tf.concat([x, tf.zeros([1, x.shape[-1]], x.dtype)], axis=0), rows)


def gather_positions(sequence: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Returns the vectors [B*P, H] at positions [B, P] of a sequence [B, T, H]."""
    return tf.reshape(tf.gather(sequence, positions, batch_dims=1), [-1, sequence.shape[-1]])
