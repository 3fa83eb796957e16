"""What the layers are made of."""

import numpy as np
import tensorflow as tf

from bert_tf import distribution, layers


def test_bfloat16_products_are_the_same_where_there_are_no_instructions_for_them(monkeypatch):
    rng = np.random.default_rng(0)
    a, b = (tf.cast(rng.normal(size=(2, 7, 33)), tf.bfloat16) for _ in range(2))
    products = []
    for emulated in (False, True):
        monkeypatch.setattr(distribution, "emulates_bfloat16", lambda emulated=emulated: emulated)
        products.append(layers.matmul(a, b, transpose_b=True))
    assert products[0].dtype == products[1].dtype == tf.bfloat16
    np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in products), rtol=2**-7, atol=1e-3)
