"""Choosing pieces to predict and replacing them (paper, section 3.1): whole batches at once, and as released.

Axis letters: B examples, T tokens, P predictions.
"""

import random
from typing import NamedTuple

import numpy as np

from bert_tf.sequences.masking_policy import MaskingPolicy, MaskingVocabulary
from bert_tf.sequences.random_streams import below, draw, uniform

# What is drawn from an example's key; the numbers before are those of `instances`.
_ORDER, _REPLACEMENT, _RANDOM_PIECE = range(8, 11)


class Masked(NamedTuple):
    """Masked sequences; the lists of predictions are in the order of the text, filled up with zeros.

    Attributes:
      input_ids: [B, T] with some ids replaced.
      positions: [B, P] of the chosen tokens.
      labels: [B, P] the ids that stood there.
      weights: [B, P] 1 for predictions, 0 for filling.
    """

    input_ids: np.ndarray
    positions: np.ndarray
    labels: np.ndarray
    weights: np.ndarray

    def features(self) -> dict[str, np.ndarray]:
        """The sequences by the names of their records' features."""
        return {
            "input_ids": self.input_ids,
            "masked_lm_positions": self.positions,
            "masked_lm_ids": self.labels,
            "masked_lm_weights": self.weights,
        }


def mask_batch(
    input_ids: np.ndarray,
    is_text: np.ndarray,
    keys: np.ndarray,
    word_starts: np.ndarray | None,
    policy: MaskingPolicy,
    vocabulary: MaskingVocabulary,
    max_predictions_per_seq: int,
) -> Masked:
    """Masks sequences.

    Args:
      input_ids: [B, T] ids.
      is_text: [B, T] True for tokens that may be chosen: no padding, no [CLS] or [SEP].
      keys: [B] of the examples; all draws come from them.
      word_starts: [B, T] True for tokens that begin a word, to choose whole words; None to choose pieces.
      policy: which tokens, and what replaces them.
      vocabulary: the ids it needs.
      max_predictions_per_seq: P.
    """
    lengths = is_text.sum(axis=1) + 3
    limits = policy.prediction_counts(lengths, max_predictions_per_seq)
    # A 64-bit draw orders two positions.
    order = draw(draw(keys, _ORDER)[:, None], np.arange(-(-input_ids.shape[1] // 2))).view(np.uint32)
    if word_starts is None:
        chosen = _choose_pieces(is_text, order, limits, max_predictions_per_seq)
    else:
        starts = _group_starts(is_text, word_starts)
        chosen = _choose_words(is_text, starts, order, limits, max_predictions_per_seq)
    is_prediction = chosen < input_ids.shape[1]
    positions = np.where(is_prediction, chosen, 0)
    labels = np.take_along_axis(input_ids, positions, axis=1)

    decided_by = positions
    if policy.draw_per_word and word_starts is not None:
        first_pieces = np.maximum.accumulate(np.where(starts, np.arange(input_ids.shape[1]), 0), axis=1)
        decided_by = np.take_along_axis(first_pieces, positions, axis=1)
    share = uniform(draw(draw(keys, _REPLACEMENT)[:, None], decided_by))
    pieces = below(draw(draw(keys, _RANDOM_PIECE)[:, None], positions), len(vocabulary.replacements))
    replaced = np.where(share < policy.mask + policy.same, labels, vocabulary.replacements[pieces])
    replaced = np.where(share < policy.mask, vocabulary.mask_id, replaced)
    masked_ids = input_ids.copy()
    np.put_along_axis(masked_ids, positions, np.where(is_prediction, replaced, input_ids[:, :1]), axis=1)
    return Masked(masked_ids, positions, np.where(is_prediction, labels, 0), is_prediction)


def _first_positions(order: np.ndarray, is_candidate: np.ndarray, count: int) -> np.ndarray:
    """The positions [B, count] of the candidates that come first in `order` [B, T]; T where there are no more.

    The lowest bits of the 32 that order two positions give way to the position itself, which makes sorting fast.
    """
    width = is_candidate.shape[1]
    place = np.uint32((1 << width.bit_length()) - 1)
    numbered = order[:, :width] & ~place | np.arange(width, dtype=np.uint32)
    numbered = np.where(is_candidate, numbered, np.uint32(0xFFFFFFFF))
    first = np.sort(numbered, axis=1)[:, :count]
    return np.where(first == np.uint32(0xFFFFFFFF), width, first & place).astype(np.int64)


def _choose_pieces(is_text: np.ndarray, order: np.ndarray, limits: np.ndarray, count: int) -> np.ndarray:
    chosen = _first_positions(order, is_text, count)
    chosen[np.arange(chosen.shape[1]) >= limits[:, None]] = is_text.shape[1]
    return _filled_up(np.sort(chosen, axis=1), count, is_text.shape[1])


def _filled_up(chosen: np.ndarray, count: int, filling: int) -> np.ndarray:
    missing = count - chosen.shape[1]
    return np.pad(chosen, ((0, 0), (0, missing)), constant_values=filling) if missing > 0 else chosen


def _group_starts(is_text: np.ndarray, word_starts: np.ndarray) -> np.ndarray:
    """Where in a sequence [B, T] a word begins.

    A piece from the middle of a word begins a word of its own where truncation has cut the rest off. (The release
    joins it to the last word of the segment before.)
    """
    after_break = is_text.copy()
    after_break[:, 1:] &= ~is_text[:, :-1]
    return is_text & word_starts | after_break


def _choose_words(
    is_text: np.ndarray, starts: np.ndarray, order: np.ndarray, limits: np.ndarray, count: int
) -> np.ndarray:
    """Positions [B, count] of the pieces of words that are chosen.

    Words come in random order; one that would exceed the limit is passed over.
    """
    rows, width = is_text.shape
    word = np.maximum(np.cumsum(starts, axis=1) - 1, 0)
    flat = (np.arange(rows)[:, None] * width + word)[is_text]
    sizes = np.bincount(flat, minlength=rows * width).reshape(rows, width)
    in_order = _first_positions(order, sizes > 0, width)
    sizes_in_order = np.take_along_axis(np.pad(sizes, ((0, 0), (0, 1))), in_order, axis=1)
    taken = np.zeros(rows, np.int64)
    is_taken = np.zeros((rows, width + 1), bool)  # the last column is that of no word
    for rank in range(width):
        size = sizes_in_order[:, rank]
        fits = taken + size <= limits
        is_taken[np.arange(rows), in_order[:, rank]] = fits
        taken += size * fits
        if (taken == limits).all() or not size.any():
            break
    chosen = is_text & np.take_along_axis(is_taken, word, axis=1)
    positions = np.sort(np.where(chosen, np.arange(width), width), axis=1)[:, :count]
    return _filled_up(positions, count, width)


def mask_as_released(
    sequence: list[int],
    max_predictions_per_seq: int,
    policy: MaskingPolicy,
    vocabulary: MaskingVocabulary,
    rng: random.Random,
) -> tuple[list[int], list[int], list[int]]:
    """Masks one sequence with the release's draws, in the release's order.

    A leading "##" piece of the second segment belongs to the last word of the first, as released.

    Args:
      sequence: the ids, from [CLS] to the last [SEP].
      max_predictions_per_seq: P.
      policy: the shares, and whether whole words are chosen.
      vocabulary: the ids it needs.
      rng: the program's random numbers.

    Returns:
      The masked ids; the positions that are predicted, ascending; the ids that stood there.
    """
    groups: list[list[int]] = []
    for position, index in enumerate(sequence):
        if index in (vocabulary.cls_id, vocabulary.sep_id):
            continue
        if policy.whole_word and groups and vocabulary.continues_word[index]:
            groups[-1].append(position)
        else:
            groups.append([position])
    rng.shuffle(groups)

    limit = int(policy.prediction_counts(np.array(len(sequence)), max_predictions_per_seq))
    same_of_rest = policy.same / (policy.same + policy.random) if policy.mask < 1 else 0.0
    masked = list(sequence)
    chosen: list[int] = []
    for group in groups:
        if len(chosen) == limit:
            break
        if len(chosen) + len(group) > limit:
            continue
        for position in group:
            if rng.random() < policy.mask:
                masked[position] = vocabulary.mask_id
            elif rng.random() >= same_of_rest:
                masked[position] = int(vocabulary.replacements[rng.randint(0, len(vocabulary.replacements) - 1)])
            chosen.append(position)
    chosen.sort()
    return masked, chosen, [sequence[position] for position in chosen]
