"""Layer normalisation and softmax, computed in float32 and rounded once, independent of the input's precision."""

import tensorflow as tf

from bert_tf.model import cpu_kernels


def layer_norm(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float, residual: tf.Tensor | None = None
) -> tf.Tensor:
    """Normalises x, or x plus a residual branch, over the last axis.

    Args:
      x: [..., H].
      gamma: [H] scale, float32.
      beta: [H] offset, float32.
      epsilon: added to the variance.
      residual: of the shape and dtype of x; added to it.

    Returns:
      [..., H] of x's dtype.
    """
    if cpu_kernels.apply_to(x):
        return cpu_kernels.layer_norm(x, gamma, beta, epsilon, residual)
    total = tf.cast(x, tf.float32) if residual is None else tf.cast(x, tf.float32) + tf.cast(residual, tf.float32)
    mean, variance = tf.nn.moments(total, axes=[-1], keepdims=True)
    scale = tf.math.rsqrt(variance + epsilon) * gamma
    return tf.cast(total * scale + (beta - mean * scale), x.dtype)


def softmax(scores: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Returns the softmax of scores + bias along the last axis.

    Args:
      scores: [..., T].
      bias: float32, of a shape that broadcasts to the shape of the scores; no gradient flows into it.

    Returns:
      [..., T] of the scores' dtype.
    """
    bias = tf.stop_gradient(bias)
    # In float32, TensorFlow's operations are as fast as the compiled ones.
    if scores.dtype != tf.float32 and cpu_kernels.apply_to(scores):
        return cpu_kernels.softmax(scores, bias)
    return tf.cast(tf.nn.softmax(tf.cast(scores, tf.float32) + bias), scores.dtype)
