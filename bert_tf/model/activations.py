"""Activation functions, computed in float32 and rounded once, in any precision of the input."""

import functools
import math
from collections.abc import Callable

import tensorflow as tf

from bert_tf.model import cpu_kernels


def gelu(x: tf.Tensor) -> tf.Tensor:
    """The original "gelu": the tanh form of the Gaussian error linear unit, applied elementwise.

    0.5 x (1 + tanh u) is written as x sigmoid(2u), the same function with fewer passes over memory.
    """
    scale = 2.0 * math.sqrt(2.0 / math.pi)
    return x * tf.sigmoid(x * (scale + (scale * 0.044715) * x * x))


def gelu_erf(x: tf.Tensor) -> tf.Tensor:
    """Hugging Face's "gelu": the exact form, x times the normal distribution function, applied elementwise."""
    return 0.5 * x * (1.0 + tf.math.erf(x * math.sqrt(0.5)))


ACTIVATIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "gelu": gelu,
    "gelu_erf": gelu_erf,
    "relu": tf.nn.relu,
    "tanh": tf.tanh,
    "linear": tf.identity,
}


def activate(x: tf.Tensor, name: str) -> tf.Tensor:
    """Applies one of `ACTIVATIONS` to x [...] and returns [...] of x's dtype."""
    return _IN_FLOAT32[name](x) if name in _IN_FLOAT32 else ACTIVATIONS[name](x)


def _rounded_once(activation: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    @functools.wraps(activation)
    def value(x: tf.Tensor) -> tf.Tensor:
        return tf.cast(activation(tf.cast(x, tf.float32)), x.dtype)

    return cpu_kernels.with_gradient_in_one_pass(value)


# Each of the others is a single TensorFlow operation, which computes in float32 and rounds once.
_IN_FLOAT32 = {name: _rounded_once(ACTIVATIONS[name]) for name in ("gelu", "gelu_erf")}
