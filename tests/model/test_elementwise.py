"""Activations, dropout and casts: what they compute, and that XLA makes one pass of each where it may."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.model import elementwise
from tests.conftest import assert_close, is_compiled


def test_dropout_keeps_mean_and_rate():
    x = tf.ones([301, 1001])
    dropped = elementwise.dropout(x, 0.1, tf.constant([1, 2])).numpy()
    assert abs((dropped == 0).mean() - 0.1) < 0.002
    assert abs(dropped.mean() - 1) < 0.002
    assert np.unique(dropped).size == 2
    assert elementwise.dropout(x, 0.0, tf.constant([1, 2])) is x
    assert elementwise.dropout(x, 0.1, None) is x


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("gelu", lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))),
        ("relu", lambda x: np.maximum(x, 0)),
        ("tanh", np.tanh),
        ("linear", lambda x: x),
    ],
)
def test_activations(name, reference):
    x = np.linspace(-6, 6, 1001)
    assert_close(elementwise.ACTIVATIONS[name](tf.constant(x, tf.float32)), reference(x), 1e-6)


def test_the_two_gelus_differ_as_they_should():
    x = tf.constant(np.linspace(-6, 6, 1001), tf.float32)
    assert 2e-4 < np.abs(elementwise.gelu(x) - elementwise.gelu_erf(x)).max() < 1e-3


@pytest.mark.parametrize("name", ["gelu", "gelu_erf"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-6), ("bfloat16", 2e-2)])
def test_activations_are_compiled_where_shapes_are_static(name, dtype, tolerance):
    @tf.function
    def static(x, upstream):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = elementwise.activate(x, name)
        return y, tape.gradient(y, x, upstream)

    x, upstream = (tf.cast(tf.random.stateless_normal([31, 17], [1, i]), dtype) for i in range(2))
    with tf.GradientTape() as tape:
        expected = tf.cast(x, tf.float32)
        tape.watch(expected)
        y = elementwise.ACTIVATIONS[name](expected)
    gradient = tape.gradient(y, expected, tf.cast(upstream, tf.float32))
    found = static(x, upstream)
    assert [part.dtype for part in found] == [x.dtype, x.dtype]
    assert_close(tf.cast(found[0], tf.float32), y, tolerance)
    assert_close(tf.cast(found[1], tf.float32), gradient, tolerance)
    assert is_compiled(static, x, upstream)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_compiled_dropout_drops_the_same_elements_of_the_gradient(dtype):
    @tf.function
    def static(x, upstream):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = elementwise.dropout(x, 0.3, tf.constant([1, 2]))
        return y, tape.gradient(y, x, upstream)

    # An odd number of elements, two of which share a random word.
    x, upstream = (tf.cast(1 + tf.random.stateless_uniform([31, 17], [1, i]), dtype) for i in range(2))
    y, gradient = static(x, upstream)
    assert is_compiled(static, x, upstream)
    assert y.dtype == gradient.dtype == x.dtype
    kept = np.asarray(y != 0)
    assert 0.6 < kept.mean() < 0.8
    for found, whole in ((y, x), (gradient, upstream)):
        expected = np.where(kept, tf.cast(whole, tf.float32), 0) / 0.7
        assert_close(tf.cast(found, tf.float32), expected, 1e-4 if dtype == "float32" else 2e-2)


def test_compiled_dropout_is_independent_from_place_to_place_and_from_seed_to_seed():
    rate, shape = 0.1, [1024, 768]

    @tf.function
    def dropped(seed):
        return elementwise.dropout(tf.ones(shape), rate, seed) == 0

    assert is_compiled(dropped, tf.constant([0, 0]))
    root = tf.constant([12345, 7])
    masks = [dropped(elementwise.fold_in(root, i)).numpy() for i in range(4)]
    masks += [dropped(elementwise.fold_in(elementwise.fold_in(root, 1), i)).numpy() for i in range(2)]
    masks += [dropped(tf.constant(seed)).numpy() for seed in ([0, 0], [0, 1], [1, 0], [-1, 2**31 - 1])]
    np.testing.assert_array_equal(masks[0], dropped(elementwise.fold_in(root, 0)))

    def assert_rate(drawn, expected):
        assert abs(drawn.mean() - expected) < 5 * np.sqrt(expected * (1 - expected) / drawn.size)

    for i, mask in enumerate(masks):
        assert_rate(mask, rate)
        assert abs(mask.mean(axis=0) - rate).max() < 6 * np.sqrt(rate * (1 - rate) / shape[0])
        assert abs(mask.mean(axis=1) - rate).max() < 6 * np.sqrt(rate * (1 - rate) / shape[1])
        flat = mask.reshape(-1)
        for distance in (1, 2, 3, 64, 768, 1536):
            assert_rate(flat[distance:] & flat[:-distance], rate**2)
        for other in masks[:i]:
            assert_rate(mask & other, rate**2)
            assert_rate(flat[1:] & other.reshape(-1)[:-1], rate**2)


def test_casts_are_compiled_and_give_gradients_of_the_same_precision_back():
    @tf.function
    def static(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = elementwise.cast(x, "bfloat16")
            total = tf.reduce_sum(tf.cast(y, tf.float32) ** 2)
        return y, tape.gradient(total, x)

    x = tf.random.stateless_normal([31, 17], [1, 2])
    y, gradient = static(x)
    assert is_compiled(static, x)
    assert (y.dtype, gradient.dtype) == (tf.bfloat16, tf.float32)
    np.testing.assert_array_equal(tf.cast(y, tf.float32), tf.cast(tf.cast(x, tf.bfloat16), tf.float32))
    np.testing.assert_array_equal(gradient, 2 * tf.cast(y, tf.float32))
    assert elementwise.cast(x, "float32") is x


def test_activations_are_not_compiled_for_each_length_nor_where_devices_are_shared():
    def spec(*shape):
        return tf.TensorSpec(shape, tf.float32)

    plain = tf.function(lambda x: elementwise.activate(x, "gelu"))
    assert is_compiled(plain, spec(5, 3))
    assert not is_compiled(plain, spec(None, 3))
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    shared = tf.function(lambda x: strategy.run(plain.python_function, args=(x,)))
    assert not is_compiled(shared, spec(5, 3))
