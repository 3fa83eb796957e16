"""What the layers are made of."""

import numpy as np
import tensorflow as tf

from bert_tf.distribution import strategies
from bert_tf.model import layers
from tests.conftest import assert_close


def test_gradient_of_a_bias_is_the_sum_of_its_column():
    rng = np.random.default_rng(0)
    x, upstream = (tf.constant(rng.normal(size=(5, 7, 33)), tf.float32) for _ in range(2))
    bias = tf.constant(rng.normal(size=33), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch((x, bias))
        y = layers.add_bias(x, bias)
    gradients = tape.gradient(y, (x, bias), upstream)
    assert_close(y, x + bias, 1e-6)
    assert_close(gradients[0], upstream, 0)
    assert_close(gradients[1], tf.reduce_sum(upstream, axis=(0, 1)), 1e-5)


def test_bfloat16_products_are_the_same_where_there_are_no_instructions_for_them(monkeypatch):
    rng = np.random.default_rng(0)
    a, b = (tf.cast(rng.normal(size=(2, 7, 33)), tf.bfloat16) for _ in range(2))
    products = []
    for emulated in (False, True):
        monkeypatch.setattr(strategies, "emulates_bfloat16", lambda emulated=emulated: emulated)
        products.append(layers.matmul(a, b, transpose_b=True))
    assert products[0].dtype == products[1].dtype == tf.bfloat16
    np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in products), rtol=2**-7, atol=1e-3)
