"""Random numbers that do not depend on how work is divided among processes.

A key identifies an item (seed, duplicate, document, sentence), and the n-th draw of a key is always the same. Keys and
draws are 64-bit hashes (the finalizer of SplitMix64, Steele et al. 2014). All functions work on arrays.
"""

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIERS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
_MANTISSA_SHIFT, _MANTISSA_UNIT = np.uint64(11), 2.0**-53


def _mix(bits: np.ndarray) -> np.ndarray:
    """Scrambles 64-bit numbers, in place and without collisions."""
    bits ^= bits >> _SHIFTS[0]
    bits *= _MULTIPLIERS[0]
    bits ^= bits >> _SHIFTS[1]
    bits *= _MULTIPLIERS[1]
    bits ^= bits >> _SHIFTS[2]
    return bits


def make_keys(seed: int, *names: int | np.ndarray) -> np.ndarray:
    """Returns the keys [...] of items.

    Args:
      seed: the seed of the program.
      names: numbers that identify the items, or arrays of numbers, which are broadcast.
    """
    keys = np.array(seed % (1 << 64), np.uint64)
    for name in names:
        keys = draw(keys, name)
    return keys


def draw(keys: np.ndarray, number: int | np.ndarray) -> np.ndarray:
    """Returns the `number`-th draw of each key: 64 random bits. Shapes are broadcast."""
    with np.errstate(over="ignore"):  # sums and products are modulo 2**64
        steps = (np.asarray(number).astype(np.uint64) + np.uint64(1)) * _GOLDEN
        return _mix(np.atleast_1d(keys + steps))


def uniform(bits: np.ndarray) -> np.ndarray:
    """Converts bits to floats in [0, 1)."""
    return (bits >> _MANTISSA_SHIFT) * _MANTISSA_UNIT


def below(bits: np.ndarray, limits: int | np.ndarray) -> np.ndarray:
    """Converts bits to integers in [0, limit)."""
    return (uniform(bits) * limits).astype(np.int64)


def coin_flips(keys: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Returns the number of heads in `counts[i]` tosses of a fair coin, for each key [n]."""
    whole_words, rest = np.divmod(counts, 64)
    # Only `rest` bits of the last word are used.
    last = draw(keys, whole_words) & ((np.uint64(1) << rest.astype(np.uint64)) - np.uint64(1))
    heads = np.bitwise_count(last).astype(np.int64)
    rows = np.repeat(np.arange(len(counts)), whole_words)
    if len(rows):
        numbers = np.arange(len(rows)) - np.repeat(np.cumsum(whole_words) - whole_words, whole_words)
        heads += np.bincount(rows, np.bitwise_count(draw(keys[rows], numbers)), len(counts)).astype(np.int64)
    return heads
