import json

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.encoder import BertEncoder
from tests.conftest import assert_close, golden_path, restored, tiny_config

MODELS = ["gelu", "smallvar"]


def golden_encoder(name, **options):
    folder = golden_path(f"model/{name}/outputs.npz").parent
    config = BertConfig.from_json_file(str(folder / "bert_config.json"))
    encoder = restored(BertEncoder(config, **options), folder / "bert_model.ckpt")
    return encoder, np.load(folder / "inputs.npz"), np.load(folder / "outputs.npz")


@pytest.mark.parametrize("name", MODELS)
def test_variables_bear_the_released_names_in_the_released_order(name):
    folder = golden_path(f"model/{name}")
    released = json.loads((folder / "variables.json").read_text())
    encoder = BertEncoder(BertConfig.from_json_file(str(folder / "bert_config.json")))
    ours = [[variable.path, list(variable.shape)] for variable in encoder.weights]
    assert ours == [entry for entry in released if entry[0].startswith("bert/")]


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_is_the_releases(name):
    encoder, inputs, expected = golden_encoder(name)
    output = encoder(inputs["input_ids"], inputs["input_mask"], inputs["segment_ids"])
    assert_close(output.embedding_output, expected["embedding_output"], 5e-5)
    for i, layer in enumerate(output.all_encoder_layers):
        assert_close(layer, expected[f"encoder_layer_{i}"], 5e-5, f"layer {i}")
    assert_close(output.sequence_output, expected["sequence_output"], 5e-5)
    assert_close(output.pooled_output, expected["pooled_output"], 5e-5)
    if "attention_probs_layer_0" in expected:
        assert_close(output.attention_probs[0], expected["attention_probs_layer_0"], 5e-5)


@pytest.mark.parametrize("name", MODELS)
def test_mask_and_segments_may_be_left_out(name):
    encoder, inputs, expected = golden_encoder(name)
    output = encoder(inputs["input_ids"])
    assert_close(output.sequence_output, expected["nomask_sequence_output"], 5e-5)
    assert_close(output.pooled_output, expected["nomask_pooled_output"], 5e-5)


def test_one_hot_lookup_is_the_same_function():
    encoder, inputs, expected = golden_encoder("smallvar", use_one_hot_embeddings=True)
    output = encoder(inputs["input_ids"], inputs["input_mask"], inputs["segment_ids"])
    assert_close(output.sequence_output, expected["sequence_output"], 5e-5)


def test_any_length_runs_in_one_graph():
    encoder, inputs, _ = golden_encoder("smallvar")
    run = tf.function(
        lambda ids, mask: encoder(ids, mask).sequence_output,
        input_signature=[tf.TensorSpec([None, None], tf.int32)] * 2,
    )
    ids, mask = inputs["input_ids"].astype(np.int32), inputs["input_mask"].astype(np.int32)
    assert_close(run(ids[:, :9], mask[:, :9]), encoder(ids[:, :9], mask[:, :9]).sequence_output, 1e-6)
    assert run(ids[:2], mask[:2]).shape == (2, *ids.shape[1:], encoder.config.hidden_size)


def test_padding_changes_nothing_before_it():
    encoder = BertEncoder(tiny_config())
    ids = np.arange(1, 11).reshape(1, 10)
    padded = np.pad(ids, [(0, 0), (0, 6)])
    output = encoder(padded, (padded > 0).astype(np.int32)).sequence_output[:, :10]
    assert_close(output, encoder(ids).sequence_output, 1e-5)


def test_causal_encoder_sees_only_what_is_before():
    encoder = BertEncoder(tiny_config(), causal=True)
    ids = np.arange(1, 11).reshape(1, 10)
    changed = ids.copy()
    changed[0, 6:] = 40
    before, after = encoder(ids).sequence_output, encoder(changed).sequence_output
    assert_close(before[:, :6], after[:, :6], 1e-6)
    assert np.abs(before[:, 6:] - after[:, 6:]).max() > 1e-3


def test_causal_encoder_pools_the_last_token():
    encoder = BertEncoder(tiny_config(), causal=True)
    ids, mask = np.arange(1, 11).reshape(1, 10), np.array([[1] * 7 + [0] * 3])
    output = encoder(ids, mask)
    assert_close(output.pooled_output, encoder.pooler(output.sequence_output[:, 6]), 1e-6)
    assert_close(output.pooled_output, encoder(ids[:, :7]).pooled_output, 1e-6)


def test_dropout_is_a_function_of_the_seed():
    encoder = BertEncoder(tiny_config())
    ids = np.arange(1, 11).reshape(1, 10)
    one, again = (encoder(ids, seed=tf.constant([3, 4])).sequence_output for _ in range(2))
    other = encoder(ids, seed=tf.constant([3, 5])).sequence_output
    assert np.array_equal(one, again)
    assert np.abs(one - other).max() > 1e-3
    assert np.abs(one - encoder(ids).sequence_output).max() > 1e-3


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_is_close_and_keeps_float32_variables(dtype):
    encoder, inputs, expected = golden_encoder("gelu", dtype=dtype)
    output = encoder(inputs["input_ids"], inputs["input_mask"], inputs["segment_ids"])
    assert output.sequence_output.dtype == encoder.compute_dtype
    assert all(variable.dtype == "float32" for variable in encoder.weights)
    error = np.abs(np.asarray(output.sequence_output, np.float32) - expected["sequence_output"])
    assert error.mean() < 0.02
