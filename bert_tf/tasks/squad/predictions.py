"""Selects answers from ranked candidates, and writes, reads and merges prediction files."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypedDict

from bert_tf.runtime import files, json_files
from bert_tf.runtime.errors import first_of
from bert_tf.serving.answering import softmax
from bert_tf.tasks.squad.rules import means_no_answer

# The original code's null score for a question without windows. Odds of this size mean no answer at any threshold.
NO_WINDOW_SCORE = 1_000_000.0
# The original answer to a SQuAD 1.1 question without a candidate, for example if the context has no tokens.
PLACEHOLDER = "empty"


class ScoredText(NamedTuple):
    """A possible answer. The score is the sum of the two logits."""

    text: str
    start_logit: float
    end_logit: float


class Entry(TypedDict):
    """An answer in an n-best list."""

    text: str
    probability: float
    start_logit: float
    end_logit: float


@dataclasses.dataclass
class SquadPredictions:
    """The answers to the questions of a file.

    Attributes:
      answers: content of `predictions.json`: maps ids to answers, "" for no answer.
      n_best: content of `nbest_predictions.json`: maps ids to texts with probability and two logits, best first.
      null_odds: content of `null_odds.json`: maps ids to the no-answer score minus the best answer's score; 2.0 only.
      best_non_null: maps ids to the best non-empty answer, or ""; 2.0 only. Thresholds are tuned with these answers.
      without_candidates: ids of questions for which no text span is among the n best.
    """

    answers: dict[str, str] = dataclasses.field(default_factory=dict)
    n_best: dict[str, list[Entry]] = dataclasses.field(default_factory=dict)
    null_odds: dict[str, float] = dataclasses.field(default_factory=dict)
    best_non_null: dict[str, str] = dataclasses.field(default_factory=dict)
    without_candidates: list[str] = dataclasses.field(default_factory=list)

    def add(
        self,
        qas_id: str,
        ranked: Iterable[tuple[str, float, float]],
        n_best_size: int,
        null: ScoredText | None = None,
        null_score_diff_threshold: float = 0.0,
    ) -> None:
        """Adds the answer to a question.

        As in the original code, the n-best list of SQuAD 2.0 always contains the null answer, if necessary as an
        additional entry. If the list contains no other answer, the original code crashes. This function sets the null
        odds to `NO_WINDOW_SCORE`.

        Args:
          qas_id: the id of the question.
          ranked: candidates, best first: text, start logit and end logit. In SQuAD 2.0, includes the null answer. Only
            as many candidates are read as needed.
          n_best_size: the number of different texts to keep.
          null: the null answer; None for SQuAD 1.1.
          null_score_diff_threshold: the answer is empty if the null odds exceed this value.
        """
        best: dict[str, tuple[float, float]] = {}
        for text, start_logit, end_logit in ranked:
            if text not in best:
                best[text] = start_logit, end_logit
                if len(best) == n_best_size:
                    break
        if not any(best):
            self.without_candidates.append(qas_id)
        if null is not None:
            best.setdefault("", null[1:])
        if not best:
            best[PLACEHOLDER] = 0.0, 0.0
        probabilities = softmax([start_logit + end_logit for start_logit, end_logit in best.values()])
        self.n_best[qas_id] = [
            {"text": text, "probability": probability, "start_logit": start_logit, "end_logit": end_logit}
            for (text, (start_logit, end_logit)), probability in zip(best.items(), probabilities, strict=True)
        ]
        answer = next((text for text in best if text), "")
        if null is not None:
            self.best_non_null[qas_id] = answer
            self.null_odds[qas_id] = NO_WINDOW_SCORE
            if answer:
                start_logit, end_logit = best[answer]
                self.null_odds[qas_id] = null.start_logit + null.end_logit - start_logit - end_logit
            answer = threshold_answer(answer, self.null_odds[qas_id], null_score_diff_threshold)
        self.answers[qas_id] = answer

    def report(self) -> list[str]:
        """Returns a line with the number and the ids of the questions without candidates; an empty list if none."""
        ids, total = self.without_candidates, len(self.answers)
        answer = "no answer" if self.null_odds else f"the answer {PLACEHOLDER!r}"
        what = f"have no candidate among the n best, and get {answer}"
        return [f"{len(ids)} of {total} questions {what}: {first_of(ids)}"] if ids else []

    def write(
        self, output_prediction_file: str, output_nbest_file: str, output_null_log_odds_file: str | None = None
    ) -> None:
        """Writes the prediction files, with the same bytes as the original code. The file of null odds is optional."""
        contents = {output_prediction_file: self.answers, output_nbest_file: self.n_best}
        if output_null_log_odds_file is not None:
            contents[output_null_log_odds_file] = self.null_odds
        for path, values in contents.items():
            with files.replacing(path) as writer:
                writer.write(json.dumps(values, indent=4) + "\n")


def threshold_answer(text: str, null_odds: float, null_score_diff_threshold: float) -> str:
    """Returns the answer, or "" if the null odds exceed the threshold."""
    return "" if means_no_answer(null_odds, null_score_diff_threshold) else text


def merge_n_best(
    n_best_of_runs: Sequence[Mapping[str, Sequence[Entry]]],
    n_best_size: int = 20,
    null_odds_of_runs: Sequence[Mapping[str, float]] = (),
    null_score_diff_threshold: float = 0.0,
) -> SquadPredictions:
    """Merges the n-best lists of several runs. Answers are ranked by mean probability.

    If a run does not list an answer, the probability of the answer in this run is 0. If probabilities are equal, the
    answer that is listed first is ranked first. Logits are the means over the runs that list the answer.

    Args:
      n_best_of_runs: for each run, maps ids to entries, as in `nbest_predictions.json`. All runs have the same
        questions.
      n_best_size: the number of answers to keep.
      null_odds_of_runs: for each run, maps ids to odds, as in `null_odds.json`; empty for SQuAD 1.1. The mean is used.
      null_score_diff_threshold: the answer is empty if the null odds exceed this value.
    """
    merged = SquadPredictions()
    for qas_id in n_best_of_runs[0]:
        entries = _merge_entries([entry for run in n_best_of_runs for entry in run[qas_id]], len(n_best_of_runs))
        merged.n_best[qas_id] = entries[:n_best_size]
        if null_odds_of_runs:
            text = next((entry["text"] for entry in entries if entry["text"]), "")
            merged.best_non_null[qas_id] = text
            if not text:
                merged.without_candidates.append(qas_id)
            merged.null_odds[qas_id] = _mean([run[qas_id] for run in null_odds_of_runs])
            merged.answers[qas_id] = threshold_answer(text, merged.null_odds[qas_id], null_score_diff_threshold)
        else:
            merged.answers[qas_id] = entries[0]["text"]
    return merged


def _merge_entries(entries: Sequence[Entry], num_runs: int) -> list[Entry]:
    by_text: dict[str, list[Entry]] = {}
    for entry in entries:
        by_text.setdefault(entry["text"], []).append(entry)
    merged = [
        {
            "text": text,
            "probability": sum(entry["probability"] for entry in same) / num_runs,
            "start_logit": _mean([entry["start_logit"] for entry in same]),
            "end_logit": _mean([entry["end_logit"] for entry in same]),
        }
        for text, same in by_text.items()
    ]
    return sorted(merged, key=lambda entry: entry["probability"], reverse=True)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def read_answers(path: str) -> dict[str, str]:
    """Reads a `predictions.json` of any system.

    Raises:
      InputError: if the file is not a JSON object of strings.
    """
    return json_files.read(path, "predictions", dict[str, str])


def read_n_best(path: str) -> dict[str, list[Entry]]:
    """Reads an `nbest_predictions.json`.

    Raises:
      InputError: if the file is not a JSON object of lists of answers.
    """
    return json_files.read(path, "n-best lists", dict[str, list[Entry]])
