"""Exact match and F1 by the official evaluation scripts, and the best no-answer threshold.

All scores are percentages, with the names of the official scripts. The package tf-models-official contains the scripts.
"""

import math
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from bert_tf.runtime import lazy_imports
from bert_tf.runtime.errors import InputError, first_of
from bert_tf.runtime.messages import say, say_once
from bert_tf.tasks.squad.predictions import SquadPredictions
from bert_tf.tasks.squad.questions import Answer, SquadExample

_BEST = ("exact", "exact_thresh", "f1", "f1_thresh")
# Value for a missing answer. It differs from all right answers.
_WRONG = "\uffff"


def has_answers(examples: Sequence[SquadExample], version_2_with_negative: bool) -> bool:
    """Returns True if the right answer to at least one question is known, so that answers can be evaluated."""
    return any(example.answers or (version_2_with_negative and example.is_impossible) for example in examples)


def official_evaluator(version_2_with_negative: bool) -> ModuleType:
    """Returns the official evaluation script of SQuAD 2.0 or 1.1.

    Raises:
      InputError: if tf-models-official is not installed.
    """
    version = "v2_0" if version_2_with_negative else "v1_1"
    return lazy_imports.require(f"official.nlp.tools.squad_evaluate_{version}", "Evaluating answers to SQuAD")


def evaluate(
    examples: Sequence[SquadExample], predictions: SquadPredictions, version_2_with_negative: bool
) -> dict[str, float]:
    """Returns the scores of answers.

    Args:
      examples: the questions with their right answers.
      predictions: the answers.
      version_2_with_negative: whether a question may have no answer. If True, the results include the best thresholds
        and their scores.

    Raises:
      InputError: if no question has a right answer (1.1), or no question was answered (2.0).
    """
    if not version_2_with_negative:
        return evaluate_v1(examples, predictions.answers)
    return evaluate_v2(examples, predictions.answers) | tune_null_threshold(examples, predictions)


def evaluate_v1(examples: Sequence[SquadExample], answers: Mapping[str, str]) -> dict[str, float]:
    """Returns SQuAD 1.1's `exact_match` and `f1`. A question without an entry in `answers` counts as wrong.

    If there are such questions, the result also contains their number, `missing`.

    Raises:
      InputError: if no question has a right answer.
    """
    articles, questions = _scored(examples, version_2_with_negative=False)
    if not questions:
        raise InputError("--predict_file has no question with a correct answer. Use a file with correct answers.")
    results = official_evaluator(False).evaluate(articles, answers)
    scores = {"exact_match": 100.0 * results["exact_match"], "f1": 100.0 * results["final_f1"]}
    return scores | _count_missing(questions, answers)


def evaluate_v2(
    examples: Sequence[SquadExample], answers: Mapping[str, str], null_odds: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Returns SQuAD 2.0's scores. Questions without an entry in `answers` count as wrong. Other entries are ignored.

    Args:
      examples: the questions with their right answers.
      answers: maps ids to answers, "" for none.
      null_odds: maps ids to no-answer odds, which are higher if an answer is less likely.

    Returns:
      `exact`, `f1` and `total`; the same with the prefix `HasAns_` for questions with an answer, and `NoAns_` for
      questions without an answer; and `missing`, the number of questions without an entry, if there are any. With
      `null_odds`, as in the official script, odds above 1 mean no answer, and the best scores of all thresholds
      (`best_exact`, `best_f1`), these thresholds (`_thresh`) and average precisions (`pr_exact_ap`...) are added.

    Raises:
      InputError: if no question has an entry.
    """
    articles, questions = _scored(examples, version_2_with_negative=True)
    if not questions.keys() & answers.keys():
        raise InputError("--predict_file: the answers are to other questions. Use answers to this file.")
    counted = _count_missing(questions, answers)
    answers = {qas_id: answers.get(qas_id, _WRONG) for qas_id in questions}
    if null_odds is None:
        results = official_evaluator(True).evaluate(articles, answers)
        return {name: value for name, value in results.items() if not name.startswith(("final_", "pr_"))} | counted
    lowest = min(null_odds.values()) - 1  # lower than all odds, so a missing answer stays wrong
    odds = {qas_id: null_odds.get(qas_id, lowest) for qas_id in questions}
    results = official_evaluator(True).evaluate(articles, answers, odds)
    return {name.replace("final_", "best_"): value for name, value in results.items()} | counted


def wrong_answers(
    examples: Sequence[SquadExample], predictions: SquadPredictions, version_2_with_negative: bool
) -> list[dict[str, Any]]:
    """Returns a row for each answer with an F1 below 100, the most probable first; see `Task.compared`."""
    rows = []
    for example in examples:
        if not (example.answers or (version_2_with_negative and (example.is_impossible or example.answers == []))):
            continue
        answer = predictions.answers[example.qas_id]
        judge = evaluate_v2 if version_2_with_negative else evaluate_v1
        f1 = judge([example], {example.qas_id: answer})["f1"]
        entries = (entry["probability"] for entry in predictions.n_best[example.qas_id] if entry["text"] == answer)
        row = {"id": example.qas_id, "question": example.question_text, "context": " ".join(example.doc_tokens)}
        row |= {"label": list(dict.fromkeys(right["text"] for right in example.answers or ())), "prediction": answer}
        rows += [row | {"probability": next(entries, 0.0), "f1": f1}] if f1 < 100 else []
    return sorted(rows, key=lambda row: -row["probability"])


def _count_missing(questions: Mapping[str, Any], answers: Mapping[str, str]) -> dict[str, int]:
    """Counts the questions without an entry in `answers`, and warns about them.

    Returns:
      {"missing": number}, or an empty dict if there are none.
    """
    missing = [qas_id for qas_id in questions if qas_id not in answers]
    if not missing:
        return {}
    say(f"Warning: {len(missing)} of {len(questions)} questions have no entry and count as wrong, e.g. {missing[0]!r}.")
    return {"missing": len(missing)}


def tune_null_threshold(examples: Sequence[SquadExample], predictions: SquadPredictions) -> dict[str, float]:
    """Returns the no-answer thresholds with the best exact match and F1, and these scores.

    Each question is scored by its best non-empty answer. The original code scores answers to which the default
    threshold was already applied, so it can't find that a higher threshold is better. If never answering is best, the
    official script returns threshold 0; this function returns a threshold that has that effect.

    Args:
      examples: the questions with their right answers.
      predictions: answers to SQuAD 2.0.

    Returns:
      `best_exact`, `best_exact_thresh`, `best_f1` and `best_f1_thresh`.
    """
    results = evaluate_v2(examples, predictions.best_non_null, predictions.null_odds)
    best = {f"best_{name}": results[f"best_{name}"] for name in _BEST}
    never = math.nextafter(min(predictions.null_odds.values()), -math.inf)
    no_answer_score = 100.0 * results.get("NoAns_total", 0) / results["total"]
    for name in ("exact", "f1"):
        if best[f"best_{name}"] == no_answer_score:
            best[f"best_{name}_thresh"] = never
    return best


def _scored(
    examples: Sequence[SquadExample], version_2_with_negative: bool
) -> tuple[list[dict[str, Any]], dict[str, list[Answer]]]:
    """Selects the questions with known right answers, and warns about other questions.

    In SQuAD 2.0, an empty list of right answers means that the question has no answer.

    Returns:
      The questions in the format of "data" in a SQuAD file, and a dict from ids to right answers.
    """
    right_answers, others = {}, []
    for example in examples:
        answers = [] if example.answers is None and example.is_impossible else example.answers
        if answers or (version_2_with_negative and answers is not None):
            right_answers[example.qas_id] = answers
        else:
            others.append(example.qas_id)
    if others:
        say_once(f"Warning: {len(others)} questions have no right answer and are not scored: {first_of(others)}.")
    qas = [{"id": qas_id, "answers": answers} for qas_id, answers in right_answers.items()]
    return [{"paragraphs": [{"qas": qas}]}], right_answers
