import numpy as np
import pytest
import tensorflow as tf

from bert_tf.encoder import BertEncoder
from tests.conftest import assert_close, tiny_config

IDS = np.arange(1, 11).reshape(1, 10)


def test_one_graph_takes_all_lengths_and_padding_changes_nothing_before_it():
    encoder = BertEncoder(tiny_config())
    run = tf.function(encoder, input_signature=[tf.TensorSpec([None, None], tf.int32)] * 2)
    expected = encoder(IDS).sequence_output
    for padding in (0, 6):
        padded = np.pad(IDS, [(0, 0), (0, padding)]).astype(np.int32)
        found = run(padded, (padded > 0).astype(np.int32)).sequence_output
        assert_close(found[:, :10], expected, 1e-5)


def test_causal_encoder_reads_only_earlier_tokens_and_pools_the_last_one():
    encoder = BertEncoder(tiny_config(), causal=True)
    changed = IDS.copy()
    changed[0, 6:] = 40
    before, after = encoder(IDS).sequence_output, encoder(changed).sequence_output
    assert_close(before[:, :6], after[:, :6], 1e-6)
    assert np.abs(before[:, 6:] - after[:, 6:]).max() > 1e-3
    output = encoder(IDS, np.array([[1] * 7 + [0] * 3]))
    assert_close(output.pooled_output, encoder.pooler(output.sequence_output[:, 6]), 1e-6)
    assert_close(output.pooled_output, encoder(IDS[:, :7]).pooled_output, 1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "mixed_bfloat16", "mixed_float16"])
def test_half_precision_is_close_and_keeps_float32_variables(dtype):
    encoder, half = BertEncoder(tiny_config()), BertEncoder(tiny_config(), dtype=dtype)
    half.set_weights(encoder.get_weights())
    output = half(IDS).sequence_output
    assert output.dtype == half.compute_dtype
    assert all(variable.dtype == "float32" for variable in half.weights)
    assert np.abs(np.asarray(output, np.float32) - encoder(IDS).sequence_output).mean() < 0.02
