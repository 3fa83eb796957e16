"""Decodes logits to answers, for all questions of a file at once.

In each window, the `n_best_size` highest start logits and end logits are paired. If logits are equal, the first
position is used. `rules.pairs_fit` selects the candidates among the pairs. The candidates of all windows of a question
are ranked by the sum of the two logits. Ties are broken by the earlier window, then the better start, then the better
end.

Tokens are lower-cased, without accents and separated from punctuation, so joined tokens may differ from the text of the
paragraph. As in the original code, the words around the answer are tokenized, and the answer is found in the result.
Then characters other than spaces are counted to map the tokenized words to the original words. If the counts differ,
complete words are used.

`bert_tf/graphs/answers.py` implements the same rules inside a TensorFlow graph.

Axis letters: W windows, T tokens, K paired positions, C candidates.
"""

import bisect
import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from absl import logging
from scipy.special import log_softmax

from bert_tf.tasks.squad.predictions import ScoredText, SquadPredictions
from bert_tf.tasks.squad.questions import SquadExample
from bert_tf.tasks.squad.rules import SquadConfig, pairs_fit
from bert_tf.tasks.squad.windows import SquadWindows
from bert_tf.text import BasicTokenizer

# The largest number of pairs of positions to compare at once, to limit the memory.
_CHUNK_PAIRS = 1 << 21
# The number of candidates to prepare at once. An n-best list rarely needs more.
_RANKED_AT_ONCE = 32

# Returns the text of a span, given the window and the positions of its first and last token.
TextOfSpan = Callable[[int, int, int], str]


def decode(
    examples: Sequence[SquadExample],
    windows: SquadWindows,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    config: SquadConfig = SquadConfig(),
    null_score_diff_threshold: float = 0.0,
) -> SquadPredictions:
    """Returns the answers to all questions.

    Args:
      examples: the questions.
      windows: the windows of the questions, computed with the same config.
      start_logits: [W, T].
      end_logits: [W, T].
      config: the rules for answers.
      null_score_diff_threshold: SQuAD 2.0: the answer is empty if the null odds exceed this value.

    Raises:
      ValueError: if a logit is not finite; the message names the question.
    """
    document_of_window = windows.document_of_example[windows.example_index].tolist()
    to_token = (windows.text_start - windows.first_lengths).tolist()  # from a position to a token of the paragraph

    def text(window: int, start: int, end: int) -> str:
        document = windows.documents[document_of_window[window]]
        first, last = start + to_token[window], end + to_token[window]
        if config.by_offsets:
            return document.context[document.spans[first][0] : document.spans[last][1]]
        first_word, last_word = (bisect.bisect_right(document.first_piece, token) - 1 for token in (first, last))
        predicted = join_pieces(windows.tokenizer.convert_ids_to_tokens(document.ids[first : last + 1]))
        words = " ".join(document.words[first_word : last_word + 1])
        return final_text(predicted, words, windows.tokenizer.basic_tokenizer, config.verbose_logging)

    qas_ids = [example.qas_id for example in examples]
    return answer_questions(qas_ids, windows, start_logits, end_logits, text, config, null_score_diff_threshold)


def answer_questions(
    qas_ids: Sequence[str],
    windows: SquadWindows,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    text: TextOfSpan,
    config: SquadConfig,
    null_score_diff_threshold: float,
) -> SquadPredictions:
    """Returns the answers to all questions; `text` returns the text of a span. For other arguments, see `decode`."""
    candidates = _find_candidates(qas_ids, windows, start_logits, end_logits, config)
    null_logits = np.stack([start_logits[:, 0], end_logits[:, 0]], axis=1).astype(np.float64)  # [W, 2]
    bounds = np.arange(len(qas_ids) + 1)
    window_bounds = np.searchsorted(windows.example_index, bounds).tolist()
    candidate_bounds = np.searchsorted(windows.example_index[candidates.window], bounds).tolist()
    predictions = SquadPredictions()
    for i, qas_id in enumerate(qas_ids):
        of_question = slice(candidate_bounds[i], candidate_bounds[i + 1])
        ranked = _rank(_Candidates(*(column[of_question] for column in candidates)), text)
        null = None
        if config.version_2_with_negative:
            null = _null_answer(null_logits[window_bounds[i] : window_bounds[i + 1]])
            # The null answer comes after all candidates with an equal or higher score.
            ranked = heapq.merge(ranked, [null], key=lambda answer: -(answer[1] + answer[2]))
        predictions.add(qas_id, ranked, config.n_best_size, null, null_score_diff_threshold)
    return predictions


def average_distributions(logits: Sequence[np.ndarray], lengths: np.ndarray) -> np.ndarray:
    """Averages the probability distributions of several runs. The result can be decoded like logits.

    Args:
      logits: for each run, the start or end logits [W, T] of the same windows.
      lengths: [W], number of tokens of each window; the logits of padding are ignored.

    Returns:
      Logarithms of the mean probabilities, float64 [W, T]; minus infinity for padding.
    """
    total = np.full(logits[0].shape, -np.inf)
    is_token = np.arange(total.shape[1]) < lengths[:, None]
    for run in logits:
        total = np.logaddexp(total, log_softmax(np.where(is_token, run.astype(np.float64), -np.inf), axis=1))
    return total - np.log(len(logits))


class _Candidates(NamedTuple):
    """Candidates for answers, [C] each: the window, the positions of the first and last token, and their logits."""

    window: np.ndarray
    start: np.ndarray
    end: np.ndarray
    start_logit: np.ndarray
    end_logit: np.ndarray


def _find_candidates(
    qas_ids: Sequence[str],
    windows: SquadWindows,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    config: SquadConfig,
) -> _Candidates:
    """Returns the candidates of all windows, ordered by window, then rank of the start, then rank of the end."""
    n_best_size, rank_padding = config.n_best_size, config.pad_to_max_seq_length
    chunk_windows = max(1, _CHUNK_PAIRS // min(n_best_size, start_logits.shape[1]) ** 2)
    chunks = []
    for begin in range(0, max(1, len(windows)), chunk_windows):
        chunk = slice(begin, begin + chunk_windows)
        is_token, is_max_context = windows.padded(chunk, start_logits.shape[1])
        logits = [start_logits[chunk], end_logits[chunk]]
        for x in logits:
            bad = ((is_token | rank_padding) & ~np.isfinite(x)).any(axis=1)
            if bad.any():
                qas_id = qas_ids[windows.example_index[begin + int(bad.argmax())]]
                raise ValueError(f"a window of question {qas_id!r} has a logit that isn't a finite number")
        if not rank_padding:
            logits = [np.where(is_token, x, -np.inf) for x in logits]
        starts, best_start_logits = _best_positions(logits[0], n_best_size)  # [W, K]
        ends, best_end_logits = _best_positions(logits[1], n_best_size)
        start_fits = np.take_along_axis(is_max_context, starts, axis=1)
        end_fits = (ends >= windows.first_lengths[chunk, None]) & (ends < windows.lengths[chunk, None] - 1)
        window, start_rank, end_rank = np.nonzero(
            pairs_fit(starts, ends, start_fits, end_fits, max_answer_length=config.max_answer_length, ops=np)
        )
        chunks.append(
            _Candidates(
                window + begin,
                starts[window, start_rank],
                ends[window, end_rank],
                best_start_logits[window, start_rank].astype(np.float64),
                best_end_logits[window, end_rank].astype(np.float64),
            )
        )
    return _Candidates(*map(np.concatenate, zip(*chunks, strict=True)))


def _best_positions(logits: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the positions of the K highest logits of each row of [W, T], and these logits, both [W, K].

    The highest logit comes first. If logits are equal, the first position comes first.
    """
    rows, length = logits.shape
    count = min(count, length)
    lowest = np.partition(logits, length - count, axis=1)[:, length - count, None]  # the lowest selected logit
    above = logits > lowest
    equal = logits == lowest
    num_equal = count - above.sum(axis=1, keepdims=True)  # the number of selected logits that equal the lowest
    taken = above | (equal & (np.cumsum(equal, axis=1, dtype=np.int32) <= num_equal))
    positions = np.nonzero(taken)[1].reshape(rows, count)
    best = np.take_along_axis(logits, positions, axis=1)
    order = np.argsort(-best, axis=1, kind="stable")
    return np.take_along_axis(positions, order, axis=1), np.take_along_axis(best, order, axis=1)


def _rank(candidates: _Candidates, text: TextOfSpan) -> Iterator[tuple[str, float, float]]:
    """Yields text, start logit and end logit of each candidate, best first. Texts are computed on demand."""
    order = np.argsort(-(candidates.start_logit + candidates.end_logit), kind="stable")
    for i in range(0, len(order), _RANKED_AT_ONCE):
        chunk = order[i : i + _RANKED_AT_ONCE]
        window, start, end, start_logit, end_logit = (column[chunk].tolist() for column in candidates)
        yield from zip(map(text, window, start, end), start_logit, end_logit, strict=True)


def _null_answer(logits: np.ndarray) -> ScoredText:
    """Returns the null answer, with the lowest [CLS] score among the windows of a question.

    Args:
      logits: [W, 2], the start and end logits of [CLS] in each window.
    """
    if not len(logits):
        return ScoredText("", 0.0, 0.0)
    return ScoredText("", *logits[logits.sum(axis=1).argmin()].tolist())


def join_pieces(pieces: Sequence[str]) -> str:
    """Joins word pieces to basic tokens, with spaces between the tokens."""
    return " ".join(pieces).replace(" ##", "").replace("##", "")


def get_final_text(pred_text: str, orig_text: str, do_lower_case: bool, verbose_logging: bool = False) -> str:
    """Returns the part of the original words that matches a predicted text.

    For the words "Steve Smith's" and the prediction "steve smith", it returns "Steve Smith".

    Args:
      pred_text: the predicted word pieces, joined to basic tokens.
      orig_text: the words of the paragraph that the pieces come from.
      do_lower_case: whether the pieces are lower-cased.
      verbose_logging: whether to log predictions that can't be aligned.

    Returns:
      The matching part of `orig_text`. If the prediction is not found in the tokenized words, or if original and
      tokenized words have different numbers of characters other than spaces, all of `orig_text`.
    """
    return final_text(pred_text, orig_text, BasicTokenizer(do_lower_case=do_lower_case), verbose_logging)


def final_text(pred_text: str, orig_text: str, tokenizer: BasicTokenizer, verbose_logging: bool) -> str:
    """Implements `get_final_text`, with a tokenizer whose cache contains most of the words."""
    tokenized_text = " ".join(tokenizer.tokenize(orig_text))
    start = tokenized_text.find(pred_text)
    is_text = bool(pred_text) and pred_text == pred_text.strip(" ")
    if start < 0 or not is_text or _count_solid(orig_text) != _count_solid(tokenized_text):
        if verbose_logging:
            logging.info("Can't align the prediction %r with the words %r. Using all the words.", pred_text, orig_text)
        return orig_text
    first = _find_solid(orig_text, _count_solid(tokenized_text, start), 0)
    last = _find_solid(orig_text, _count_solid(pred_text) - 1, first)
    return orig_text[first : last + 1]


def _count_solid(text: str, end: int | None = None) -> int:
    """Returns the number of characters before `end` other than spaces."""
    end = len(text) if end is None else end
    return end - text.count(" ", 0, end)


def _find_solid(text: str, number: int, begin: int) -> int:
    """Returns the position of the non-space character with index `number`, counted from `begin` without spaces."""
    position = begin + number
    while position != (further := begin + number + text.count(" ", begin, position + 1)):
        position = further
    return position
