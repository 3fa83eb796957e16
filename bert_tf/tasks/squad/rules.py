"""The rules of windows and answers, each stated once for its two modes: Python's arrays and TensorFlow's graph.

A function that takes `ops` works on NumPy arrays with the module `numpy`, and on tensors with the module `tensorflow`.
`windows.py` and `decoding.py` apply the rules to arrays, and `graph_answerer.py` applies them in the graph of a
SavedModel.

Axis letters: Q questions, W windows, E pieces of all windows' texts, K positions that are paired.
"""

import dataclasses
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from bert_tf.runtime.errors import InputError, require_choice, require_whole

# [CLS] before the question, and [SEP] after the question and after the text.
SPECIAL_TOKENS = 3
ANSWER_TEXTS = ("original", "offsets")
ENSEMBLE_METHODS = ("distributions", "nbest")
# No position and no answer's length comes near to it.
_FAR = 1 << 29

# A NumPy array or a TensorFlow tensor.
Array = Any


@dataclasses.dataclass(frozen=True)
class SquadConfig:
    """How questions are read, cut into windows and answered; the names are those of run_squad.py's flags.

    Attributes:
      max_seq_length: the longest window, in tokens.
      doc_stride: pieces between the begins of two windows.
      max_query_length: the longest question, in pieces; longer ones are cut at the end.
      n_best_size: how many start and end positions of a window are paired, and how many answers are listed.
      max_answer_length: the longest answer, in pieces.
      version_2_with_negative: whether a question may have no answer.
      answer_text: where the text of an answer comes from. "release": training looks for an answer's pieces within its
        words, and predicting takes the text that `get_final_text` finds. "offsets": training takes the pieces that
        share a character with the answer, and predicting takes the context's characters from the beginning of the
        first piece to the end of the last.
      fix_answer_offsets: whether a training answer is used if it isn't at the place that its file gives.
      pad_to_max_seq_length: whether every window is padded to `max_seq_length`, so that positions after a window's end
        take places among the n best, as they do in the release. Otherwise answers don't depend on the padding.
      verbose_logging: whether the log names answers that can't be aligned with the text.

    Raises:
      InputError: if there is no such `answer_text`, or a number is out of range.
    """

    max_seq_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64
    n_best_size: int = 20
    max_answer_length: int = 30
    version_2_with_negative: bool = False
    answer_text: str = "original"
    fix_answer_offsets: bool = False
    pad_to_max_seq_length: bool = False
    verbose_logging: bool = False

    def __post_init__(self) -> None:
        require_choice("--answer_text", self.answer_text, ANSWER_TEXTS)
        for name, minimum in (("n_best_size", 1), ("max_answer_length", 1), ("doc_stride", 1), ("max_query_length", 0)):
            require_whole(f"--{name}", getattr(self, name), minimum)

    @property
    def by_offsets(self) -> bool:
        """Whether answers are found by the characters of their pieces."""
        return self.answer_text == "offsets"

    def check_lengths(self) -> None:
        """Checks that the longest question has room, before anything is read.

        Raises:
          InputError: if a question of `max_query_length` leaves no room for text.
        """
        if text_room(self.max_query_length, self.max_seq_length) < 1:
            room = f"--max_seq_length={self.max_seq_length}"
            raise InputError(f"--max_query_length={self.max_query_length}: {room} leaves no room for text. Lower it.")


def text_room(query_length: Array, max_seq_length: int) -> Array:
    """The number of the paragraph's pieces that fit into a window with the question."""
    return max_seq_length - SPECIAL_TOKENS - query_length


def first_text_position(query_length: Array) -> Array:
    """The position at which a window's text begins: after [CLS] question [SEP]."""
    return query_length + 2


class TextSpans(NamedTuple):
    """The parts of the paragraphs that the windows show, all windows of the first question first.

    Attributes:
      counts: [Q] the number of each question's windows.
      begins: [W] the paragraph's piece with which a window's text begins.
      lengths: [W] the number of pieces in a window's text.
    """

    counts: Array
    begins: Array
    lengths: Array


def cut_texts(lengths: Array, room: Array, doc_stride: int, ops: ModuleType) -> TextSpans:
    """Cuts paragraphs into spans that begin `doc_stride` pieces apart, until the last piece is covered.

    As in the release, a stride longer than the room is shortened to the room, so no piece is left out.

    Args:
      lengths: [Q] the number of pieces in each question's paragraph (int64).
      room: [Q] the longest span of each question (int64).
      doc_stride: pieces between the begins of two spans.
      ops: `numpy` or `tensorflow`.
    """
    step = ops.minimum(room, doc_stride)
    counts = ops.where(lengths > 0, (ops.maximum(lengths - room, 0) + step - 1) // step + 1, 0)
    steps, rooms, lengths, before = (
        ops.repeat(x, counts) for x in (step, room, lengths, ops.cumsum(counts) - counts)
    )  # [W]
    begins = (ops.cumsum(ops.ones_like(steps)) - 1 - before) * steps
    return TextSpans(counts, begins, ops.minimum(rooms, lengths - begins))


def shows_most_context(
    left: Array, length: Array, window: Array, highest_of_piece: Callable[[Array], Array], ops: ModuleType
) -> Array:
    """Whether a window shows more context around a piece than any other window of the same question.

    The context of a piece is the number of its neighbours on the left or on the right, whichever is smaller. A
    hundredth of the window's length is added, so the longer of two windows wins; of equal windows the first wins.

    Args:
      left: [E] the number of neighbours on the left (float64).
      length: [E] the length of the window's text (float64).
      window: [E] the number of the window (float64).
      highest_of_piece: values [E] -> [E] the highest value among all windows that show the same piece.
      ops: `numpy` or `tensorflow`.

    Returns:
      [E].
    """
    context = ops.minimum(left, length - 1 - left) + 0.01 * length
    is_most = context == highest_of_piece(context)
    return -window == highest_of_piece(ops.where(is_most, -window, -math.inf))


def pairs_fit(
    starts: Array, ends: Array, start_fits: Array, end_fits: Array, max_answer_length: int, ops: ModuleType
) -> Array:
    """Which pairs of a start and an end are candidates for an answer.

    The start must have its maximal context in this window, which implies that it is in the text. The end must be in
    the text, but its maximal context doesn't matter. The end must not be before the start.

    Args:
      starts: [W, K] positions.
      ends: [W, K] positions.
      start_fits: [W, K] whether a start has its maximal context in this window.
      end_fits: [W, K] whether an end lies in the text.
      max_answer_length: the longest answer, in pieces.
      ops: `numpy` or `tensorflow`.

    Returns:
      [W, K, K] for each start and each end.
    """
    # A position that doesn't fit is moved out of reach, which is faster than to combine the conditions of all pairs.
    ends = ops.where(end_fits, ends, _FAR)
    more_pieces = ends[:, None, :] - ops.where(start_fits, starts, 2 * _FAR)[:, :, None]
    return (more_pieces >= 0) & (more_pieces < max_answer_length)


def means_no_answer(null_odds: Array, null_score_diff_threshold: float) -> Array:
    """Whether there is no answer, because the odds for none are above the threshold."""
    return null_odds > null_score_diff_threshold
