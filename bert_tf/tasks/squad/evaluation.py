"""Exact match and F1 by the official evaluation scripts, and the best no-answer threshold.

All scores are percentages, named as in the official scripts. The scripts are tf-models-official's copies.
"""

import math
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from bert_tf.runtime import lazy_imports
from bert_tf.runtime.files import InputError
from bert_tf.runtime.messages import say, say_once
from bert_tf.tasks.squad.predictions import SquadPredictions
from bert_tf.tasks.squad.questions import Answer, SquadExample, name_ids

_BEST = ("exact", "exact_thresh", "f1", "f1_thresh")
# The value for a missing answer, which differs from all right answers.
_WRONG = "\uffff"


def has_answers(examples: Sequence[SquadExample], version_2_with_negative: bool) -> bool:
    """Returns whether the right answer to any question is known, so the answers can be evaluated."""
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
      version_2_with_negative: whether a question may have no answer. If True, the scores of the best thresholds are
        added.

    Raises:
      InputError: if no question has a right answer (1.1), or none was answered (2.0).
    """
    if not version_2_with_negative:
        return evaluate_v1(examples, predictions.answers)
    return evaluate_v2(examples, predictions.answers) | tune_null_threshold(examples, predictions)


def evaluate_v1(examples: Sequence[SquadExample], answers: Mapping[str, str]) -> dict[str, float]:
    """Returns SQuAD 1.1's `exact_match` and `f1`. A question without an entry counts as wrong.

    If there are questions without an entry, `missing` is their number.

    Raises:
      InputError: if no question has a right answer.
    """
    articles, questions = _scored(examples, version_2_with_negative=False)
    if not questions:
        raise InputError("--predict_file has no questions to evaluate. Add some.")
    results = official_evaluator(False).evaluate(articles, answers)
    scores = {"exact_match": 100.0 * results["exact_match"], "f1": 100.0 * results["final_f1"]}
    return scores | _count_missing(questions, answers)


def evaluate_v2(
    examples: Sequence[SquadExample], answers: Mapping[str, str], null_odds: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Returns SQuAD 2.0's scores. Questions without an entry count as wrong. Entries for other questions are ignored.

    Args:
      examples: the questions with their right answers.
      answers: maps ids to answers, "" for none.
      null_odds: maps ids to odds for no answer; higher if an answer is less likely.

    Returns:
      `exact`, `f1`, `total`, and the same for questions with and without an answer (`HasAns_`, `NoAns_`); `missing`,
      the number of questions without an entry, if there are any. With `null_odds`, as in the official script, these
      scores treat odds above 1 as no answer; the best scores of all thresholds (`best_exact`, `best_f1` and `_thresh`)
      and average precisions (`pr_exact_ap`...) are added.

    Raises:
      InputError: if no question has an entry, or an answered one has no odds.
    """
    articles, questions = _scored(examples, version_2_with_negative=True)
    if not questions.keys() & answers.keys():
        raise InputError("--predict_file: no question has an answer. Use answers to this file.")
    counted = _count_missing(questions, answers)
    answers = {qas_id: answers.get(qas_id, _WRONG) for qas_id in questions}
    if null_odds is None:
        results = official_evaluator(True).evaluate(articles, answers)
        return {name: value for name, value in results.items() if not name.startswith(("final_", "pr_"))} | counted
    lowest = min(null_odds.values()) - 1  # so low that a missing answer is never replaced by "no answer"
    odds = {qas_id: null_odds.get(qas_id, lowest) for qas_id in questions}
    results = official_evaluator(True).evaluate(articles, answers, odds)
    return {name.replace("final_", "best_"): value for name, value in results.items()} | counted


def _count_missing(questions: Mapping[str, Any], answers: Mapping[str, str]) -> dict[str, int]:
    """Returns {"missing": the number of questions without an answer}, with a warning; empty if there are none."""
    missing = [qas_id for qas_id in questions if qas_id not in answers]
    if not missing:
        return {}
    say(f"Warning: {len(missing)} of {len(questions)} questions have no entry and count as wrong, e.g. {missing[0]!r}.")
    return {"missing": len(missing)}


def tune_null_threshold(examples: Sequence[SquadExample], predictions: SquadPredictions) -> dict[str, float]:
    """Returns the thresholds with the best scores, `best_exact_thresh` and `best_f1_thresh`, and these scores.

    Every question is judged by its best non-empty answer. The original code judges the answers that remain after the
    default threshold, so it can't find that a higher threshold is better. If it is best never to answer, the official
    script reports 0; here the threshold is one with this effect.

    Args:
      examples: the questions with their right answers.
      predictions: answers to SQuAD 2.0.
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
    """Returns the "data" of the questions with known right answers, and the answers. Warns about the other questions.

    In SQuAD 2.0, an empty list of answers is a right answer.
    """
    found, others = {}, []
    for example in examples:
        answers = [] if example.answers is None and example.is_impossible else example.answers
        if answers or (version_2_with_negative and answers is not None):
            found[example.qas_id] = answers
        else:
            others.append(example.qas_id)
    if others:
        say_once(f"Warning: {len(others)} questions have no right answer and are not scored: {name_ids(others)}.")
    qas = [{"id": qas_id, "answers": answers} for qas_id, answers in found.items()]
    return [{"paragraphs": [{"qas": qas}]}], found
