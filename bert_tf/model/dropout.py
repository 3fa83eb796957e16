"""Stateless dropout. It is active if a seed is given; the same seed gives the same mask."""

import keras
import tensorflow as tf

from bert_tf.distribution import hardware
from bert_tf.model import cpu_kernels

# Number of random words that are made from the same drawn word; see `_random_words`.
_WIDTH = 1024
_MULTIPLIER = 0x2C1B3C6D  # odd, so no two words become the same; otherwise arbitrary


def fold_in(seed: tf.Tensor | None, number: int | tf.Tensor) -> tf.Tensor | None:
    """Returns a different seed [2] for each number; None (no dropout) stays None."""
    return None if seed is None else tf.random.experimental.stateless_fold_in(seed, number)


def seed_of_call(
    generator: keras.random.SeedGenerator, training: bool | None, seed: tf.Tensor | None
) -> tf.Tensor | None:
    """Returns the seed [2] of a call: `seed` if given, otherwise a new seed in training, otherwise None."""
    return tf.cast(generator.next(), tf.int32) if seed is None and training else seed


def dropout(x: tf.Tensor, rate: float, seed: tf.Tensor | None, dtype: str | None = None) -> tf.Tensor:
    """Sets a fraction `rate` of x's elements to zero and scales the others up. Without a seed, it drops none.

    Each element uses 16 random bits, so probabilities are multiples of 2^-16. The result is computed in float32 and
    rounded once to `dtype`. The default is the dtype of x.
    """
    dtype = tf.as_dtype(dtype or x.dtype)
    threshold = round(rate * 2**16)
    if seed is None or threshold == 0:
        return tf.cast(x, dtype)
    bits = _random_bits(x, seed)
    is_kept, scale = bits >= tf.constant(threshold, bits.dtype), 2**16 / (2**16 - threshold)

    # The gradient drops and scales the same elements as the value.
    @tf.custom_gradient
    def dropped(x: tf.Tensor) -> cpu_kernels.ValueAndGradient:
        return _drop(x, is_kept, scale, dtype), lambda upstream: _drop(upstream, is_kept, scale, x.dtype)

    return dropped(x)


def _random_bits(x: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Returns 16 random bits for each element of x, as unsigned integers of x's shape."""
    if hardware.computes_on_tpu():
        # A TPU draws one word per element, because separating the halves of a word takes longer.
        return tf.bitwise.right_shift(_drawn_words(tf.shape(x), seed), tf.constant(16, tf.uint32))
    words = _random_words((tf.size(x) + 1) // 2, seed)
    return tf.reshape(tf.reshape(tf.bitcast(words, tf.uint16), [-1])[: tf.size(x)], tf.shape(x))


def _random_words(count: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Returns at least `count` random 32-bit words [n].

    Drawing all words with TensorFlow's generator takes several times as long. Instead, each word is computed from two
    drawn words, so that any three words are independent. Without the multiplication, the exclusive or of four words at
    the corners of a rectangle would be 0.
    """
    drawn = _drawn_words([_WIDTH - (-count // _WIDTH)], seed)
    combined = tf.bitwise.bitwise_xor(drawn[:_WIDTH], drawn[_WIDTH:, tf.newaxis])  # [n / _WIDTH, _WIDTH]
    return tf.reshape(combined * tf.constant(_MULTIPLIER, tf.uint32), [-1])


def _drawn_words(shape: tf.Tensor | list[tf.Tensor], seed: tf.Tensor) -> tf.Tensor:
    return tf.random.stateless_uniform(shape, seed, minval=None, maxval=None, dtype=tf.uint32)


@cpu_kernels.in_one_pass
def _drop(x: tf.Tensor, is_kept: tf.Tensor, scale: float, dtype: tf.DType) -> tf.Tensor:
    return tf.cast(tf.where(is_kept, tf.cast(x, tf.float32) * scale, 0.0), dtype)
