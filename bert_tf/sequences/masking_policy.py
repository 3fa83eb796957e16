"""Which pieces are masked and what replaces them: a value that data preparation and the input pipeline both read."""

import dataclasses
import re
from collections.abc import Mapping

import numpy as np

from bert_tf.runtime.files import InputError
from bert_tf.tokenization.vocabulary import SPECIAL_TOKENS

_UNUSED = re.compile(r"\[unused\d+\]")


@dataclasses.dataclass(frozen=True)
class MaskingPolicy:
    """How a sequence is masked (paper, section 3.1 and appendix C.2; the defaults are the release's).

    Attributes:
      mask: share of the chosen pieces that become [MASK].
      same: share that stay as they are.
      random: share that become a random piece. Table 8's rows are the three shares; they sum to 1.
      masked_lm_prob: share of a sequence's pieces, [CLS] and [SEP] counted, that are chosen.
      whole_word: choose words, all pieces of each, instead of pieces.
      draw_per_word: one draw decides what replaces all pieces of a word; otherwise each piece has its own, as released.
      ordinary_replacements: draw random pieces from the ordinary ones only, without special and [unusedN] entries.

    Raises:
      InputError: if the shares don't sum to 1, or a number is out of range.
    """

    mask: float = 0.8
    same: float = 0.1
    random: float = 0.1
    masked_lm_prob: float = 0.15
    whole_word: bool = False
    draw_per_word: bool = False
    ordinary_replacements: bool = False

    def __post_init__(self) -> None:
        shares = (self.mask, self.same, self.random)
        if min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
            raise InputError(
                f"--masking_policy is {','.join(map(str, shares))}, but three shares (mask, same, random) that sum "
                "to 1 are expected, such as the release's 0.8,0.1,0.1."
            )
        if not 0 < self.masked_lm_prob < 1:
            raise InputError(f"--masked_lm_prob is {self.masked_lm_prob}, but a share between 0 and 1 is expected.")
        if self.draw_per_word and not self.whole_word:
            raise InputError("--draw_per_word needs --do_whole_word_mask: without it, pieces are chosen, not words.")

    def prediction_counts(self, lengths: np.ndarray, max_predictions_per_seq: int) -> np.ndarray:
        """How many tokens [B] of sequences of `lengths` [B] tokens, [CLS] and [SEP] counted, are chosen at the most.

        As in the release, halves are rounded to even numbers, and one token is chosen at least.
        """
        return np.clip(np.rint(lengths * self.masked_lm_prob), 1, max_predictions_per_seq).astype(np.int64)


@dataclasses.dataclass(frozen=True, eq=False)  # arrays compare by element
class MaskingVocabulary:
    """What masking needs to know of a vocabulary.

    Attributes:
      cls_id: id of [CLS].
      sep_id: id of [SEP].
      mask_id: id of [MASK].
      replacements: ids that random pieces are drawn from.
      continues_word: for each id, whether its piece continues a word (it begins with "##").
    """

    cls_id: int
    sep_id: int
    mask_id: int
    replacements: np.ndarray
    continues_word: np.ndarray

    @classmethod
    def of(cls, vocab: Mapping[str, int], ordinary_replacements: bool = False) -> "MaskingVocabulary":
        """Args: vocab: piece -> id; ordinary_replacements: see `MaskingPolicy`.

        Raises:
          KeyError: if the vocabulary lacks [CLS], [SEP] or [MASK].
        """
        # The release draws from the pieces in the order of the file.
        replacements = [
            index
            for piece, index in vocab.items()
            if not (ordinary_replacements and (piece in SPECIAL_TOKENS or _UNUSED.fullmatch(piece)))
        ]
        continues_word = np.zeros(max(vocab.values()) + 1, bool)
        continues_word[[index for piece, index in vocab.items() if piece.startswith("##")]] = True
        return cls(vocab["[CLS]"], vocab["[SEP]"], vocab["[MASK]"], np.array(replacements, np.int32), continues_word)
