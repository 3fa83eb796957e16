import json

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import distribution, layers
from bert_tf.config import BertConfig
from bert_tf.encoder import BertEncoder
from tests.conftest import assert_close, golden_path, restored, tiny_config

MODELS = ["gelu", "smallvar"]


def golden_encoder(name, **options):
    folder = golden_path(f"model/{name}")
    config = BertConfig.from_json_file(str(folder / "bert_config.json"))
    encoder = restored(BertEncoder(config, **options), folder / "bert_model.ckpt")
    return encoder, np.load(folder / "inputs.npz"), np.load(folder / "outputs.npz")


@pytest.mark.parametrize("name", MODELS)
def test_variables_bear_the_released_names_in_the_released_order(name):
    folder = golden_path(f"model/{name}")
    released = json.loads((folder / "variables.json").read_text())
    encoder = BertEncoder(BertConfig.from_json_file(str(folder / "bert_config.json")))
    ours = [[variable.path, list(variable.shape)] for variable in encoder.variables]
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


def test_dropout_keeps_mean_and_rate():
    x = tf.ones([301, 1001])
    dropped = layers.dropout(x, 0.1, tf.constant([1, 2])).numpy()
    assert abs((dropped == 0).mean() - 0.1) < 0.002
    assert abs(dropped.mean() - 1) < 0.002
    assert np.unique(dropped).size == 2
    assert layers.dropout(x, 0.0, tf.constant([1, 2])) is x
    assert layers.dropout(x, 0.1, None) is x


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
    assert_close(layers.ACTIVATIONS[name](tf.constant(x, tf.float32)), reference(x), 1e-6)


def test_the_two_gelus_differ_as_they_should():
    x = tf.constant(np.linspace(-6, 6, 1001), tf.float32)
    assert 2e-4 < np.abs(layers.gelu(x) - layers.gelu_erf(x)).max() < 1e-3


def _is_compiled(function, *args):
    graph = function.get_concrete_function(*args).graph.as_graph_def()
    return any(f.attr["_XlaMustCompile"].b for f in graph.library.function)


@pytest.mark.parametrize("name", ["gelu", "gelu_erf"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-6), ("bfloat16", 2e-2)])
def test_activations_are_compiled_where_shapes_are_static(name, dtype, tolerance):
    @tf.function
    def static(x, upstream):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layers.activate(x, name)
        return y, tape.gradient(y, x, upstream)

    x, upstream = (tf.cast(tf.random.stateless_normal([31, 17], [1, i]), dtype) for i in range(2))
    with tf.GradientTape() as tape:
        expected = tf.cast(x, tf.float32)
        tape.watch(expected)
        y = layers.ACTIVATIONS[name](expected)
    gradient = tape.gradient(y, expected, tf.cast(upstream, tf.float32))
    found = static(x, upstream)
    assert [part.dtype for part in found] == [x.dtype, x.dtype]
    assert_close(tf.cast(found[0], tf.float32), y, tolerance)
    assert_close(tf.cast(found[1], tf.float32), gradient, tolerance)
    assert _is_compiled(static, x, upstream)


def test_activations_are_not_compiled_for_each_length_nor_where_devices_are_shared():
    def spec(*shape):
        return tf.TensorSpec(shape, tf.float32)

    plain = tf.function(lambda x: layers.activate(x, "gelu"))
    assert _is_compiled(plain, spec(5, 3))
    assert not _is_compiled(plain, spec(None, 3))
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    shared = tf.function(lambda x: strategy.run(plain.python_function, args=(x,)))
    assert not _is_compiled(shared, spec(5, 3))


def test_bfloat16_products_are_the_same_where_there_are_no_instructions_for_them(monkeypatch):
    rng = np.random.default_rng(0)
    a, b = (tf.cast(rng.normal(size=(2, 7, 33)), tf.bfloat16) for _ in range(2))
    products = []
    for emulated in (False, True):
        monkeypatch.setattr(distribution, "emulates_bfloat16", lambda emulated=emulated: emulated)
        products.append(layers.matmul(a, b, transpose_b=True))
    assert products[0].dtype == products[1].dtype == tf.bfloat16
    np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in products), rtol=2**-7, atol=1e-3)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_is_close_and_keeps_float32_variables(dtype):
    encoder, inputs, expected = golden_encoder("gelu", dtype=dtype)
    output = encoder(inputs["input_ids"], inputs["input_mask"], inputs["segment_ids"])
    assert output.sequence_output.dtype == encoder.compute_dtype
    assert all(variable.dtype == "float32" for variable in encoder.variables)
    error = np.abs(np.asarray(output.sequence_output, np.float32) - expected["sequence_output"])
    assert error.mean() < 0.02
