import random

import pytest

from bert_tf.runtime.files import InputError
from bert_tf.sequences import packing


def test_truncated_lengths_are_those_of_the_token_by_token_rule():
    for max_length in range(12):
        for a in range(16):
            for b in range(16):
                kept_a, kept_b = a, b
                while kept_a + kept_b > max_length:
                    if kept_a > kept_b:
                        kept_a -= 1
                    else:
                        kept_b -= 1
                assert packing.truncated_lengths(a, b, max_length) == (kept_a, kept_b)


def test_pairs_and_single_segments():
    a, b = packing.fit_segments([11, 12, 13], [21, 22], 7)
    ids, segments = packing.join_segments(a, b, cls=1, sep=2)
    assert (ids, segments) == ([1, 11, 12, 2, 21, 22, 2], [0, 0, 0, 0, 1, 1, 1])
    a, b = packing.fit_segments([11, 12, 13], None, 4)
    ids, segments = packing.join_segments(a, b, cls=1, sep=2)
    assert packing.pad(ids, segments, 6) == ([1, 11, 12, 2, 0, 0], [1, 1, 1, 1, 0, 0], [0] * 6)


def test_second_segment_without_tokens_makes_a_single_sequence():
    assert packing.fit_segments([1, 2, 3], [], 5) == ([1, 2, 3], [])


def test_random_truncation_takes_from_both_ends_of_the_longer():
    rng = random.Random(0)
    a, b = list(range(20)), list(range(100, 105))
    packing.truncate_randomly(a, b, 12, rng)
    assert len(a) + len(b) == 12
    assert a == list(range(a[0], a[-1] + 1))
    assert b == list(range(b[0], b[-1] + 1))
    assert a[0] > 0
    assert a[-1] < 19


def test_too_short_sequences_are_refused():
    with pytest.raises(InputError, match="at least 4"):
        packing.check_max_seq_length(3)
