"""Stateless dropout. It is active if a seed is given; the same seed gives the same mask."""

import math
from collections.abc import Callable

import keras
import tensorflow as tf

from bert_tf.distribution import hardware
from bert_tf.model import cpu_kernels
from bert_tf.model.fusion import computed_first

# Number of random words that are made from the same drawn word; see `_combined_words`.
_WIDTH = 1024
_MULTIPLIER = 0x2C1B3C6D  # odd, so no two words become the same; otherwise arbitrary
# The constants of SplitMix64 (Steele et al., 2014): an increment, and shifts with multipliers.
_INCREMENT = 0x9E3779B97F4A7C15
_MIXING = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))


def fold_in(seed: tf.Tensor | None, number: int | tf.Tensor) -> tf.Tensor | None:
    """Returns a different seed [2] for each number; None (no dropout) stays None."""
    if seed is not None and hardware.compiles_for_gpu():
        return tf.bitcast(_mixed(seed, tf.cast(number, tf.uint64)), tf.int32)
    return None if seed is None else tf.random.experimental.stateless_fold_in(seed, number)


def seed_of_call(
    generator: keras.random.SeedGenerator, training: bool | None, seed: tf.Tensor | None
) -> tf.Tensor | None:
    """Returns the seed [2] of a call: `seed` if given, otherwise a new seed in training, otherwise None."""
    return tf.cast(generator.next(), tf.int32) if seed is None and training else seed


def dropout(x: tf.Tensor, rate: float, seed: tf.Tensor | None, dtype: str | None = None) -> tf.Tensor:
    """Sets a fraction `rate` of x's elements to zero and scales the others up. Without a seed, returns x.

    Each element uses 16 random bits, so probabilities are multiples of 2^-16. The result is computed in float32 and
    rounded once to `dtype`. The default is the dtype of x.
    """
    return fixed_dropout(x, rate, seed, dtype or x.dtype)(x)


def fixed_dropout(
    x: tf.Tensor, rate: float, seed: tf.Tensor | None, dtype: str | tf.DType
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function that applies `dropout` to tensors of x's shape. All calls drop the same elements."""
    dtype, threshold = tf.as_dtype(dtype), round(rate * 2**16)
    if seed is None or threshold == 0:
        return lambda x: tf.cast(x, dtype)
    is_kept, scale = _is_kept(x, threshold, seed), 2**16 / (2**16 - threshold)

    # The gradient drops and scales the same elements as the value.
    @tf.custom_gradient
    def dropped(x: tf.Tensor) -> cpu_kernels.ValueAndGradient:
        return _drop(x, is_kept, scale, dtype), lambda upstream: _drop(upstream, is_kept, scale, x.dtype)

    return dropped


def _is_kept(x: tf.Tensor, threshold: int, seed: tf.Tensor) -> tf.Tensor:
    """Returns a boolean tensor of x's shape, which is False for a fraction of threshold / 2^16 of the elements."""
    if hardware.compiles_all() and not hardware.has_only_cpus():
        # XLA computes the mask in each kernel that reads it. XLA can't do this with unsigned words or halves of words.
        return _combined_words(tf.unstack(tf.shape(x)), seed, tf.int32) >= threshold * 2**16 - 2**31
    word_count = (tf.size(x) + 1) // 2
    words = _combined_words([-(-word_count // _WIDTH), _WIDTH], seed)
    bits = tf.reshape(tf.reshape(tf.bitcast(words, tf.uint16), [-1])[: tf.size(x)], tf.shape(x))
    return bits >= tf.constant(threshold, tf.uint16)


def _combined_words(shape: list[int | tf.Tensor], seed: tf.Tensor, dtype: tf.DType = tf.uint32) -> tf.Tensor:
    """Returns random 32-bit words of a shape, as integers of a dtype.

    Drawing all words with TensorFlow's generator takes several times as long. Instead, each word is computed from two
    drawn words, so that any three words are independent. Without the multiplication, the exclusive or of four words at
    the corners of a rectangle would be 0.
    """
    *leading, width = shape
    (drawn,) = computed_first(_drawn_words([width + math.prod(leading)], seed, dtype))
    columns, rows = drawn[:width], tf.reshape(drawn[width:], [*leading, 1])
    return tf.bitwise.bitwise_xor(columns, rows) * tf.constant(_MULTIPLIER, dtype)


def _drawn_words(shape: list[int | tf.Tensor], seed: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    if hardware.compiles_for_gpu():
        numbers = tf.cast(tf.range(shape[0]), tf.uint64)  # XLA has no range of 64 unsigned bits
        upper = tf.bitwise.right_shift(_mixed(seed, numbers), tf.constant(32, tf.uint64))
        return tf.bitcast(tf.cast(upper, tf.uint32), dtype)
    return tf.random.stateless_uniform(shape, seed, minval=None, maxval=None, dtype=dtype)


def _mixed(seed: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """Returns random 64-bit numbers for a seed [2] and numbers [...], from SplitMix64.

    On a GPU, one kernel computes the seeds and words of a mask. TensorFlow's functions take a dozen.
    """
    x = tf.bitcast(seed, tf.uint64) + (numbers + tf.constant(1, tf.uint64)) * tf.constant(_INCREMENT, tf.uint64)
    for shift, multiplier in _MIXING:
        x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, tf.constant(shift, tf.uint64)))
        x *= tf.constant(multiplier, tf.uint64)
    return x


@cpu_kernels.in_one_pass
def _drop(x: tf.Tensor, is_kept: tf.Tensor, scale: float, dtype: tf.DType) -> tf.Tensor:
    return tf.cast(tf.where(is_kept, tf.cast(x, tf.float32) * scale, 0.0), dtype)
