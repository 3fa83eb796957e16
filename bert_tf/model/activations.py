"""Activation functions. They compute in float32 and round the result once to the dtype of the input."""

import math
from collections.abc import Callable

import tensorflow as tf

from bert_tf.model.cpu_kernels import ValueAndGradient, with_gradient_in_one_pass


@with_gradient_in_one_pass
def gelu(x: tf.Tensor) -> ValueAndGradient:
    """The original "gelu": the tanh form of the Gaussian error linear unit, applied elementwise.

    0.5 x (1 + tanh u) is written as x sigmoid(2u), the same function with fewer passes over memory.
    """
    scale, x32 = 2.0 * math.sqrt(2.0 / math.pi), tf.cast(x, tf.float32)
    square = tf.square(x32)
    share = tf.sigmoid(x32 * (scale + (scale * 0.044715) * square))
    value = x32 * share

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        slope = share + (value - value * share) * (scale + (3.0 * scale * 0.044715) * square)
        return tf.cast(tf.cast(upstream, tf.float32) * slope, x.dtype)

    return tf.cast(value, x.dtype), gradient


@with_gradient_in_one_pass
def gelu_erf(x: tf.Tensor) -> ValueAndGradient:
    """Hugging Face's "gelu": the exact form, x times the normal distribution function, applied elementwise."""
    x32 = tf.cast(x, tf.float32)
    share = 0.5 + 0.5 * tf.math.erf(x32 * math.sqrt(0.5))

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        density = tf.exp(-0.5 * tf.square(x32)) * (1.0 / math.sqrt(2.0 * math.pi))
        return tf.cast(tf.cast(upstream, tf.float32) * (share + x32 * density), x.dtype)

    return tf.cast(x32 * share, x.dtype), gradient


# The last three are single TensorFlow operations.
ACTIVATIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "gelu": gelu,
    "gelu_erf": gelu_erf,
    "relu": tf.nn.relu,
    "tanh": tf.tanh,
    "linear": tf.identity,
}
