"""What a run leaves in its folder so that it can be repeated, resumed and used."""

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from bert_tf import __version__
from bert_tf.checkpoints import saver
from bert_tf.config import BertConfig
from bert_tf.model.bilstm import BiLstmConfig
from bert_tf.runtime import files
from bert_tf.runtime.files import InputError
from bert_tf.sequences.example_format import vocabulary_hash

CONFIG_FILE = "bert_config.json"
VOCAB_FILE = "vocab.txt"
RUN_FILE = "run.json"
# The classes of a fine-tuned model, in the order of their ids.
LABELS_FILE = "labels.json"
# The weights that did best on the dev set, if they are kept.
BEST_FOLDER = "best"
# Runs with different hyperparameters, of which the best one is used.
TRIALS_FOLDER = "trials"

# More changes than these are counted only.
_NAMED_CHANGES = 20

_PACKAGES = ("tensorflow", "keras", "tensorflow-text", "numpy")


def prepare(
    output_dir: str,
    config: BertConfig,
    vocab_file: str,
    flags: Mapping[str, Any],
    resume_settings: Mapping[str, Any],
    allow_changes: bool = False,
) -> None:
    """Records a run's settings in its folder, after checking them against those it began with.

    Args:
      output_dir: the run's folder; made if need be.
      config: the model's.
      vocab_file: the vocabulary; "" where none is known.
      flags: all of the program's flags, for the record.
      resume_settings: what must stay the same while a run is resumed: flags that change the weights, and the data.
      allow_changes: resume all the same.

    Raises:
      InputError: if there is a checkpoint to resume from, and a resume setting has changed; names all that have.
    """
    if not output_dir:
        raise InputError("--output_dir is needed, but it is not given.")
    files.make_folder(output_dir)
    resume_settings = {"bert_config": config.to_dict(), **resume_settings}
    if vocab_file:
        resume_settings["vocab_sha256"] = vocabulary_hash(vocab_file)
    path = os.path.join(output_dir, RUN_FILE)
    if files.exists(path) and saver.latest_checkpoint(output_dir) and not allow_changes:
        _check_unchanged(recorded(output_dir), resume_settings, output_dir)
    with files.replacing(os.path.join(output_dir, CONFIG_FILE)) as writer:
        writer.write(config.to_json_string())
    target = os.path.join(output_dir, VOCAB_FILE)
    if vocab_file and os.path.abspath(vocab_file) != os.path.abspath(target):
        files.copy(vocab_file, target)
    files.write_json(
        path,
        {
            "program": os.path.basename(sys.argv[0]),
            "flags": dict(flags),
            "resume_settings": resume_settings,
            "versions": {"python": sys.version.split()[0], "bert-tf": __version__}
            | {package: importlib.metadata.version(package) for package in _PACKAGES},
            "git_commit": git_commit(),
        },
    )


def _check_unchanged(before: Mapping[str, Any], now: Mapping[str, Any], output_dir: str) -> None:
    changes = _differences("", before, now)
    if changes:
        more = [f"and {len(changes) - _NAMED_CHANGES} more"] if len(changes) > _NAMED_CHANGES else []
        raise InputError(
            f"--output_dir: {output_dir} holds a run that began with other settings:\n  "
            + "\n  ".join(changes[:_NAMED_CHANGES] + more)
            + "\nUse another folder, go back to those settings, or pass --allow_changes to resume with the new ones."
        )


def _differences(name: str, before: Any, now: Any) -> list[str]:
    """What differs between two values of a setting, named down to the parts that do."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        pairs = [(f"{name}: {key}" if name else key, before.get(key), now.get(key)) for key in {**before, **now}]
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = [(f"{name} {i + 1}", *values) for i, values in enumerate(zip(before, now, strict=True))]
    else:
        return [] if before == now else [f"{name} was {before!r}, and is {now!r} now"]
    return [change for pair in pairs for change in _differences(*pair)]


def read(output_dir: str) -> dict[str, Any]:
    """What `prepare` recorded.

    Raises:
      InputError: if the folder is not that of a run.
    """
    values = files.read_json(os.path.join(output_dir, RUN_FILE), "--output_dir")
    # Runs of version 1.0 call the resume settings so.
    return {"resume_settings": values.pop("decisive", {}), **values}


def recorded(checkpoint: str) -> dict[str, Any]:
    """The resume settings of the run that a checkpoint belongs to; none where the folder is not that of a run.

    Args:
      checkpoint: a run's folder, or that of its best weights, or the name of a checkpoint in one of them.
    """
    folder = folder_of_checkpoint(checkpoint)
    return read(folder)["resume_settings"] if files.exists(os.path.join(folder, RUN_FILE)) else {}


def recorded_bilstm(checkpoint: str | None) -> BiLstmConfig | None:
    """The BiLSTM that was fine-tuned with a checkpoint's encoder; None if there was none.

    Args:
      checkpoint: see `recorded`; None for a model that starts afresh.
    """
    settings = recorded(checkpoint) if checkpoint else {}
    return BiLstmConfig(settings["bilstm_layers"], settings["bilstm_units"]) if "bilstm_layers" in settings else None


def folder_of_checkpoint(checkpoint: str) -> str:
    """The folder in which a checkpoint's config, vocabulary and settings are.

    Args:
      checkpoint: see `recorded`.
    """
    folder = checkpoint if files.is_folder(checkpoint) else os.path.dirname(checkpoint)
    parent, name = os.path.split(folder.rstrip("/"))
    return parent if name == BEST_FOLDER and not files.exists(os.path.join(folder, RUN_FILE)) else folder


def folder_of_model(folder: str) -> str:
    """The folder of a run's checkpoints: the folder itself or, where it holds trials, that of the best one.

    Only the best of several trials keeps its checkpoints.

    Raises:
      InputError: if there are trials, but not exactly one has checkpoints.
    """
    trials = os.path.join(folder, TRIALS_FOLDER)
    if _has_checkpoint(folder) or not files.is_folder(trials):
        return folder
    kept = [path for name in files.list_folder(trials) if _has_checkpoint(path := os.path.join(trials, name))]
    if len(kept) != 1:
        raise InputError(
            f"{folder} holds trials, of which {len(kept)} have checkpoints, where those of the best one are expected. "
            "Finish the trials, or name the folder of one."
        )
    return kept[0]


def judged_folder(output_dir: str) -> str:
    """Where the weights are that a run is judged with: those that did best on the dev set if kept, or else the last."""
    best = os.path.join(output_dir, BEST_FOLDER)
    return best if saver.latest_checkpoint(best) else output_dir


def _has_checkpoint(folder: str) -> bool:
    return saver.latest_checkpoint(judged_folder(folder)) is not None


def recorded_labels(output_dir: str) -> list[str] | None:
    """The classes that a run in a folder was trained with; None if none are recorded."""
    path = os.path.join(output_dir, LABELS_FILE)
    return files.read_json(path, "--output_dir") if files.exists(path) else None


def is_causal(checkpoint: str | None) -> bool:
    """Whether each position of a checkpoint's model sees only what is before it.

    So it is if the model was pre-trained left to right, or fine-tuned from one that was: the paper keeps the constraint
    (section 5.1), for taking it away at fine-tuning did harm.

    Args:
      checkpoint: see `recorded`; None for a model that starts afresh.
    """
    if not checkpoint:
        return False
    settings = recorded(checkpoint)
    return settings.get("objective") == "ltr" or bool(settings.get("causal"))


def git_commit() -> str:
    """The commit of this code, with "+changes" where files differ from it; "" where git does not track this file."""
    folder, name = os.path.split(os.path.abspath(__file__))

    def ask(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        if not ask("ls-files", name):  # an installed package, perhaps inside the checkout of another project
            return ""
        commit = ask("rev-parse", "HEAD")
        return commit + ("+changes" if commit and ask("status", "--porcelain", "--untracked-files=no") else "")
    except FileNotFoundError:  # git is not installed
        return ""
