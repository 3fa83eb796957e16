"""Several fine-tuning runs with different hyperparameters. The best run on the dev set is used (paper, appendix A.3).

Each trial has its own directory and, once finished, a row in trials.jsonl. After an interruption, finished trials are
not repeated, and the unfinished one resumes from its last checkpoint. Only the best trial's checkpoints are kept.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np

from bert_tf.checkpoints import run_directory, saver
from bert_tf.finetuning.finetuning_config import FinetuningConfig
from bert_tf.runtime import files, json_files, reporting
from bert_tf.runtime.files import InputError
from bert_tf.runtime.messages import say

TRIALS_FILE = "trials.jsonl"

_SETTINGS = [name for name in FinetuningConfig().hyperparameters if name != "seed"]


class _Trial(TypedDict):
    trial: str
    settings: str


class TrialTable:
    """The finished trials in a directory.

    Args:
      output_dir: the directory.
      selection_metric: the score that ranks trials.
    """

    def __init__(self, output_dir: str, selection_metric: str) -> None:
        self.output_dir = output_dir
        self.selection_metric = selection_metric
        self.path: str = os.path.join(output_dir, TRIALS_FILE)

    def rows(self) -> list[dict[str, Any]]:
        """Returns a row for each trial: name, a hash of the settings shared by all trials, hyperparameters, scores.

        Raises:
          InputError: if the file is damaged, or a trial has no such score.
        """
        rows = json_files.read_lines(self.path, "--output_dir", _Trial)
        missing = [row["trial"] for row in rows if not json_files.is_number(row.get(self.selection_metric))]
        if missing:
            problem = f"the trial {missing[0]} has no {self.selection_metric}. Use the same --selection_metric"
            raise InputError(f"--output_dir: {self.path}: {problem}, or another directory.")
        return rows

    def add(self, row: Mapping[str, object]) -> None:
        """Appends a row. The file is replaced atomically, so an interruption can't leave it incomplete."""
        rows = [*self.rows(), row]
        with files.replacing(self.path) as writer:
            writer.writelines(json.dumps(row) + "\n" for row in rows)

    def best(self) -> dict[str, Any] | None:
        """Returns the trial with the highest score (the first if several are equal); None without trials."""
        return max(self.rows(), key=lambda row: row[self.selection_metric], default=None)

    def directory(self, name: str) -> str:
        """Returns the directory of a trial's files."""
        return os.path.join(self.output_dir, run_directory.TRIALS_DIRECTORY, name)

    def summary(self) -> list[dict[str, Any]]:
        """Returns a row for each setting: number of trials, and mean, standard deviation and maximum of the scores."""
        by_setting: dict[tuple, list[float]] = {}
        for row in self.rows():
            by_setting.setdefault(tuple(row[name] for name in _SETTINGS), []).append(row[self.selection_metric])
        return [
            {
                **dict(zip(_SETTINGS, setting, strict=True)),
                "trials": len(scores),
                f"mean {self.selection_metric}": float(np.mean(scores)),
                "deviation": float(np.std(scores, ddof=1)) if len(scores) > 1 else "",
                "best": max(scores),
            }
            for setting, scores in by_setting.items()
        ]


def run_trials(
    candidates: Sequence[FinetuningConfig],
    table: TrialTable,
    resume_settings: Mapping[str, object],
    train: Callable[[FinetuningConfig], Mapping[str, float]],
) -> str:
    """Trains every candidate that has no row yet.

    Args:
      candidates: the settings of each trial.
      table: the finished trials.
      resume_settings: the settings shared by all trials. Rows with other settings are refused.
      train: trains or resumes a run with the given settings in their directory, and returns the scores.

    Returns:
      The name of the best trial.

    Raises:
      InputError: if the directory contains trials with other settings.
    """
    settings = hashlib.sha256(json.dumps(resume_settings, sort_keys=True, default=str).encode()).hexdigest()[:16]
    finished = {row["trial"]: row for row in table.rows()}
    is_changed = any(row["settings"] != settings for row in finished.values())
    if is_changed and not candidates[0].allow_changed_settings:
        raise InputError(
            f"--output_dir: {table.path} has trials with other settings or data. Pass --allow_changed_settings."
        )
    for number, candidate in enumerate(candidates, start=1):
        name = candidate.trial_name
        if name in finished:
            continue
        say(f"***** Trial {number} of {len(candidates)}: {name} *****")
        scores = train(candidate.in_directory(table.directory(name)))
        table.add({"trial": name, "settings": settings, **candidate.hyperparameters, **scores})
        _keep_best_checkpoints(table)
    _keep_best_checkpoints(table)  # repeated, because a run may have been killed after writing the last row
    columns = ["trial", table.selection_metric, "loss"]
    say(reporting.table([{name: row[name] for name in columns} for row in table.rows()]))
    say(reporting.table(table.summary()))
    best = table.best()
    score = reporting.format_number(best[table.selection_metric])
    say(f"Best trial: {best['trial']} ({table.selection_metric} {score}).")
    return best["trial"]


def _keep_best_checkpoints(table: TrialTable) -> None:
    best = table.best()["trial"]
    for row in table.rows():
        if row["trial"] != best:
            saver.remove_checkpoints(table.directory(row["trial"]))
            saver.remove_checkpoints(os.path.join(table.directory(row["trial"]), run_directory.BEST_DIRECTORY))
