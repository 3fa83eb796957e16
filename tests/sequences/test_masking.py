"""Tests masking in all modes on the same cases: the original order, NumPy batches, tensors, and the input pipeline."""

import random

import msgspec
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.pretraining import input_pipeline, record_shards
from bert_tf.pretraining.example_sets import ExampleFinder
from bert_tf.pretraining.pretraining_config import PretrainingConfig, PretrainingData
from bert_tf.pretraining.run import PretrainingRun
from bert_tf.sequences import example_format, graph_masking
from bert_tf.sequences.example_format import Metadata
from bert_tf.sequences.graph_masking import BatchMasker
from bert_tf.sequences.masking import Masked, MaskingPolicy, MaskingVocabulary, mask_as_original, mask_batch
from bert_tf.sequences.random_streams import make_keys
from bert_tf.text.vocabulary import vocabulary_hash
from bert_tf.training.settings import TrainingConfig
from tests.conftest import assert_refused, tiny_config
from tests.programs import serialize

CLS, SEP, MASK, FIRST = 1, 2, 3, 5
VOCAB = {"[PAD]": 0, "[CLS]": CLS, "[SEP]": SEP, "[MASK]": MASK, "[unused0]": 4}
VOCAB |= {f"{'##' * (i % 3 == 2)}p{i}": i for i in range(FIRST, 85)}
ROWS, LENGTH, PREDICTIONS = 3000, 48, 6


def mask_in_the_releases_order(ids, policy, vocabulary, predictions, seed):
    rng = random.Random(seed)
    result = Masked(ids.copy(), *np.zeros([3, len(ids), predictions], int))
    for row, sequence in enumerate(ids.tolist()):
        length = len(sequence) - sequence[::-1].index(SEP)
        masked, positions, labels = mask_as_original(sequence[:length], predictions, policy, vocabulary, rng)
        result.input_ids[row, :length] = masked
        for array, values in zip(result[1:], (positions, labels, [1] * len(labels)), strict=True):
            array[row, : len(values)] = values
    return result


def mask_arrays(ids, policy, vocabulary, predictions, seed):
    word_starts = ids % 3 != 2 if policy.whole_word else None
    keys = make_keys(seed, np.arange(len(ids)))
    return mask_batch(ids, ids >= FIRST, keys, word_starts, policy, vocabulary, predictions)


def mask_tensors(ids, policy, vocabulary, predictions, seed):
    batch = {"input_ids": ids, "input_mask": ids > 0, "word_starts": ids % 3 != 2}
    batch = {name: tf.constant(value.astype(np.int32)) for name, value in batch.items()}
    step, first_row = tf.constant([9, 0], tf.int64)
    masked = BatchMasker(policy, vocabulary, predictions, seed)(batch, step, first_row)
    names = Masked(*[None] * 4).features()
    assert set(masked) == {"input_mask", *names}
    return Masked(*(masked[name].numpy() for name in names))


every_mode = pytest.mark.parametrize("mask_ids", [mask_in_the_releases_order, mask_arrays, mask_tensors])


def mask(mask_ids, ids, predictions=PREDICTIONS, seed=1, **policy):
    policy = MaskingPolicy(**policy)
    return mask_ids(ids, policy, MaskingVocabulary.of(VOCAB, policy.no_special_replacements), predictions, seed)


@pytest.fixture(scope="module")
def ids():
    """Returns sequences [B, T] of random lengths."""
    rng = np.random.default_rng(3)
    ids = rng.integers(FIRST, len(VOCAB), (ROWS, LENGTH))
    ends, places = rng.integers(9, LENGTH, (ROWS, 1)), np.arange(LENGTH)
    ids[(places == ends) | (places == ends // 2)] = SEP
    ids[:, 0] = CLS
    return np.where(places <= ends, ids, 0)


def chosen(masked):
    """Returns [B, T], True for predicted tokens."""
    is_chosen = np.zeros([len(masked.positions), LENGTH + 1], bool)
    np.put_along_axis(is_chosen, np.where(masked.weights > 0, masked.positions, LENGTH), True, axis=1)
    return is_chosen[:, :LENGTH]


def replacements(masked):
    """Returns the ids at the positions of all predicted tokens, and the original ids."""
    is_prediction = masked.weights > 0
    return np.take_along_axis(masked.input_ids, masked.positions, axis=1)[is_prediction], masked.labels[is_prediction]


CASES = [  # tokens, most predictions, policy, positions
    ([CLS, 9, SEP, 10, SEP], 7, {"masked_lm_prob": 0.99}, [1, 3]),  # a quota larger than the text
    ([CLS, 9, SEP, SEP], 7, {"masked_lm_prob": 0.01}, [1]),  # at least one
    ([CLS, 9, 10, 12, SEP, 13, SEP], 4, {"masked_lm_prob": 0.6}, [1, 2, 3, 5]),  # 4.2 is rounded to 4
    ([CLS, 9, 8, SEP, 10, SEP], 7, {"masked_lm_prob": 0.99, "whole_word": True}, [1, 2, 4]),
    ([CLS, 9, 8, 11, SEP, 10, SEP], 2, {"masked_lm_prob": 0.99, "whole_word": True}, [5]),  # the word is too long
    ([CLS, 8, SEP, 9, 11, SEP], 1, {"masked_lm_prob": 0.99, "whole_word": True}, [1]),  # the front was cut off
]


@every_mode
@pytest.mark.parametrize(("tokens", "most", "policy", "positions"), CASES)
def test_cases_with_one_result(mask_ids, tokens, most, policy, positions):
    masked = mask(mask_ids, np.array([[*tokens, 0, 0]]), most, mask=1.0, same=0.0, random=0.0, **policy)
    padding = [0] * (most - len(positions))
    assert masked.positions.tolist() == [positions + padding]
    assert masked.labels.tolist() == [[tokens[p] for p in positions] + padding]
    assert masked.weights.tolist() == [[1] * len(positions) + padding]
    assert masked.input_ids.tolist() == [[MASK if i in positions else t for i, t in enumerate(tokens)] + [0, 0]]


@every_mode
def test_a_rest_of_a_word_in_segment_b(mask_ids):
    """Only the original order adds the rest to the last word of A, which becomes too long."""
    policy = {"masked_lm_prob": 0.99, "whole_word": True}
    masked = mask(mask_ids, np.array([[CLS, 9, SEP, 8, SEP]]), 1, **policy)
    assert masked.weights.sum() == (mask_ids is not mask_in_the_releases_order)


# The rows of Table 8 as (mask, same, random).
@every_mode
@pytest.mark.parametrize("shares", [(0.8, 0.1, 0.1), (1, 0, 0), (0.8, 0, 0.2), (0.8, 0.2, 0), (0, 0.2, 0.8), (0, 0, 1)])
def test_replacements_have_the_policys_shares(mask_ids, ids, shares):
    found, labels = replacements(mask(mask_ids, ids, **dict(zip(("mask", "same", "random"), shares, strict=True))))
    by_chance = shares[2] / len(VOCAB)  # a random token may be [MASK] or the original token
    expected = np.array([shares[0] + by_chance, shares[1] + by_chance, shares[2] - 2 * by_chance])
    counts = [np.sum(found == MASK), np.sum(found == labels), np.sum((found != MASK) & (found != labels))]
    deviation = np.sqrt(np.maximum(expected * (1 - expected), 0) * len(found))
    assert (np.abs(counts - expected * len(found)) <= 4 * deviation + 1e-9).all()


@every_mode
@pytest.mark.parametrize(("ordinary", "first"), [(False, 0), (True, FIRST)])
def test_random_pieces_are_even_over_the_vocabulary(mask_ids, ids, ordinary, first):
    found, _ = replacements(mask(mask_ids, ids, mask=0.0, same=0.0, random=1.0, no_special_replacements=ordinary))
    counts = np.bincount(found, minlength=len(VOCAB))
    expected = len(found) / (len(VOCAB) - first)
    assert not counts[:first].any()
    assert np.sum((counts[first:] - expected) ** 2) / expected < 2 * (len(VOCAB) - first)


@every_mode
@pytest.mark.parametrize("whole_word", [False, True])
def test_quota_positions_and_labels(mask_ids, ids, whole_word):
    masked = mask(mask_ids, ids, whole_word=whole_word)
    is_chosen = chosen(masked)
    # The quota counts [CLS] and both [SEP]; halves are rounded to even numbers.
    quotas = np.array([min(PREDICTIONS, max(1, round(n * 0.15))) for n in (ids > 0).sum(axis=1).tolist()])
    counts = is_chosen.sum(axis=1)
    assert (counts <= quotas).all() if whole_word else (counts == quotas).all()
    assert counts.sum() > 0.95 * sum(quotas)
    assert not is_chosen[ids < FIRST].any()
    assert (masked.input_ids == ids)[~is_chosen].all()
    is_padding = masked.weights == 0
    assert (masked.labels == np.take_along_axis(ids, masked.positions, axis=1))[~is_padding].all()
    assert not masked.positions[is_padding].any() and not masked.labels[is_padding].any()
    is_last = np.pad(is_padding[:, 1:], ((0, 0), (0, 1)), constant_values=True)[:, :-1]
    assert ((np.diff(masked.positions) > 0) | is_last).all()


@every_mode
def test_every_position_is_chosen_equally_often_and_seeds_differ(mask_ids, ids):
    one = ids[:1].repeat(ROWS, axis=0)
    is_chosen = chosen(mask(mask_ids, one))
    assert (chosen(mask(mask_ids, one, seed=2)) != is_chosen).any()
    counts = is_chosen.sum(axis=0)[one[0] >= FIRST]
    assert np.sum((counts - counts.mean()) ** 2) / counts.mean() < 2 * len(counts)


@every_mode
def test_words_are_masked_whole(mask_ids, ids):
    is_text = ids >= FIRST
    continues = (is_text & (ids % 3 == 2))[:, 1:] & is_text[:, :-1]
    is_chosen = chosen(mask(mask_ids, ids, whole_word=True))
    assert (is_chosen[:, 1:] == is_chosen[:, :-1])[continues].all()
    policy = {"whole_word": True, "mask": 0.5, "same": 0.5, "random": 0.0}
    is_mask = mask(mask_ids, ids, **policy).input_ids == MASK
    assert (is_mask[:, 1:] != is_mask[:, :-1])[continues].any()
    if mask_ids is not mask_in_the_releases_order:  # the original code has no such option
        is_mask = mask(mask_ids, ids, replace_words_jointly=True, **policy).input_ids == MASK
        assert (is_mask[:, 1:] == is_mask[:, :-1])[continues].all() and is_mask.any()


def test_masks_of_arrays_depend_on_the_keys_only(ids):
    keys, rows = make_keys(1, np.arange(ROWS)), slice(100, 120)
    policy, vocabulary = MaskingPolicy(), MaskingVocabulary.of(VOCAB)
    part = mask_batch(ids[rows], (ids >= FIRST)[rows], keys[rows], None, policy, vocabulary, PREDICTIONS)
    for whole, found in zip(mask(mask_arrays, ids), part, strict=True):
        np.testing.assert_array_equal(whole[rows], found)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mask": 0.8, "same": 0.1, "random": 0.2}, r"--masking_policy is 0\.8,0\.1,0\.2"),
        ({"mask": float("nan"), "same": 0.1, "random": 0.1}, r"--masking_policy is nan,0\.1,0\.1"),
        ({"masked_lm_prob": 0}, "--masked_lm_prob is 0"),
        ({"replace_words_jointly": True}, "--replace_words_jointly is used only with --do_whole_word_mask"),
    ],
)
def test_policies_are_checked(settings, message):
    assert_refused(message, MaskingPolicy, **settings)


# --- Data that the input pipeline masks during reading ----------------------------------------------------------------


@pytest.fixture
def batch(ids):
    """Returns the features of unmasked sequences."""
    features = {"input_ids": ids, "input_mask": ids > 0, "segment_ids": ids < 0, "word_starts": ids % 3 != 2}
    features["next_sentence_labels"] = np.arange(ROWS) % 2
    return {name: values[:20].astype(np.int32) for name, values in features.items()}


def write_unmasked(path, batch, rows, **settings):
    features = example_format.unmasked_features(LENGTH, word_starts=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in rows:
            values = {name: np.atleast_1d(value[row]) for name, value in batch.items()}
            writer.write(serialize(features, values))
    policy = {"masking_policy": {"whole_word": True} | settings}
    metadata = Metadata(len(rows), path.stat().st_size, LENGTH, 0, "abc", policy, example_format.names(features))
    metadata.write(Metadata.path_of(str(path)))


def change_metadata(path, **changes):
    metadata = msgspec.structs.replace(Metadata.read(str(path)), **changes)
    metadata.write(Metadata.path_of(str(path)))


def test_pipeline_masks_what_it_reads(batch, tmp_path, monkeypatch):
    monkeypatch.setattr(input_pipeline, "_WINDOW_RECORDS", 8)
    write_unmasked(tmp_path / "a.tfrecord", batch, range(20))
    shards = record_shards.find_shards(str(tmp_path / "a.tfrecord"), LENGTH, PREDICTIONS, len(VOCAB))
    features = record_shards.record_features(shards)
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
    # The same sequences get different masks in each epoch.
    assert len({tuple(b["masked_lm_positions"].ravel()) for b in whole}) == 8
    evaluation = input_pipeline.training_batches(shards, features, 4, None, 0, None, masker).take(3)
    np.testing.assert_equal(*([batch["input_ids"].numpy() for batch in evaluation] for _ in range(2)))


def test_a_part_of_a_batch_gets_the_numbers_that_are_drawn_for_the_whole():
    whole = tf.random.stateless_uniform([9, 7], [3, 4], alg="philox").numpy()
    for first, rows in ((0, 9), (1, 2), (4, 5), (8, 1)):
        part = graph_masking.uniform_rows(tf.constant([3, 4], tf.int64), tf.constant(first), rows, 7)
        np.testing.assert_array_equal(part, whole[first : first + rows])


def test_numbers_are_drawn_only_for_the_own_rows(batch):
    masker = BatchMasker(MaskingPolicy(whole_word=True), MaskingVocabulary.of(VOCAB), PREDICTIONS, seed=5)
    specs = {name: tf.TensorSpec(value[:2].shape, value.dtype) for name, value in batch.items()}
    traced = tf.function(masker, autograph=False).get_concrete_function(specs, *[tf.TensorSpec([], tf.int64)] * 2)
    drawn = [op.outputs[0].shape for op in traced.graph.get_operations() if op.type == "StatelessRandomUniformV2"]
    assert drawn == [[2 * LENGTH + 3]] * 3  # three more, because sequences are made in groups of four


def test_data_for_different_masks_is_not_mixed(batch, tmp_path):
    write_unmasked(tmp_path / "a.tfrecord", batch, range(2))
    write_unmasked(tmp_path / "b.tfrecord", batch, range(2), mask=1.0, same=0.0, random=0.0)
    shards = record_shards.find_shards(str(tmp_path / "*.tfrecord"), LENGTH, PREDICTIONS, len(VOCAB))
    assert_refused("can't be combined", record_shards.record_features, shards)


def test_a_limit_that_cuts_the_masks_is_told(batch, tmp_path, capsys):
    write_unmasked(tmp_path / "a.tfrecord", batch, range(2))
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", *list(VOCAB)[1:]]) + "\n")
    config = tiny_config(vocab_size=len(VOCAB) + 1, max_position_embeddings=LENGTH)
    change_metadata(tmp_path / "a.tfrecord", vocab_sha256=vocabulary_hash(str(tmp_path / "vocab.txt")))
    finder = ExampleFinder(config, "mlm_nsp", str(tmp_path / "vocab.txt"), 0)
    for predictions in (7, 5, 5):  # 15% of 48 tokens are 7
        finder.find(PretrainingData(str(tmp_path / "a.tfrecord"), LENGTH, predictions))
    told = capsys.readouterr().err
    assert told.count("Warning") == 1
    assert "10.4% of the tokens are masked instead of 15%" in told and "--max_predictions_per_seq is 5" in told


def test_data_without_masks_is_refused_for_another_objective(batch, tmp_path):
    write_unmasked(tmp_path / "a.tfrecord", batch, range(2))
    change_metadata(tmp_path / "a.tfrecord", settings={"masking_policy": {"whole_word": True}, "objective": "ltr"})
    config = tiny_config(vocab_size=len(VOCAB), max_position_embeddings=LENGTH)
    data = PretrainingData(str(tmp_path / "a.tfrecord"), LENGTH, PREDICTIONS)
    settings = PretrainingConfig(data=data, training=TrainingConfig(str(tmp_path / "out"), train_batch_size=2))
    assert_refused("was made with --objective=ltr, but --objective is mlm_nsp", PretrainingRun, settings, config)
    assert PretrainingRun(settings.replace(objective="ltr"), config).phases[0].examples.masker is None
