"""Activations and dropout: what they compute, and where XLA makes one pass of an activation."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import elementwise
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


def test_activations_are_not_compiled_for_each_length_nor_where_devices_are_shared():
    def spec(*shape):
        return tf.TensorSpec(shape, tf.float32)

    plain = tf.function(lambda x: elementwise.activate(x, "gelu"))
    assert is_compiled(plain, spec(5, 3))
    assert not is_compiled(plain, spec(None, 3))
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    shared = tf.function(lambda x: strategy.run(plain.python_function, args=(x,)))
    assert not is_compiled(shared, spec(5, 3))
