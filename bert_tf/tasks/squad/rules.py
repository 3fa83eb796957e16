"""The settings, and the rules for windows and answers, shared by NumPy arrays and TensorFlow graphs.

Functions with the argument `ops` work on NumPy arrays (module `numpy`) and on tensors (module `tensorflow`).
`windows.py` and `decoding.py` apply the rules to arrays. `bert_tf/graphs/answers.py` applies them in the graph of a
SavedModel.

Axis letters: Q questions, W windows, E tokens of all windows' texts, K paired positions.
"""

import math
from collections.abc import Callable
from types import ModuleType
from typing import Annotated, Any, Literal

from bert_tf.runtime.errors import InputError
from bert_tf.runtime.messages import say_once
from bert_tf.runtime.settings import Settings, about, not_with, only_with

# [CLS] before the question, and [SEP] after the question and after the text.
SPECIAL_TOKENS = 3
# Name of the split with the questions to answer.
PREDICT_SPLIT = "predict"
# Larger than any position or answer length.
_FAR = 1 << 29

# A NumPy array or a TensorFlow tensor.
Array = Any


class SquadSteps(Settings, frozen=True):
    """The files of `run_squad.py`, and the steps that only this program has."""

    train_file: Annotated[
        tuple[str, ...],
        about("SQuAD training file, or several separated by commas, used one after the other.", group="What to do"),
    ] = ()
    predict_file: Annotated[str | None, about("SQuAD JSON file with the questions to answer.")] = None
    interactive: Annotated[bool, about("Answer questions about paragraphs that you type.")] = False
    evaluate_file: Annotated[
        str | None,
        about("Only evaluate this file of answers to --predict_file, in the format of predictions.json."),
        only_with("predict_file"),
        not_with("do_train", "do_predict", "interactive", "do_export"),
    ] = None


class SquadConfig(Settings, frozen=True):
    """How questions are read, split into windows and answered.

    Attributes:
      max_seq_length: longest window in tokens. The flag is common to all tasks.
      n_best_size: the number of answers to list, and the number of start and end positions to pair in each window.
      answer_text: with "original", training searches for the tokens of an answer within its words, and prediction
        returns the text found by `get_final_text`. With "offsets", training uses the tokens that share a character with
        the answer, and prediction returns the characters of the context from the first to the last token.
      pad_to_max_seq_length: whether every window is padded to `max_seq_length`. If True, padding positions can be among
        the n best, as in the original code. The flag is common to all tasks.
    """

    max_seq_length: int = 384
    doc_stride: Annotated[
        int, about("Number of tokens between the starts of two windows.", ge=1, group="Windows and answers")
    ] = 128
    max_query_length: Annotated[int, about("Longest question in tokens; longer ones are truncated.", ge=0)] = 64
    n_best_size: Annotated[int, about("Number of answers in each question's n-best list.", ge=1)] = 20
    max_answer_length: Annotated[int, about("Longest answer in tokens.", ge=1)] = 30
    version_2_with_negative: Annotated[bool, about("SQuAD 2.0: some questions have no answer.")] = False
    answer_text: Annotated[
        Literal["original", "offsets"], about("How to find answer texts: by the original alignment, or by offsets.")
    ] = "original"
    fix_answer_offsets: Annotated[
        bool, about("If the offset of a training answer is wrong, use the nearest occurrence.")
    ] = False
    pad_to_max_seq_length: bool = False
    verbose_logging: Annotated[bool, about("Report answers that can't be aligned with the text.")] = False

    @property
    def by_offsets(self) -> bool:
        """Whether answers are found by the characters of their tokens."""
        return self.answer_text == "offsets"

    def check_lengths(self) -> None:
        """Checks the lengths before any file is read. Warns if windows of long questions do not overlap.

        Raises:
          InputError: if a question of `max_query_length` tokens leaves no room for text.
        """
        if text_room(self.max_query_length, self.max_seq_length) < 1:
            room = f"--max_seq_length={self.max_seq_length}"
            problem = f"{room} leaves no room for text. Lower --max_query_length or raise --max_seq_length."
            raise InputError(f"--max_query_length={self.max_query_length}: {problem}")
        shortest = max(0, text_room(self.doc_stride, self.max_seq_length))
        if shortest <= self.max_query_length:
            problem = f"windows do not overlap if questions have {shortest} or more tokens"
            say_once(f"Warning: --doc_stride={self.doc_stride}: {problem}. Use a smaller --doc_stride.")


class AnswerConfig(Settings, frozen=True):
    """The models that answer, and the no-answer threshold.

    Attributes:
      null_score_diff_threshold: None for the threshold tuned for the model, or 0 if there is none.
      tune_null_threshold: whether to tune the threshold; None to tune it only if it was not tuned for the model.
      ensemble_method: "distributions" averages the probability distributions of the models before decoding. "nbest"
        merges the n-best lists in the run directories.

    Raises:
      InputError: if `ensemble_method` is "nbest" and there are no `ensemble_dirs`.
    """

    null_score_diff_threshold: Annotated[
        float | None,
        about(
            "Threshold of the no-answer score minus the best score. Default: tuned, or 0.", group="Windows and answers"
        ),
        only_with("version_2_with_negative", "do_export"),
    ] = None
    tune_null_threshold: Annotated[
        bool | None,
        about("Tune the no-answer threshold. Default: only if none was tuned."),
        only_with("version_2_with_negative"),
    ] = None
    ensemble_dirs: Annotated[
        tuple[str, ...], about("Directories of finished runs to use as an ensemble.", group="Ensembles")
    ] = ()
    ensemble_method: Annotated[
        Literal["distributions", "nbest"], about("Average the models' distributions, or merge their n-best lists.")
    ] = "distributions"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.merges_lists and not self.ensemble_dirs:
            raise InputError("--ensemble_method=nbest: requires --ensemble_dirs. Pass the finished runs to merge.")

    @property
    def merges_lists(self) -> bool:
        """Whether existing n-best lists are merged, which needs no model."""
        return self.ensemble_method == "nbest"


def text_room(query_length: Array, max_seq_length: int) -> Array:
    """Returns the number of paragraph tokens that fit into a window with a question."""
    return max_seq_length - SPECIAL_TOKENS - query_length


def first_text_position(query_length: Array) -> Array:
    """Returns the position in a window at which the text begins: after [CLS] question [SEP]."""
    return query_length + 2


def shows_most_context(
    num_left: Array, length: Array, window: Array, highest_of_piece: Callable[[Array], Array], ops: ModuleType
) -> Array:
    """Returns whether a window has more context around a token than all other windows of the same question.

    The context of a token is the smaller of two numbers: neighbours on the left, and neighbours on the right. A
    hundredth of the text length is added, so that a longer window wins. If windows are equal, the first one wins.

    Args:
      num_left: [E], the number of neighbours on the left (float64).
      length: [E], the length of the text in the window (float64).
      window: [E], the index of the window (float64).
      highest_of_piece: maps values [E] to the highest value among all windows with the same token [E].
      ops: `numpy` or `tensorflow`.

    Returns:
      bool [E].
    """
    context = ops.minimum(num_left, length - 1 - num_left) + 0.01 * length
    is_most = context == highest_of_piece(context)
    return -window == highest_of_piece(ops.where(is_most, -window, -math.inf))


def pairs_fit(
    starts: Array, ends: Array, start_fits: Array, end_fits: Array, max_answer_length: int, ops: ModuleType
) -> Array:
    """Returns which pairs of a start and an end are candidates for an answer.

    The start must be a token of the text that has the most context in this window. The end must be a token of the text
    and must not be before the start.

    Args:
      starts: [W, K] positions.
      ends: [W, K] positions.
      start_fits: [W, K], whether a start has the most context in this window.
      end_fits: [W, K], whether an end is in the text.
      max_answer_length: longest answer in tokens.
      ops: `numpy` or `tensorflow`.

    Returns:
      bool [W, K, K], for each start and each end.
    """
    # Positions that do not fit are replaced by distant ones. This is faster than combining the conditions of all pairs.
    ends = ops.where(end_fits, ends, _FAR)
    more_pieces = ends[:, None, :] - ops.where(start_fits, starts, 2 * _FAR)[:, :, None]
    return (more_pieces >= 0) & (more_pieces < max_answer_length)


def means_no_answer(null_odds: Array, null_score_diff_threshold: float) -> Array:
    """Returns True if there is no answer, because the null odds exceed the threshold."""
    return null_odds > null_score_diff_threshold
