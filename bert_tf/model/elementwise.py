"""What is done to each element by itself: activations, dropout, casts.

Run one operation after the other, these and their gradients go over the widest tensors a dozen times. So XLA compiles
each into one pass where that pays: in a graph for one CPU that is traced for each shape anyway, as training's is.

Randomness is stateless: dropout happens where a seed is given, and the same seed gives the same mask.
"""

import functools
import math
from collections.abc import Callable

import tensorflow as tf

from bert_tf.runtime import distribution


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


# Without AutoGraph, which would only take time: everything below is written in TensorFlow's terms.
in_one_pass = functools.partial(tf.function, autograph=False, jit_compile=True)


def compiles(x: tf.Tensor) -> bool:
    """Whether what is done to x is better done in one pass."""
    return tf.inside_function() and x.shape.is_fully_defined() and distribution.compiles_parts()


def _fused(activation: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    """An activation whose value and gradient are one pass over memory each."""

    def value(x: tf.Tensor) -> tf.Tensor:
        return tf.cast(activation(tf.cast(x, tf.float32)), x.dtype)

    def slope(x: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = value(x)
        return tape.gradient(y, x, upstream)

    compiled_value, compiled_slope = in_one_pass(value), in_one_pass(slope)

    @tf.custom_gradient
    def fused(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return compiled_value(x), lambda upstream: compiled_slope(x, upstream)

    return fused


_FUSED = {name: _fused(ACTIVATIONS[name]) for name in ("gelu", "gelu_erf")}


def activate(x: tf.Tensor, name: str) -> tf.Tensor:
    """Applies one of `ACTIVATIONS`, x [...] -> [...]."""
    return (_FUSED if name in _FUSED and compiles(x) else ACTIVATIONS)[name](x)


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
    if compiles(x):
        words, drop = _compiled_random_words((x.shape.num_elements() + 1) // 2, seed), _compiled_drop
    else:
        shape = [(tf.size(x) + 1) // 2]
        words = tf.random.stateless_uniform(shape, seed, minval=None, maxval=None, dtype=tf.uint32)
        drop = _drop
    bits = tf.reshape(tf.reshape(tf.bitcast(words, tf.uint16), [-1])[: tf.size(x)], tf.shape(x))

    # Its own gradient: what was zeroed and scaled on the way up is so on the way down.
    @tf.custom_gradient
    def dropped(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return drop(x, bits, threshold), lambda upstream: drop(upstream, bits, threshold)

    return dropped(x)


def _random_words(count: int, seed: tf.Tensor) -> tf.Tensor:
    """Random 32-bit words [count]: the numbers of their places, mixed twice with the seed.

    Mixing is MurmurHash3's last step. TensorFlow's generator, which is made for harder uses, takes four times as long.
    """
    key = tf.cast(seed, tf.uint32)
    place = tf.cast(tf.range(count), tf.uint32)
    # Seeds that were folded in side by side differ in a few bits of the second number: spread over all of them.
    return _mix(_mix(place + key[0]) + key[1] * tf.constant(0x9E3779B9, tf.uint32))


def _mix(word: tf.Tensor) -> tf.Tensor:
    """Each bit of the word changes half of the result's bits."""

    def folded(word: tf.Tensor, distance: int) -> tf.Tensor:
        return tf.bitwise.bitwise_xor(word, tf.bitwise.right_shift(word, tf.constant(distance, tf.uint32)))

    word = folded(word, 16) * tf.constant(0x85EBCA6B, tf.uint32)
    word = folded(word, 13) * tf.constant(0xC2B2AE35, tf.uint32)
    return folded(word, 16)


_compiled_random_words = in_one_pass(_random_words)


def _drop(x: tf.Tensor, bits: tf.Tensor, threshold: int) -> tf.Tensor:
    scaled = tf.cast(x, tf.float32) * (2**16 / (2**16 - threshold))
    return tf.cast(tf.where(tf.cast(bits, tf.int32) >= threshold, scaled, 0.0), x.dtype)


_compiled_drop = in_one_pass(_drop)


def cast(x: tf.Tensor, dtype: str) -> tf.Tensor:
    """x in another precision; its gradient comes back in x's own."""
    if x.dtype == dtype or not compiles(x):
        return tf.cast(x, dtype)

    @tf.custom_gradient
    def converted(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return _compiled_cast(x, dtype), lambda upstream: _compiled_cast(upstream, x.dtype)

    return converted(tf.convert_to_tensor(x))


_compiled_cast = in_one_pass(tf.cast)
