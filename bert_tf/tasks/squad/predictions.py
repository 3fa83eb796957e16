"""Selects a question's answer from ranked candidates; writes, reads and merges prediction files."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypedDict

from bert_tf.runtime import files, json_files
from bert_tf.serving.answering import softmax
from bert_tf.tasks.squad.questions import name_ids
from bert_tf.tasks.squad.rules import means_no_answer

# The original null score before any window. As odds, it means that there is no answer, for any threshold.
NO_WINDOW_SCORE = 1_000_000.0
# The original answer to a SQuAD 1.1 question without a candidate, for example if the context has no tokens.
PLACEHOLDER = "empty"


class ScoredText(NamedTuple):
    """A possible answer. Its score is the sum of the two logits."""

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
    """The answers to a file's questions, by id.

    Attributes:
      answers: content of `predictions.json`: the answer, "" for none.
      n_best: content of `nbest_predictions.json`: texts with probability and two logits, best first.
      null_odds: content of `null_odds.json`: score of no answer minus the best answer's score; 2.0 only.
      best_non_null: the best non-empty answer, or else ""; 2.0 only. Thresholds are tuned on these.
      without_candidates: ids of the questions without a span of the text among the n best.
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
        """Answers a question.

        As in the original code, the n-best list of 2.0 always has the null answer, if necessary as an additional entry.
        If the list has no other answer, the original code crashes; here the odds for no answer are `NO_WINDOW_SCORE`.

        Args:
          qas_id: the question's id.
          ranked: texts of candidates with their two logits, best first, including the null answer in 2.0. Only the
            necessary ones are read.
          n_best_size: the number of different texts to keep.
          null: the null answer, in 2.0.
          null_score_diff_threshold: odds above it mean that there is no answer.
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
        """Returns lines that count and name the questions without a span of the text among the n best."""
        ids, total = self.without_candidates, len(self.answers)
        answer = "no answer" if self.null_odds else f"the answer {PLACEHOLDER!r}"
        what = f"have no candidate among the n best, and get {answer}"
        return [f"{len(ids)} of {total} questions {what}: {name_ids(ids)}"] if ids else []

    def write(
        self, output_prediction_file: str, output_nbest_file: str, output_null_log_odds_file: str | None = None
    ) -> None:
        """Writes the same bytes as the original code. Null odds are written only if their file is given."""
        contents = {output_prediction_file: self.answers, output_nbest_file: self.n_best}
        if output_null_log_odds_file is not None:
            contents[output_null_log_odds_file] = self.null_odds
        for path, values in contents.items():
            with files.replacing(path) as writer:
                writer.write(json.dumps(values, indent=4) + "\n")


def threshold_answer(text: str, null_odds: float, null_score_diff_threshold: float) -> str:
    """Returns the answer, or "" if the odds for no answer are above the threshold."""
    return "" if means_no_answer(null_odds, null_score_diff_threshold) else text


def merge_n_best(
    n_best_of_runs: Sequence[Mapping[str, Sequence[Entry]]],
    n_best_size: int = 20,
    null_odds_of_runs: Sequence[Mapping[str, float]] = (),
    null_score_diff_threshold: float = 0.0,
) -> SquadPredictions:
    """Ranks the answers in several runs' n-best lists by their mean probability.

    If a run does not list an answer, its probability in this run is 0. If probabilities are equal, the answer that is
    listed first wins. An entry's logits are the means over the runs that list it.

    Args:
      n_best_of_runs: for each run, maps ids to entries, as in `nbest_predictions.json`. All runs have the same
        questions.
      n_best_size: the number of answers to keep.
      null_odds_of_runs: for each run, maps ids to odds, as in `null_odds.json`. The mean is used. For 2.0 only.
      null_score_diff_threshold: odds above it mean that there is no answer.
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
    """Reads a `predictions.json`, which any system may have written.

    Raises:
      InputError: if it isn't a JSON object of strings.
    """
    return json_files.read(path, "predictions", dict[str, str])


def read_n_best(path: str) -> dict[str, list[Entry]]:
    """Reads an `nbest_predictions.json`.

    Raises:
      InputError: if it isn't a JSON object of lists of answers.
    """
    return json_files.read(path, "n-best lists", dict[str, list[Entry]])
