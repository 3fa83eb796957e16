import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.config import BiLstmConfig
from bert_tf.finetuning.models import EncoderModel
from bert_tf.sequences.graph_packing import TokenBatch
from bert_tf.serving.bilstm import RecurrentEncoder
from bert_tf.serving.encoder import InferenceEncoder
from tests.conftest import assert_close, tiny_config


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(1)
    return EncoderModel(tiny_config(num_hidden_layers=1, initializer_range=0.7), BiLstmConfig(layers=2, units=3))


@pytest.fixture(scope="module")
def served(model):
    return RecurrentEncoder(InferenceEncoder(model.encoder), model.bilstm)


def test_states_are_those_of_the_trained_model_without_padding(model, served):
    input_mask = (np.arange(7) < np.array([4, 6, 1, 5])[:, None]).astype(np.int32)
    input_mask[1, 3] = input_mask[3, 0] = 0  # holes
    input_mask[2] = 0  # no visible token
    ids = np.random.default_rng(1).integers(1, 41, input_mask.shape).astype(np.int32)
    batch = {"input_ids": ids, "input_mask": input_mask, "segment_ids": np.zeros_like(ids)}
    tokens = TokenBatch.from_padded(*map(tf.constant, batch.values()))
    states, pooled = tokens.padded(served.token_states(tokens)), served.pooled_output(tokens)
    expected = model.token_states(batch, None).numpy()
    assert np.abs(expected[0, :4]).max() > 0.1
    for row, length in enumerate([4, 6, 7, 5]):
        assert_close(states[row, :length], expected[row, :length], 1e-5)
    assert_close(pooled, model.summary(batch, None), 1e-5)


def test_a_batch_may_be_empty(served):
    empty = TokenBatch(*(tf.zeros([0], tf.int32) for _ in TokenBatch._fields))
    assert served.token_states(empty).shape == served.pooled_output(empty).shape == [0, 6]
