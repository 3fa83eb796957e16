"""Truncates segments and joins them to one sequence, [CLS] A [SEP] B [SEP].

The functions work on lists of tokens or ids, the `*_batch` functions on NumPy arrays, and `graphs.packing` on tensors.
All use the same truncation rule. Its argument `ops` is the module `numpy` or `tensorflow`.

Axis letters: B examples, T tokens.
"""

import random
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from bert_tf.runtime.errors import require_whole
from bert_tf.sequences.random_streams import coin_flips

Token = TypeVar("Token")


class PackedSequence(NamedTuple):
    """An input sequence of the model. The three lists have the same length.

    Attributes:
      input_ids: ids, padded with 0.
      input_mask: 1 for tokens, 0 for padding.
      segment_ids: 0 for [CLS] A [SEP] and padding, 1 for B [SEP].
    """

    input_ids: list[int]
    input_mask: list[int]
    segment_ids: list[int]


class Packed(NamedTuple):
    """A sequence [CLS] A [SEP], or [CLS] A [SEP] B [SEP], without padding.

    Attributes:
      ids: the ids of the tokens.
      segment_ids: 0 for [CLS] A [SEP], 1 for B [SEP].
      is_truncated: whether tokens of A or B were removed.
    """

    ids: list[int]
    segment_ids: list[int]
    is_truncated: bool


def truncated_lengths(length_a: Any, length_b: Any, max_length: Any, ops: ModuleType = np) -> tuple[Any, Any]:
    """Returns the lengths of two segments after removing tokens from the longer one until both fit.

    This is the original rule for fine-tuning and pre-training: of two segments with equal lengths, the second one loses
    a token first. Lengths are numbers, arrays [B] or tensors [B].
    """
    new_b = ops.minimum(length_b, ops.maximum(max_length // 2, max_length - length_a))
    return ops.minimum(length_a, max_length - new_b), new_b


def fitting_lengths(length_a: Any, length_b: Any, max_seq_length: int, ops: ModuleType = np) -> tuple[Any, Any]:
    """Returns the lengths of one or two segments that fit into a sequence with [CLS] and [SEP].

    As in the original code, if the second segment has no tokens, the sequence has one segment and one [SEP].
    """
    return truncated_lengths(length_a, length_b, max_seq_length - 2 - ops.minimum(length_b, 1), ops)


def head_length(length: Any) -> Any:
    """Returns a quarter of `length`, the number of tokens to keep at the start if both ends of a segment are kept."""
    return (length + 2) // 4


def pack(
    segments: Sequence[Sequence[int]], lengths: Sequence[int], ends: tuple[int, int], keeps_ends: bool = False
) -> Packed:
    """Shortens two segments, and joins them; see `join_segments`.

    Args:
      segments: the ids of the first and the second segment.
      lengths: the numbers of ids to keep, from `fitting_lengths`.
      ends: the ids of [CLS] and [SEP].
      keeps_ends: if True, remove tokens from the middle instead of the end; see `head_length`.
    """
    shortened = []
    for segment, length in zip(segments, lengths, strict=True):
        head = head_length(length) if keeps_ends else length
        shortened.append([*segment[:head], *segment[len(segment) - length + head :]])
    sequence = join_segments(*shortened, *ends)
    return Packed(*sequence, is_truncated=sum(lengths) < sum(map(len, segments)))


def truncate_randomly(tokens_a: list[Any], tokens_b: list[Any], max_length: int, rng: random.Random) -> None:
    """Shortens two segments in place, with the random draws of the original pre-training.

    `truncated_lengths` gives the new lengths. Each token is removed from the front or the end with equal
    probability, "to add more randomness and avoid biases" (comment in the original code).
    """
    while len(tokens_a) + len(tokens_b) > max_length:
        longer = tokens_a if len(tokens_a) > len(tokens_b) else tokens_b
        if rng.random() < 0.5:
            del longer[0]
        else:
            longer.pop()


def truncate_randomly_batch(
    lengths: tuple[np.ndarray, np.ndarray], max_length: int, keys: tuple[np.ndarray, np.ndarray]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Shortens many pairs of segments like `truncate_randomly`.

    Args:
      lengths: the numbers of tokens [B] in the first segments, and in the second segments.
      max_length: largest sum of both lengths.
      keys: the keys [B] of the random draws for the first segments, and for the second segments.

    Returns:
      Two pairs, for the first and the second segments: the number of tokens [B] to skip at the front, and the new
      lengths [B].
    """
    new_lengths = truncated_lengths(*lengths, max_length)
    return [(coin_flips(key, old - new), new) for key, old, new in zip(keys, lengths, new_lengths, strict=True)]


def join_segments(
    segment_a: Sequence[Token], segment_b: Sequence[Token], cls: Token, sep: Token
) -> tuple[list[Token], list[int]]:
    """Returns [CLS] A [SEP], followed by B [SEP] if B has tokens, and the segment ids."""
    sequence = [cls, *segment_a, sep]
    segment_ids = [0] * len(sequence)
    if segment_b:
        sequence += [*segment_b, sep]
        segment_ids += [1] * (len(segment_b) + 1)
    return sequence, segment_ids


def pad(ids: Sequence[int], segment_ids: Sequence[int], max_seq_length: int) -> PackedSequence:
    """Pads a sequence with zeros."""
    padding = [0] * (max_seq_length - len(ids))
    return PackedSequence(
        input_ids=[*ids, *padding], input_mask=[1] * len(ids) + padding, segment_ids=[*segment_ids, *padding]
    )


def pad_all(sequences: Sequence[tuple[Sequence[int], Sequence[int]]], max_seq_length: int = 0) -> dict[str, np.ndarray]:
    """Pads sequences of ids and segment ids to one length, and returns the encoder's inputs, each int32 [B, T].

    Args:
      sequences: results of `join_segments`, at least one.
      max_seq_length: T; 0 for the length of the longest sequence.
    """
    length = max_seq_length or max(len(ids) for ids, _ in sequences)
    columns = zip(*(pad(*sequence, length) for sequence in sequences), strict=True)
    return {name: np.array(rows, np.int32) for name, rows in zip(PackedSequence._fields, columns, strict=True)}


class PackedBatch(NamedTuple):
    """A batch of input sequences of the model.

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
    """Joins and pads many pairs of segments like `join_segments` and `pad`.

    Args:
      tokens: ids of A and B of the first pair, then of the second pair, and so on.
      lengths_a: [B], numbers of tokens of A.
      lengths_b: [B], numbers of tokens of B, at least one.
      max_seq_length: T, large enough for all sequences.
      cls: id of [CLS].
      sep: id of [SEP].
    """
    positions = np.arange(max_seq_length)
    end_a = lengths_a.astype(np.int64)[:, None] + 1
    end_b = end_a + lengths_b[:, None] + 1
    is_sep = (positions == end_a) | (positions == end_b)
    input_mask = positions <= end_b
    is_text = input_mask & ~is_sep & (positions > 0)
    input_ids = is_sep * np.int32(sep)
    input_ids[:, 0] = cls
    input_ids[is_text] = tokens
    return PackedBatch(input_ids, input_mask, input_mask & (positions > end_a), is_text)


def check_max_seq_length(max_seq_length: int, smallest: int = 4) -> None:
    """Raises an InputError if the value is not an integer or is less than `smallest`.

    The default leaves room for one token and [CLS], [SEP] and [SEP].
    """
    require_whole("--max_seq_length", max_seq_length, smallest)
