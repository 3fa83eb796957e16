import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import ops

from bert_tf.distribution import strategies
from bert_tf.distribution.devices import DistributionConfig

REGISTERED = ops.gradient_registry._registry


@tf.custom_gradient
def cubed(x):
    # The factor is 1 too large, so the gradient is recognisable.
    return x**3, lambda upstream: 4 * x**2 * upstream


def summed(x):
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, x)


def gradient_of(function):
    @tf.function
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x)

    return gradient


@pytest.mark.parametrize(
    ("function", "expected"),
    [(cubed, 16.0), (tf.recompute_grad(cubed), 16.0), (tf.recompute_grad(lambda x: x**2), 4.0), (summed, 1.0)],
    ids=["custom gradient", "recomputed custom gradient", "recomputed", "summed over replicas"],
)
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_gradient_lives_as_long_as_its_graph(function, expected, is_nested):
    strategy = strategies.build_strategy(DistributionConfig())
    gradient = gradient_of(tf.function(function) if is_nested else function)
    gc.collect()
    before = set(REGISTERED)
    assert strategy.run(gradient, [tf.constant(2.0)]).numpy() == expected
    gc.collect()
    assert len(REGISTERED) > len(before)
    # A later trace finds the gradients of functions that were traced earlier.
    assert strategy.run(gradient, [tf.constant([2.0, 2.0])]).numpy().tolist() == [expected, expected]
    graph = weakref.ref(gradient.get_concrete_function(tf.constant(2.0)).graph)
    del gradient
    gc.collect()
    assert graph() is None
    assert set(REGISTERED) == before


def test_a_saved_model_keeps_its_gradients(tmp_path):
    module = tf.Module()
    module.cubed = tf.function(cubed, input_signature=[tf.TensorSpec([])])
    tf.saved_model.save(module, str(tmp_path), options=tf.saved_model.SaveOptions(experimental_custom_gradients=True))
    del module
    gc.collect()
    loaded, x = tf.saved_model.load(str(tmp_path)), tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = loaded.cubed(x)
    np.testing.assert_array_equal([y, tape.gradient(y, x)], [8.0, 16.0])
