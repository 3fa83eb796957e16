"""Activations: what they compute."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.model import activations
from tests.conftest import assert_close


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
    assert_close(activations.ACTIVATIONS[name](tf.constant(x, tf.float32)), reference(x), 1e-6)


def test_the_two_gelus_differ_as_they_should():
    x = tf.constant(np.linspace(-6, 6, 1001), tf.float32)
    assert 2e-4 < np.abs(activations.gelu(x) - activations.gelu_erf(x)).max() < 1e-3
