"""Layer normalisation and softmax: that the compiled forms and their gradients are the plain ones'."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.model.normalization import layer_norm, softmax
from tests.conftest import assert_close, is_compiled

EPSILON = 1e-12


def reference(x, gamma, beta):
    """In float64, by definition."""
    mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + EPSILON) * gamma + beta


@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("bfloat16", 5e-2)])
def test_compiled_form_and_its_gradient_are_the_plain_ones(with_residual, dtype, tolerance):
    rng = np.random.default_rng(0)
    x, residual, upstream = (tf.cast(rng.normal(2, 3, (5, 7, 33)), dtype) for _ in range(3))
    gamma, beta = (tf.constant(rng.normal(1, 1, 33), tf.float32) for _ in range(2))
    inputs = [gamma, beta, x] + [residual] * with_residual

    def with_gradients(upstream, gamma, beta, *branches):
        with tf.GradientTape() as tape:
            tape.watch((gamma, beta, *branches))
            y = layer_norm(branches[0], gamma, beta, EPSILON, *branches[1:])
        return y, *tape.gradient(y, (gamma, beta, *branches), upstream)

    compiled = tf.function(with_gradients)
    assert is_compiled(compiled, upstream, *inputs)
    found = compiled(upstream, *inputs)
    assert [part.dtype for part in found] == [x.dtype, *(part.dtype for part in inputs)]
    # The plain form in float32, of the same rounded numbers.
    expected = with_gradients(*(tf.cast(part, tf.float32) for part in (upstream, *inputs)))
    for part, plain in zip(found, expected, strict=True):
        assert part.shape == plain.shape
        np.testing.assert_allclose(tf.cast(part, tf.float32), plain, rtol=tolerance, atol=tolerance)
    total = np.sum([np.asarray(tf.cast(branch, tf.float32), np.float64) for branch in inputs[2:]], axis=0)
    assert_close(expected[0], reference(total, gamma.numpy(), beta.numpy()), 2e-5)


def test_equal_numbers_become_the_offset():
    gamma, beta = tf.fill([33], 2.0), tf.range(33.0)
    for form in (layer_norm, tf.function(layer_norm)):
        assert_close(form(tf.fill([3, 33], 5.0), gamma, beta, EPSILON), np.tile(beta, (3, 1)), 1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("bfloat16", 2e-2)])
def test_compiled_softmax_and_its_gradient_are_the_plain_ones(dtype, tolerance):
    rng = np.random.default_rng(0)
    scores, upstream = (tf.cast(rng.normal(0, 3, (2, 3, 5, 7)), dtype) for _ in range(2))
    bias = tf.constant(rng.choice([0.0, -10000.0], (2, 1, 1, 7), p=[0.7, 0.3]), tf.float32)

    def with_gradient(scores, bias, upstream):
        with tf.GradientTape() as tape:
            tape.watch(scores)
            probabilities = softmax(scores, bias)
        return probabilities, tape.gradient(probabilities, scores, upstream)

    found = tf.function(with_gradient)(scores, bias, upstream)
    assert is_compiled(tf.function(with_gradient), scores, bias, upstream) == (dtype == "bfloat16")
    assert [part.dtype for part in found] == [scores.dtype] * 2
    x = np.asarray(tf.cast(scores, tf.float32), np.float64) + bias.numpy()
    expected = np.exp(x - x.max(axis=-1, keepdims=True))
    expected /= expected.sum(axis=-1, keepdims=True)
    up = np.asarray(tf.cast(upstream, tf.float32), np.float64)
    gradient = expected * (up - (up * expected).sum(axis=-1, keepdims=True))
    for part, reference_part in zip(found, (expected, gradient), strict=True):
        assert_close(tf.cast(part, tf.float32), reference_part, tolerance)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("wrapped", [tf.function, lambda function: function], ids=["compiled", "plain"])
def test_the_sum_with_a_residual_branch_is_not_rounded(dtype, wrapped):
    rng = np.random.default_rng(1)
    x, residual = (tf.cast(rng.normal(2, 3, (5, 7, 33)), dtype) for _ in range(2))
    gamma, beta = (tf.constant(rng.normal(1, 1, 33), tf.float32) for _ in range(2))
    found = wrapped(lambda *inputs: layer_norm(inputs[0], gamma, beta, EPSILON, inputs[1]))(x, residual)
    total = np.asarray(x, np.float64) + np.asarray(residual, np.float64)
    expected = reference(total, gamma.numpy().astype(np.float64), beta.numpy().astype(np.float64))
    half_of_the_last_place = {"bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype]
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=1.01 * half_of_the_last_place, atol=1e-5)
