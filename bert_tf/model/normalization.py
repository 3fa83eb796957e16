"""Layer normalisation and softmax, with gradients of their own where XLA may compile parts of them (see `elementwise`).

Sums are TensorFlow's or products with vectors, where they are faster than XLA's reductions.
"""

from collections.abc import Callable

import tensorflow as tf

from bert_tf.model.elementwise import cast, compiles, in_one_pass


def column_sums(rows: tf.Tensor) -> tf.Tensor:
    """[n, H] -> [H], as a product: TensorFlow sums bfloat16 columns on one thread and slowly."""
    return tf.matmul(tf.ones([1, tf.shape(rows)[0]], rows.dtype), rows)[0]


def normalize(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float, residual: tf.Tensor | None = None
) -> tf.Tensor:
    """Layer normalisation of x, or of x plus a residual branch, with statistics in float32.

    Args:
      x: [..., H].
      gamma: [H] scale, float32.
      beta: [H] offset, float32.
      epsilon: added to the variance.
      residual: as x.

    Returns:
      [..., H] of x's dtype.
    """
    if compiles(x):
        return _normalize_in_few_passes(x, gamma, beta, epsilon, residual)
    total = tf.cast(x if residual is None else x + residual, tf.float32)
    mean, variance = tf.nn.moments(total, axes=[-1], keepdims=True)
    scale = tf.math.rsqrt(variance + epsilon) * gamma
    return tf.cast(total * scale + (beta - mean * scale), x.dtype)


def _normalize_in_few_passes(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float, residual: tf.Tensor | None
) -> tf.Tensor:
    """The same, going over memory less often than TensorFlow's operations and their gradients."""
    width = x.shape[-1]

    @tf.custom_gradient
    def normalized(
        gamma: tf.Tensor, beta: tf.Tensor, x: tf.Tensor, residual: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, Callable]:
        y, mean, inverse = _compiled_normalize(x, residual, gamma, beta, epsilon)

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            upstream = cast(upstream, "float32")
            weighted = _times_standardized(upstream, x, residual, mean, inverse)
            mean_weights = gamma[:, tf.newaxis] / width
            means = tf.matmul(upstream, mean_weights), tf.matmul(weighted, mean_weights)
            slope = _compiled_slope(upstream, x, residual, mean, inverse, gamma, *means)
            slopes = [slope] if residual is None else [slope, slope]
            return column_sums(weighted), column_sums(upstream), *slopes

        return y, gradient

    branches = [tf.reshape(branch, [-1, width]) for branch in (x, residual) if branch is not None]
    return tf.reshape(normalized(tf.convert_to_tensor(gamma), tf.convert_to_tensor(beta), *branches), x.shape)


def _total(x: tf.Tensor, addend: tf.Tensor | None) -> tf.Tensor:
    x = tf.cast(x, tf.float32)
    return x if addend is None else x + tf.cast(addend, tf.float32)


_compiled_total = in_one_pass(_total)


@in_one_pass
def _compiled_normalize(x, residual, gamma, beta, epsilon):  # noqa: ANN001
    total = _total(x, residual)
    width = x.shape[-1]
    ones = tf.ones([width, 1])
    # Divided afterwards: a row of equal numbers must have exactly them as its mean.
    mean = tf.matmul(total, ones) / width
    centered = total - mean
    inverse = tf.math.rsqrt(tf.matmul(tf.square(centered), ones) / width + epsilon)
    return tf.cast(centered * inverse * gamma + beta, x.dtype), mean, inverse


@in_one_pass
def _times_standardized(upstream, x, residual, mean, inverse):  # noqa: ANN001
    return upstream * ((_total(x, residual) - mean) * inverse)


@in_one_pass
def _compiled_slope(upstream, x, residual, mean, inverse, gamma, upstream_mean, weighted_mean):  # noqa: ANN001
    standardized = (_total(x, residual) - mean) * inverse
    return tf.cast(inverse * (upstream * gamma - upstream_mean - standardized * weighted_mean), x.dtype)


def softmax(scores: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """The softmax of scores + bias along the last axis, computed in float32.

    Args:
      scores: [..., T].
      bias: float32, of a shape that extends to the scores'; no gradient flows into it.

    Returns:
      [..., T] of the scores' dtype.
    """
    bias = tf.stop_gradient(bias)
    # In float32 TensorFlow's operations are as fast.
    if scores.dtype == tf.float32 or not compiles(scores):
        return tf.cast(tf.nn.softmax(tf.cast(scores, tf.float32) + bias), scores.dtype)

    @tf.custom_gradient
    def normalized(scores: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        probabilities = tf.nn.softmax(_compiled_total(scores, bias))
        return cast(probabilities, scores.dtype), lambda upstream: _softmax_slope(upstream, probabilities)

    return normalized(scores)


@in_one_pass
def _softmax_slope(upstream, probabilities):  # noqa: ANN001
    weighted = tf.cast(upstream, tf.float32) * probabilities
    total = tf.reduce_sum(weighted, axis=-1, keepdims=True)
    return tf.cast(weighted - probabilities * total, upstream.dtype)
