"""Tests truncation and packing of lists, NumPy batches and tensors on the same cases."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.graphs.packing import GraphPacker
from bert_tf.sequences import packing
from bert_tf.sequences.random_streams import make_keys
from tests.conftest import assert_refused

CLS, SEP = 101, 102
VOCAB = {"[CLS]": CLS, "[SEP]": SEP}
PAIRS = [
    (list(range(1, 1 + a)), list(range(51, 51 + b))) for a, b in itertools.product(range(16), [0, 1, 2, 3, 5, 8, 15])
]


def expected(a, b, max_seq_length):
    """Returns a sequence and its segment ids, made token by token with the original rule."""
    a, b, room = list(a), list(b), max_seq_length - (3 if b else 2)
    while len(a) + len(b) > room:
        (a if len(a) > len(b) else b).pop()
    second = [*b, SEP] if b else []
    return [CLS, *a, SEP, *second], [0] * (len(a) + 2) + [1] * len(second)


def pack_lists(pairs, max_seq_length):
    lengths = [packing.fitting_lengths(len(a), len(b), max_seq_length) for a, b in pairs]
    packed = [packing.pack(pair, fitted, (CLS, SEP))[:2] for pair, fitted in zip(pairs, lengths, strict=True)]
    padded = [packing.pad(*sequence, max_seq_length) for sequence in packed]
    for (ids, segments), found in zip(packed, padded, strict=True):
        zeros = [0] * (max_seq_length - len(ids))
        assert found == (ids + zeros, [1] * len(ids) + zeros, segments + zeros)
    return packed


def pack_arrays(pairs, max_seq_length):
    lengths = np.array([[len(a), len(b)] for a, b in pairs]).T
    kept = np.transpose(packing.fitting_lengths(*lengths, max_seq_length))
    # Pre-training examples always have two segments, so `pack_batch` adds a [SEP] after an empty segment.
    tokens = [token for (a, b), (m, n) in zip(pairs, kept, strict=True) for token in a[:m] + b[:n]]
    batch = packing.pack_batch(np.array(tokens), *kept.T, max_seq_length + 1, CLS, SEP)
    assert (batch.is_text.sum(axis=1) == kept.sum(axis=1)).all()
    assert not batch.input_ids[~batch.input_mask].any() and not batch.segment_ids[~batch.input_mask].any()
    ends = batch.input_mask.sum(axis=1) - (kept[:, 1] == 0)
    rows = zip(batch.input_ids, batch.segment_ids, ends, strict=True)
    return [(ids[:end].tolist(), segments[:end].astype(int).tolist()) for ids, segments, end in rows]


def pack_tensors(pairs, max_seq_length):
    packer = GraphPacker(VOCAB, max_seq_length)
    texts = [tf.ragged.constant(column, tf.int32) for column in zip(*pairs, strict=True)]
    kept = packer.fit(*texts)
    total = [len(a) + len(b) for a, b in pairs]
    assert kept.truncated.numpy().tolist() == ((kept.first + kept.second).numpy() < total).tolist()
    batch = packer.pack(*texts, kept)
    assert tf.reduce_all(batch.visible == 1)
    return list(zip(batch.ragged(batch.ids).to_list(), batch.ragged(batch.segments).to_list(), strict=True))


@pytest.mark.parametrize("pack", [pack_lists, pack_arrays, pack_tensors])
@pytest.mark.parametrize("max_seq_length", [4, 5, 6, 7, 12, 13, 40])
def test_pairs_and_single_segments(pack, max_seq_length):
    for pair, found in zip(PAIRS, pack(PAIRS, max_seq_length), strict=True):
        assert found == expected(*pair, max_seq_length), pair


@pytest.mark.parametrize(
    ("a", "b", "max_length", "kept"), [(20, 5, 12, (7, 5)), (9, 9, 9, (5, 4)), (100, 3, 20, (17, 3)), (4, 5, 9, (4, 5))]
)
def test_random_truncation_removes_tokens_from_both_ends(a, b, max_length, kept):
    """Examples in the original order are compared with the original code."""
    draws = 2000
    keys = make_keys(1, np.arange(draws)), make_keys(2, np.arange(draws))
    found = packing.truncate_randomly_batch((np.full(draws, a), np.full(draws, b)), max_length, keys)
    fronts, lengths = (np.transpose(values) for values in zip(*found, strict=True))
    assert (lengths == kept).all()
    removed = np.subtract((a, b), kept)  # each token is removed from the front with probability 1/2
    assert np.abs(fronts.mean(axis=0) - removed / 2).max() < 5 * np.sqrt(removed.max() / 4 / draws) + 1e-9
    assert np.abs(fronts.var(axis=0) - removed / 4).max() <= 0.2 * removed.max()


def test_too_short_sequences_are_refused():
    assert_refused(">= 4", packing.check_max_seq_length, 3)
