import pytest
import tensorflow as tf

from bert_tf.runtime.devices import DistributionConfig
from bert_tf.runtime.distribution import build_strategy


@pytest.mark.parametrize("allowed", [True, False])
def test_float32_is_float32_unless_less_is_allowed(allowed):
    build_strategy(DistributionConfig(allow_tf32=allowed))
    assert tf.config.experimental.tensor_float_32_execution_enabled() == allowed
