import keras
import numpy as np
import pytest

from bert_tf.config import BiLstmConfig
from bert_tf.finetuning.models import ClassifierModel, SpanModel
from bert_tf.model.bilstm import BiLstm
from bert_tf.optimization import is_decayed
from tests.conftest import assert_close, tiny_config

TWO_LAYERS = BiLstmConfig(layers=2, units=3)


@pytest.fixture(scope="module")
def bilstm():
    keras.utils.set_random_seed(1)
    return BiLstm(4, TWO_LAYERS)


def test_both_directions_stop_at_the_end_of_a_sequence(bilstm):
    x, mask = np.random.default_rng(0).normal(size=(1, 7, 4)).astype(np.float32), np.array([[1] * 5 + [0] * 2])
    states = bilstm(x, mask)
    assert_close(states[:, :5], bilstm(x[:, :5], mask[:, :5]), 1e-6)
    shorter = bilstm(x[:, :4], mask[:, :4])
    assert np.abs(states[:, 3] - shorter[:, 3]).max() > 1e-3  # the output of a token depends on the following tokens
    ends = np.concatenate([states[:, 4, :3], states[:, 0, 3:]], axis=-1)
    assert_close(bilstm.summary(x, mask), ends, 1e-6)


def test_names_are_the_same_however_many_there_are(bilstm):
    names = [variable.path for variable in bilstm.variables]
    cells = [f"bilstm/layer_{number}/{side}_lstm/lstm_cell" for number in (0, 1) for side in ("forward", "backward")]
    assert names == [f"{cell}/{name}" for cell in cells for name in ("kernel", "recurrent_kernel", "bias")]
    assert names == [variable.path for variable in BiLstm(4, TWO_LAYERS).variables]
    assert [is_decayed(name) for name in names[:3]] == [True, True, False]


def test_models_read_it_in_place_of_the_encoder_and_of_its_pooler():
    config = tiny_config(num_hidden_layers=1)
    ids = np.random.default_rng(0).integers(1, 41, (2, 6))
    batch = {"input_ids": ids, "input_mask": np.array([[1] * 6, [1] * 4 + [0] * 2]), "segment_ids": np.zeros_like(ids)}
    options = {"bilstm": TWO_LAYERS, "causal": True, "dtype": "mixed_bfloat16"}
    classifier, spans = ClassifierModel(config, 3, **options), SpanModel(config, **options)
    for model, width in ((classifier, 3), (spans, 2)):
        assert model.head.output_weights.shape == (width, 6)
        left_alone = {v.path for v in model.variables} - {v.path for v in model.trained_variables}
        assert left_alone == {"bert/pooler/dense/kernel", "bert/pooler/dense/bias"}
    states = classifier.bilstm(classifier.encode(batch, None).sequence_output, batch["input_mask"]).numpy()
    read = [np.concatenate([states[b, last, :3], states[b, 0, 3:]]) for b, last in ((0, 5), (1, 3))]
    assert_close(classifier.logits(batch), classifier.head(np.stack(read)), 1e-6)
    assert [logits.shape for logits in spans.logits(batch)] == [(2, 6)] * 2
    read = spans.head.output_weights.numpy() @ spans.token_states(batch, None).numpy()[1, 2]
    assert_close(np.stack(spans.logits(batch))[:, 1, 2], read, 1e-6)
    # Each of a layer's two directions has four gates, which read the input and the state.
    cells = 2 * 4 * 3 * ((config.hidden_size + 3) + (6 + 3))
    forward = classifier.encoder.flops(np.array([6, 4])) + 2 * cells * 10  # padding is not counted
    assert_close(classifier.flops(batch), 3 * forward, 1)
