"""Compares activations, normalisation and matrix multiplication with definitions, and compiled with plain results."""

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.traced_step import assumed
from bert_tf.distribution import hardware, strategies
from bert_tf.distribution.devices import DistributionConfig
from bert_tf.model import activations, cpu_kernels
from bert_tf.model.dropout import fixed_dropout
from bert_tf.model.normalization import layer_norm, softmax, weighted_sum_on_tpu
from tests.conftest import assert_close, is_compiled, with_gradients

ROWS, WIDTH = 31, 17
EPSILON = 1e-12
# Largest relative rounding error of a type.
ROUNDING = {"float32": 2e-6, "bfloat16": 2.0**-8, "float16": 2.0**-11}


def normal(dtype, number, deviation=1.0):
    return tf.cast(deviation * tf.random.stateless_normal([ROWS, WIDTH], [1, number]), dtype)


def far_apart(dtype):
    """Returns numbers from -300 to 300. The square of the largest number is out of range in float16."""
    return tf.cast(tf.reshape(tf.linspace(-300.0, 300.0, ROWS * WIDTH), [ROWS, WIDTH]), dtype)


GAMMA, BETA = tf.linspace(0.5, 2.0, WIDTH), tf.linspace(-1.0, 1.0, WIDTH)
BIAS = tf.where(tf.range(WIDTH) % 3 == 0, -10000.0, 0.0)


def gelu_by_definition(x):
    return 0.5 * x * (1.0 + tf.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gelu_erf_by_definition(x):
    return 0.5 * x * (1.0 + tf.math.erf(x / np.sqrt(2)))


def layer_norm_by_definition(x, gamma, beta):
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return (x - mean) / tf.sqrt(variance + EPSILON) * gamma + beta


# A function of numbers in the type and of other numbers in float32, the definition, and the other numbers.
FORMS = {
    "gelu": (activations.gelu, gelu_by_definition, normal, []),
    "gelu far apart": (activations.gelu, gelu_by_definition, lambda dtype, number: far_apart(dtype), []),
    "gelu_erf": (activations.gelu_erf, gelu_erf_by_definition, normal, []),
    "gelu_erf far apart": (activations.gelu_erf, gelu_erf_by_definition, lambda dtype, number: far_apart(dtype), []),
    "layer norm": (lambda x, *scale: layer_norm(x, *scale, EPSILON), layer_norm_by_definition, normal, [GAMMA, BETA]),
    "layer norm with residual": (
        lambda x, *scale: layer_norm(x, *scale, EPSILON, 0.5 * x),
        lambda x, *scale: layer_norm_by_definition(1.5 * x, *scale),
        normal,
        [GAMMA, BETA],
    ),
    "softmax": (
        lambda x: tf.cast(softmax(x, BIAS), x.dtype),
        lambda x: tf.nn.softmax(x + tf.cast(BIAS, x.dtype)),
        lambda dtype, number: normal(dtype, number, 3.0),
        [],
    ),
}


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("name", FORMS)
def test_both_forms_round_once(name, dtype):
    form, definition, make, others = FORMS[name]
    x, upstream = make(dtype, 1), normal(dtype, 2)

    def differentiated(function):
        return lambda upstream, *inputs: with_gradients(function, inputs, upstream)

    compiled = tf.function(differentiated(form))
    signature = [tf.TensorSpec([None, WIDTH], dtype)] * 2 + [tf.TensorSpec([WIDTH], tf.float32)] * len(others)
    plain = tf.function(differentiated(form), input_signature=signature)
    assert is_compiled(compiled, upstream, x, *others) == (name != "softmax" or dtype != "float32")
    assert not is_compiled(plain)
    with assumed("GPU"):
        for_gpu = tf.function(differentiated(form), jit_compile=True).get_concrete_function(upstream, x, *others)
    exact = differentiated(definition)(*(tf.cast(part, tf.float64) for part in (upstream, x, *others)))
    for function in (compiled, plain, for_gpu):
        found = function(upstream, x, *others)
        assert [part.dtype for part in found] == [x.dtype, x.dtype, *(other.dtype for other in others)]
        np.testing.assert_allclose(tf.cast(found[0], tf.float64), exact[0], rtol=1.01 * ROUNDING[dtype], atol=1e-5)
        for part, expected in zip(found[1:], exact[1:], strict=True):
            # The gradient of a residual branch is rounded once more in the sum of the branches.
            tolerance = (3 if "residual" in name else 1) * ROUNDING[dtype]
            size = np.abs(expected).max()
            np.testing.assert_allclose(tf.cast(part, tf.float64), expected, rtol=tolerance, atol=tolerance * size)


@pytest.mark.parametrize("dtype", ROUNDING)
def test_the_form_for_tpus_has_the_gradients_of_the_plain_form(dtype):
    inputs, upstream = [normal(dtype, 1, 3.0), normal(dtype, 2)[:WIDTH]], normal(dtype, 3)

    def plain(scores, value):
        return tf.matmul(fixed_dropout(scores, 0.5, [1, 2], tf.float32)(softmax(scores, BIAS)), value)

    def for_tpu(scores, value):
        return weighted_sum_on_tpu(scores, BIAS, value, fixed_dropout(scores, 0.5, [1, 2], dtype))

    expected = with_gradients(plain, [tf.cast(x, tf.float32) for x in inputs], tf.cast(upstream, tf.float32))
    for found, other in zip(with_gradients(for_tpu, inputs, upstream), expected, strict=True):
        assert found.dtype == dtype
        assert_close(tf.cast(found, tf.float32), other, 3 * ROUNDING[dtype] * np.abs(other).max())


def test_nothing_is_compiled_for_each_length_nor_where_devices_are_shared():
    def spec(*shape):
        return tf.TensorSpec(shape, tf.float32)

    plain = tf.function(activations.gelu)
    assert is_compiled(plain, spec(5, 3))
    assert not is_compiled(plain, spec(None, 3))
    strategy = strategies.build_strategy(DistributionConfig("mirrored"))
    shared = tf.function(lambda x: strategy.run(plain.python_function, args=(x,)))
    assert not is_compiled(shared, spec(5, 3))


@pytest.mark.parametrize(("deviation", "atol"), [(0, 1e-6), (0.01, 0.01)])
def test_equal_and_close_numbers_are_normalised(deviation, atol):
    x = 100.0 + deviation * tf.random.stateless_normal([3, 33], [1, 2])
    arguments = x, tf.fill([33], 2.0), tf.range(33.0)
    with assumed("GPU"):
        for_gpu = tf.function(layer_norm, jit_compile=True).get_concrete_function(*arguments, EPSILON)
    expected = layer_norm_by_definition(*(tf.cast(part, tf.float64) for part in arguments))
    for form in (layer_norm, tf.function(layer_norm), lambda *arguments: for_gpu(*arguments[:3])):
        assert_close(form(*arguments, EPSILON), expected, atol)


@pytest.mark.parametrize(
    ("name", "reference"),
    [("relu", lambda x: np.maximum(x, 0)), ("tanh", np.tanh), ("linear", lambda x: x)],
)
def test_activations(name, reference):
    x = np.linspace(-6, 6, 1001)
    assert_close(activations.ACTIVATIONS[name](tf.constant(x, tf.float32)), reference(x), 1e-6)


def test_bfloat16_products_are_the_same_where_there_are_no_instructions_for_them(monkeypatch):
    rng = np.random.default_rng(0)
    a, b = (tf.cast(rng.normal(size=(2, 7, 33)), tf.bfloat16) for _ in range(2))
    products = []
    for emulated in (False, True):
        monkeypatch.setattr(hardware, "emulates_bfloat16", lambda emulated=emulated: emulated)
        products.append(cpu_kernels.matmul(a, b, transpose_b=True))
    assert products[0].dtype == products[1].dtype == tf.bfloat16
    np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in products), rtol=2**-7, atol=1e-3)
