"""What the layers are made of."""

import numpy as np
import tensorflow as tf

from bert_tf import distribution, layers
from tests.conftest import assert_close, is_compiled


def test_compiled_layer_norm_and_its_gradient_are_the_plain_ones():
    rng = np.random.default_rng(0)
    x, upstream = (tf.constant(rng.normal(2, 3, (5, 7, 33)), tf.float32) for _ in range(2))
    gamma, beta = (tf.constant(rng.normal(1, 1, 33), tf.float32) for _ in range(2))

    def with_gradients():
        with tf.GradientTape() as tape:
            tape.watch((x, gamma, beta))
            y = layers.normalize(x, gamma, beta, 1e-12)
        return y, *tape.gradient(y, (x, gamma, beta), upstream)

    compiled = tf.function(with_gradients)
    assert is_compiled(compiled)
    for found, expected in zip(compiled(), with_gradients(), strict=True):
        assert found.shape == expected.shape
        assert_close(found, expected, 2e-5)


def test_bfloat16_products_are_the_same_where_there_are_no_instructions_for_them(monkeypatch):
    rng = np.random.default_rng(0)
    a, b = (tf.cast(rng.normal(size=(2, 7, 33)), tf.bfloat16) for _ in range(2))
    products = []
    for emulated in (False, True):
        monkeypatch.setattr(distribution, "emulates_bfloat16", lambda emulated=emulated: emulated)
        products.append(layers.matmul(a, b, transpose_b=True))
    assert products[0].dtype == products[1].dtype == tf.bfloat16
    np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in products), rtol=2**-7, atol=1e-3)
