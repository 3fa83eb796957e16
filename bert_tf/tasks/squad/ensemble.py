"""Several fine-tuned runs as one system: averages their distributions before decoding, or merges their n-best lists.

The paper's best SQuAD systems are ensembles of seven runs with different pre-training checkpoints and fine-tuning seeds
(Table 2).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import log_softmax

from bert_tf.runtime.files import InputError
from bert_tf.tasks.squad.predictions import SquadPredictions, threshold_answer


def average_distributions(logits: Sequence[np.ndarray], lengths: np.ndarray) -> np.ndarray:
    """The logarithm of the runs' mean probability of each position; it is decoded like logits.

    Args:
      logits: for each run [W, T], start or end logits of the same windows.
      lengths: [W] tokens of each window; the logits of padding are ignored.

    Returns:
      [W, T] float64, minus infinity for padding. The mean probabilities of a window add up to 1.

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


def merge_n_best(
    n_best_of_runs: Sequence[Mapping[str, Sequence[Mapping[str, Any]]]],
    n_best_size: int = 20,
    null_odds_of_runs: Sequence[Mapping[str, float]] = (),
    null_score_diff_threshold: float = 0.0,
) -> SquadPredictions:
    """Ranks the answers in several runs' n-best lists by their mean probability.

    A run that doesn't list an answer gives it probability 0. Of equally probable answers the one that is listed first
    wins. An entry's logits are the means over the runs that list it.

    Args:
      n_best_of_runs: for each run, id -> entries, as in `nbest_predictions.json`.
      n_best_size: how many answers are kept.
      null_odds_of_runs: for each run, id -> odds, as in `null_odds.json`; the mean is used. For 2.0 only.
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
