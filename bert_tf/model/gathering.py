"""Gathering of table rows and tokens.

Axis letters: B batch, T tokens, P positions, H hidden, V vocabulary.
"""

import tensorflow as tf


@tf.custom_gradient
def gather_rows(table: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Returns rows [n] of a table [V, H] as [n, H], with a dense gradient.

    TensorFlow's own gradient consists of slices. If a head also uses the table as its output weights, the head's dense
    gradient would become slices too, and clipping would use the norm of slices before they are summed.
    """

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
        return tf.math.unsorted_segment_sum(upstream, rows, tf.shape(table)[0]), None

    return tf.gather(table, rows), gradient


def last_tokens(states: tf.Tensor, input_mask: tf.Tensor) -> tf.Tensor:
    """Returns the state [B, H] of each sequence's last token for states [B, T, H] and input_mask [B, T]."""
    places = tf.range(tf.shape(input_mask)[1]) * tf.cast(input_mask > 0, tf.int32)
    return tf.gather(states, tf.reduce_max(places, axis=1), batch_dims=1)


def gather_positions(sequence: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Returns the vectors [B*P, H] at positions [B, P] of a sequence [B, T, H]."""
    return tf.reshape(tf.gather(sequence, positions, batch_dims=1), [-1, sequence.shape[-1]])
