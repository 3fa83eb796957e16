"""Restores checkpoints into models.

Every variable of the model needs a tensor in the checkpoint, and every tensor needs a variable. The caller may allow
exceptions by name; any other difference is an error.
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from bert_tf.checkpoints import variable_names
from bert_tf.checkpoints.reading import CheckpointSource, open_checkpoint
from bert_tf.checkpoints.saver import Shapes
from bert_tf.config import BertConfig
from bert_tf.encoder import BertEncoder
from bert_tf.optimization import TRAINING_STATE
from bert_tf.runtime import differences
from bert_tf.runtime.errors import InputError, first_of

POOLER, WORDS = "bert/pooler/", "bert/embeddings/word_embeddings"


@dataclasses.dataclass(frozen=True)
class RestoreSummary:
    """The restored variables and the unused tensors.

    Attributes:
      source: path of the checkpoint.
      matched: names of the restored variables.
      fresh: names of the variables that keep their initial values.
      ignored: names of the tensors in the checkpoint that were intentionally not used.
    """

    source: str
    matched: tuple[str, ...]
    fresh: tuple[str, ...]
    ignored: tuple[str, ...]

    def __str__(self) -> str:
        others = sorted(name for name in self.ignored if not re.fullmatch(TRAINING_STATE, name))
        state = ["training state"] if len(others) < len(self.ignored) else []
        return (
            f"Loaded {len(self.matched)} variables from {self.source}; {len(self.fresh)} randomly initialised"
            f"{_listed(self.fresh)}; {len(self.ignored)} checkpoint tensors unused{_listed(state + others)}."
        )


def _listed(names: Sequence[str]) -> str:
    return f" ({first_of(names)})" if names else ""


def restore(
    variables: Mapping[str, tf.Variable],
    source: CheckpointSource | str | os.PathLike[str],
    may_be_new: str = variable_names.ADDED_BY_FINE_TUNING,
    may_be_ignored: str = f"{variable_names.ADDED_BY_FINE_TUNING}|{TRAINING_STATE}",
    flag_name: str = "--init_checkpoint",
) -> RestoreSummary:
    """Assigns the tensors of a checkpoint to variables.

    Args:
      variables: maps released names to variables.
      source: the checkpoint, or a path for `open_checkpoint`.
      may_be_new: pattern of the variables that the checkpoint may lack.
      may_be_ignored: pattern of the tensors that the model may lack.
      flag_name: the flag with the checkpoint, for messages.

    Returns:
      A summary of the restored variables.

    Raises:
      InputError: if other variables or tensors are missing, or if shapes differ; the message lists the differences. No
        variable is changed in this case. Also if a tensor has values that are not finite.
    """
    if not isinstance(source, CheckpointSource):
        source = open_checkpoint(source, flag_name)
    shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
    _check_shapes(source, shapes, may_be_new, may_be_ignored, flag_name)
    matched = [name for name in variables if name in source.shapes]
    for name in matched:
        variables[name].assign(_finite(source, name, flag_name))
    return RestoreSummary(
        source=source.path,
        matched=tuple(matched),
        fresh=tuple(name for name in variables if name not in source.shapes),
        ignored=(*(name for name in source.shapes if name not in variables), *source.ignored),
    )


def has_pooler(source: CheckpointSource) -> bool:
    """Returns True if a checkpoint has a pooler. Some models, such as taggers, may have none."""
    return any(name.startswith(POOLER) for name in source.shapes)


def _check_shapes(
    source: CheckpointSource, expected: Shapes, may_be_new: str, may_be_ignored: str, flag_name: str
) -> None:
    """Raises an InputError if the names or shapes of a model and a checkpoint differ."""
    stored, mismatches = source.shapes, []
    if WORDS in expected and WORDS not in stored and not re.fullmatch(may_be_new, WORDS):
        names = first_of([*stored, *source.ignored], 3)
        remedy = "Use a BERT model whose variables have the original names."
        raise InputError(f"{flag_name}: {source.path} has no {WORDS}, but {names}. {remedy}")
    for name in dict.fromkeys((*expected, *stored)):
        if name not in stored:
            if not re.fullmatch(may_be_new, name):
                mismatches.append(f"{name} is in the model, but not in the checkpoint")
        elif name not in expected:
            if not re.fullmatch(may_be_ignored, name):
                mismatches.append(f"{name} is in the checkpoint, but not in the model")
        elif stored[name] != expected[name]:
            shapes = f"{list(stored[name])} in the checkpoint, but {list(expected[name])} in the model"
            mismatches.append(f"{name} has shape {shapes}")
    if mismatches:
        problem = f"{source.path} doesn't fit the model:\n  {differences.listed(mismatches)}"
        remedy = "Use the config of the checkpoint, and a fine-tuned checkpoint only for its own task."
        raise InputError(f"{flag_name}: {problem}\n{remedy}")


def named_variables(variables: Iterable[keras.Variable]) -> dict[str, tf.Variable]:
    """Returns a dict from paths to variables. The path of a variable is its released name."""
    return {variable.path: variable.value for variable in variables}


def without(source: CheckpointSource, pattern: str) -> CheckpointSource:
    """Returns the checkpoint without the tensors whose released names match the pattern."""
    removed = tuple(name for name in source.shapes if re.fullmatch(pattern, name))
    shapes = {name: shape for name, shape in source.shapes.items() if name not in removed}
    return dataclasses.replace(source, shapes=shapes, ignored=(*source.ignored, *removed))


def matching_weights(source: CheckpointSource, config: BertConfig, flag_name: str) -> dict[str, np.ndarray]:
    """Reads all weights of a checkpoint, without training state, after comparing them with a config.

    Raises:
      InputError: if the encoder doesn't match the config, or if a tensor belongs neither to the encoder nor to a head.
    """
    source = without(source, TRAINING_STATE)
    expected = {variable.path: tuple(variable.shape) for variable in BertEncoder(config, seed=0).weights}
    _check_shapes(source, expected, f"{POOLER}.*", variable_names.HEADS, flag_name)
    return {name: _finite(source, name, flag_name) for name in source.shapes}


def _finite(source: CheckpointSource, name: str, flag_name: str) -> np.ndarray:
    array = source.read(name)
    if array.ndim and array.dtype.kind not in "fV":  # "V" is bfloat16
        where = f"{flag_name}: {source.path}: {name}"
        raise InputError(f"{where} has values of type {array.dtype}. Use another checkpoint.")
    if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
        count = np.count_nonzero(~np.isfinite(array))
        raise InputError(f"{flag_name}: {source.path}: {name}: {count} values are not finite. Use another checkpoint.")
    return array
