"""Tests the encoder in graphs, in half precision, and with its attention computed a few rows at a time."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.distribution import hardware
from bert_tf.encoder import BertEncoder
from bert_tf.model import row_attention
from bert_tf.model.dropout import dropout, fold_in
from bert_tf.model.layers import TransformerBlock
from bert_tf.model.normalization import softmax
from tests.conftest import assert_close, tiny_config, with_gradients, without_dropout

pytestmark = pytest.mark.plain
IDS = np.arange(1, 11).reshape(1, 10)
ROWS, HEADS, LENGTH, SIZE = 6, 2, 5, 3
BATCH = np.arange(ROWS * LENGTH, dtype=np.int32).reshape(ROWS, LENGTH)


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


def outputs_and_gradients(encoder, ids, **options):
    with tf.GradientTape() as tape:
        outputs = encoder(ids, **options)
        loss = tf.reduce_mean(outputs.sequence_output**3)
    gradients = tape.gradient(loss, [weight.value for weight in encoder.trainable_weights])
    gradients = [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]
    return [outputs.sequence_output, *outputs.attention_probs, *gradients]


@pytest.fixture
def counted(monkeypatch):
    """Counts the calls of a function. Returns the list of calls."""

    def replace(owner, name):
        calls, original = [], getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, **options: calls.append(1) or original(*args, **options))
        return calls

    return replace


@pytest.mark.parametrize(
    ("layers", "adapted", "traces", "gradient_checkpointing"),
    [(2, (), 1, False), (2, (0, 1), 1, False), (3, (1,), 2, True)],
)
def test_blocks_share_a_trace_if_their_variables_are_alike(layers, adapted, traces, gradient_checkpointing, counted):
    keras.utils.set_random_seed(1)
    config = without_dropout(tiny_config(num_hidden_layers=layers))
    encoder = BertEncoder(config, gradient_checkpointing=gradient_checkpointing)
    for i in adapted:
        encoder.encoder.blocks[i].attention.self_attention.query.enable_lora(2)
    expected = outputs_and_gradients(encoder, BATCH, seed=tf.constant([1, 2]))
    calls = counted(TransformerBlock, "call")
    found = tf.function(outputs_and_gradients)(encoder, BATCH, seed=tf.constant([1, 2]))
    assert len(calls) == traces
    for value, other in zip(found, expected, strict=True):
        assert_close(value, other, 1e-5)


def test_xla_gets_the_weights_as_arguments():
    encoder = BertEncoder(tiny_config())
    compiled = tf.function(lambda ids: outputs_and_gradients(encoder, ids, training=True), jit_compile=True)
    program = compiled.experimental_get_compiler_ir(BATCH)(stage="hlo")
    assert not re.search(r" constant\(.*ReadVariableOp", program)


def attend(query, key, value, bias, seed):
    probabilities = softmax(tf.matmul(query, key, transpose_b=True), bias)
    return tf.matmul(dropout(probabilities, 0.5, seed), value)


@pytest.fixture
def two_rows(monkeypatch):
    monkeypatch.setattr(row_attention, "MIN_LENGTH", LENGTH)
    monkeypatch.setattr(row_attention, "_SCORES", 2 * HEADS * LENGTH * LENGTH)


@pytest.mark.parametrize(("seed", "jit_compile"), [(None, False), ([3, 4], True)])
def test_values_and_gradients_are_those_of_each_part(two_rows, seed, jit_compile):
    rng = np.random.default_rng(0)
    *states, upstream = (tf.constant(rng.normal(size=[ROWS, HEADS, LENGTH, SIZE]), tf.float32) for _ in range(4))
    bias = tf.constant(np.where(rng.random([ROWS, 1, 1, LENGTH]) < 0.3, -1e4, 0.0), tf.float32)
    seed = seed and tf.constant(seed)

    def by_parts(*states):
        parts = zip(*(tf.split(x, ROWS // 2) for x in (*states, bias)), strict=True)
        return tf.concat([attend(*part, fold_in(seed, number)) for number, part in enumerate(parts)], axis=0)

    @tf.function(jit_compile=jit_compile)
    def computed(function):
        return with_gradients(function, states, upstream)

    found = computed(lambda *states: row_attention.attend_by_rows(attend, *states, bias, seed))
    for value, expected in zip(found, computed(by_parts), strict=True):
        assert_close(value, expected, 1e-5)


@pytest.mark.parametrize(
    ("shape", "is_faster"),
    [
        ([ROWS, HEADS, LENGTH, SIZE], True),
        ([2, HEADS, LENGTH, SIZE], False),
        ([ROWS, HEADS, LENGTH - 1, SIZE], False),
        ([None, HEADS, LENGTH, SIZE], False),
    ],
)
def test_it_is_used_for_many_long_rows_of_a_fixed_shape(two_rows, shape, is_faster):
    assert row_attention.is_faster(tf.TensorShape(shape)) == is_faster


def test_an_encoder_has_the_same_outputs_with_attention_by_rows(two_rows, counted, monkeypatch):
    encoder = BertEncoder(tiny_config())
    expected = outputs_and_gradients(encoder, BATCH)
    monkeypatch.setattr(hardware, "computes_on_tpu", lambda: True)
    calls = counted(row_attention, "attend_by_rows")
    found = tf.function(outputs_and_gradients)(encoder, BATCH)
    assert calls
    for value, other in zip(found, expected, strict=True):
        assert_close(value, other, 1e-5)
