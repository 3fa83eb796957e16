"""Models compute the same losses, gradients and outputs for packed rows as for padded sequences."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.config import BiLstmConfig
from bert_tf.encoder import BertEncoder
from bert_tf.finetuning.models import ClassifierModel, SpanModel, TokenModel
from bert_tf.model import heads
from bert_tf.model.gathering import repack, unpack
from bert_tf.pretraining.model import PretrainingModel
from bert_tf.sequences import packed_rows, placement
from bert_tf.sequences.packed_rows import Tokens
from bert_tf.sequences.placement import MicroBatch, Sizes
from tests.conftest import assert_close, loss_and_gradients, tiny_config, without_dropout

LENGTH, PREDICTIONS = 9, 3


@pytest.fixture(autouse=True)
def no_dropout_before_the_output_layer(monkeypatch):
    monkeypatch.setattr(heads, "CLASSIFIER_DROPOUT", 0.0)  # packed rows have the tokens at other positions


def sequences_of(lengths):
    """Returns sequences of random ids. Positions at the end of a sequence are padding."""
    rng = np.random.default_rng(5)
    is_token = np.arange(LENGTH) < np.array(lengths)[:, np.newaxis]
    tags = np.where(is_token, rng.integers(0, 3, is_token.shape), -1)
    return {
        "input_ids": np.where(is_token, rng.integers(5, 30, is_token.shape), 0).astype(np.int32),
        "input_mask": is_token.astype(np.int32),
        "segment_ids": (is_token & (np.arange(LENGTH) > 1)).astype(np.int32),
        "tag_ids": tags.astype(np.int32),
    }


def labels_of(lengths, choices):
    count, rng = len(lengths) // choices, np.random.default_rng(7)
    ends = np.array(lengths)[::choices] - 1
    return {
        "label_ids": rng.integers(0, choices if choices > 1 else 3, count).astype(np.int32),
        "next_sentence_labels": rng.integers(0, 2, count).astype(np.int32),
        "start_positions": np.where(np.arange(count) == 1, LENGTH + 1, 0).astype(
            np.int32
        ),  # one is outside of the sequence
        "end_positions": np.maximum(ends, 0).astype(np.int32),
    }


def predictions_of(lengths):
    rng = np.random.default_rng(3)
    positions = np.stack([rng.permutation(LENGTH)[:PREDICTIONS] for _ in lengths])
    is_used = positions < np.array(lengths)[:, np.newaxis]
    return {
        "masked_lm_positions": np.where(is_used, positions, 0).astype(np.int32),
        "masked_lm_ids": np.where(is_used, rng.integers(5, 30, positions.shape), 0).astype(np.int32),
        "masked_lm_weights": is_used.astype(np.float32),
    }


def packed(lengths, choices=1, rows=6, slots=5):
    """Returns the same batch in packed rows, with unused rows, positions and prediction slots."""
    batch, masked = sequences_of(lengths), predictions_of(lengths)
    sizes = Sizes.of(np.array(lengths).reshape(-1, choices))
    micro_batch = MicroBatch(LENGTH, slots, rows)
    assert not placement.fill([micro_batch], sizes, range(len(sizes.lengths)))
    placed = placement.layout([micro_batch], sizes, rows, PREDICTIONS * len(lengths) + 2)
    stored = {name: (batch[name].reshape(-1), -(name == "tag_ids")) for name in batch if name != "input_mask"}
    tokens = Tokens(stored, np.arange(len(lengths)) * LENGTH, np.array(lengths))
    arrays = packed_rows.pack(placed, tokens, labels_of(lengths, choices))
    if choices > 1:
        return arrays
    values = (masked["masked_lm_positions"], masked["masked_lm_weights"], {"masked_lm_ids": masked["masked_lm_ids"]})
    return arrays | packed_rows.pack_predictions(placed, *values)


class MaskedSpanModel(SpanModel):
    """Excludes padding from the softmax of padded sequences, as for packed rows."""

    def logits(self, batch, seed=None):
        padding = tf.where(batch["input_mask"] > 0, 0.0, -10000.0) if "input_mask" in batch else 0.0
        return [x + padding for x in super().logits(batch, seed)]


BILSTM = BiLstmConfig(1, 4)
MODELS = {
    "classification": (ClassifierModel, {"outputs": 3}),
    "weighted": (ClassifierModel, {"outputs": 3, "class_weights": [1.0, 2.0, 4.0]}),
    "choices": (ClassifierModel, {"outputs": 1, "choices": 2}),
    "tags": (TokenModel, {"outputs": 3}),
    "smoothed tags": (TokenModel, {"outputs": 3, "training_loss": {"label_smoothing": 0.1, "focal_gamma": 2.0}}),
    "spans": (MaskedSpanModel, {}),
    "causal": (ClassifierModel, {"outputs": 3, "causal": True}),
    "bilstm": (ClassifierModel, {"outputs": 3, "bilstm": BILSTM}),
    "bilstm tags": (TokenModel, {"outputs": 3, "bilstm": BILSTM, "causal": True}),
    "recomputed": (TokenModel, {"outputs": 3, "gradient_checkpointing": True}),
    "recomputed classification": (ClassifierModel, {"outputs": 3, "gradient_checkpointing": True}),
    "one-hot": (ClassifierModel, {"outputs": 3, "use_one_hot_embeddings": True}),
    "pre-training": (PretrainingModel, {}),
    "masked LM": (PretrainingModel, {"objective": "mlm"}),
    "left to right": (PretrainingModel, {"objective": "ltr"}),
}


@functools.cache
def model_of(name):
    kind, options = MODELS[name]
    return kind(without_dropout(tiny_config()), **options)


def results_of(model, batch):
    batch = {name: tf.constant(x) for name, x in batch.items()}
    return *loss_and_gradients(model, batch), model.totals(batch), model.flops(batch)


@pytest.mark.parametrize(
    ("name", "lengths"),
    [
        *((name, (3, 5, 9, 1)) for name in MODELS),
        *((name, (9, 9)) for name in ("choices", "spans", "left to right")),
        ("choices", (4, 0, 2, 2)),
    ],
)
def test_losses_and_gradients_are_those_of_padded_sequences(name, lengths):
    choices, model = MODELS[name][1].get("choices", 1), model_of(name)
    padded = sequences_of(lengths) | labels_of(lengths, choices) | (predictions_of(lengths) if choices == 1 else {})
    expected, found = results_of(model, padded), results_of(model, packed(lengths, choices))
    tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 2e-5), found[:2], expected[:2])
    tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, 1e-5), found[3:], expected[3:])
    for variable, a, b in zip(model.trained_variables, found[2], expected[2], strict=True):
        assert_close(a, b, 4e-6, variable.path)


@pytest.mark.parametrize("name", ["classification", "choices", "tags", "spans", "bilstm tags"])
def test_predictions_are_those_of_padded_sequences(name):
    lengths, choices = (3, 5, 9, 1), MODELS[name][1].get("choices", 1)
    batch, model = packed(lengths, choices), model_of(name)
    found = model.predict({key: tf.constant(x) for key, x in batch.items()})
    expected = model.predict(sequences_of(lengths) | labels_of(lengths, choices))
    is_token = sequences_of(lengths)["input_mask"]
    for key, values in expected.items():
        own = np.array(found[key])[: len(values)]
        if own.ndim > 1 and own.shape[1] == LENGTH:  # one value per token
            mask = is_token.reshape(*is_token.shape, *[1] * (own.ndim - 2))
            own, values = own * mask, values * mask
        assert_close(own, values, 1e-5, key)


def test_states_are_those_of_padded_sequences():
    lengths, encoder = (3, 9, 1), BertEncoder(tiny_config())
    batch = packed(lengths)
    inputs = {name: batch[name] for name in ("input_ids", "segment_ids", "position_ids", "sequence_ids")}
    padded = sequences_of(lengths)
    mask = padded["input_mask"][..., np.newaxis]
    del padded["tag_ids"]
    for own, expected in zip(encoder(inputs).all_encoder_layers, encoder(padded).all_encoder_layers, strict=True):
        assert_close(unpack(own, batch)[0][: len(lengths)], expected * mask, 1e-5)
    output = encoder(inputs, output_positions=batch["sequence_starts"])
    expected = encoder(padded)
    assert_close(output.sequence_output[: len(lengths)], expected.sequence_output[:, 0], 1e-5)
    assert_close(output.pooled_output[: len(lengths)], expected.pooled_output, 1e-5)


def test_rows_and_gradients_of_padding_are_zero():
    batch = packed((3, 5, 9, 1))
    x = tf.random.stateless_normal([*batch["input_ids"].shape, 4], [1, 2])
    with tf.GradientTape() as tape:
        tape.watch(x)
        padded, mask = unpack(x, batch)
        loss = tf.reduce_sum(repack(padded, batch) * x)
    is_token = batch["sequence_ids"][..., np.newaxis] > 0
    assert mask.numpy().sum(axis=1).tolist() == batch["sequence_lengths"].tolist()
    np.testing.assert_array_equal(repack(padded, batch), x * is_token)
    np.testing.assert_array_equal(tape.gradient(loss, x), 2 * x * is_token)
