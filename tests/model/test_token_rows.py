import functools

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.encoder import BertEncoder
from bert_tf.finetuning.models import ClassifierModel, SpanModel, TokenModel
from bert_tf.model.token_rows import TokenRows
from tests.conftest import assert_close, tiny_config, without_dropout

LENGTH = 9


def batch_of(lengths, rows):
    """Random ids; positions at the end of a sequence are padding."""
    rng = np.random.default_rng(5)
    is_token = np.arange(LENGTH) < np.array(lengths)[:, np.newaxis]
    positions = np.flatnonzero(is_token)
    return {
        "input_ids": np.where(is_token, rng.integers(5, 30, is_token.shape), 0).astype(np.int32),
        "input_mask": is_token.astype(np.int32),
        "segment_ids": (is_token & (np.arange(LENGTH) > 1)).astype(np.int32),
        "token_positions": np.append(positions, np.full(rows - len(positions), is_token.size)).astype(np.int32),
    }


# Lengths of the sequences, and the number of rows: a full last sequence, a sequence of one token, a single sequence, no
# row without a token, and no padding.
CASES = [((3, 5, 9), 20), ((1, 4), 8), ((6,), 6), ((6,), 9), ((9, 9), 18), ((9, 9), 24)]


@pytest.mark.parametrize(("lengths", "rows"), CASES)
def test_rows_and_gradients_of_padding_are_zero(lengths, rows):
    batch = batch_of(lengths, rows)
    token_rows = TokenRows.at(tf.constant(batch["token_positions"]), batch["input_ids"].size)
    x = tf.random.stateless_normal([batch["input_ids"].size, 4], [1, 2])
    with tf.GradientTape() as tape:
        tape.watch(x)
        back = token_rows.pad(token_rows.unpad(x))
        loss = tf.reduce_sum(back * x)
    is_token = batch["input_mask"].reshape(-1, 1)
    np.testing.assert_array_equal(back, x * is_token)
    np.testing.assert_array_equal(tape.gradient(loss, x), 2 * x * is_token)


def labels_for(batch, choices):
    count, rng = len(batch["input_ids"]), np.random.default_rng(7)
    tags = np.where(batch["input_mask"], rng.integers(0, 3, batch["input_ids"].shape), -1)
    return {
        "label_ids": rng.integers(0, max(choices, 3) if choices == 1 else choices, count // choices).astype(np.int32),
        "tag_ids": tags.astype(np.int32),
        "start_positions": np.zeros(count, np.int32),
        "end_positions": (batch["input_mask"].sum(axis=1) - 1).astype(np.int32),
    }


class PaddedSpanModel(SpanModel):
    """Leaves padding out of the softmax of padded batches, as its base class does for batches without padding."""

    def logits(self, batch, seed=None):
        padding = 0.0 if "token_positions" in batch else tf.where(batch["input_mask"] > 0, 0.0, -10000.0)
        return [x + padding for x in super().logits(batch, seed)]


MODELS = {
    "classification": (ClassifierModel, {"outputs": 3}),
    "choices": (ClassifierModel, {"outputs": 1, "choices": 2}),
    "tags": (TokenModel, {"outputs": 3}),
    "spans": (PaddedSpanModel, {}),
    "causal": (ClassifierModel, {"outputs": 3, "causal": True}),
    "recomputed": (TokenModel, {"outputs": 3, "gradient_checkpointing": True}),
    "recomputed classification": (ClassifierModel, {"outputs": 3, "gradient_checkpointing": True}),
}


@functools.cache
def model_of(name):
    kind, options = MODELS[name]
    return kind(without_dropout(tiny_config()), **options)


def loss_and_gradients(model, batch):
    batch = {name: tf.constant(x) for name, x in batch.items()}
    trained = [variable.value for variable in model.trained_variables]
    with tf.GradientTape() as tape:
        loss, _ = model.loss(batch, model.totals(batch), seed=tf.constant([1, 2]))
    return [loss, *map(tf.convert_to_tensor, tape.gradient(loss, trained))]


@functools.cache
def padded_loss_and_gradients(name, lengths):
    batch = batch_of(lengths, LENGTH * len(lengths))
    del batch["token_positions"]
    return loss_and_gradients(model_of(name), batch | labels_for(batch, MODELS[name][1].get("choices", 1)))


@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("lengths", "rows"), [case for case in CASES if len(case[0]) == 2])
def test_losses_and_gradients_are_those_of_padded_batches(name, lengths, rows, is_split):
    model, batch = model_of(name), batch_of(lengths, rows)
    batch |= labels_for(batch, MODELS[name][1].get("choices", 1))
    short = {"short_mask": batch["input_mask"][:1, : lengths[0]]} if is_split else {}
    compared = loss_and_gradients(model, batch | short), padded_loss_and_gradients(name, lengths)
    for variable, a, b in zip(["loss", *model.trained_variables], *compared, strict=True):
        assert_close(a, b, 2e-6, getattr(variable, "path", variable))


@pytest.mark.parametrize("first_only", [False, True])
def test_outputs_are_those_of_padded_batches(first_only):
    encoder, batch = BertEncoder(tiny_config()), batch_of((3, 9, 1), 16)
    positions = batch.pop("token_positions")
    unpadded, padded = encoder(batch, token_positions=tf.constant(positions), first_only=first_only), encoder(batch)
    is_token = np.array(batch["input_mask"][..., np.newaxis])
    for number, (a, b) in enumerate(zip(unpadded.all_encoder_layers, padded.all_encoder_layers, strict=True), start=1):
        if first_only and number == encoder.config.num_hidden_layers:
            is_token[:, 1:] = 0
        assert_close(a, b * is_token, 1e-6)
    assert_close(unpadded.pooled_output, padded.pooled_output, 1e-6)
