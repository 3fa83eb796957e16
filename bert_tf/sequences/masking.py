"""Masking (paper, section 3.1): the rules, and two functions that apply them.

`MaskingPolicy` and `MaskingVocabulary` define the rules. `mask_batch` masks batches with NumPy. `mask_as_original`
masks one sequence with the random draws of the original code. `graph_masking` masks in the input pipeline. Functions
with an argument `ops` work on NumPy arrays (module `numpy`) and on tensors (module `tensorflow`).

Axis letters: B examples, T tokens, P predictions.
"""

import dataclasses
import random
import re
from collections.abc import Mapping
from types import ModuleType
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from bert_tf.runtime.files import InputError
from bert_tf.runtime.settings import Condition, Settings, about, not_with, only_with
from bert_tf.sequences.random_streams import below, draw, uniform
from bert_tf.text.vocabulary import CLS, CONTINUATION, MASK, SEP, SPECIAL_TOKENS

_UNUSED = re.compile(r"\[unused\d+\]")
# Numbers of the random draws of an example. `data_prep.examples.instances` uses smaller numbers.
_ORDER, _REPLACEMENT, _RANDOM_PIECE = range(8, 11)


class MaskingPolicy(Settings, frozen=True):
    """How a sequence is masked (paper, section 3.1 and appendix C.2). The defaults are the original ones.

    Attributes:
      mask: fraction of the chosen tokens that become [MASK].
      same: fraction of the chosen tokens that are not changed.
      random: fraction of the chosen tokens that become a random token. The three fractions (Table 8) sum to 1.
      masked_lm_prob: fraction of a sequence's tokens, including [CLS] and [SEP], that are chosen.
      whole_word: if True, words are chosen with all their tokens; otherwise, single tokens.
      replace_words_jointly: if True, all tokens of a word are replaced in the same way. The original code decides for
        each token.
      no_special_replacements: if True, special tokens and [unusedN] are never used as random tokens.

    Raises:
      InputError: if the fractions don't sum to 1, or a number is out of bounds.
    """

    needs: ClassVar[tuple[Condition, ...]] = (only_with("objective", values=("mlm_nsp",)),)

    mask: float = 0.8
    same: float = 0.1
    random: float = 0.1
    masked_lm_prob: Annotated[
        float, about("Fraction of masked tokens.", gt=0, lt=1, group="Content of the records")
    ] = 0.15
    whole_word: Annotated[bool, about("Mask all tokens of a word together.", flag="do_whole_word_mask")] = False
    replace_words_jointly: Annotated[
        bool,
        about("Replace all tokens of a masked word in the same way."),
        only_with("do_whole_word_mask"),
        not_with("original_order"),
    ] = False
    no_special_replacements: Annotated[bool, about("Never replace a token by a special or unused token.")] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = (self.mask, self.same, self.random)
        if min(shares) < 0 or not abs(sum(shares) - 1) <= 1e-6:  # also rejects NaN
            raise InputError(f"--masking_policy is {','.join(map(str, shares))}. Use three fractions that sum to 1.")
        self.check_needs()

    def prediction_counts(self, lengths: np.ndarray, max_predictions_per_seq: int) -> np.ndarray:
        """Returns the largest number of tokens [B] to predict in sequences of `lengths` [B] tokens.

        As in the original code, lengths include [CLS] and [SEP], halves are rounded to even numbers, and the smallest
        number is 1.
        """
        return np.clip(np.rint(lengths * self.masked_lm_prob), 1, max_predictions_per_seq).astype(np.int64)

    def replaced(self, share: Any, ids: Any, random_ids: Any, mask_id: int, ops: ModuleType = np) -> Any:
        """Returns the ids that replace chosen tokens. All arrays have the same shape.

        Args:
          share: uniform draws in [0, 1).
          ids: the tokens.
          random_ids: a random token for each token.
          mask_id: the id of [MASK].
          ops: `numpy` or `tensorflow`.
        """
        not_masked = ops.where(share < self.mask + self.same, ids, random_ids)
        return ops.where(share < self.mask, mask_id, not_masked)


@dataclasses.dataclass(frozen=True, eq=False)  # the generated == would compare arrays by element
class MaskingVocabulary:
    """The properties of a vocabulary for masking.

    Attributes:
      cls_id: id of [CLS].
      sep_id: id of [SEP].
      mask_id: id of [MASK].
      replacements: [tokens], ids from which random tokens are drawn.
      continues_word: [ids], True for tokens with the prefix "##".
    """

    cls_id: int
    sep_id: int
    mask_id: int
    replacements: np.ndarray
    continues_word: np.ndarray

    @classmethod
    def of(cls, vocab: Mapping[str, int], no_special_replacements: bool = False) -> "MaskingVocabulary":
        """Reads the properties of a vocabulary.

        Args:
          vocab: maps tokens to ids.
          no_special_replacements: see `MaskingPolicy`.

        Raises:
          KeyError: if the vocabulary lacks [CLS], [SEP] or [MASK].
        """
        # The original code draws from the tokens in the order of the file.
        replacements = [
            index
            for piece, index in vocab.items()
            if not (no_special_replacements and (piece in SPECIAL_TOKENS or _UNUSED.fullmatch(piece)))
        ]
        continues_word = np.zeros(max(vocab.values()) + 1, bool)
        continues_word[[index for piece, index in vocab.items() if piece.startswith(CONTINUATION)]] = True
        return cls(vocab[CLS], vocab[SEP], vocab[MASK], np.array(replacements, np.int32), continues_word)

    def is_text(self, ids: Any) -> Any:
        """Returns True for ids that may be chosen: all except [CLS] and [SEP]. Takes a number, array or tensor."""
        return (ids != self.cls_id) & (ids != self.sep_id)


def first_pieces(is_text: Any, word_starts: Any, ops: ModuleType = np) -> Any:
    """Returns True for the first token of each word [B, T] in whole-word masking.

    The first token of a segment always begins a word, even if truncation removed the front of that word. (The original
    code adds such a token to the last word of the previous segment.)

    Args:
      is_text: [B, T] True for the tokens of the segments.
      word_starts: [B, T] True for tokens that begin a word of the original text.
      ops: `numpy` or `tensorflow`.
    """
    follows_text = ops.pad(is_text[:, :-1], ((0, 0), (1, 0)))
    return is_text & (word_starts | ~follows_text)


class Masked(NamedTuple):
    """Masked sequences. Predictions are in the order of their positions and padded with zeros.

    Attributes:
      input_ids: [B, T] with some ids replaced.
      positions: [B, P] positions of the chosen tokens.
      labels: [B, P] the original ids at these positions.
      weights: [B, P] 1 for predictions, 0 for padding.
    """

    input_ids: np.ndarray
    positions: np.ndarray
    labels: np.ndarray
    weights: np.ndarray

    def features(self) -> dict[str, np.ndarray]:
        """Returns the arrays by the names of the records' features."""
        names = ("input_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
        return dict(zip(names, self, strict=True))


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
      is_text: [B, T] True for tokens that may be chosen: all except padding, [CLS] and [SEP].
      keys: [B] keys of the examples for all random draws; see `random_streams`.
      word_starts: [B, T] True for tokens that begin a word, for whole-word masking; None to choose single tokens.
      policy: the rules.
      vocabulary: the ids.
      max_predictions_per_seq: P.
    """
    width = input_ids.shape[1]
    limits = policy.prediction_counts(is_text.sum(axis=1) + 3, max_predictions_per_seq)
    # One 64-bit draw determines the rank of two positions in a random order.
    order = draw(draw(keys, _ORDER)[:, None], np.arange(-(-width // 2))).view(np.uint32)
    if word_starts is None:
        chosen = _choose_pieces(is_text, order, limits, max_predictions_per_seq)
    else:
        starts = first_pieces(is_text, word_starts)
        chosen = _choose_words(is_text, starts, order, limits)
    chosen = np.sort(chosen, axis=1)[:, :max_predictions_per_seq]
    chosen = np.pad(chosen, ((0, 0), (0, max_predictions_per_seq - chosen.shape[1])), constant_values=width)
    is_prediction = chosen < width
    positions = np.where(is_prediction, chosen, 0)
    labels = np.take_along_axis(input_ids, positions, axis=1)

    drawn_for = positions
    if policy.replace_words_jointly and word_starts is not None:
        first_of_word = np.maximum.accumulate(np.where(starts, np.arange(width), 0), axis=1)
        drawn_for = np.take_along_axis(first_of_word, positions, axis=1)
    share = uniform(draw(draw(keys, _REPLACEMENT)[:, None], drawn_for))
    pieces = below(draw(draw(keys, _RANDOM_PIECE)[:, None], positions), len(vocabulary.replacements))
    replaced = policy.replaced(share, labels, vocabulary.replacements[pieces], vocabulary.mask_id)
    masked_ids = input_ids.copy()
    np.put_along_axis(masked_ids, positions, np.where(is_prediction, replaced, input_ids[:, :1]), axis=1)
    return Masked(masked_ids, positions, np.where(is_prediction, labels, 0), is_prediction)


def _first_positions(order: np.ndarray, is_candidate: np.ndarray, count: int) -> np.ndarray:
    """Returns the positions [B, count] of the first candidates in `order` [B, T], padded with T.

    The lowest bits of each 32-bit draw are replaced by the position itself, so one fast sort is sufficient.
    """
    width = is_candidate.shape[1]
    position_bits = np.uint32((1 << width.bit_length()) - 1)
    numbered = order[:, :width] & ~position_bits | np.arange(width, dtype=np.uint32)
    numbered = np.where(is_candidate, numbered, np.uint32(0xFFFFFFFF))
    first = np.sort(numbered, axis=1)[:, :count]
    return np.where(first == np.uint32(0xFFFFFFFF), width, first & position_bits).astype(np.int64)


def _choose_pieces(is_text: np.ndarray, order: np.ndarray, limits: np.ndarray, count: int) -> np.ndarray:
    """Returns the positions of the chosen tokens in any order, padded with T."""
    chosen = _first_positions(order, is_text, count)
    chosen[np.arange(chosen.shape[1]) >= limits[:, None]] = is_text.shape[1]
    return chosen


def _choose_words(is_text: np.ndarray, starts: np.ndarray, order: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Returns the positions of all tokens of the chosen words, padded with T.

    Words are chosen in random order. A word that would exceed the limit is skipped.
    """
    rows, width = is_text.shape
    word = np.maximum(np.cumsum(starts, axis=1) - 1, 0)
    flat = (np.arange(rows)[:, None] * width + word)[is_text]
    sizes = np.bincount(flat, minlength=rows * width).reshape(rows, width)
    in_order = _first_positions(order, sizes > 0, width)
    sizes_in_order = np.take_along_axis(np.pad(sizes, ((0, 0), (0, 1))), in_order, axis=1)
    taken = np.zeros(rows, np.int64)
    is_taken = np.zeros((rows, width + 1), bool)  # the last column means "no word"
    for rank in range(width):
        size = sizes_in_order[:, rank]
        fits = taken + size <= limits
        is_taken[np.arange(rows), in_order[:, rank]] = fits
        taken += size * fits
        if (taken == limits).all() or not size.any():
            break
    return np.where(is_text & np.take_along_axis(is_taken, word, axis=1), np.arange(width), width)


def mask_as_original(
    sequence: list[int],
    max_predictions_per_seq: int,
    policy: MaskingPolicy,
    vocabulary: MaskingVocabulary,
    rng: random.Random,
) -> tuple[list[int], list[int], list[int]]:
    """Masks one sequence with the original code's random draws.

    As in the original code, a "##" token at the front of the second segment belongs to the last word of the first.

    Args:
      sequence: the ids from [CLS] to the last [SEP].
      max_predictions_per_seq: P.
      policy: the rules.
      vocabulary: the ids.
      rng: the program's random number generator.

    Returns:
      The masked ids; the positions to predict, in ascending order; and the original ids at these positions.
    """
    words: list[list[int]] = []
    for position, index in enumerate(sequence):
        if not vocabulary.is_text(index):
            continue
        if policy.whole_word and words and vocabulary.continues_word[index]:
            words[-1].append(position)
        else:
            words.append([position])
    rng.shuffle(words)

    limit = int(policy.prediction_counts(np.array(len(sequence)), max_predictions_per_seq))
    same_of_rest = policy.same / (policy.same + policy.random) if policy.mask < 1 else 0.0
    masked = list(sequence)
    chosen: list[int] = []
    for word in words:
        if len(chosen) == limit:
            break
        if len(chosen) + len(word) > limit:
            continue
        for position in word:
            if rng.random() < policy.mask:
                masked[position] = vocabulary.mask_id
            elif rng.random() >= same_of_rest:
                masked[position] = int(vocabulary.replacements[rng.randint(0, len(vocabulary.replacements) - 1)])
            chosen.append(position)
    chosen.sort()
    return masked, chosen, [sequence[position] for position in chosen]
