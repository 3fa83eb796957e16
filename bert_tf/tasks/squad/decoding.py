"""From logits to answers for a whole file at once: what `squad_decoding` says one at a time, the same answers, faster.

The rule, simple enough for a graph. In each window the `n_best_size` highest start logits and end logits are paired; of
equal logits the first position is taken. A pair is a candidate if both lie in the window's text, the end isn't before
the start, the span has at most `max_answer_length` pieces, and the start has its maximal context in this window.
The candidates of all windows of a question are ranked by the sum of their two logits; of equal ones the earlier window,
then the better start, then the better end comes first. With `answer_text="offsets"` the answer is the context's
characters from the beginning of the first piece to the end of the last; with "release", what `get_final_text` says.

Axis letters: W windows, T tokens, K positions that are paired, C candidates.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bert_tf.runtime.files import InputError
from bert_tf.tasks.squad.answer_texts import OffsetTexts, ReleaseTexts, document_begins
from bert_tf.tasks.squad.examples import SquadExample, check_answer_text
from bert_tf.tasks.squad.predictions import ScoredText, SquadPredictions
from bert_tf.tasks.squad.windows import SquadWindows
from bert_tf.tokenization import FullTokenizer

# Pairs of positions that are looked at in one go, which bounds the memory they take.
_CHUNK_PAIRS = 1 << 21
# Candidates that are made ready in one go; an n-best list rarely needs more.
_RANKED_AT_ONCE = 32


def check_decoding(n_best_size: int, max_answer_length: int) -> None:
    """Raises an InputError if no answer could ever be found."""
    for name, value in (("n_best_size", n_best_size), ("max_answer_length", max_answer_length)):
        if value < 1:
            raise InputError(f"--{name} is {value}, but at least 1 is needed.")


def decode(
    examples: Sequence[SquadExample],
    windows: SquadWindows,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    tokenizer: FullTokenizer,
    n_best_size: int = 20,
    max_answer_length: int = 30,
    version_2_with_negative: bool = False,
    null_score_diff_threshold: float = 0.0,
    answer_text: str = "release",
    rank_padding: bool = False,
    verbose_logging: bool = False,
) -> SquadPredictions:
    """Answers every question.

    Args:
      examples: the questions.
      windows: made from them, with the same `answer_text`.
      start_logits: [W, T].
      end_logits: [W, T].
      tokenizer: that made the windows.
      n_best_size: how many start and end positions of a window are paired, and how many answers are listed.
      max_answer_length: longest answer, in pieces.
      version_2_with_negative: whether no answer is an answer.
      null_score_diff_threshold: odds above it mean that there is no answer.
      answer_text: "release" or "offsets".
      rank_padding: whether positions behind a window's end take places among the n best, as they do in the release,
        where every window is padded to the same length. Otherwise answers don't depend on the padding.
      verbose_logging: whether the log names answers that "release" can't align with the text.

    Raises:
      InputError: if a size is below 1.
      ValueError: if the logits don't fit the windows, or aren't finite (names the question).
    """
    check_answer_text(answer_text)
    check_decoding(n_best_size, max_answer_length)
    _check_shapes(examples, windows, start_logits, end_logits)
    candidates = _find_candidates(
        examples, windows, start_logits, end_logits, n_best_size, max_answer_length, rank_padding
    )
    null_logits = np.stack([start_logits[:, 0], end_logits[:, 0]], axis=1).astype(np.float64)  # [W, 2]
    bounds = np.arange(len(examples) + 1)
    window_bounds = np.searchsorted(windows.example_index, bounds).tolist()
    candidate_bounds = np.searchsorted(windows.example_index[candidates.window], bounds).tolist()
    by_offsets = answer_text == "offsets"
    documents = windows.documents
    texts = OffsetTexts(documents) if by_offsets else ReleaseTexts(documents, tokenizer, verbose_logging)
    predictions = SquadPredictions()
    for i, example in enumerate(examples):
        ranked = _rank(candidates, slice(candidate_bounds[i], candidate_bounds[i + 1]), texts.text)
        null = None
        if version_2_with_negative:
            null = _null_answer(null_logits[window_bounds[i] : window_bounds[i + 1]])
            ranked = _insert(null, ranked)
        predictions.add(example.qas_id, ranked, n_best_size, null, null_score_diff_threshold)
    return predictions


class _Candidates(NamedTuple):
    """[C] each: the window, the span's first and last piece (numbered through all documents), and their logits."""

    window: np.ndarray
    first_piece: np.ndarray
    last_piece: np.ndarray
    start_logit: np.ndarray
    end_logit: np.ndarray


def _find_candidates(
    examples: Sequence[SquadExample],
    windows: SquadWindows,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    n_best_size: int,
    max_answer_length: int,
    rank_padding: bool,
) -> _Candidates:
    """The candidates of all windows, window after window, in each by the rank of the start, then of the end."""
    document = windows.document_of_example[windows.example_index]
    first_piece = document_begins(windows.documents)[document] + windows.text_start  # [W]
    chunk_windows = max(1, _CHUNK_PAIRS // min(n_best_size, start_logits.shape[1]) ** 2)
    chunks = []
    for begin in range(0, max(1, len(windows)), chunk_windows):
        chunk = slice(begin, begin + chunk_windows)
        is_token, is_max_context = windows.padded(chunk, start_logits.shape[1])
        logits = [start_logits[chunk], end_logits[chunk]]
        _check_finite(examples, windows, chunk, is_token | rank_padding, logits)
        if not rank_padding:
            logits = [np.where(is_token, x, -np.inf) for x in logits]
        starts, best_start_logits = _best_positions(logits[0], n_best_size)  # [W, K]
        ends, best_end_logits = _best_positions(logits[1], n_best_size)
        text_begins = windows.first_lengths[chunk, None]
        sep_positions = windows.lengths[chunk, None] - 1
        start_fits = np.take_along_axis(is_max_context, starts, axis=1)  # False outside the text
        end_fits = (ends >= text_begins) & (ends < sep_positions)
        window, start_rank, end_rank = _find_pairs(starts, ends, start_fits, end_fits, max_answer_length)
        to_piece = first_piece[chunk, None] - text_begins
        chunks.append(
            _Candidates(
                window + begin,
                (starts + to_piece)[window, start_rank],
                (ends + to_piece)[window, end_rank],
                best_start_logits[window, start_rank].astype(np.float64),
                best_end_logits[window, end_rank].astype(np.float64),
            )
        )
    return _Candidates(*map(np.concatenate, zip(*chunks, strict=True)))


def _check_shapes(
    examples: Sequence[SquadExample], windows: SquadWindows, start_logits: np.ndarray, end_logits: np.ndarray
) -> None:
    if len(examples) != len(windows.document_of_example):
        raise ValueError(f"the windows are those of {len(windows.document_of_example)} questions, not {len(examples)}")
    count, longest = len(windows), int(windows.lengths.max(initial=0))
    for logits in (start_logits, end_logits):
        if len(logits) != count or logits.shape[1] < longest or logits.shape != start_logits.shape:
            raise ValueError(f"logits {logits.shape} don't fit the windows, which are {count} of up to {longest}")


def _check_finite(
    examples: Sequence[SquadExample],
    windows: SquadWindows,
    chunk: slice,
    is_ranked: np.ndarray,
    logits: Sequence[np.ndarray],
) -> None:
    for x in logits:
        bad = (is_ranked & ~np.isfinite(x)).any(axis=1)
        if bad.any():
            example = examples[windows.example_index[chunk.start + int(bad.argmax())]]
            raise ValueError(f"a window of question {example.qas_id!r} has a logit that isn't a finite number")


def _find_pairs(
    starts: np.ndarray, ends: np.ndarray, start_fits: np.ndarray, end_fits: np.ndarray, max_answer_length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs the positions [W, K] that fit: the windows, the ranks of the starts and of the ends."""
    # What doesn't fit is moved so far away that no end is behind such a start, or near enough to a start.
    far = max_answer_length + int(max(starts.max(initial=0), ends.max(initial=0)))
    more_pieces = np.where(end_fits, ends, far)[:, None, :] - np.where(start_fits, starts, 2 * far)[:, :, None]
    return np.nonzero((more_pieces >= 0) & (more_pieces < max_answer_length))  # [W, K, K]


def _best_positions(logits: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The positions of the highest logits [W, T] -> [W, K], best first, of equal ones the first; and these logits."""
    rows, length = logits.shape
    count = min(count, length)
    lowest = np.partition(logits, length - count, axis=1)[:, length - count, None]  # the lowest that is taken
    above = logits > lowest
    equal = logits == lowest
    left = count - above.sum(axis=1, keepdims=True)  # how many of the equal ones are taken
    taken = above | (equal & (np.cumsum(equal, axis=1, dtype=np.int32) <= left))
    positions = np.nonzero(taken)[1].reshape(rows, count)
    best = np.take_along_axis(logits, positions, axis=1)
    order = np.argsort(-best, axis=1, kind="stable")
    return np.take_along_axis(positions, order, axis=1), np.take_along_axis(best, order, axis=1)


# The text of a span, given the paragraph's first and last piece.
_TextOfSpan = Callable[[int, int], str]


def _rank(candidates: _Candidates, which: slice, text: _TextOfSpan) -> Iterator[tuple[str, float, float]]:
    """A question's candidates, best first; their texts are worked out as they are asked for."""
    start_logit, end_logit = candidates.start_logit[which], candidates.end_logit[which]
    order = np.argsort(-(start_logit + end_logit), kind="stable")
    columns = candidates.first_piece[which], candidates.last_piece[which], start_logit, end_logit
    for i in range(0, len(order), _RANKED_AT_ONCE):
        some = order[i : i + _RANKED_AT_ONCE]
        first_piece, last_piece, start, end = (column[some].tolist() for column in columns)
        yield from zip(map(text, first_piece, last_piece), start, end, strict=True)


def _null_answer(logits: np.ndarray) -> ScoredText:
    """The lowest score of [CLS] over a question's windows [W, 2]: no answer only if every window says so."""
    if not len(logits):
        return ScoredText("", 0.0, 0.0)
    return ScoredText("", *logits[logits.sum(axis=1).argmin()].tolist())


def _insert(null: ScoredText, ranked: Iterator[tuple[str, float, float]]) -> Iterator[tuple[str, float, float]]:
    """Puts the null answer behind all candidates that score as much or more."""
    score = null.start_logit + null.end_logit
    for candidate in ranked:
        if candidate[1] + candidate[2] < score:
            yield null
            yield candidate
            break
        yield candidate
    else:
        yield null
    yield from ranked
