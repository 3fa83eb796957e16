"""Checkpoints: reads the release's, Hugging Face's, Model Garden's and our own.

A training run writes the release's format (a TensorFlow bundle whose keys are the variables' released names, with
`global_step` and the optimizer's slots), so our own checkpoints load in the original code, and a released one is read
by the same lines as our own.

Loading is total: every variable of the model and every tensor of the source is either matched or in a list that says
why not. Anything else is an error.
"""

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import ml_dtypes
import numpy as np
import safetensors
import tensorflow as tf

from bert_tf.checkpoints import foreign_names, run_directory
from bert_tf.checkpoints.saver import latest_checkpoint
from bert_tf.config import BertConfig
from bert_tf.encoder import BertEncoder
from bert_tf.runtime import files
from bert_tf.runtime.files import InputError

SAFETENSORS_FILE = "model.safetensors"
# TensorFlow's reader has no error class of its own.
_READ_ERRORS = (tf.errors.OpError, IndexError, RuntimeError, ValueError)
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".pkl")


@dataclasses.dataclass(frozen=True)
class CheckpointSource:
    """A checkpoint in any format, seen through the released names.

    Attributes:
      path: what was opened.
      kind: "tf1" (the release's and ours), "hf" or "garden".
      shapes: released name -> shape, for every tensor that has a released name.
      read: gives the tensor of a released name.
      ignored: the source's own names of what is left out on purpose.
    """

    path: str
    kind: str
    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], np.ndarray]
    ignored: tuple[str, ...] = ()


def open_checkpoint(path: str, flag_name: str = "--init_checkpoint") -> CheckpointSource:
    """Opens a checkpoint, recognised by what it is.

    Args:
      path: a TensorFlow checkpoint's prefix (the release's, Model Garden's, ours); a training folder; a folder with
        `model.safetensors`, or that file.
      flag_name: how the user knows it, for messages.

    Raises:
      InputError: if there is none, or it can't be read; pickled PyTorch files are refused.
    """
    prefix = find_checkpoint(path, flag_name)
    if prefix.endswith(".safetensors"):
        return _open_hf(prefix, flag_name)
    try:
        reader = tf.train.load_checkpoint(prefix)
    except _READ_ERRORS as error:
        raise InputError(f"{flag_name}: {prefix} can't be read as a TensorFlow checkpoint ({error}).") from None
    stored = reader.get_variable_to_shape_map()
    if "_CHECKPOINTABLE_OBJECT_GRAPH" in stored:
        return _open_garden(prefix, reader, flag_name)
    shapes = {name: tuple(shape) for name, shape in stored.items()}
    return CheckpointSource(prefix, "tf1", shapes, lambda name: _read_tensor(reader, name, prefix, flag_name))


def find_checkpoint(path: str, flag_name: str = "--init_checkpoint") -> str:
    """The prefix or the file that `path` stands for.

    In a folder the order is: the checkpoint that a training run is judged with (of several trials that of the best, and
    there the one that did best on the dev set if it was kept, or else the newest), `model.safetensors`, the one
    TensorFlow checkpoint that lies there.

    Raises:
      InputError: if there is none, several, or only a pickled one.
    """
    pickled = (
        "is a pickled PyTorch file. It would run whatever code it holds when loaded, so it is never read. "
        "Save the model as safetensors (in Hugging Face: model.save_pretrained(..., safe_serialization=True))."
    )
    if path.endswith(_PICKLE_SUFFIXES):
        raise InputError(f"{flag_name}: {path} {pickled}")
    if files.is_folder(path):
        judged = latest_checkpoint(run_directory.judged_folder(run_directory.folder_of_model(path)))
        if judged:
            return judged
        if files.exists(os.path.join(path, SAFETENSORS_FILE)):
            return os.path.join(path, SAFETENSORS_FILE)
        names = files.list_folder(path)
        prefixes = [os.path.join(path, name.removesuffix(".index")) for name in names if name.endswith(".index")]
        if len(prefixes) == 1:
            return prefixes[0]
        if prefixes:
            raise InputError(
                f"{flag_name}: {path} holds several checkpoints ({', '.join(prefixes)}). Name one of them."
            )
        for name in names:
            if name.endswith(_PICKLE_SUFFIXES):
                raise InputError(f"{flag_name}: {os.path.join(path, name)} {pickled}")
        raise InputError(
            f"{flag_name}: the folder {path} holds no checkpoint (a TensorFlow *.index file or {SAFETENSORS_FILE})."
        )
    prefix = path.removesuffix(".index").removesuffix(".data-00000-of-00001")
    if files.exists(f"{prefix}.index") or (path.endswith(".safetensors") and files.exists(path)):
        return prefix
    raise InputError(
        f"{flag_name}: there is no checkpoint {path!r}. Give the prefix (…/bert_model.ckpt, without .index or .data), "
        f"a training folder, or a folder with {SAFETENSORS_FILE}."
    )


def _read_tensor(reader: Any, name: str, prefix: str, flag_name: str) -> np.ndarray:
    try:
        return reader.get_tensor(name)
    except _READ_ERRORS as error:
        raise InputError(f"{flag_name}: {prefix} is damaged: {name} can't be read ({error}).") from None


def _open_hf(path: str, flag_name: str) -> CheckpointSource:
    with files.open_file(path, "rb") as reader:
        data = reader.read()
    try:
        tensors = dict(safetensors.deserialize(data))
    except safetensors.SafetensorError as error:
        raise InputError(f"{flag_name}: {path} is not a whole safetensors file ({error}).") from None
    stored: dict[str, str] = {}
    ignored: list[str] = []
    for name in tensors:
        released = foreign_names.hf_to_released(name)
        if re.fullmatch(foreign_names.HF_REPEATS, name):
            ignored.append(name)
        elif released is None:
            raise InputError(f"{flag_name}: {path} holds {name!r}, which is no tensor of a BERT model.")
        else:
            stored[released] = name

    def read(released: str) -> np.ndarray:
        tensor = tensors[stored[released]]
        if tensor["dtype"] not in _SAFETENSORS_DTYPES:
            raise InputError(f"{flag_name}: {path}: {stored[released]} is stored as {tensor['dtype']}, not as floats.")
        dtype = _SAFETENSORS_DTYPES[tensor["dtype"]]
        array = np.frombuffer(tensor["data"], dtype).reshape(tensor["shape"]).astype(np.float32)
        return array.T if foreign_names.hf_is_transposed(released) else array

    def shape(released: str) -> tuple[int, ...]:
        stored_shape = tuple(tensors[stored[released]]["shape"])
        return stored_shape[::-1] if foreign_names.hf_is_transposed(released) else stored_shape

    return CheckpointSource(path, "hf", {name: shape(name) for name in stored}, read, tuple(ignored))


_SAFETENSORS_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


def _open_garden(prefix: str, reader: Any, flag_name: str) -> CheckpointSource:
    stored_shapes = reader.get_variable_to_shape_map()
    stored, ignored, unknown = foreign_names.garden_names(stored_shapes)
    if unknown or "bert/embeddings/word_embeddings" not in stored:
        raise InputError(
            f"{flag_name}: {prefix} is an object-based TensorFlow 2 checkpoint, but not one of Model Garden's BERT "
            "encoders" + (f": it holds {unknown[0]!r} and {len(unknown) - 1} more unknown tensors." if unknown else ".")
        )

    def shape(released: str) -> tuple[int, ...]:
        # Model Garden keeps the heads apart: [H, N, D], [N, D] and [N, D, H] are the release's [H, H] and [H].
        dims = tuple(stored_shapes[stored[released]])
        if re.search(r"attention/self/\w+/kernel$", released) and len(dims) == 3:
            return dims[0], dims[1] * dims[2]
        if re.search(r"attention/self/\w+/bias$", released) and len(dims) == 2:
            return (dims[0] * dims[1],)
        if released.endswith("attention/output/dense/kernel") and len(dims) == 3:
            return dims[0] * dims[1], dims[2]
        return dims

    def read(released: str) -> np.ndarray:
        return _read_tensor(reader, stored[released], prefix, flag_name).reshape(shape(released))

    return CheckpointSource(prefix, "garden", {name: shape(name) for name in stored}, read, tuple(ignored))


# --- Into a model -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class RestoreSummary:
    """What became of each variable and each tensor.

    Attributes:
      source: the checkpoint.
      matched: names of the variables that were read.
      fresh: names of the variables that keep their initial value.
      ignored: names in the source that no variable wanted, on purpose.
    """

    source: str
    matched: tuple[str, ...]
    fresh: tuple[str, ...]
    ignored: tuple[str, ...]

    def __str__(self) -> str:
        others = [name for name in self.ignored if not re.fullmatch(foreign_names.TRAINING_STATE, name)]
        state = ["training state"] if len(others) < len(self.ignored) else []
        return (
            f"Read {self.source}: {len(self.matched)} variables matched; {len(self.fresh)} left fresh"
            f"{_named(self.fresh)}; {len(self.ignored)} ignored in the source{_named(state + others)}."
        )


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return f" ({shown})" if names else ""


def restore(
    variables: Mapping[str, tf.Variable],
    source: CheckpointSource,
    may_be_fresh: str = foreign_names.PUT_ON_TOP,
    may_be_ignored: str = f"{foreign_names.PUT_ON_TOP}|{foreign_names.TRAINING_STATE}",
    flag_name: str = "--init_checkpoint",
) -> RestoreSummary:
    """Assigns every variable its tensor.

    Args:
      variables: released name -> variable.
      source: where the tensors come from.
      may_be_fresh: pattern of the variables that the source may lack.
      may_be_ignored: pattern of the source's tensors that the model may lack.
      flag_name: how the user knows the source, for messages.

    Raises:
      InputError: names every variable the source lacks, every tensor the model lacks, and every shape that differs.
        Nothing is assigned then.
    """
    # Hugging Face's span and masked-LM models have no pooler, and neither uses it.
    if source.kind == "hf" and not any(name.startswith("bert/pooler/") for name in source.shapes):
        may_be_fresh = f"{may_be_fresh}|bert/pooler/.*"
    shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
    problems = _problems(shapes, source.shapes, may_be_fresh, may_be_ignored)
    if problems:
        raise _misfit(source, problems, flag_name)
    matched = [name for name in variables if name in source.shapes]
    for name in matched:
        variables[name].assign(source.read(name))
    return RestoreSummary(
        source=source.path,
        matched=tuple(matched),
        fresh=tuple(name for name in variables if name not in source.shapes),
        ignored=(*(name for name in source.shapes if name not in variables), *source.ignored),
    )


def _problems(
    wanted: Mapping[str, tuple[int, ...]],
    found: Mapping[str, tuple[int, ...]],
    may_be_fresh: str,
    may_be_ignored: str,
) -> list[str]:
    """What keeps a model (names and shapes wanted) and a checkpoint (those found) from fitting together."""
    return [
        *(
            f"{name} has shape {list(found[name])} in the checkpoint, but {list(shape)} in the model"
            for name, shape in wanted.items()
            if name in found and found[name] != shape
        ),
        *(
            f"{name} is in the model, but not in the checkpoint"
            for name in wanted
            if name not in found and not re.fullmatch(may_be_fresh, name)
        ),
        *(
            f"{name} is in the checkpoint, but not in the model"
            for name in found
            if name not in wanted and not re.fullmatch(may_be_ignored, name)
        ),
    ]


def _misfit(source: CheckpointSource, problems: Sequence[str], flag_name: str) -> InputError:
    shown = "\n  ".join(problems[:20]) + (f"\n  and {len(problems) - 20} more" if len(problems) > 20 else "")
    return InputError(
        f"{flag_name}: {source.path} doesn't fit the model:\n  {shown}\n"
        "Check that the config is the checkpoint's own, and that a fine-tuned checkpoint is read for its own task."
    )


def named_variables(variables: Iterable[keras.Variable]) -> dict[str, tf.Variable]:
    """Keras variables by their paths, which are their released names."""
    return {variable.path: variable.value for variable in variables}


def without(source: CheckpointSource, pattern: str) -> CheckpointSource:
    """A checkpoint as if it lacked the tensors whose released names match a pattern."""
    left_out = tuple(name for name in source.shapes if re.fullmatch(pattern, name))
    shapes = {name: shape for name, shape in source.shapes.items() if name not in left_out}
    return dataclasses.replace(source, shapes=shapes, ignored=(*source.ignored, *left_out))


def matching_weights(source: CheckpointSource, config: BertConfig, flag_name: str) -> dict[str, np.ndarray]:
    """All of a checkpoint's weights, checked against a config; training state is left out.

    Raises:
      InputError: if the encoder isn't the config's, or a tensor is neither encoder nor head.
    """
    expected = {variable.path: tuple(variable.shape) for variable in BertEncoder(config, seed=0).weights}
    weights = [name for name in source.shapes if not re.fullmatch(foreign_names.TRAINING_STATE, name)]
    problems = _problems(
        expected, {name: source.shapes[name] for name in weights}, "bert/pooler/.*", foreign_names.HEADS
    )
    if problems:
        raise _misfit(source, problems, flag_name)
    return {name: source.read(name) for name in weights}
