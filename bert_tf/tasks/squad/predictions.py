"""From ranked candidates to a question's answer, and the three files that predictions are written to."""

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from json.encoder import encode_basestring_ascii
from typing import NamedTuple

from bert_tf.runtime import files
from bert_tf.tasks.squad.examples import name_ids

# The release's null score before any window is seen; so it stands for "no answer, whatever the threshold".
NO_WINDOW_SCORE = 1_000_000.0
# The release's answer to a question of SQuAD 1.1 that has no candidate, as where the context has no tokens.
PLACEHOLDER = "empty"
_SHOWN_DIFFERENCES = 10


class ScoredText(NamedTuple):
    """A possible answer; its score is the sum of the two logits."""

    text: str
    start_logit: float
    end_logit: float


@dataclasses.dataclass
class SquadPredictions:
    """The answers to a file's questions, by id.

    Attributes:
      answers: `predictions.json`: the answer, "" for none.
      n_best: `nbest_predictions.json`: best first, each a text with its probability and its two logits.
      null_odds: `null_odds.json`: score of no answer minus score of the best answer; 2.0 only.
      best_non_null: the answer if there has to be one; 2.0 only. Thresholds are tuned on these.
      without_candidates: ids of the questions that no span of a text was a candidate for.
    """

    answers: dict[str, str] = dataclasses.field(default_factory=dict)
    n_best: dict[str, list[dict[str, str | float]]] = dataclasses.field(default_factory=dict)
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

        As in the release, the n-best list of 2.0 holds the null answer in any case, if need be as one entry more. Where
        it holds nothing else, which crashes the release, the odds for no answer are `NO_WINDOW_SCORE`.

        Args:
          qas_id: the question's id.
          ranked: texts of candidates with their two logits, best first, the null answer among them in 2.0; read only
            as far as needed.
          n_best_size: how many different texts are kept.
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

    def with_threshold(self, null_score_diff_threshold: float) -> dict[str, str]:
        """The answers that another threshold gives (2.0)."""
        return {
            qas_id: threshold_answer(text, self.null_odds[qas_id], null_score_diff_threshold)
            for qas_id, text in self.best_non_null.items()
        }

    def report(self) -> list[str]:
        """Lines that count and name the questions that no span of a text was a candidate for."""
        ids, total = self.without_candidates, len(self.answers)
        answer = "no answer" if self.null_odds else f"the answer {PLACEHOLDER!r}"
        what = f"have no candidate among the n best, and get {answer}"
        return [f"{len(ids)} of {total} questions {what}: {name_ids(ids)}"] if ids else []

    def write(
        self, output_prediction_file: str, output_nbest_file: str, output_null_log_odds_file: str | None = None
    ) -> None:
        """Writes the files, byte for byte as the release does; null odds only where a file is named for them."""
        _write_text(output_prediction_file, json.dumps(self.answers, indent=4))
        _write_text(output_nbest_file, _n_best_json(self.n_best))
        if output_null_log_odds_file is not None:
            _write_text(output_null_log_odds_file, json.dumps(self.null_odds, indent=4))


def threshold_answer(text: str, null_odds: float, null_score_diff_threshold: float) -> str:
    """The answer, or "" if the odds for none are above the threshold."""
    return "" if null_odds > null_score_diff_threshold else text


def softmax(scores: Sequence[float]) -> list[float]:
    """Probabilities from scores."""
    highest = max(scores)
    exponentials = [math.exp(score - highest) for score in scores]
    total = sum(exponentials)
    return [exponential / total for exponential in exponentials]


def _n_best_json(n_best: Mapping[str, list[dict[str, str | float]]]) -> str:
    """`json.dumps(n_best, indent=4)`, which with an indent is written in Python and takes several times as long."""
    if not n_best:
        return "{}"
    questions = []
    for qas_id, entries in n_best.items():
        logit = _Shown()  # the logits of a question recur in its list, and showing them takes most of the time
        shown = [
            f'        {{\n            "text": {encode_basestring_ascii(entry["text"])},\n'
            f'            "probability": {entry["probability"]!r},\n'
            f'            "start_logit": {logit[entry["start_logit"]]},\n'
            f'            "end_logit": {logit[entry["end_logit"]]}\n        }}'
            for entry in entries
        ]
        questions.append(f"    {encode_basestring_ascii(qas_id)}: [\n" + ",\n".join(shown) + "\n    ]")
    return "{\n" + ",\n".join(questions) + "\n}"


class _Shown(dict):
    """Numbers as JSON shows them; each is worked out once."""

    def __missing__(self, number: float) -> str:
        shown = repr(number)
        if number:  # 0.0 and -0.0 are the same key
            self[number] = shown
        return shown


def _write_text(path: str, text: str) -> None:
    with files.replacing(path) as writer:
        writer.write(text + "\n")


def report_differences(release: Mapping[str, str], offsets: Mapping[str, str]) -> list[str]:
    """Lines that say how often the two ways to take an answer's text differ, and show a few cases."""
    differing = [(qas_id, text, offsets[qas_id]) for qas_id, text in release.items() if text != offsets[qas_id]]
    share = len(differing) / max(1, len(release))
    lines = [
        f"{len(differing)} of {len(release)} answers ({share:.1%}) differ between --answer_text=release and offsets"
    ]
    return lines + [f"  {qas_id}: {text!r} / {exact!r}" for qas_id, text, exact in differing[:_SHOWN_DIFFERENCES]]
