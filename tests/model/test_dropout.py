"""Tests rate, scale and independence of dropout, in the plain and the compiled implementation, for TPU and GPU."""

import contextlib
import functools

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.traced_step import OneCore, assumed
from bert_tf.model.dropout import dropout, fold_in
from tests.conftest import assert_close, is_compiled, with_gradients


@pytest.fixture(params=[tf.distribute.get_strategy, OneCore])
def strategy(request):
    """Runs the test in the scope of a strategy."""
    with request.param().scope():
        yield request.param


@pytest.mark.usefixtures("strategy")
def test_dropout_keeps_mean_and_rate():
    x = tf.ones([301, 1001])
    dropped = dropout(x, 0.1, tf.constant([1, 2])).numpy()
    assert abs((dropped == 0).mean() - 0.1) < 0.002
    assert abs(dropped.mean() - 1) < 0.002
    assert np.unique(dropped).size == 2
    assert dropout(x, 0.0, tf.constant([1, 2])) is x
    assert dropout(x, 0.1, None) is x


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dropout_drops_the_same_elements_of_the_gradient(dtype, strategy):
    @tf.function
    def static(x, upstream):
        return with_gradients(lambda x: dropout(x, 0.3, tf.constant([1, 2])), [x], upstream)

    # An odd number of elements; two of them share a random word.
    x, upstream = (tf.cast(1 + tf.random.stateless_uniform([31, 17], [1, i]), dtype) for i in range(2))
    y, gradient = static(x, upstream)
    assert is_compiled(static, x, upstream) == (strategy is not OneCore)
    assert y.dtype == gradient.dtype == x.dtype
    kept = np.asarray(y != 0)
    assert 0.6 < kept.mean() < 0.8
    for found, whole in ((y, x), (gradient, upstream)):
        expected = np.where(kept, tf.cast(whole, tf.float32), 0) / 0.7
        assert_close(tf.cast(found, tf.float32), expected, 1e-4 if dtype == "float32" else 2e-2)


@pytest.mark.parametrize("platform", ["CPU", "GPU"])
def test_compiled_dropout_is_independent_from_place_to_place_and_from_seed_to_seed(platform):
    rate, shape, is_gpu = 0.1, [1024, 768], platform == "GPU"

    @functools.partial(tf.function, jit_compile=is_gpu or None)
    def dropped(seed):
        return dropout(tf.ones(shape), rate, seed) == 0

    with assumed("GPU") if is_gpu else contextlib.nullcontext():
        assert is_compiled(dropped, tf.constant([0, 0])) != is_gpu
    root = tf.constant([12345, 7])
    masks = [dropped(fold_in(root, i)).numpy() for i in range(4)]
    masks += [dropped(fold_in(fold_in(root, 1), i)).numpy() for i in range(2)]
    masks += [dropped(tf.constant(seed)).numpy() for seed in ([0, 0], [0, 1], [1, 0], [-1, 2**31 - 1])]
    np.testing.assert_array_equal(masks[0], dropped(fold_in(root, 0)))

    def assert_rate(drawn, expected):
        assert abs(drawn.mean() - expected) < 5 * np.sqrt(expected * (1 - expected) / drawn.size)

    for i, mask in enumerate(masks):
        assert_rate(mask, rate)
        assert abs(mask.mean(axis=0) - rate).max() < 6 * np.sqrt(rate * (1 - rate) / shape[0])
        assert abs(mask.mean(axis=1) - rate).max() < 6 * np.sqrt(rate * (1 - rate) / shape[1])
        flat = mask.reshape(-1)
        for distance in (1, 2, 3, 64, 768, 1536):
            assert_rate(flat[distance:] & flat[:-distance], rate**2)
        # Elements whose random words share one of two drawn words.
        width, distance = (768, 1) if is_gpu else (2 * 1024, 2)
        blocks = flat.reshape(-1, width)
        sides = blocks[:, distance:] & blocks[:, :-distance]
        assert_rate(sides[1:] & sides[:-1], rate**4)
        for other in masks[:i]:
            assert_rate(mask & other, rate**2)
            assert_rate(flat[1:] & other.reshape(-1)[:-1], rate**2)
