import numpy as np
import tensorflow as tf

from bert_tf.feature_tagger import BiLstm, FeatureTagger
from bert_tf.finetuning_models import NO_TAG
from tests.conftest import assert_close, tiny_config


def batch_of(lengths, width=12, layers=3):
    rng = np.random.default_rng(0)
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int32)
    return {
        "activations": rng.normal(size=(*mask.shape, layers, width)).astype(np.float32),
        "input_mask": mask,
        "tag_ids": np.where(mask, rng.integers(0, 5, mask.shape), NO_TAG).astype(np.int32),
    }


def test_both_directions_stop_at_the_end_of_a_sentence():
    bilstm = BiLstm(4, layers=2, units=3)
    x, mask = np.random.default_rng(0).normal(size=(1, 7, 4)).astype(np.float32), np.array([[1] * 5 + [0] * 2])
    assert_close(bilstm(x, mask)[:, :5], bilstm(x[:, :5], mask[:, :5]), 1e-6)
    shorter = bilstm(x[:, :4], mask[:, :4])
    assert np.abs(bilstm(x, mask)[:, 0] - shorter[:, 0]).max() > 1e-4  # the first word sees the last one
    assert [variable.path for variable in bilstm.variables][:2] == [
        "bilstm/layer_0/forward_lstm/lstm_cell/kernel",
        "bilstm/layer_0/forward_lstm/lstm_cell/recurrent_kernel",
    ]


def test_the_loss_is_the_mean_over_words_and_reaches_all_variables():
    batch = batch_of([4, 2])
    for combination, width in (("concat", 36), ("weighted_sum", 12)):
        model = FeatureTagger(tiny_config(), num_layers=3, outputs=5, combination=combination, units=2)
        assert model.variables[0].shape == (width, 8)
        with tf.GradientTape() as tape:
            loss, metrics = model.loss(batch, model.totals(batch), None)
        gradients = tape.gradient(loss, [variable.value for variable in model.trained_variables])
        assert all(gradient is not None for gradient in gradients)
        logits = model.logits(batch).numpy()
        log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        words = [(0, t) for t in range(4)] + [(1, t) for t in range(2)]
        expected = -np.mean([log_probs[b, t, batch["tag_ids"][b, t]] for b, t in words])
        assert_close(loss, expected, 1e-5)
        assert float(metrics["accuracy"][1]) == 6


def test_a_weighted_sum_begins_as_the_mean():
    batch = batch_of([3])
    model = FeatureTagger(tiny_config(), num_layers=3, outputs=5, combination="weighted_sum", units=2)
    mean = batch | {"activations": np.repeat(batch["activations"].mean(axis=2, keepdims=True), 3, axis=2)}
    assert_close(model.logits(batch), model.logits(mean), 1e-6)
