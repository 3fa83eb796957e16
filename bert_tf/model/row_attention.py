"""Attention that computes a few rows of the batch at a time, so that the scores stay in the fast memory of a TPU.

In a complete batch of long sequences, scores, probabilities and random bits are [B, N, T, T]. They would be written to
main memory and read again several times. Here, the backward pass recomputes them for each part.

Axis letters: B rows, N heads, T tokens, D head size.
"""

from collections.abc import Callable

import tensorflow as tf

from bert_tf.model.dropout import fold_in

# For shorter rows, one computation of all rows is faster.
MIN_LENGTH = 256
# Number of scores to compute together. At least one row is computed.
_SCORES = 2 * 16 * 512 * 512

# (query [b, N, T, D], key, value, bias [b, 1, 1 or T, T], seed [2] or None) -> context [b, N, T, D]
Attend = Callable[[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor | None], tf.Tensor]


def is_faster(shape: tf.TensorShape) -> bool:
    """Returns True if `attend_by_rows` is faster on a TPU than one computation for queries of shape [B, N, T, D]."""
    return shape.is_fully_defined() and shape[2] >= MIN_LENGTH and _rows(shape) < shape[0]


def attend_by_rows(
    attend: Attend, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, bias: tf.Tensor, seed: tf.Tensor | None
) -> tf.Tensor:
    """Returns the context [B, N, T, D].

    Args:
      attend: computes some rows.
      query: [B, N, T, D]. The shapes of query, key and value are static.
      key: [B, N, T, D].
      value: [B, N, T, D].
      bias: [B, 1, 1 or T, T]. No gradient is computed for it.
      seed: [2], the seed of the dropout; None for no dropout. Each call of `attend` gets a different seed.
    """
    rows = _rows(query.shape)

    def in_parts(x: tf.Tensor) -> tf.Tensor:
        return tf.reshape(x, [x.shape[0] // rows, rows, *x.shape[1:]])

    def joined(x: tf.Tensor) -> tf.Tensor:
        return tf.reshape(x, query.shape)

    biases, numbers = in_parts(bias), tf.range(query.shape[0] // rows)

    def attend_part(number: tf.Tensor, *states: tf.Tensor) -> tf.Tensor:
        return attend(*states, biases[number], fold_in(seed, number))

    @tf.custom_gradient
    def attended(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        chunks = tuple(map(in_parts, (query, key, value)))

        def gradients(upstream: tf.Tensor) -> list[tf.Tensor]:
            def of_part(inputs: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
                number, upstream, *states = inputs
                with tf.GradientTape() as tape:
                    tape.watch(states)
                    context = attend_part(number, *states)
                return tuple(tape.gradient(context, states, upstream))

            signature = (query.dtype, key.dtype, value.dtype)
            results = tf.map_fn(of_part, (numbers, in_parts(upstream), *chunks), fn_output_signature=signature)
            return list(map(joined, results))

        context = tf.map_fn(lambda inputs: attend_part(*inputs), (numbers, *chunks), fn_output_signature=query.dtype)
        return joined(context), gradients

    return attended(query, key, value)


def _rows(shape: tf.TensorShape) -> int:
    """Returns the number of rows that are computed together."""
    count, heads, length, _ = shape
    most = max(1, _SCORES // (heads * length * length))
    return next(rows for rows in range(min(most, count), 0, -1) if count % rows == 0)
