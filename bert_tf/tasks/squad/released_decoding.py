"""From logits to answers, one candidate at a time as in the release: n-best lists, ties, null scores and all.

The program itself uses `squad_answers`, which gives the same answers for a whole file at once.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from absl import logging

from bert_tf.tasks.squad.examples import SquadExample
from bert_tf.tasks.squad.predictions import ScoredText, SquadPredictions
from bert_tf.tasks.squad.realignment import get_final_text, join_pieces
from bert_tf.tasks.squad.released_features import InputFeatures


class RawResult(NamedTuple):
    """The model's output for one window: two logits for each of its tokens."""

    unique_id: int
    start_logits: list[float]
    end_logits: list[float]


class _Candidate(NamedTuple):
    """A span of a window's tokens; the null answer is that of [CLS] alone."""

    feature: InputFeatures | None
    start: int
    end: int
    start_logit: float
    end_logit: float


def write_predictions(
    all_examples: Sequence[SquadExample],
    all_features: Sequence[InputFeatures],
    all_results: Sequence[RawResult],
    n_best_size: int,
    max_answer_length: int,
    do_lower_case: bool,
    output_prediction_file: str,
    output_nbest_file: str,
    output_null_log_odds_file: str,
    version_2_with_negative: bool = False,
    null_score_diff_threshold: float = 0.0,
    verbose_logging: bool = False,
) -> None:
    """Answers every question and writes the answers, the n-best lists and, for 2.0, the odds for no answer.

    Args:
      all_examples: the questions.
      all_features: their windows.
      all_results: the logits of every window.
      n_best_size: how many start and end positions of a window are combined, and how many answers are listed.
      max_answer_length: longest answer, in pieces.
      do_lower_case: as the pieces were made.
      output_prediction_file: JSON, id -> answer.
      output_nbest_file: JSON, id -> answers with probabilities and logits.
      output_null_log_odds_file: JSON, id -> score of no answer minus that of the best answer; written for 2.0 only.
      version_2_with_negative: whether no answer is an answer.
      null_score_diff_threshold: odds above it mean that there is no answer.
      verbose_logging: whether the log names answers that can't be aligned with the text.
    """
    features_of_example: dict[int, list[InputFeatures]] = {}
    for feature in all_features:
        features_of_example.setdefault(feature.example_index, []).append(feature)
    result_of_feature = {result.unique_id: result for result in all_results}
    predictions = SquadPredictions()
    for example_index, example in enumerate(all_examples):
        features = features_of_example.get(example_index, [])
        results = [result_of_feature[feature.unique_id] for feature in features]
        candidates = [
            candidate
            for feature, result in zip(features, results, strict=True)
            for candidate in _candidates(feature, result, n_best_size, max_answer_length)
        ]
        null = _null_answer(results) if version_2_with_negative else None
        if null is not None:
            candidates.append(_Candidate(None, 0, 0, null.start_logit, null.end_logit))
        # Python's sort is stable in reverse, too: of equal scores the one found first stays first.
        candidates.sort(key=lambda candidate: candidate.start_logit + candidate.end_logit, reverse=True)
        ranked = (
            ScoredText(_text(candidate, example, do_lower_case, verbose_logging), *candidate[-2:])
            for candidate in candidates
        )
        predictions.add(example.qas_id, ranked, n_best_size, null, null_score_diff_threshold)
    for line in predictions.report():
        logging.warning("%s", line)
    null_file = output_null_log_odds_file if version_2_with_negative else None
    predictions.write(output_prediction_file, output_nbest_file, null_file)


def _candidates(
    feature: InputFeatures, result: RawResult, n_best_size: int, max_answer_length: int
) -> Iterator[_Candidate]:
    ends = _best_indexes(result.end_logits, n_best_size)
    for start in _best_indexes(result.start_logits, n_best_size):
        # Only the start must have its maximal context in this window; the end need not.
        if not feature.token_is_max_context.get(start, False):
            continue
        for end in ends:
            if end in feature.token_to_orig_map and start <= end < start + max_answer_length:
                yield _Candidate(feature, start, end, result.start_logits[start], result.end_logits[end])


def _best_indexes(logits: Sequence[float], n_best_size: int) -> list[int]:
    """The places of the highest logits, best first; of equal ones the first."""
    return sorted(range(len(logits)), key=lambda index: logits[index], reverse=True)[:n_best_size]


def _null_answer(results: Sequence[RawResult]) -> ScoredText:
    """The lowest score of [CLS] over the windows: there is no answer only if every window says so."""
    null = min(results, key=lambda result: result.start_logits[0] + result.end_logits[0], default=None)
    if null is None:
        return ScoredText("", 0.0, 0.0)
    return ScoredText("", null.start_logits[0], null.end_logits[0])


def _text(candidate: _Candidate, example: SquadExample, do_lower_case: bool, verbose_logging: bool) -> str:
    feature = candidate.feature
    if feature is None:
        return ""
    pred_text = join_pieces(feature.tokens[candidate.start : candidate.end + 1])
    words = feature.token_to_orig_map
    orig_text = " ".join(example.doc_tokens[words[candidate.start] : words[candidate.end] + 1])
    return get_final_text(pred_text, orig_text, do_lower_case, verbose_logging)
