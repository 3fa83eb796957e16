import dataclasses

import numpy as np
import pytest

from bert_tf.runtime.files import InputError
from bert_tf.sequences.masking import mask_batch
from bert_tf.sequences.masking_policy import MaskingPolicy, MaskingVocabulary
from bert_tf.sequences.random_streams import make_keys

CLS, SEP, MASK, FIRST = 1, 2, 3, 5
VOCAB = {"[PAD]": 0, "[CLS]": CLS, "[SEP]": SEP, "[MASK]": MASK, "[unused0]": 4}
VOCAB |= {f"{'##' * (i % 3 == 2)}p{i}": i for i in range(FIRST, 85)}
ROWS, LENGTH, PREDICTIONS = 4000, 48, 6


@pytest.fixture(scope="module")
def sequences():
    """Ids [B, T], which of them are text, and which begin a word."""
    rng = np.random.default_rng(3)
    ids = rng.integers(FIRST, len(VOCAB), (ROWS, LENGTH))
    ends = rng.integers(9, LENGTH, (ROWS, 1))
    places = np.arange(LENGTH)
    is_text = (places > 0) & (places < ends) & (places != ends // 2)
    ids[~is_text] = np.where((places == ends) | (places == ends // 2), SEP, 0)[~is_text]
    ids[:, 0] = CLS
    return ids, is_text, ids % 3 != 2


def mask(sequences, seed=1, rows=slice(None), **policy):
    ids, is_text, word_starts = (x[rows] for x in sequences)
    policy = MaskingPolicy(**policy)
    keys = make_keys(seed, np.arange(ROWS))[rows]
    vocabulary = MaskingVocabulary.of(VOCAB, policy.ordinary_replacements)
    starts = word_starts if policy.whole_word else None
    return mask_batch(ids, is_text, keys, starts, policy, vocabulary, PREDICTIONS)


def chosen(masked):
    """[B, T], True where a token is to be predicted."""
    places = np.where(masked.weights > 0, masked.positions, LENGTH)
    is_chosen = np.zeros([len(places), LENGTH + 1], bool)
    np.put_along_axis(is_chosen, places, True, axis=1)
    return is_chosen[:, :LENGTH]


def continuations(sequences):
    """Which tokens [B, T - 1] continue the word of the token before."""
    _, is_text, word_starts = sequences
    return (is_text & ~word_starts)[:, 1:] & is_text[:, :-1]


# Table 8's rows, as (mask, same, random).
@pytest.mark.parametrize("shares", [(0.8, 0.1, 0.1), (1, 0, 0), (0.8, 0, 0.2), (0.8, 0.2, 0), (0, 0.2, 0.8), (0, 0, 1)])
def test_replacements_have_the_policys_shares(sequences, shares):
    masked = mask(sequences, **dict(zip(("mask", "same", "random"), shares, strict=True)))
    is_chosen = masked.weights > 0
    found = np.take_along_axis(masked.input_ids, masked.positions, axis=1)[is_chosen]
    labels = masked.labels[is_chosen]
    by_chance = shares[2] / len(VOCAB)  # random pieces may be [MASK], or the same
    expected = [shares[0] + by_chance, shares[1] + by_chance, shares[2] - 2 * by_chance]
    counts = [np.sum(found == MASK), np.sum(found == labels), np.sum((found != MASK) & (found != labels))]
    deviation = np.sqrt(np.maximum(np.multiply(expected, np.subtract(1, expected)), 0) * len(found))
    assert (np.abs(counts - np.multiply(expected, len(found))) <= 4 * deviation + 1e-9).all()


def test_random_pieces_are_even_over_the_vocabulary(sequences):
    for ordinary, first in ((False, 0), (True, FIRST)):
        masked = mask(sequences, mask=0.0, same=0.0, random=1.0, ordinary_replacements=ordinary)
        found = np.take_along_axis(masked.input_ids, masked.positions, axis=1)[masked.weights > 0]
        counts = np.bincount(found, minlength=len(VOCAB))
        expected = len(found) / (len(VOCAB) - first)
        assert not counts[:first].any()
        assert np.sum((counts[first:] - expected) ** 2) / expected < 2 * (len(VOCAB) - first)


@pytest.mark.parametrize("whole_word", [False, True])
def test_quota_positions_and_labels(sequences, whole_word):
    ids, is_text, _ = sequences
    masked = mask(sequences, whole_word=whole_word)
    is_chosen = chosen(masked)
    # The quota counts [CLS] and both [SEP]; halves are rounded to even numbers.
    quotas = [min(PREDICTIONS, max(1, round(n * 0.15))) for n in (is_text.sum(axis=1) + 3).tolist()]
    counts = is_chosen.sum(axis=1)
    assert (counts <= quotas).all() if whole_word else (counts == quotas).all()
    assert counts.sum() > 0.95 * sum(quotas)
    assert not is_chosen[~is_text].any()
    assert (masked.input_ids == ids)[~is_chosen].all()
    assert (masked.labels == np.take_along_axis(ids, masked.positions, axis=1))[masked.weights > 0].all()
    assert not masked.positions[masked.weights == 0].any() and not masked.labels[masked.weights == 0].any()
    for row in range(50):
        assert (np.diff(masked.positions[row][masked.weights[row] > 0]) > 0).all()


def test_every_position_is_chosen_equally_often(sequences):
    ids, is_text, starts = (x[:1].repeat(ROWS, axis=0) for x in sequences)
    counts = chosen(mask((ids, is_text, starts))).sum(axis=0)[is_text[0]]
    assert np.sum((counts - counts.mean()) ** 2) / counts.mean() < 2 * len(counts)


def test_words_are_masked_whole(sequences):
    continues = continuations(sequences)
    is_chosen = chosen(mask(sequences, whole_word=True))
    assert (is_chosen[:, 1:] == is_chosen[:, :-1])[continues].all()
    masked = mask(sequences, whole_word=True, draw_per_word=True, mask=0.5, same=0.5, random=0.0)
    is_mask = masked.input_ids == MASK
    assert (is_mask[:, 1:] == is_mask[:, :-1])[continues].all() and is_mask.any()
    each = mask(sequences, whole_word=True, mask=0.5, same=0.5, random=0.0).input_ids == MASK
    assert (each[:, 1:] != each[:, :-1])[continues].any()


def test_masks_depend_on_the_examples_key_only(sequences):
    whole, part = mask(sequences), mask(sequences, rows=slice(100, 120))
    for one, other in zip(whole, part, strict=True):
        np.testing.assert_array_equal(one[100:120], other)
    assert (mask(sequences, seed=2).input_ids != whole.input_ids).any()


def test_quota_larger_than_the_text():
    sequences = np.array([[CLS, 9, SEP, 8, SEP, 0]]), np.array([[0, 1, 0, 1, 0, 0]], bool), np.ones((1, 6), bool)
    masked = mask_batch(
        *sequences[:2], make_keys(1, [0]), None, MaskingPolicy(masked_lm_prob=0.99), MaskingVocabulary.of(VOCAB), 7
    )
    assert masked.positions.tolist() == [[1, 3, 0, 0, 0, 0, 0]] and masked.labels.tolist() == [[9, 8, 0, 0, 0, 0, 0]]


def test_policies_are_checked():
    with pytest.raises(InputError, match=r"--masking_policy is 0\.8,0\.1,0\.2"):
        MaskingPolicy(0.8, 0.1, 0.2)
    with pytest.raises(InputError, match="--masked_lm_prob is 0"):
        MaskingPolicy(masked_lm_prob=0)
    with pytest.raises(InputError, match="--draw_per_word needs"):
        dataclasses.replace(MaskingPolicy(), draw_per_word=True)
