"""Writes and reads the record of a run in its directory, which is needed to repeat, resume and use the run."""

import hashlib
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, NotRequired, TypedDict

import tensorflow as tf

from bert_tf.checkpoints import saver
from bert_tf.checkpoints.run_directory import CONFIG_FILE, RUN_FILE, directory_of_checkpoint, tuned
from bert_tf.config import BertConfig, BiLstmConfig
from bert_tf.runtime import __version__, differences, files, json_files
from bert_tf.runtime.files import InputError
from bert_tf.runtime.messages import say
from bert_tf.runtime.storage import locks
from bert_tf.text.hf_tokenizer import RULES
from bert_tf.text.tokenizer_config import copy_tokenizer, tokenizer_record
from bert_tf.text.vocabulary import VOCAB_FILE, vocabulary_hash

_PACKAGES = ("keras", "tensorflow-text", "numpy")
# Version of the format of RUN_FILE.
_FORMAT = 2


# Settings for reading files. They may differ between training and prediction.
_OF_READING = {"max_seq_length", "doc_stride", "max_query_length", "long_documents", "text_column", "label_column"}


class _RunFile(TypedDict):
    format: NotRequired[int]
    resume_settings: dict[str, Any]
    tokenizer: NotRequired[dict[str, Any]]
    flags: NotRequired[dict[str, Any]]
    devices: NotRequired[dict[str, Any] | None]


def compared(
    output_dir: str,
    settings: dict[str, Any],
    *,
    devices: Mapping[str, Any] | None = None,
    allow_changed_settings: bool = False,
) -> dict[str, Any]:
    """Compares the settings of a run with those in its directory, if the run is resumed.

    Args:
      output_dir: the run directory; it may not exist yet.
      settings: the settings that must stay the same when the run is resumed; see `all_settings`.
      devices: the devices; see `strategies.devices`. If they have changed, a warning is printed.
      allow_changed_settings: if True, resume even if settings have changed.

    Returns:
      The settings to record.

    Raises:
      InputError: if another process is training in the directory, or if there is a checkpoint to resume from and
        settings have changed; the message names the changes.
    """
    if not output_dir:
        raise InputError("--output_dir is required. Pass it.")
    locks.require_free(output_dir, "--output_dir")
    if files.exists(os.path.join(output_dir, RUN_FILE)) and saver.latest_checkpoint(output_dir):
        before = recorded(output_dir)
        start = settings.get("init_checkpoint")
        if start and before.get("init_checkpoint") == files.resolved(start):
            # A run needs the checkpoint only at the start, so it may have been deleted. Compare only the path.
            settings = settings | {"init_checkpoint": before["init_checkpoint"]}
        if not allow_changed_settings:
            _refuse_differences(
                f"--output_dir: {output_dir}: the run began with other settings",
                before,
                settings,
                "Use another directory or the recorded settings, or pass --allow_changed_settings to use the new ones.",
            )
        _say_changed_devices(read(output_dir).get("devices"), devices)
    return settings


def write(
    output_dir: str,
    config: BertConfig,
    vocab_file: str,
    flags: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    rules: Mapping[str, bool] | None = None,
    devices: Mapping[str, Any] | None = None,
    data_counts: Mapping[str, Any] | None = None,
) -> None:
    """Writes the config, the vocabulary and the settings of a run to the run directory.

    Args:
      output_dir: the run directory; created if it doesn't exist.
      config: the config of the model.
      vocab_file: the vocabulary; "" if unknown.
      flags: the values of all flags of the program. They are never compared.
      settings: the result of `compared`.
      rules: the rules of the tokenizer, if known.
      devices: the devices; see `strategies.devices`.
      data_counts: the counts of the data. They are never compared.
    """
    with files.replacing(os.path.join(output_dir, CONFIG_FILE)) as writer:
        writer.write(config.to_json_string())
    if vocab_file:
        copy_tokenizer(vocab_file, output_dir, rules or {})
    files.write_json(
        os.path.join(output_dir, RUN_FILE),
        {
            "format": _FORMAT,
            "program": os.path.basename(sys.argv[0]),
            "flags": dict(flags),
            "resume_settings": dict(settings),
            **({"tokenizer": tokenizer_record(vocab_file, rules or {})} if vocab_file else {}),
            "devices": devices,
            "data": data_counts or {},
            # Read from the module, because the build of TensorFlow for TPUs has another package name.
            "versions": {"python": sys.version.split()[0], "bert-tf": __version__, "tensorflow": tf.__version__}
            | {package: importlib.metadata.version(package) for package in _PACKAGES},
            "git_commit": git_commit(),
        },
    )


def all_settings(config: BertConfig, vocab_file: str, resume_settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that must stay the same when a run is resumed.

    Args:
      config: the config of the model.
      vocab_file: the vocabulary; "" if unknown. Its digest is one of the settings.
      resume_settings: the flags that influence the weights, and the data.
    """
    return {
        "bert_config": config.to_dict(),
        **resume_settings,
        **({"vocab_sha256": vocabulary_hash(vocab_file)} if vocab_file else {}),
    }


def check_trained_with(directory: str, settings: Mapping[str, Any], kind: str = "task", advice: str = "") -> None:
    """Checks before evaluation or prediction that the model in a directory was trained with the given settings.

    Settings for reading files may differ. If they do, a note is printed.

    Args:
      directory: a run directory. For other directories, nothing is checked.
      settings: the settings to compare. Settings that the run does not record are ignored.
      kind: a setting that only runs of the expected type record: "task" for fine-tuning, "objective" for pre-training.
      advice: a text to add to the error message.

    Raises:
      InputError: if the model was trained with other settings; the message lists the differences.
    """
    trained = recorded(directory)
    if kind in trained:
        compared = {name: value for name, value in settings.items() if name in trained}
        read = {name: compared.pop(name) for name in _OF_READING & compared.keys()}
        if changes := differences.changes({name: trained[name] for name in sorted(read)}, read):
            say(f"Note: the settings of {directory} have changed: {'; '.join(changes)}.")
        _refuse_differences(
            f"{directory}: the run was trained with other settings",
            {name: trained[name] for name in compared},
            compared,
            f"Use the settings of the run, and the {VOCAB_FILE} in its directory.{advice}",
        )


def _say_changed_devices(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> None:
    if before and now and before != now:
        say(
            f"Warning: {'; '.join(differences.changes(before, now))}. The batches stay the same, but dropout and the "
            "order of sums depend on the devices. The weights will differ from the weights of an unchanged run."
        )


def _refuse_differences(problem: str, before: Mapping[str, Any], now: Mapping[str, Any], advice: str) -> None:
    changes = differences.changes(before, now)
    if changes:
        raise InputError(f"{problem}:\n  {differences.listed(changes)}\n{advice}")


def digest_of_rows(rows: Iterable[object]) -> str:
    """Returns a short text that changes if the rows or their order change."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(repr(row).encode())
    return digest.hexdigest()


class _Recorded(dict[str, Any]):
    """A section of RUN_FILE. A missing key raises an InputError that names the file."""

    def __init__(self, path: str, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._path = path

    def __missing__(self, key: str) -> NoReturn:
        raise InputError(f"{self._path}: {key!r} is missing. Use the run.json that the training program wrote.")


def read(output_dir: str) -> dict[str, Any]:
    """Reads the file that `write` wrote.

    Raises:
      InputError: if the directory is not a run directory, or another version wrote the file.
    """
    path = os.path.join(output_dir, RUN_FILE)
    values = json_files.read(path, "--output_dir", _RunFile)
    if values.get("format", _FORMAT) != _FORMAT:
        raise InputError(f"{path}: unknown format {values['format']}. Use the version of bert-tf that wrote it.")
    sections = {name: _Recorded(path, values[name]) for name in ("resume_settings", "flags") if name in values}
    return _Recorded(path, values | sections)


def recorded(checkpoint: str) -> dict[str, Any]:
    """Returns the resume settings of the run that wrote a checkpoint; empty for other checkpoints.

    Args:
      checkpoint: see `run_directory.directory_of_checkpoint`.
    """
    directory = directory_of_checkpoint(checkpoint)
    settings = read(directory)["resume_settings"] if files.exists(os.path.join(directory, RUN_FILE)) else {}
    settings.pop("group_by_length", None)  # in the records of earlier versions
    return settings


def recorded_tokenizer(directory: str) -> dict[str, Any]:
    """Returns the record of the tokenizer (see `tokenizer_record`); empty if the directory is not a run directory."""
    path = os.path.join(directory, RUN_FILE)
    if not files.exists(path):
        return {}
    run = read(directory)
    older = {name: value for name, value in run["resume_settings"].items() if name in (*RULES, "vocab_sha256")}
    return older | run.get("tokenizer", {})


def recorded_bilstm(checkpoint: str | None) -> BiLstmConfig | None:
    """Returns the config of the BiLSTM if the run that wrote a checkpoint trained one; otherwise None.

    Args:
      checkpoint: see `recorded`; None for a model without a checkpoint.
    """
    settings = recorded(checkpoint) if checkpoint else {}
    return BiLstmConfig(settings["bilstm_layers"], settings["bilstm_units"]) if "bilstm_layers" in settings else None


def recorded_flags(directory: str) -> Mapping[str, Any]:
    """Returns the flags of the run in a directory; empty if there is no run."""
    return read(directory).get("flags", {}) if files.exists(os.path.join(directory, RUN_FILE)) else {}


def is_causal(checkpoint: str | None) -> bool:
    """Returns True for a left-to-right model, in which a position attends only to itself and earlier positions.

    A model that was pre-trained left to right is also fine-tuned left to right, as in the paper (section 5.1).

    Args:
      checkpoint: see `recorded`; None for a model without a checkpoint.
    """
    if not checkpoint:
        return False
    settings = recorded(checkpoint)
    return settings.get("objective") == "ltr" or bool(settings.get("causal"))


def git_commit() -> str:
    """Returns the Git commit of this code, with "+changes" if files differ from it; "" if this file is not tracked."""
    directory, name = os.path.split(os.path.abspath(__file__))

    def git(*arguments: str) -> str:
        completed = subprocess.run(["git", "-C", directory, *arguments], capture_output=True, text=True, check=False)
        return completed.stdout.strip() if completed.returncode == 0 else ""

    try:
        # An installed package may be inside the checkout of another project.
        is_tracked = git("ls-files", name)
        return git("describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+changes") if is_tracked else ""
    except FileNotFoundError:  # git is not installed
        return ""


def label_threshold(directory: str) -> float:
    """Returns the lowest probability of a predicted label: the value of the flag, or the tuned value, or 0.5."""
    if (flag_value := recorded_flags(directory).get("label_threshold", "")) not in ("", "tune"):
        return float(flag_value)
    return tuned(directory).get("label_threshold", 0.5)
