import functools
import json

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.optimization import OptimizerConfig
from bert_tf.pretraining import input_pipeline, record_shards
from bert_tf.pretraining.run import PretrainingData, PretrainingRun
from bert_tf.runtime.distribution import DistributionConfig
from bert_tf.runtime.files import InputError
from bert_tf.sequences.example_format import Sidecar, names, serialize, unmasked_features
from bert_tf.sequences.graph_masking import BatchMasker
from bert_tf.sequences.masking_policy import MaskingPolicy, MaskingVocabulary
from bert_tf.training.contract import TrainingConfig
from tests.conftest import tiny_config

PAD, CLS, SEP, MASK, FIRST = 0, 1, 2, 3, 4
VOCAB = {"[PAD]": PAD, "[CLS]": CLS, "[SEP]": SEP, "[MASK]": MASK}
VOCAB |= {f"{'##' * (i % 3 == 2)}p{i}": i for i in range(FIRST, 90)}
LENGTH, PREDICTIONS, ROWS = 40, 5, 600


def sequences(rows, rng):
    """Random unmasked sequences of random lengths, as batches read them."""
    ids = rng.integers(FIRST, len(VOCAB), (rows, LENGTH))
    ends = rng.integers(8, LENGTH, (rows, 1))
    places = np.arange(LENGTH)
    ids[:, 0] = CLS
    ids[(places == ends) | (places == ends // 2)] = SEP
    mask = places <= ends
    ids[~mask] = PAD
    return {
        "input_ids": ids.astype(np.int32),
        "input_mask": mask.astype(np.int32),
        "segment_ids": (mask & (places > ends // 2)).astype(np.int32),
        "next_sentence_labels": rng.integers(0, 2, rows).astype(np.int32),
        "word_starts": (ids % 3 != 2).astype(np.int32),
    }


@functools.cache
def compiled(policy, seed):
    return tf.function(
        BatchMasker(policy, MaskingVocabulary.of(VOCAB, policy.ordinary_replacements), PREDICTIONS, seed)
    )


def mask(batch, step=0, first_row=0, seed=1, **policy):
    batch = {name: tf.constant(value) for name, value in batch.items()}
    numbers = tf.constant(step, tf.int64), tf.constant(first_row, tf.int64)
    masked = compiled(MaskingPolicy(**policy), seed)(batch, *numbers, ROWS)
    return {name: value.numpy() for name, value in masked.items()}


@pytest.fixture(scope="module")
def batch():
    return sequences(ROWS, np.random.default_rng(0))


@pytest.mark.parametrize("whole_word", [False, True])
def test_masks_are_those_of_data_preparation(batch, whole_word):
    masked = mask(batch, whole_word=whole_word)
    lengths = batch["input_mask"].sum(axis=1)
    limits = np.clip(np.rint(lengths * 0.15), 1, PREDICTIONS)
    counts = masked["masked_lm_weights"].sum(axis=1)
    assert (counts <= limits).all() if whole_word else (counts == limits).all()
    assert counts.sum() > 0.9 * limits.sum()
    chosen = np.zeros_like(batch["input_ids"], bool)
    for row, (positions, labels, weights) in enumerate(
        zip(masked["masked_lm_positions"], masked["masked_lm_ids"], masked["masked_lm_weights"], strict=True)
    ):
        count = int(weights.sum())
        assert (np.diff(positions[:count]) > 0).all() and not positions[count:].any() and not labels[count:].any()
        assert (labels[:count] == batch["input_ids"][row, positions[:count]]).all()
        assert (labels[:count] >= FIRST).all()
        chosen[row, positions[:count]] = True
    assert (masked["input_ids"] == batch["input_ids"])[~chosen].all()
    if whole_word:
        # A piece that continues a word is chosen exactly if the piece before it is.
        text = batch["input_ids"] >= FIRST
        continues = (text & (batch["word_starts"] == 0))[:, 1:] & text[:, :-1]
        assert (chosen[:, 1:] == chosen[:, :-1])[continues].all()
    else:
        kept = (masked["input_ids"] == batch["input_ids"])[chosen].mean()
        became_mask = (masked["input_ids"] == MASK)[chosen].mean()
        assert abs(became_mask - 0.8) < 0.04 and abs(kept - 0.1 - 0.1 / 90) < 0.03


@pytest.mark.parametrize("shares", [(1, 0, 0), (0.8, 0, 0.2), (0, 0, 1), (0, 1, 0), (0.8, 0.2, 0)])
def test_shares_are_a_value(batch, shares):
    masked = mask(batch, **dict(zip(("mask", "same", "random"), shares, strict=True)))
    is_chosen = masked["masked_lm_weights"] > 0
    found = np.take_along_axis(masked["input_ids"], masked["masked_lm_positions"], axis=1)[is_chosen]
    labels = masked["masked_lm_ids"][is_chosen]
    shares_found = (found == MASK).mean(), ((found == labels) & (found != MASK)).mean()
    expected = shares[0] + shares[2] / 90, shares[1] + shares[2] / 90
    assert np.abs(np.subtract(shares_found, expected)).max() < 0.03


def test_one_draw_decides_for_a_word_if_asked(batch):
    masked = mask(batch, whole_word=True, draw_per_word=True, mask=0.5, same=0.5, random=0.0)
    is_mask = masked["input_ids"] == MASK
    text = batch["input_ids"] >= FIRST
    continues = (text & (batch["word_starts"] == 0))[:, 1:] & text[:, :-1]
    assert (is_mask[:, 1:] == is_mask[:, :-1])[continues].all() and is_mask.sum() > 0


def test_random_pieces_are_ordinary_if_asked(batch):
    for ordinary in (False, True):
        masked = mask(batch, mask=0.0, same=0.0, random=1.0, ordinary_replacements=ordinary)
        found = np.take_along_axis(masked["input_ids"], masked["masked_lm_positions"], axis=1)
        assert (found[masked["masked_lm_weights"] > 0] < FIRST).any() != ordinary


def test_masks_are_a_function_of_seed_step_and_place_in_the_global_batch(batch):
    whole = mask(batch, step=3)
    part = mask({name: value[200:500] for name, value in batch.items()}, step=3, first_row=200)
    for name in ("input_ids", "masked_lm_positions"):
        assert (part[name] == whole[name][200:500]).all()
        assert (mask(batch, step=4)[name] != whole[name]).any()
        assert (mask(batch, step=3, seed=2)[name] != whole[name]).any()


def test_positions_are_evenly_chosen(batch):
    chosen = np.zeros([ROWS, LENGTH + 1])
    for step in range(30):
        masked = mask(batch, step=step)
        places = np.where(masked["masked_lm_weights"] > 0, masked["masked_lm_positions"], LENGTH)
        np.add.at(chosen, (np.arange(ROWS)[:, None], places), 1)
    is_text = batch["input_ids"] >= FIRST
    limits = np.clip(np.rint(batch["input_mask"].sum(axis=1) * 0.15), 1, PREDICTIONS)
    expected = (30 * is_text * (limits / is_text.sum(axis=1))[:, None]).sum(axis=0)
    ratio = chosen[:, :LENGTH].sum(axis=0)[1:30] / expected[1:30]
    assert np.abs(ratio - 1).max() < 0.12 and not chosen[:, :LENGTH][~is_text].any()


def write_unmasked(path, batch, rows, **settings):
    features = unmasked_features(LENGTH, word_starts=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in rows:
            writer.write(serialize(features, {name: np.atleast_1d(value[row]) for name, value in batch.items()}))
    policy = {"masking_policy": {"whole_word": True} | settings}
    Sidecar(len(rows), path.stat().st_size, LENGTH, 0, "abc", policy, names(features)).write(str(path))


def test_pipeline_masks_what_it_reads(batch, tmp_path, monkeypatch):
    monkeypatch.setattr(input_pipeline, "_WINDOW_RECORDS", 8)
    write_unmasked(tmp_path / "a.tfrecord", batch, range(20))
    shards = record_shards.find_shards(str(tmp_path / "a.tfrecord"), LENGTH, PREDICTIONS, len(VOCAB), "abc")
    features = record_shards.record_features(shards, LENGTH, PREDICTIONS)
    masker = BatchMasker(MaskingPolicy(whole_word=True), MaskingVocabulary.of(VOCAB), PREDICTIONS, seed=5)

    def batches(start, count, context=None):
        dataset = input_pipeline.training_batches(shards, features, 4, 1, start, context, masker)
        return [{name: value.numpy() for name, value in batch.items()} for batch in dataset.take(count)]

    whole = batches(0, 8)
    assert whole[0]["masked_lm_ids"].shape == (4, PREDICTIONS) and "word_starts" not in whole[0]
    np.testing.assert_equal(batches(3, 5), whole[3:])
    contexts = [tf.distribute.InputContext(2, pipeline, 4) for pipeline in range(2)]
    parts = [batches(2, 4, context) for context in contexts]  # two steps, of two replicas each
    for name, value in whole[3].items():
        np.testing.assert_array_equal(value, np.concatenate([p[name] for part in parts for p in part[2:4]]))
    # Epoch after epoch, the same sequences get other masks.
    assert len({tuple(b["masked_lm_positions"].ravel()) for b in whole}) == 8
    evaluation = [
        [b["input_ids"].numpy() for b in input_pipeline.evaluation_batches(shards, features, 4, None, masker).take(3)]
        for _ in range(2)
    ]
    np.testing.assert_equal(*evaluation)


def test_data_for_different_masks_is_not_mixed(batch, tmp_path):
    write_unmasked(tmp_path / "a.tfrecord", batch, range(2))
    write_unmasked(tmp_path / "b.tfrecord", batch, range(2), mask=1.0, same=0.0, random=0.0)
    shards = record_shards.find_shards(str(tmp_path / "*.tfrecord"), LENGTH, PREDICTIONS, len(VOCAB))
    with pytest.raises(InputError, match="don't go together"):
        record_shards.record_features(shards, LENGTH, PREDICTIONS)


def test_data_without_masks_is_refused_for_another_objective(batch, tmp_path):
    write_unmasked(tmp_path / "a.tfrecord", batch, range(2))
    path = tmp_path / "a.tfrecord.meta.json"
    sidecar = json.loads(path.read_text())
    path.write_text(json.dumps(sidecar | {"settings": sidecar["settings"] | {"objective": "ltr"}}))
    config = tiny_config(vocab_size=len(VOCAB), max_position_embeddings=LENGTH)
    data = [PretrainingData(str(tmp_path / "a.tfrecord"), LENGTH, PREDICTIONS)]
    how = TrainingConfig(str(tmp_path / "out"), OptimizerConfig(1e-3, 4, 1), 2)
    with pytest.raises(InputError, match="was made with --objective=ltr, but --objective is mlm_nsp"):
        PretrainingRun(config, "mlm_nsp", data, [4], how, DistributionConfig())
    assert PretrainingRun(config, "ltr", data, [4], how, DistributionConfig()).phases[0].examples.masker is None
