import pytest
import tensorflow as tf

from bert_tf.runtime import distribution
from bert_tf.runtime.devices import DistributionConfig
from bert_tf.runtime.distribution import build_strategy


@pytest.mark.parametrize("allowed", [True, False])
def test_float32_is_float32_unless_less_is_allowed(allowed):
    build_strategy(DistributionConfig(allow_tf32=allowed))
    assert tf.config.experimental.tensor_float_32_execution_enabled() == allowed


def test_replicas_add_up_gradients_in_the_given_type():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    value = 1 + 2**-9  # bfloat16 rounds it to 1

    @tf.function(autograph=False)
    def sums():
        def add_up():
            gradients = [tf.constant([value]), tf.constant(value)]
            in_float32 = distribution.sum_over_replicas({"loss": tf.constant(value)}, gradients, "float32")
            return in_float32, distribution.sum_over_replicas({"loss": tf.constant(value)}, gradients, "bfloat16")

        return strategy.run(add_up)

    for (values, gradients), expected in zip(sums(), (2 + 2**-8, 2.0), strict=True):
        assert [float(each) for each in values["loss"].values] == [2 + 2**-8] * 2
        for gradient in gradients:
            assert [(float(tf.squeeze(x)), x.dtype) for x in gradient.values] == [(expected, tf.float32)] * 2


def test_one_replica_rounds_no_gradients():
    @tf.function
    def sums():
        return tf.distribute.OneDeviceStrategy("CPU:0").run(
            lambda: distribution.sum_over_replicas(tf.constant(1.0), [tf.constant(1 + 2**-9)], "bfloat16")
        )

    assert float(sums()[1][0]) == 1 + 2**-9
