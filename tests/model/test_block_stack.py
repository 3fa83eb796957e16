"""In a graph, blocks with the same variables share one trace, and give the same results as without a graph."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.encoder import BertEncoder
from bert_tf.model.layers import TransformerBlock
from tests.conftest import assert_close, tiny_config, without_dropout

pytestmark = pytest.mark.plain


@pytest.mark.parametrize(
    ("layers", "adapted", "traces", "gradient_checkpointing"),
    [(2, (), 1, False), (2, (0, 1), 1, False), (3, (1,), 2, True)],
)
def test_blocks_share_a_trace_if_their_variables_are_alike(
    layers, adapted, traces, gradient_checkpointing, monkeypatch
):
    keras.utils.set_random_seed(1)
    config = without_dropout(tiny_config(num_hidden_layers=layers))
    encoder = BertEncoder(config, gradient_checkpointing=gradient_checkpointing)
    for i in adapted:
        encoder.encoder.blocks[i].attention.self_attention.query.enable_lora(2)
    ids = np.arange(5, 29, dtype=np.int32).reshape(4, 6)
    trained = [weight.value for weight in encoder.trainable_weights]

    def loss_and_gradients():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(encoder(ids, seed=tf.constant([1, 2])).sequence_output ** 3)
        gradients = tape.gradient(loss, trained)
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]

    calls = []
    original = TransformerBlock.call
    expected = loss_and_gradients()
    monkeypatch.setattr(TransformerBlock, "call", lambda *args, **kw: calls.append(1) or original(*args, **kw))
    found = tf.function(loss_and_gradients)()
    assert len(calls) == traces
    for value, other in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        assert_close(value, other, 1e-5)


def test_xla_gets_the_weights_as_arguments():
    encoder = BertEncoder(tiny_config(num_hidden_layers=2))

    @tf.function(jit_compile=True)
    def gradients(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(encoder(ids, training=True).pooled_output ** 3)
        return tape.gradient(loss, [weight.value for weight in encoder.trainable_weights])

    program = gradients.experimental_get_compiler_ir(np.ones([4, 6], np.int32))(stage="hlo")
    assert not re.search(r" constant\(.*ReadVariableOp", program)
