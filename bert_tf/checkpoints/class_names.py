"""Names of the classes of output layers, and matching of output rows by class name.

Two models with the same classes may have them in a different order. If a fine-tuned output layer is reused, each class
of the task must therefore get the row with the same class name.
"""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypedDict

import msgspec
import numpy as np
import tensorflow as tf

from bert_tf.checkpoints import run_directory, run_record
from bert_tf.checkpoints.reading import CheckpointSource
from bert_tf.runtime import files, json_files
from bert_tf.runtime.errors import InputError, first_of
from bert_tf.runtime.messages import say

# Pattern of the variables of a fine-tuned output layer. SQuAD and models with several heads have other paths.
HEAD_VARIABLES = r"(cls/squad/|heads/.*/)?output_(weights|bias)"
HF_CONFIG_FILE = "config.json"
# The name of the tagging task in run.json. The labels of this task are entity types.
TAGGING = "ner"

# Hugging Face's names of the models with an output layer.
SEQUENCE, TOKENS, CHOICE, SPAN = (
    f"BertFor{task}"
    for task in ("SequenceClassification", "TokenClassification", "MultipleChoice", "QuestionAnswering")
)
# Hugging Face's name of a model without an output layer.
ENCODER = "BertModel"


class _HfConfig(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,9}$")], str | int | float] | None


def tag_classes(labels: Sequence[str], is_plain: bool = False) -> tuple[str, ...]:
    """Returns the classes of a tagging model: the labels if they are plain tags, or else the IOB2 tags of the types."""
    return tuple(labels) if is_plain else ("O", *(f"{prefix}-{kind}" for kind in labels for prefix in "BI"))


def recorded_classes(source: CheckpointSource) -> tuple[str, ...] | None:
    """Returns the class names of an output layer, from the run directory or Hugging Face's `config.json`.

    Returns:
      The names in the order of the rows; None if no names are recorded, for example in a regression.
    """
    if source.kind != "hf":
        settings = run_record.recorded(source.path)
        labels = settings.get("labels") or None
        has_types = settings.get("task") == TAGGING
        is_plain = not has_types or settings.get("tag_scheme") == "plain"
        return labels and tuple(settings.get("tag_classes") or tag_classes(labels, is_plain))
    names: Mapping[str, Any] = hf_config(source).get("id2label") or {}
    classes = tuple(str(names[number]) for number in sorted(names, key=int))
    if sorted(map(int, names)) != [*range(len(names))]:
        where = f"--init_checkpoint: {os.path.dirname(source.path)}/{HF_CONFIG_FILE}"
        raise InputError(f"{where}: the keys of id2label are {first_of(names)}. Use 0 to {len(names) - 1}.")
    return None if classes == tuple(f"LABEL_{number}" for number in range(len(classes))) else classes


def as_answered(name: str, array: np.ndarray, directory: str) -> np.ndarray:
    """Returns the weights or the bias of a run's output layer so that the outputs are the run's answers.

    The scores of a regression are in the units of the training data. The logits of classes are divided by the
    temperature of the run.

    Args:
      name: the name of the tensor.
      array: the tensor.
      directory: a run directory; for other directories, the tensor is unchanged.
    """
    scale, tuned = recorded_scale(run_record.recorded(directory)), run_directory.tuned(directory)
    return rescaled(name, array, scale, (0.0, 1.0)) / np.float32(tuned.get("temperature", 1.0))


def recorded_scale(run: Mapping[str, Any]) -> tuple[float, float]:
    """Returns the mean and the standard deviation that a run used to standardise scores; by default 0 and 1."""
    mean, deviation = run.get("target_scale", (0.0, 1.0))
    return mean, deviation


def rescaled(name: str, array: np.ndarray, before: tuple[float, float], after: tuple[float, float]) -> np.ndarray:
    """Converts the output layer of a regression from one scale of the scores to another.

    Args:
      name: "output_weights" or "output_bias".
      array: the value of this variable.
      before: mean and standard deviation of the old scale.
      after: mean and standard deviation of the new scale.
    """
    shift = (before[0] - after[0]) / after[1] if name == "output_bias" else 0.0
    return array * np.float32(before[1] / after[1]) + np.float32(shift)


def hf_config(source: CheckpointSource) -> dict[str, Any]:
    """Returns the content of Hugging Face's `config.json` in the directory of a checkpoint; empty if there is none."""
    path = os.path.join(run_directory.directory_of_checkpoint(source.path), HF_CONFIG_FILE)
    return json_files.read(path, "--init_checkpoint", _HfConfig) if files.exists(path) else {}


def with_classes(
    source: CheckpointSource,
    variables: Mapping[str, tf.Variable],
    classes: Sequence[str] | None,
    flag_name: str = "--init_checkpoint",
    scale: tuple[float, float] = (0.0, 1.0),
) -> CheckpointSource:
    """Returns a checkpoint whose output rows are in the order of the model. Reports that the layer is reused.

    Args:
      source: the checkpoint.
      variables: maps released names to the variables of the model.
      classes: the class names of the model, in the order of the rows; None if they have no names.
      flag_name: the flag with the checkpoint, for messages.
      scale: for a regression, mean and standard deviation of the model's scores.

    Raises:
      InputError: if the output layers have different sizes or different class names.
    """
    weights = next((name for name in ("output_weights", "cls/squad/output_weights") if name in variables), "")
    if weights not in source.shapes:
        return source
    names, rows, needed = recorded_classes(source), source.shapes[weights][0], variables[weights].shape[0]
    if classes is None or (names is not None and rows == 1):  # regression and SQuAD have no class names
        names = None
    order = range(rows) if names is None else _row_order(classes, names)
    if rows != needed or order is None or len(order) != rows:
        raise InputError(
            f"{flag_name}: the output layer of {source.path} has {rows} outputs{_shown(names)}, but the task needs "
            f"{needed}{_shown(classes)}. Use --reset_head to train a new output layer. If the classes are the same, "
            f"rename them in id2label of the model's {HF_CONFIG_FILE}."
        )
    how = f", with its classes {first_of(names)} matched by name" if names else ""
    if classes and not names:
        how = f"; its rows have no names and are used in the order {first_of(classes)}"
    say(f"The output layer of {source.path} is reused{how}.")

    before = recorded_scale(run_record.recorded(source.path) if source.kind != "hf" else {})

    def read(name: str) -> np.ndarray:
        array = source.read(name)
        return rescaled(name, array[order], before, scale) if name in ("output_weights", "output_bias") else array

    return dataclasses.replace(source, read=read)


def _row_order(wanted: Sequence[str], names: Sequence[str]) -> list[int] | None:
    """Returns the index in `names` of each wanted name; None if the names differ.

    If there is no exact match, names are compared without case, then without the spelling of tags ("PER_B" equals
    "B-PER"). A comparison counts only if it gives each name a different index.
    """
    for key in (str, str.casefold, lambda name: sorted(filter(None, re.split("[-_./:|]", name.casefold())))):
        index_of = {str(key(name)): index for index, name in enumerate(names)}
        if len(index_of) == len(names) and sorted(index_of) == sorted(str(key(name)) for name in wanted):
            return [index_of[str(key(name))] for name in wanted]
    return None


def _shown(names: Sequence[str] | None) -> str:
    return f" ({first_of(names)})" if names else ""
