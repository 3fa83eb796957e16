import numpy as np
import tensorflow as tf

from bert_tf.config import BiLstmConfig
from bert_tf.finetuning.models import NO_TAG
from bert_tf.tasks.tagging.feature_tagger import FeatureTagger
from tests.conftest import assert_close, tiny_config


def batch_of(lengths, width=12, layers=3):
    rng = np.random.default_rng(0)
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int32)
    return {
        "activations": rng.normal(size=(*mask.shape, layers, width)).astype(np.float32),
        "input_mask": mask,
        "tag_ids": np.where(mask, rng.integers(0, 5, mask.shape), NO_TAG).astype(np.int32),
    }


def test_the_loss_is_the_mean_over_words_and_reaches_all_variables():
    batch = batch_of([4, 2])
    for combination, width in (("concat", 36), ("weighted_sum", 12)):
        model = FeatureTagger(tiny_config(), 3, 5, BiLstmConfig(units=2), combination)
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


def test_an_untrained_weighted_sum_is_the_mean():
    batch = batch_of([3])
    model = FeatureTagger(tiny_config(), 3, 5, BiLstmConfig(units=2), "weighted_sum")
    mean = batch | {"activations": np.repeat(batch["activations"].mean(axis=2, keepdims=True), 3, axis=2)}
    assert_close(model.logits(batch), model.logits(mean), 1e-6)
