"""Output layers of fine-tuned models: the names of their classes, and how rows are matched by name.

Models of the same classes may number the rows of their output layers differently. When a fine-tuned output layer is
reused, each class of the task must therefore get the row with its name.
"""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
import tensorflow as tf

from bert_tf.checkpoints import run_directory
from bert_tf.checkpoints.reading import CheckpointSource
from bert_tf.runtime import files, json_files
from bert_tf.runtime.files import InputError
from bert_tf.runtime.messages import say

# The variables of a fine-tuned output layer. SQuAD's have a different path.
HEAD_VARIABLES = r"(cls/squad/|heads/.*/)?output_(weights|bias)"
HF_CONFIG_FILE = "config.json"
# The name of the tagging task in run.json, where the labels are entity types.
TAGGING = "ner"

# The names that Hugging Face gives to unnamed classes.
_GENERIC_NAME = r"LABEL_\d+"


class _HfConfig(TypedDict, total=False):
    architectures: list[str] | None
    id2label: dict[str, str | int | float] | None


def tag_classes(labels: Sequence[str], is_plain: bool = False) -> tuple[str, ...]:
    """Returns the classes of a tagging model: the labels themselves if plain, or else the IOB2 tags of their types."""
    return tuple(labels) if is_plain else ("O", *(f"{prefix}-{kind}" for kind in labels for prefix in "BI"))


def recorded_classes(source: CheckpointSource) -> tuple[str, ...] | None:
    """Returns the names of an output layer's rows, from the run directory or Hugging Face's `config.json`.

    Returns:
      The names in the order of the rows; None if none are recorded, as for a regression.
    """
    if source.kind != "hf":
        settings = run_directory.recorded(source.path)
        labels = settings.get("labels") or None
        has_types = settings.get("task") == TAGGING
        is_plain = not has_types or settings.get("tag_scheme") == "plain"
        return labels and tuple(settings.get("tag_classes") or tag_classes(labels, is_plain))
    names: Mapping[str, Any] = hf_config(source).get("id2label") or {}
    classes = tuple(str(names[number]) for number in sorted(names, key=int))
    return None if all(re.fullmatch(_GENERIC_NAME, name) for name in classes) else classes


def recorded_scale(run: Mapping[str, Any]) -> tuple[float, float]:
    """Returns the mean and the standard deviation by which a run standardised its scores; 0 and 1 for other runs."""
    mean, deviation = run.get("target_scale", (0.0, 1.0))
    return mean, deviation


def rescaled(name: str, array: np.ndarray, before: tuple[float, float], after: tuple[float, float]) -> np.ndarray:
    """Returns the weights or the bias of a regression's output layer for scores with another mean and deviation."""
    shift = (before[0] - after[0]) / after[1] if name == "output_bias" else 0.0
    return array * np.float32(before[1] / after[1]) + np.float32(shift)


def hf_config(source: CheckpointSource) -> dict[str, Any]:
    """Returns the content of Hugging Face's `config.json` next to a checkpoint; empty if there is none."""
    path = os.path.join(run_directory.directory_of_checkpoint(source.path), HF_CONFIG_FILE)
    return json_files.read(path, "--init_checkpoint", _HfConfig) if files.exists(path) else {}


def with_classes(
    source: CheckpointSource,
    variables: Mapping[str, tf.Variable],
    classes: Sequence[str] | None,
    flag_name: str = "--init_checkpoint",
    scale: tuple[float, float] = (0.0, 1.0),
) -> CheckpointSource:
    """Returns a checkpoint with its output layer's rows in the model's order, and prints that the layer is reused.

    Args:
      source: the checkpoint.
      variables: maps released names to the model's variables.
      classes: the names of the rows of the model's output layer; None if they have none.
      flag_name: the flag that gave the checkpoint, for messages.
      scale: mean and deviation of the model's scores, for a regression.

    Raises:
      InputError: if the output layers have different sizes, or classes with different names.
    """
    weights = next((name for name in ("output_weights", "cls/squad/output_weights") if name in variables), "")
    if weights not in source.shapes:
        return source
    names, rows, needed = recorded_classes(source), source.shapes[weights][0], variables[weights].shape[0]
    if classes is None or (names is not None and rows == 1):  # a score and the ends of an answer have no class names
        names = None
    order = range(rows) if names is None else _places(classes, names)
    if rows != needed or order is None or len(order) != rows:
        raise InputError(
            f"{flag_name}: the output layer of {source.path} has {rows} outputs{_shown(names)}, but the task needs "
            f"{needed}{_shown(classes)}. Use --reset_head to train a new output layer. If the classes are the same, "
            f"rename them in id2label of its {HF_CONFIG_FILE}."
        )
    how = f", with its classes {', '.join(names)} matched by name" if names else ""
    if classes and not names:
        how = f"; its rows have no names and are used in the order {', '.join(classes)}"
    say(f"The output layer of {source.path} is reused{how}.")

    before = recorded_scale(run_directory.recorded(source.path) if source.kind != "hf" else {})

    def read(name: str) -> np.ndarray:
        array = source.read(name)
        return rescaled(name, array[order], before, scale) if name in ("output_weights", "output_bias") else array

    return dataclasses.replace(source, read=read)


def _places(wanted: Sequence[str], names: Sequence[str]) -> list[int] | None:
    """Returns the index of each wanted name; None if the names differ.

    If the result is unique, case is ignored, and so is the spelling of tags: "PER_B" is "B-PER", and "B" is "B-_".
    """
    for key in (str, str.casefold, lambda name: sorted(filter(None, re.split("[-_./:|]", name.casefold())))):
        places = {str(key(name)): place for place, name in enumerate(names)}
        if len(places) == len(names) and sorted(places) == sorted(str(key(name)) for name in wanted):
            return [places[str(key(name))] for name in wanted]
    return None


def _shown(names: Sequence[str] | None) -> str:
    return f" ({', '.join(names)})" if names else ""
