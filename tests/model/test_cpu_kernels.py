"""The compiled forms: that they compute what the plain ones compute, and are used where they may be."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.model.activations import activate
from bert_tf.model.cpu_kernels import cast
from bert_tf.model.normalization import layer_norm, softmax
from tests.conftest import is_compiled

ROWS, WIDTH = 31, 17
# What rounds to the next number of a type is this part of it away at the most.
ROUNDING = {"float32": 2e-6, "bfloat16": 2.0**-8, "float16": 2.0**-11}


def normal(dtype, number, deviation=1.0):
    return tf.cast(deviation * tf.random.stateless_normal([ROWS, WIDTH], [1, number]), dtype)


def far_apart(dtype):
    """Numbers from -300 to 300: the square of the largest is no number of float16."""
    return tf.cast(tf.reshape(tf.linspace(-300.0, 300.0, ROWS * WIDTH), [ROWS, WIDTH]), dtype)


GAMMA, BETA = tf.linspace(0.5, 2.0, WIDTH), tf.linspace(-1.0, 1.0, WIDTH)
BIAS = tf.where(tf.range(WIDTH) % 3 == 0, -10000.0, 0.0)
FORMS = {
    "gelu": (lambda x: activate(x, "gelu"), normal),
    "gelu far apart": (lambda x: activate(x, "gelu"), lambda dtype, number: far_apart(dtype)),
    "gelu_erf": (lambda x: activate(x, "gelu_erf"), normal),
    "gelu_erf far apart": (lambda x: activate(x, "gelu_erf"), lambda dtype, number: far_apart(dtype)),
    "layer norm": (lambda x: layer_norm(x, GAMMA, BETA, 1e-12), normal),
    "layer norm with residual": (lambda x: layer_norm(x, GAMMA, BETA, 1e-12, 0.3 * x), normal),
    "softmax": (lambda x: softmax(x, BIAS), lambda dtype, number: normal(dtype, number, 3.0)),
}


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("name", FORMS)
def test_both_forms_round_once(name, dtype):
    form, make = FORMS[name]
    x, upstream = make(dtype, 1), normal(dtype, 2)

    def with_gradient(x, upstream):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = form(x)
        return y, tape.gradient(y, x, upstream)

    compiled = tf.function(with_gradient)
    plain = tf.function(with_gradient, input_signature=[tf.TensorSpec([None, WIDTH], dtype)] * 2)
    assert is_compiled(compiled, x, upstream) == (name != "softmax" or dtype != "float32")
    assert not is_compiled(plain)
    exact = with_gradient(*(tf.cast(part, tf.float32) for part in (x, upstream)))
    for found in (compiled(x, upstream), plain(x, upstream)):
        for part, expected in zip(found, exact, strict=True):
            assert part.dtype == x.dtype
            size = np.abs(expected).max()
            # The gradient of a residual branch is rounded once more where it meets the other.
            times = 3 if "residual" in name else 1
            np.testing.assert_allclose(
                tf.cast(part, tf.float32), expected, rtol=times * ROUNDING[dtype], atol=times * ROUNDING[dtype] * size
            )


def test_casts_are_compiled_and_give_gradients_of_the_same_precision_back():
    @tf.function
    def static(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = cast(x, "bfloat16")
            total = tf.reduce_sum(tf.cast(y, tf.float32) ** 2)
        return y, tape.gradient(total, x)

    x = normal("float32", 2)
    y, gradient = static(x)
    assert is_compiled(static, x)
    assert (y.dtype, gradient.dtype) == (tf.bfloat16, tf.float32)
    np.testing.assert_array_equal(tf.cast(y, tf.float32), tf.cast(tf.cast(x, tf.bfloat16), tf.float32))
    np.testing.assert_array_equal(gradient, 2 * tf.cast(y, tf.float32))
    assert cast(x, "float32") is x


def test_nothing_is_compiled_for_each_length_nor_where_devices_are_shared():
    def spec(*shape):
        return tf.TensorSpec(shape, tf.float32)

    plain = tf.function(lambda x: activate(x, "gelu"))
    assert is_compiled(plain, spec(5, 3))
    assert not is_compiled(plain, spec(None, 3))
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    shared = tf.function(lambda x: strategy.run(plain.python_function, args=(x,)))
    assert not is_compiled(shared, spec(5, 3))
