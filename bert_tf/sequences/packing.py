"""[CLS] A [SEP] B [SEP]: the only place that knows how segments become one sequence of fixed length.

Everything here works on lists of tokens and on lists of ids alike, as the caller likes.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from bert_tf.runtime.files import InputError

T = TypeVar("T")
Lengths = TypeVar("Lengths", int, np.ndarray)


class PackedSequence(NamedTuple):
    """A sequence as the model reads it; the three lists are equally long.

    Attributes:
      input_ids: ids, padded with 0.
      input_mask: 1 for tokens, 0 for padding.
      segment_ids: 0 for [CLS] A [SEP] and padding, 1 for B [SEP].
    """

    input_ids: list[int]
    input_mask: list[int]
    segment_ids: list[int]


def truncated_lengths(length_a: Lengths, length_b: Lengths, max_length: int) -> tuple[Lengths, Lengths]:
    """How much of two segments is kept when tokens are taken from the longer one until both fit.

    This is the release's rule for fine-tuning, where tokens leave the end, and for pre-training, where they leave
    either end: of two equally long segments the second loses a token first. Takes numbers, or arrays [B] of them.
    """
    half = max_length // 2
    kept_b = np.minimum(length_b, np.maximum(half, max_length - length_a))
    return np.minimum(length_a, max_length - kept_b), kept_b


def truncate_randomly(tokens_a: list, tokens_b: list, max_length: int, rng: random.Random) -> None:
    """Shortens two segments in place until both fit, as the release does for pre-training.

    Tokens leave the longer segment (the second of two equals), from its front or its end as a coin falls, "to
    add more randomness and avoid biases".
    """
    while len(tokens_a) + len(tokens_b) > max_length:
        longer = tokens_a if len(tokens_a) > len(tokens_b) else tokens_b
        if rng.random() < 0.5:
            del longer[0]
        else:
            longer.pop()


def join_segments(segment_a: Sequence[T], segment_b: Sequence[T], cls: T, sep: T) -> tuple[list[T], list[int]]:
    """[CLS] A [SEP], and B [SEP] if there is a B; returns the sequence and its segment ids."""
    sequence = [cls, *segment_a, sep]
    segment_ids = [0] * len(sequence)
    if segment_b:
        sequence += [*segment_b, sep]
        segment_ids += [1] * (len(segment_b) + 1)
    return sequence, segment_ids


def fit_segments(
    segment_a: Sequence[T], segment_b: Sequence[T] | None, max_seq_length: int
) -> tuple[Sequence[T], Sequence[T]]:
    """Cuts the ends of one or two segments so that they fit with their [CLS] and [SEP].

    As in the release, a second segment without tokens makes a single-segment sequence.
    """
    if not segment_b:
        return segment_a[: max_seq_length - 2], []
    kept_a, kept_b = truncated_lengths(len(segment_a), len(segment_b), max_seq_length - 3)
    return segment_a[:kept_a], segment_b[:kept_b]


def pad(ids: Sequence[int], segment_ids: Sequence[int], max_seq_length: int) -> PackedSequence:
    """Pads a sequence with zeros to the length the model reads."""
    padding = [0] * (max_seq_length - len(ids))
    return PackedSequence(
        input_ids=[*ids, *padding], input_mask=[1] * len(ids) + padding, segment_ids=[*segment_ids, *padding]
    )


class PackedBatch(NamedTuple):
    """Sequences as the model reads them.

    Attributes:
      input_ids: [B, T] ids, padded with 0.
      input_mask: [B, T] True for tokens.
      segment_ids: [B, T] True for B [SEP].
      is_text: [B, T] True for the tokens of A and B.
    """

    input_ids: np.ndarray
    input_mask: np.ndarray
    segment_ids: np.ndarray
    is_text: np.ndarray


def pack_batch(
    tokens: np.ndarray, lengths_a: np.ndarray, lengths_b: np.ndarray, max_seq_length: int, cls: int, sep: int
) -> PackedBatch:
    """[CLS] A [SEP] B [SEP] of many pairs of segments at once.

    Args:
      tokens: ids of A and B of the first pair, then of the second, and so on.
      lengths_a: [B] tokens of A.
      lengths_b: [B] tokens of B, at least one.
      max_seq_length: T, in which they fit.
      cls: id of [CLS].
      sep: id of [SEP].
    """
    places = np.arange(max_seq_length)
    end_a = lengths_a.astype(np.int64)[:, None] + 1
    end_b = end_a + lengths_b[:, None] + 1
    is_sep = (places == end_a) | (places == end_b)
    input_mask = places <= end_b
    is_text = input_mask & ~is_sep & (places > 0)
    input_ids = is_sep * np.int32(sep)
    input_ids[:, 0] = cls
    input_ids[is_text] = tokens
    return PackedBatch(input_ids, input_mask, input_mask & (places > end_a), is_text)


def check_max_seq_length(max_seq_length: int, smallest: int = 4) -> None:
    """Raises an InputError if there is no room for [CLS] A [SEP] B [SEP]."""
    if max_seq_length < smallest:
        raise InputError(f"--max_seq_length is {max_seq_length}, but at least {smallest} is needed.")
