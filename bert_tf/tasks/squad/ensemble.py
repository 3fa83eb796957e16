"""Several fine-tuned runs as one system: their distributions averaged before decoding, or their n-best lists merged.

The paper's best SQuAD systems are ensembles of seven runs from different pre-training checkpoints and fine-tuning seeds
(Table 2).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import log_softmax

from bert_tf.runtime import files
from bert_tf.runtime.files import InputError
from bert_tf.tasks.squad.predictions import SquadPredictions, threshold_answer

_ENTRY_KEYS = ("text", "probability", "start_logit", "end_logit")


def average_distributions(logits: Sequence[np.ndarray], lengths: np.ndarray) -> np.ndarray:
    """The logarithm of the runs' mean probability of each position, to be decoded like logits.

    Args:
      logits: for each run [W, T], start or end logits of the same windows.
      lengths: [W] tokens of each window; what stands behind them doesn't count.

    Returns:
      [W, T] float64, minus infinity behind a window's end. As every run's probabilities of a window add up to 1, so do
      their means.

    Raises:
      ValueError: if there is no run, or their shapes differ.
    """
    shapes = {run.shape for run in logits}
    if len(shapes) != 1:
        raise ValueError(f"the runs' logits must have one shape, but have {sorted(shapes) or 'none'}")
    total = np.full(shapes.pop(), -np.inf)
    is_token = np.arange(total.shape[1]) < lengths[:, None]
    for run in logits:
        total = np.logaddexp(total, log_softmax(np.where(is_token, run.astype(np.float64), -np.inf), axis=1))
    return total - np.log(len(logits))


def read_n_best(path: str) -> dict[str, list[dict[str, Any]]]:
    """An `nbest_predictions.json`.

    Raises:
      InputError: if it is none.
    """
    n_best = files.read_json(path, "n-best lists")
    if not isinstance(n_best, dict):
        raise InputError(f"n-best lists: {path} holds no JSON object of question ids and lists.")
    for qas_id, entries in n_best.items():
        if not isinstance(entries, list) or not entries or not all(_is_entry(entry) for entry in entries):
            raise InputError(
                f"n-best lists: {path}, question {qas_id!r}: expected a list of entries with {', '.join(_ENTRY_KEYS)}."
            )
    return n_best


def _is_entry(entry: object) -> bool:
    return isinstance(entry, dict) and all(key in entry for key in _ENTRY_KEYS)


def read_null_odds(path: str) -> dict[str, float]:
    """A `null_odds.json`.

    Raises:
      InputError: if it is none.
    """
    odds = files.read_json(path, "null odds")
    if not isinstance(odds, dict) or not all(isinstance(value, int | float) for value in odds.values()):
        raise InputError(f"null odds: {path} holds no JSON object of question ids and numbers.")
    return odds


def merge_n_best(
    n_best_of_runs: Sequence[Mapping[str, Sequence[Mapping[str, Any]]]],
    n_best_size: int = 20,
    null_odds_of_runs: Sequence[Mapping[str, float]] = (),
    null_score_diff_threshold: float = 0.0,
) -> SquadPredictions:
    """Ranks the answers in several runs' n-best lists by their mean probability.

    An answer that a run doesn't list has probability 0 there; of equal answers the one that is listed first wins. An
    entry's logits are their means over the runs that list it.

    Args:
      n_best_of_runs: for each run, id -> entries, as in `nbest_predictions.json`.
      n_best_size: how many answers are kept.
      null_odds_of_runs: for each run, id -> odds, as in `null_odds.json`; their mean counts. For 2.0 only.
      null_score_diff_threshold: odds above it mean that there is no answer.

    Raises:
      InputError: if the runs answered different questions.
    """
    _check_same_questions([*n_best_of_runs, *null_odds_of_runs])
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


def _check_same_questions(runs: Sequence[Mapping[str, Any]]) -> None:
    if not runs:
        raise InputError("no n-best lists are given to be merged.")
    for number, run in enumerate(runs[1:], start=2):
        different = sorted(runs[0].keys() ^ run.keys())
        if different:
            raise InputError(
                f"question {different[0]!r} (one of {len(different)}) is answered only in one of the files 1 and "
                f"{number} of those to be merged. Predict the same questions with every run."
            )


def _merge_entries(entries: Sequence[Mapping[str, Any]], num_runs: int) -> list[dict[str, Any]]:
    by_text: dict[str, list[Mapping[str, Any]]] = {}
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
