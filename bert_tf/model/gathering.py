"""Gathering of rows and tokens.

Axis letters: B batch, T tokens, P positions, H hidden, V vocabulary.
"""

import tensorflow as tf


@tf.custom_gradient
def gather_rows(table: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """table [V, H], rows [n] -> [n, H], with a dense gradient.

    TensorFlow's own gradient consists of slices. If a head also uses the table as its output weights, the head's dense
    gradient would become slices too, and clipping would take the norm of slices that aren't summed.
    """

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
        return tf.math.unsorted_segment_sum(upstream, rows, tf.shape(table)[0]), None

    return tf.gather(table, rows), gradient


def last_tokens(states: tf.Tensor, input_mask: tf.Tensor) -> tf.Tensor:
    """The state of the last token of each sequence, without padding: [B, T, H], [B, T] -> [B, H]."""
    places = tf.range(tf.shape(input_mask)[1]) * tf.cast(input_mask > 0, tf.int32)
    return tf.gather(states, tf.reduce_max(places, axis=1), batch_dims=1)


def gather_positions(sequence: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """The vectors at given positions: sequence [B, T, H], positions [B, P] -> [B*P, H]."""
    return tf.reshape(tf.gather(sequence, positions, batch_dims=1), [-1, sequence.shape[-1]])
