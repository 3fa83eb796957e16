"""The names of the files in a run directory, and which directory a model is in."""

import os
from typing import TypedDict

from bert_tf.checkpoints import download, saver
from bert_tf.checkpoints.legacy import model_files
from bert_tf.runtime import files, json_files
from bert_tf.runtime.files import InputError

CONFIG_FILE = "bert_config.json"
RUN_FILE = "run.json"
# The classes of a fine-tuned model, in the order of their ids.
LABELS_FILE = "labels.json"
# Prediction settings that were tuned on the dev set.
TUNED_FILE = "tuned.json"
# Directory of the checkpoint with the best dev score, if the run keeps it.
BEST_DIRECTORY = "best"
# Directory of runs with different hyperparameters. Only the best run is used later.
TRIALS_DIRECTORY = "trials"


def directory_of_checkpoint(checkpoint: str, flag_name: str = "--init_checkpoint") -> str:
    """Returns the directory that contains the config, the vocabulary and the settings of a checkpoint.

    For SavedModels and presets of KerasHub, see `model_files.described`.

    Args:
      checkpoint: a run directory, its subdirectory with the best checkpoint, a checkpoint prefix in one of them, or a
        name; see `download.local_path`.
      flag_name: the flag with the path, for messages.
    """
    checkpoint = download.local_path(checkpoint, flag_name)
    directory = checkpoint if files.is_directory(checkpoint) else os.path.dirname(checkpoint)
    parent, name = os.path.split(directory.rstrip("/"))
    is_best = name == BEST_DIRECTORY and not files.exists(os.path.join(directory, RUN_FILE))
    return parent if is_best else model_files.described(directory, flag_name)


def fit_directory(output_dir: str, number: int) -> str:
    """Returns the directory of one of several successive runs of a Python object.

    Args:
      output_dir: the directory of the first run, which contains the directories of later runs.
      number: the number of the run, starting at 1.
    """
    return output_dir if number == 1 else os.path.join(output_dir, f"fit_{number}")


def directory_of_model(directory: str) -> str:
    """Returns the directory of the run to use: the directory itself, or the newest `fit_N` or best trial in it.

    The best trial is the only one that keeps checkpoints.

    Raises:
      InputError: if there are trials, but no trial or more than one has checkpoints.
    """
    number = 1
    while _has_checkpoint(fit_directory(directory, number + 1)):
        number += 1
    if number > 1:
        return fit_directory(directory, number)
    trials = os.path.join(directory, TRIALS_DIRECTORY)
    if _has_checkpoint(directory) or not files.is_directory(trials):
        return directory
    paths = [path for name in files.list_directory(trials) if _has_checkpoint(path := os.path.join(trials, name))]
    if len(paths) != 1:
        raise InputError(
            f"{directory}: {len(paths)} trials have checkpoints, but only the best trial keeps its checkpoints. Finish "
            "the trials, or use the directory of one trial."
        )
    return paths[0]


def evaluated_directory(output_dir: str) -> str:
    """Returns the directory of the checkpoint to evaluate: the best one if the run kept it, or else the newest one."""
    best = os.path.join(output_dir, BEST_DIRECTORY)
    return best if saver.latest_checkpoint(best) else output_dir


def _has_checkpoint(directory: str) -> bool:
    return saver.latest_checkpoint(evaluated_directory(directory)) is not None


def recorded_labels(output_dir: str) -> list[str] | None:
    """Returns the recorded classes of the run in a directory; None if they are not recorded."""
    path = os.path.join(output_dir, LABELS_FILE)
    return json_files.read(path, "--output_dir", list[str] | None) if files.exists(path) else None


class Tuned(TypedDict, total=False):
    """The content of TUNED_FILE.

    For classes: a temperature and a label threshold. For SQuAD 2.0: the no-answer threshold, its F1, and the model.
    """

    temperature: float
    label_threshold: float
    null_score_diff_threshold: float
    best_f1: float
    model: str


def tuned(directory: str) -> Tuned:
    """Reads the settings that were tuned on the dev set; empty if there are none."""
    path = os.path.join(directory, TUNED_FILE)
    return json_files.read(path, "--output_dir", Tuned) if files.exists(path) else {}
