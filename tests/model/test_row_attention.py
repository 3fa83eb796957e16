"""Attention computed a few rows at a time equals attention computed for each row."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.distribution import hardware
from bert_tf.encoder import BertEncoder
from bert_tf.model import row_attention
from bert_tf.model.dropout import dropout, fold_in
from bert_tf.model.normalization import softmax
from tests.conftest import assert_close, tiny_config

ROWS, HEADS, LENGTH, SIZE = 6, 2, 5, 3
pytestmark = pytest.mark.plain


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
        with tf.GradientTape() as tape:
            tape.watch(states)
            context = function(*states)
        return [context, *tape.gradient(context, states, upstream)]

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


def test_an_encoder_has_the_same_outputs_with_it(two_rows, monkeypatch):
    encoder = BertEncoder(tiny_config())
    ids = tf.constant(np.arange(ROWS * LENGTH).reshape(ROWS, LENGTH) % 7, tf.int32)
    variables = encoder.trainable_variables

    def outputs_and_gradients():
        with tf.GradientTape() as tape:
            outputs = encoder(ids)
            loss = tf.reduce_sum(outputs.pooled_output**3)
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        return [outputs.sequence_output, *outputs.attention_probs, *map(tf.convert_to_tensor, gradients)]

    expected = tf.function(outputs_and_gradients)()
    calls = []
    monkeypatch.setattr(hardware, "computes_on_tpu", lambda: True)
    original = row_attention.attend_by_rows
    monkeypatch.setattr(row_attention, "attend_by_rows", lambda *a: calls.append(1) or original(*a))
    found = tf.function(outputs_and_gradients)()
    assert calls
    for value, other in zip(found, expected, strict=True):
        assert_close(value, other, 1e-5)
