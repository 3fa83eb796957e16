"""What is done to each element by itself: activations and dropout.

Run one operation after the other, gelu and its gradient go over the widest tensors a dozen times. So XLA compiles each
into one pass where that pays: in a graph for one CPU that is traced for each shape anyway, as training's is. (Dropout,
casts and layer normalisation compiled like that take less processor time, but no less time on two or four threads.)

Randomness is stateless: dropout happens where a seed is given, and the same seed gives the same mask.
"""

import math
from collections.abc import Callable

import tensorflow as tf

from bert_tf import distribution


def gelu(x: tf.Tensor) -> tf.Tensor:
    """The release's "gelu": the tanh form of the Gaussian error linear unit.

    0.5 x (1 + tanh u) is written as x sigmoid(2u), the same function with fewer passes over memory.
    """
    scale = 2.0 * math.sqrt(2.0 / math.pi)
    return x * tf.sigmoid(x * (scale + (scale * 0.044715) * x * x))


def gelu_erf(x: tf.Tensor) -> tf.Tensor:
    """Hugging Face's "gelu": the exact form, x times the normal distribution function."""
    return 0.5 * x * (1.0 + tf.math.erf(x * math.sqrt(0.5)))


ACTIVATIONS = {
    "gelu": gelu,
    "gelu_erf": gelu_erf,
    "relu": tf.nn.relu,
    "tanh": tf.tanh,
    "linear": tf.identity,
}


def _fused(activation: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    """An activation whose value and gradient are one pass over memory each."""

    def value(x: tf.Tensor) -> tf.Tensor:
        return tf.cast(activation(tf.cast(x, tf.float32)), x.dtype)

    def slope(x: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = value(x)
        return tape.gradient(y, x, upstream)

    compiled_value, compiled_slope = (tf.function(f, autograph=False, jit_compile=True) for f in (value, slope))

    @tf.custom_gradient
    def fused(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return compiled_value(x), lambda upstream: compiled_slope(x, upstream)

    return fused


_FUSED = {name: _fused(ACTIVATIONS[name]) for name in ("gelu", "gelu_erf")}


def activate(x: tf.Tensor, name: str) -> tf.Tensor:
    """Applies one of `ACTIVATIONS`, x [...] -> [...]."""
    in_static_graph = tf.inside_function() and x.shape.is_fully_defined()
    if name in _FUSED and in_static_graph and distribution.compiles_parts():
        return _FUSED[name](x)
    return ACTIVATIONS[name](x)


def fold_in(seed: tf.Tensor | None, number: int | tf.Tensor) -> tf.Tensor | None:
    """A seed [2] of its own for each number; None (no dropout) stays None."""
    return None if seed is None else tf.random.experimental.stateless_fold_in(seed, number)


def dropout(x: tf.Tensor, rate: float, seed: tf.Tensor | None) -> tf.Tensor:
    """Zeroes a fraction `rate` of the elements and scales the others up; the identity without a seed.

    Each 32-bit random word decides two elements, so probabilities are multiples of 2^-16.
    """
    threshold = round(rate * 2**16)
    if seed is None or threshold == 0:
        return x
    size = tf.size(x)
    words = tf.random.stateless_uniform([(size + 1) // 2], seed, minval=None, maxval=None, dtype=tf.uint32)
    bits = tf.reshape(tf.bitcast(words, tf.uint16), [-1])[:size]
    keep = tf.reshape(tf.cast(bits, tf.int32) >= threshold, tf.shape(x))
    return tf.where(keep, x * (2**16 / (2**16 - threshold)), tf.zeros([], x.dtype))
