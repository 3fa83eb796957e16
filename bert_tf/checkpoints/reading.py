"""Opens checkpoints in the original format and in the formats of Hugging Face, Model Garden, Keras and KerasHub.

Training runs write the original format: a TensorFlow bundle with the released variable names, `global_step` and the
optimizer's slots. The original code can load such checkpoints.
"""

import dataclasses
import os
import re
import zlib
from collections.abc import Callable, Mapping
from typing import TypedDict

import ml_dtypes
import numpy as np
import safetensors

from bert_tf.checkpoints import download, run_directory, variable_names
from bert_tf.checkpoints.download import SAFETENSORS_FILE, WEIGHTS_FILES
from bert_tf.checkpoints.legacy import keras_h5, keras_hub, keras_names, saved_model, torch_file
from bert_tf.checkpoints.saver import ReadTensor, Shapes, latest_checkpoint, open_bundle
from bert_tf.runtime import files, json_files
from bert_tf.runtime.errors import InputError, first_of
from bert_tf.runtime.messages import say_once

# In the header of the safetensors files that this project writes: the checksum of all other bytes.
_CRC = re.compile(rb'"crc32":"(.{8})"', re.DOTALL)
_SAFETENSORS_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
_INDEX = ".index.json"
_ADAPTER_FILE = "adapter_config.json"


def with_checksum(data: bytes) -> bytes:
    """Inserts the checksum into the content of a safetensors file. `write_hf` provides a placeholder for it."""
    start, end = _CRC.search(data).span(1)
    return data[:start] + _checksum(data, start, end) + data[end:]


def _checksum(data: bytes, start: int, end: int) -> bytes:
    return b"%08x" % zlib.crc32(memoryview(data)[end:], zlib.crc32(data[:start]))


@dataclasses.dataclass(frozen=True)
class CheckpointSource:
    """A checkpoint in any format, with the released names of its tensors.

    Attributes:
      path: the opened file or prefix.
      kind: "tf1" (the original format, which this project also writes), "garden", or "hf" if a `config.json` in Hugging
        Face's format describes the model.
      shapes: maps released names to shapes, for every tensor that has a released name.
      read: returns the tensor with a released name.
      ignored: stored names of the tensors that are intentionally not used.
    """

    path: str
    kind: str
    shapes: Shapes = dataclasses.field(repr=False)
    read: ReadTensor = dataclasses.field(repr=False)
    ignored: tuple[str, ...] = dataclasses.field(default=(), repr=False)


def open_checkpoint(path: str | os.PathLike[str], flag_name: str = "--init_checkpoint") -> CheckpointSource:
    """Opens a checkpoint in any supported format.

    Args:
      path: the prefix of a TensorFlow checkpoint (original, Model Garden or this project), a run directory, a directory
        with one of `download.WEIGHTS_FILES` or `saved_model.pb`, one of these files, or a name for
        `download.local_path`.
      flag_name: the flag with the path, for messages.

    Raises:
      InputError: if there is no checkpoint, it can't be read, or it is not a BERT model.
    """
    prefix = find_checkpoint(os.fspath(path), flag_name)
    if _opener(prefix):
        return _open_files(prefix, flag_name)
    shapes, read = open_bundle(prefix, f"{flag_name}: ")
    if saved_model.OBJECT_GRAPH in shapes:
        where = f"{flag_name}: {prefix}"
        return _renamed(prefix, "garden", *saved_model.named_variables(shapes, read, where), where)
    return CheckpointSource(prefix, "tf1", shapes, read)


def find_checkpoint(path: str, flag_name: str = "--init_checkpoint") -> str:
    """Finds the checkpoint prefix or the file with the weights for a path or a name.

    In a directory, the first of the following is used:

    1. The checkpoint with which a run is evaluated: the best checkpoint on the dev set if the run kept it, or else the
       newest checkpoint. If the directory contains several trials, the checkpoint of the best trial.
    2. `model.safetensors`, or `model.safetensors.index.json` for weights in several files.
    3. The only TensorFlow checkpoint in the directory.
    4. The other `download.WEIGHTS_FILES`, the weights of a KerasHub preset, or `saved_model.pb`.

    Raises:
      InputError: if there is no checkpoint, or more than one.
    """
    path = download.local_path(path, flag_name)
    if files.is_directory(path):
        return _find_in_directory(path, flag_name)
    prefix = path.removesuffix(".index").removesuffix(".data-00000-of-00001")
    if files.exists(f"{prefix}.index") or (_opener(path) and files.exists(path)):
        return prefix
    raise InputError(
        f"{flag_name}: there is no checkpoint {path!r}. Use a prefix (.../bert_model.ckpt), a run's directory, "
        f"a directory with {SAFETENSORS_FILE}, or owner/name on the Hugging Face Hub (hf://owner/name if a directory "
        "'owner' exists)."
    )


def _find_in_directory(directory: str, flag_name: str) -> str:
    evaluated = latest_checkpoint(run_directory.evaluated_directory(run_directory.directory_of_model(directory)))
    if evaluated:
        return evaluated
    names = files.list_directory(directory)
    prefixes = [name.removesuffix(".index") for name in names if name.endswith(".index")]
    weights = (*WEIGHTS_FILES[:2], *prefixes, *WEIGHTS_FILES[2:], keras_hub.WEIGHTS_FILE, saved_model.SAVED_MODEL_FILE)
    file_name = next((name for name in weights if name in {*names, *prefixes}), None)
    if _ADAPTER_FILE in names:
        remedy = "Merge it with merge_and_unload() of peft, and save the model to another directory."
        problem = f"has {_ADAPTER_FILE}, so the weights are changed by an adapter"
        raise InputError(f"{flag_name}: {directory} {problem}. {remedy}")
    if file_name in prefixes and len(prefixes) > 1:
        raise InputError(f"{flag_name}: {directory}: several checkpoints ({first_of(prefixes)}). Name one of them.")
    if file_name is None:
        absent = ", no ".join(weights)
        raise InputError(f"{flag_name}: {directory}: no {absent} and no *.index. Pass a model's directory.")
    return os.path.join(directory, file_name)


def _opener(path: str) -> Callable[[str, str], tuple[Shapes, ReadTensor]] | None:
    """Returns the function that opens a file of weights; None for other files. An index has the suffix of its files."""
    if os.path.basename(path) == saved_model.SAVED_MODEL_FILE:
        return saved_model.open_saved_model
    if path.endswith(".weights.h5"):
        return keras_hub.open_preset
    suffix = os.path.splitext(path.removesuffix(_INDEX))[1]
    torch = dict.fromkeys((".bin", ".pt", ".pth"), torch_file.open_torch)
    return {".safetensors": _open_safetensors, ".h5": keras_h5.open_h5, **torch}.get(suffix)


def _open_files(path: str, flag_name: str) -> CheckpointSource:
    where, opener = f"{flag_name}: {path}", _opener(path)
    shapes: dict[str, tuple[int, ...]] = {}
    readers: dict[str, ReadTensor] = {}
    weight_map = json_files.read(path, flag_name, _ShardsFile)["weight_map"] if path.endswith(_INDEX) else {}
    for shard in _shards(path, weight_map, flag_name):
        file_name = os.path.basename(shard)
        shard_shapes, read_shard = opener(shard, f"{flag_name}: {shard}")
        for name, shape in shard_shapes.items():
            if weight_map.get(name, file_name) == file_name:
                shapes[name], readers[name] = shape, read_shard
    absent = [name for name in weight_map if name not in shapes]
    if 0 < len(absent) < len(weight_map):  # an index of TensorFlow may have other names than its files
        raise InputError(f"{absent[0]} is not in {weight_map[absent[0]]}. Download or copy the files again.", where)

    def read(name: str) -> np.ndarray:
        return readers[name](name)

    return _renamed(path, "hf", shapes, read, where)


def _renamed(path: str, kind: str, shapes: Shapes, read_stored: ReadTensor, where: str) -> CheckpointSource:
    """Returns a checkpoint with released names and shapes. Reports trained tensors that are not used.

    Args:
      path: see `CheckpointSource`.
      kind: see `CheckpointSource`.
      shapes: maps stored names to shapes.
      read_stored: returns the tensor with a stored name.
      where: the beginning of error messages.
    """
    is_torch = _opener(path) in (_open_safetensors, torch_file.open_torch)
    translate = variable_names.hf_to_released if is_torch else keras_names.to_released
    weights = {
        name: shapes[name] for name in shapes if not (is_torch and re.fullmatch(variable_names.HF_COUNTERS, name))
    }
    stored, unused, layer = keras_names.translated(weights, read_stored, where, translate)
    if "output_weights" in stored and path.endswith(".pb"):
        if stored["output_weights"] == "classifier/kernel":  # the name in the tutorials
            layer = "classifier"
        if saved_model.architecture(path, shapes, stored, where) == "BertForQuestionAnswering":
            stored = {re.sub("^output_", "cls/squad/output_", name): stored[name] for name in stored}
    elif "predictions/transform/" in stored.get("output_weights", ""):
        # Without a signature, taggers and question-answering models can't be distinguished by their variables.
        unused += [stored.pop(name) for name in [*stored] if name.startswith("output_")]
    if unused:
        say_once(f"{path}: unused tensors: {first_of(unused)}.")
    if layer:
        say_once(f"Warning: {path}: {layer} is used as an output layer on the pooled output. Compare the outputs.")

    def is_transposed(released: str) -> bool:
        if is_torch:
            return variable_names.hf_is_transposed(released)
        # Keras stores output layers [in, out] instead of [out, in].
        return released.endswith("output_weights") and not stored[released].endswith("output_weights")

    def shape(released: str) -> tuple[int, ...]:
        dims = keras_names.released_shape(released, shapes[stored[released]])
        return dims[::-1] if is_transposed(released) else dims

    def read(released: str) -> np.ndarray:
        array = read_stored(stored[released])
        return array.T if is_transposed(released) else array.reshape(shape(released))

    ignored = tuple(name for name in shapes if name not in stored.values())
    return CheckpointSource(path, kind, {name: shape(name) for name in stored}, read, ignored)


def _open_safetensors(path: str, where: str) -> tuple[Shapes, ReadTensor]:
    with files.open_file(path, "rb") as reader:
        data = reader.read()
    try:
        tensors = dict(safetensors.deserialize(data))
        match = _CRC.search(data, 8, 8 + int.from_bytes(data[:8], "little"))
        if match and match[1] != _checksum(data, *match.span(1)):
            raise safetensors.SafetensorError("the checksum does not match")
    except safetensors.SafetensorError as error:
        raise InputError(f"{where}: damaged ({error}). Download or copy the file again.") from None

    def read(name: str) -> np.ndarray:
        tensor = tensors[name]
        if tensor["dtype"] not in _SAFETENSORS_DTYPES:
            known = ", ".join(_SAFETENSORS_DTYPES)
            raise InputError(f"{where}: {name} is of type {tensor['dtype']}. Use {known}.")
        array = np.frombuffer(tensor["data"], _SAFETENSORS_DTYPES[tensor["dtype"]])
        return array.reshape(tensor["shape"]).astype(np.float32)

    return {name: tuple(tensor["shape"]) for name, tensor in tensors.items()}, read


class _ShardsFile(TypedDict):
    weight_map: dict[str, str]


def _shards(path: str, weight_map: Mapping[str, str], flag_name: str) -> list[str]:
    """Returns the files of weights: the file itself, or the files listed in an index.

    Raises:
      InputError: if a file is missing or not a regular file, has another format, or is not in the index's directory.
    """
    if not path.endswith(_INDEX):
        return [files.require_file(path, flag_name, may_be_empty=True)]
    shards = sorted(set(weight_map.values()))
    directory = os.path.dirname(path)
    for shard in shards:
        if os.path.basename(shard) != shard or shard.endswith(_INDEX) or _opener(shard) is not _opener(path):
            raise InputError(f"{flag_name}: {path}: {shard!r} is not the name of a file of weights. Use another model.")
    return [files.require_file(os.path.join(directory, shard), flag_name) for shard in shards]
