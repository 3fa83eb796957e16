import collections
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.encoder import BertEncoder
from bert_tf.graphs.encoder import InferenceEncoder, layer_norm
from bert_tf.graphs.packing import TokenBatch
from bert_tf.model.heads import MaskedLMHead
from tests.conftest import assert_close, golden_path, restored, tiny_config

LENGTHS = [5, 9, 1, 7]
# One tolerance for each row of the batch. Row 2 is masked completely: -10,000 is added to all its scores, where float32
# has steps of 1e-3, so the rounded scores depend on the order in which a machine adds.
TOLERANCES = [5e-5, 5e-5, 5e-3, 5e-5]


def random_encoder(**options):
    """Returns an encoder with random biases and scales, so that a missing bias or scale changes the result."""
    encoder = BertEncoder(tiny_config().replace(**options.pop("config", {})), **options)
    rng = np.random.default_rng(0)
    for variable in encoder.weights:
        variable.assign(variable.numpy() + rng.normal(0, 0.3, variable.shape))
    return encoder


@pytest.fixture(scope="module")
def batch():
    """Returns a padded batch with a masked token inside a row, and with a completely masked row."""
    rng = np.random.default_rng(1)
    input_mask = (np.arange(9) < np.array(LENGTHS)[:, None]).astype(np.int32)
    input_mask[1, 3] = 0
    input_mask[2] = 0
    input_ids = rng.integers(1, 41, input_mask.shape).astype(np.int32)
    segment_ids = rng.integers(0, 2, input_mask.shape).astype(np.int32)
    return tuple(map(tf.constant, (input_ids, input_mask, segment_ids)))


def served(function):
    """Compiles a function as for serving; TensorFlow fuses operations only in compiled functions."""
    specs = [tf.TensorSpec([None], tf.int32, name) for name in TokenBatch._fields]
    return tf.function(lambda *tokens: function(TokenBatch(*tokens)), input_signature=specs)


@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"config": {"hidden_act": "gelu_erf"}}], ids=["gelu", "causal", "erf"]
)
def test_results_are_those_of_the_trained_encoder(options, batch):
    encoder = random_encoder(**options)
    fast = InferenceEncoder(encoder)
    expected = encoder(*batch)
    tokens = TokenBatch.from_padded(*batch)
    assert tokens.lengths.numpy().tolist() == [5, 9, 9, 7]
    layers, pooled = served(lambda tokens: (fast.layers(tokens), fast.pooled_output(tokens)))(*tokens)
    for states, layer in zip(layers, expected.all_encoder_layers, strict=True):
        for row, (length, tolerance) in enumerate(zip(tokens.lengths, TOLERANCES, strict=True)):
            assert_close(tokens.padded(states)[row, :length], layer[row, :length], tolerance)
    for row, tolerance in enumerate(TOLERANCES):
        assert_close(pooled[row], expected.pooled_output[row], tolerance)
        assert_close(fast.pool(tokens, layers[-1])[row], expected.pooled_output[row], tolerance)


@pytest.mark.parametrize("changes", [{}, {"mlm_hidden_act": "relu", "mlm_layer_norm_eps": 0.1}], ids=["same", "own"])
def test_logits_are_those_of_the_masked_lm_head(changes):
    encoder = random_encoder(config=changes)
    head, states = MaskedLMHead(encoder.config), np.random.default_rng(2).normal(size=[5, 12]).astype(np.float32)
    fast = InferenceEncoder(encoder, masked_lm=head)
    assert_close(fast.masked_lm_logits(states), head(states, embedding_table=encoder.embedding_table), 5e-5)


@pytest.mark.parametrize("epsilon", [0.0, 1e-30, 1e-12, 1e-5, 0.1])
def test_layer_normalisation_has_the_epsilon_of_the_config(epsilon):
    rng = np.random.default_rng(0)
    x, beta, gamma = rng.normal(0, 0.01, [5, 12]), rng.normal(0, 1, 12), rng.normal(0, 1, 12)
    expected = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + epsilon) * gamma + beta
    x, beta, gamma = (values.astype(np.float32) for values in (x, beta, gamma))
    fused = tf.function(
        lambda x: layer_norm(x, beta, gamma, epsilon) + 0.0, input_signature=[tf.TensorSpec([None, 12])]
    )
    assert_close(fused(x), expected, 1e-5)


def executed(directory, tokens):
    """Counts the operations, and the fused operations, in the graph that TensorFlow runs for a SavedModel."""
    metadata = tf.compat.v1.RunMetadata()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        model = tf.compat.v1.saved_model.load(session, ["serve"], directory)
        signature = model.signature_def["serving_default"]
        session.run(
            [tensor.name for tensor in signature.outputs.values()],
            {tensor.name: tokens[name] for name, tensor in signature.inputs.items()},
            tf.compat.v1.RunOptions(output_partition_graphs=True),
            metadata,
        )
    nodes = [node for graph in metadata.partition_graphs for node in graph.node]
    return collections.Counter((node.op, *(name.decode() for name in node.attr["fused_ops"].list.s)) for node in nodes)


# TensorFlow fuses operations only on x86, and bfloat16 operations only with these instructions.
INSTRUCTIONS = {"float32": "sse2", "bfloat16": "avx512f"}


@pytest.mark.parametrize("dtype", INSTRUCTIONS)
def test_tensorflow_fuses_what_the_encoder_is_written_for(dtype, batch, tmp_path):
    cpu = pathlib.Path("/proc/cpuinfo")
    if not cpu.exists() or INSTRUCTIONS[dtype] not in cpu.read_text().split():
        pytest.skip("On this CPU, TensorFlow fuses nothing.")
    encoder = InferenceEncoder(random_encoder(), dtype)
    signature = served(lambda tokens: {"states": encoder.token_states(tokens)})
    tf.saved_model.save(encoder, str(tmp_path), signatures=signature)
    tokens = {name: x.numpy() for name, x in TokenBatch.from_padded(*batch)._asdict().items()}
    found = executed(str(tmp_path), tokens)
    blocks = encoder.config.num_hidden_layers
    assert found["_MklLayerNorm",] == 2 * blocks + 1
    assert found["_MklNativeFusedMatMul", "BiasAdd", "GeluApproximate"] == blocks
    assert found["_MklNativeFusedMatMul", "BiasAdd", "Add"] == blocks
    assert found["_MklNativeFusedMatMul", "BiasAdd"] == 2 * blocks
    assert not {"_MklMatMul", "MatMul", "BiasAdd", "Rsqrt", "Tanh"} & {op for op, *_ in found}


def test_an_empty_batch():
    fast = InferenceEncoder(random_encoder())
    assert fast.pooled_output(TokenBatch(*(tf.zeros([0], tf.int32) for _ in TokenBatch._fields))).shape == [0, 12]


def test_bfloat16_is_stored_and_computed(batch):
    encoder = random_encoder()
    fast = InferenceEncoder(encoder, "bfloat16")
    assert {variable.dtype for variable in fast.variables} == {tf.bfloat16}
    assert fast.layers(TokenBatch.from_padded(*batch))[-1].dtype == tf.bfloat16
    assert_close(fast.pooled_output(TokenBatch.from_padded(*batch)), encoder(*batch).pooled_output, 0.1)


@pytest.mark.golden
@pytest.mark.parametrize("name", ["gelu", "smallvar"])
def test_the_released_model(name):
    """In `smallvar` the variances are so small that an epsilon other than 1e-12 would change the result."""
    directory = golden_path(f"model/{name}/outputs.npz").parent
    encoder = BertEncoder(BertConfig.from_json_file(str(directory / "bert_config.json")))
    restored(encoder, directory / "bert_model.ckpt")
    inputs, outputs = np.load(directory / "inputs.npz"), np.load(directory / "outputs.npz")
    batch = TokenBatch.from_padded(*(tf.constant(inputs[n]) for n in ("input_ids", "input_mask", "segment_ids")))
    assert_close(served(InferenceEncoder(encoder).pooled_output)(*batch), outputs["pooled_output"], 5e-5)
