"""Opens checkpoints in the original format and in the formats of Hugging Face and Model Garden.

Training runs write the original format: a TensorFlow bundle with the released variable names, `global_step` and the
optimizer's slots. The original code can therefore load their checkpoints.
"""

import dataclasses
import math
import os
import re
import zlib
from typing import Any, TypedDict

import ml_dtypes
import numpy as np
import safetensors

from bert_tf.checkpoints import download, run_directory, variable_names
from bert_tf.checkpoints.download import NO_PICKLES, SAFETENSORS_FILE, SHARDS_FILE
from bert_tf.checkpoints.saver import ReadTensor, Shapes, latest_checkpoint, open_bundle
from bert_tf.runtime import files, json_files
from bert_tf.runtime.files import InputError

_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".pkl")
_HF_SUFFIXES = (".safetensors", SHARDS_FILE)
# The checksum of all other bytes, in the header of the safetensors files that this project writes.
_CRC = re.compile(rb'"crc32":"(.{8})"', re.DOTALL)
_SAFETENSORS_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


def with_checksum(data: bytes) -> bytes:
    """Returns the content of a safetensors file with its checksum, which `write_hf` has made room for."""
    start, end = _CRC.search(data).span(1)
    return data[:start] + _checksum(data, start, end) + data[end:]


def _checksum(data: bytes, start: int, end: int) -> bytes:
    return b"%08x" % zlib.crc32(memoryview(data)[end:], zlib.crc32(data[:start]))


@dataclasses.dataclass(frozen=True)
class CheckpointSource:
    """A checkpoint in any format, with the released names of its tensors.

    Attributes:
      path: the opened file or prefix.
      kind: "tf1" (the original format, which this project also writes), "hf" or "garden".
      shapes: maps released names to shapes, for every tensor that has a released name.
      read: returns the tensor with a released name.
      ignored: stored names of the tensors that are ignored on purpose.
    """

    path: str
    kind: str
    shapes: Shapes = dataclasses.field(repr=False)
    read: ReadTensor = dataclasses.field(repr=False)
    ignored: tuple[str, ...] = dataclasses.field(default=(), repr=False)


def open_checkpoint(path: str | os.PathLike[str], flag_name: str = "--init_checkpoint") -> CheckpointSource:
    """Opens a checkpoint and recognises its format.

    Args:
      path: the prefix of a TensorFlow checkpoint (original, Model Garden or this project), a run directory, a folder
        with `model.safetensors` or `model.safetensors.index.json`, one of these files, or a name for
        `download.local_path`.
      flag_name: the flag that gave the path, for messages.

    Raises:
      InputError: if there is no checkpoint, it can't be read, or it is a pickled PyTorch file.
    """
    prefix = find_checkpoint(os.fspath(path), flag_name)
    if prefix.endswith(_HF_SUFFIXES):
        return _open_hf(prefix, flag_name)
    shapes, read = open_bundle(prefix, f"{flag_name}: ")
    if "_CHECKPOINTABLE_OBJECT_GRAPH" in shapes:
        return _open_garden(prefix, shapes, read, flag_name)
    return CheckpointSource(prefix, "tf1", shapes, read)


def find_checkpoint(path: str, flag_name: str = "--init_checkpoint") -> str:
    """Finds the checkpoint prefix or the safetensors file for a path or a name.

    In a folder, this is the first of the following that exists:

    1. The checkpoint with which a run is evaluated: the best one on the dev set if the run kept it, or else the newest
       one. If the folder contains several trials, the best trial's.
    2. `model.safetensors`, or `model.safetensors.index.json` for weights in several files.
    3. The only TensorFlow checkpoint in the folder.

    Raises:
      InputError: if there is no checkpoint, more than one, or only a pickled one.
    """
    path = download.local_path(path, flag_name)
    if path.endswith(_PICKLE_SUFFIXES):
        raise InputError(f"{flag_name}: {path}: {NO_PICKLES}")
    if files.is_folder(path):
        return _find_in_folder(path, flag_name)
    prefix = path.removesuffix(".index").removesuffix(".data-00000-of-00001")
    if files.exists(f"{prefix}.index") or (path.endswith(_HF_SUFFIXES) and files.exists(path)):
        return prefix
    raise InputError(
        f"{flag_name}: there is no checkpoint {path!r}. Use a prefix (.../bert_model.ckpt), a run's folder, a folder "
        f"with {SAFETENSORS_FILE}, or owner/name on the Hugging Face Hub (hf://owner/name if a folder 'owner' exists)."
    )


def _find_in_folder(folder: str, flag_name: str) -> str:
    evaluated = latest_checkpoint(run_directory.evaluated_folder(run_directory.folder_of_model(folder)))
    if evaluated:
        return evaluated
    names = files.list_folder(folder)
    for name in (SAFETENSORS_FILE, SHARDS_FILE):
        if name in names:
            return os.path.join(folder, name)
    prefixes = [name.removesuffix(".index") for name in names if name.endswith(".index")]
    if len(prefixes) == 1:
        return os.path.join(folder, prefixes[0])
    if prefixes:
        raise InputError(f"{flag_name}: {folder}: several checkpoints ({', '.join(prefixes)}). Name one of them.")
    is_pickled = any(name.endswith(_PICKLE_SUFFIXES) for name in names)
    raise InputError(
        f"{flag_name}: {folder}: no {SAFETENSORS_FILE} and no TensorFlow checkpoint (*.index). "
        + (NO_PICKLES if is_pickled else "Pass the folder of a model.")
    )


def _open_hf(path: str, flag_name: str) -> CheckpointSource:
    tensors: dict[str, Any] = {}
    for shard in _shards(path, flag_name):
        with files.open_file(shard, "rb") as reader:
            data = reader.read()
        try:
            tensors.update(safetensors.deserialize(data))
            found = _CRC.search(data, 8, 8 + int.from_bytes(data[:8], "little"))
            if found and found[1] != _checksum(data, *found.span(1)):
                raise safetensors.SafetensorError("the checksum does not match")
        except safetensors.SafetensorError as error:
            raise InputError(f"{flag_name}: {shard}: damaged ({error}). Download or copy the file again.") from None
    ignored = tuple(name for name in tensors if re.fullmatch(variable_names.HF_COPIES, name))
    stored = {variable_names.hf_to_released(name): name for name in tensors if name not in ignored}
    if None in stored:
        raise InputError(f"{flag_name}: {path}: {stored[None]} is not a tensor of BERT. Use another model.")

    def read(released: str) -> np.ndarray:
        tensor = tensors[stored[released]]
        if tensor["dtype"] not in _SAFETENSORS_DTYPES:
            known = ", ".join(_SAFETENSORS_DTYPES)
            raise InputError(f"{flag_name}: {path}: {stored[released]} is of type {tensor['dtype']}. Use {known}.")
        dtype = _SAFETENSORS_DTYPES[tensor["dtype"]]
        array = np.frombuffer(tensor["data"], dtype).reshape(tensor["shape"]).astype(np.float32)
        return array.T if variable_names.hf_is_transposed(released) else array

    def shape(released: str) -> tuple[int, ...]:
        stored_shape = tuple(tensors[stored[released]]["shape"])
        return stored_shape[::-1] if variable_names.hf_is_transposed(released) else stored_shape

    return CheckpointSource(path, "hf", {name: shape(name) for name in stored}, read, ignored)


class _ShardsFile(TypedDict):
    weight_map: dict[str, str]


def _shards(path: str, flag_name: str) -> list[str]:
    """Returns the safetensors files of a model: the file itself, or those listed in an index."""
    if not path.endswith(SHARDS_FILE):
        return [path]
    shards = json_files.read(path, flag_name, _ShardsFile)["weight_map"].values()
    folder = os.path.dirname(path)
    return [files.require_file(os.path.join(folder, shard), flag_name) for shard in sorted(set(shards))]


def _open_garden(prefix: str, stored_shapes: Shapes, read_stored: ReadTensor, flag_name: str) -> CheckpointSource:
    stored, ignored, unknown = variable_names.garden_names(stored_shapes)
    if unknown or "bert/embeddings/word_embeddings" not in stored:
        found = ", ".join(unknown[:3]) or "no word embeddings"
        raise InputError(
            f"{flag_name}: {prefix} is a TensorFlow 2 checkpoint, but not a BERT encoder of Model Garden ({found}). "
            "Use another checkpoint."
        )

    def shape(released: str) -> tuple[int, ...]:
        # Model Garden has separate axes for N heads of size D: [H, N, D], [N, D, H] and [N, D]. The original shapes are
        # [H, H], [H, H] and [H].
        dims = stored_shapes[stored[released]]
        if re.search(r"attention/self/\w+/bias$", released):
            return (math.prod(dims),)
        if re.search(r"attention/self/\w+/kernel$", released):
            return dims[0], math.prod(dims[1:])
        if released.endswith("attention/output/dense/kernel"):
            return math.prod(dims[:-1]), dims[-1]
        return dims

    def read(released: str) -> np.ndarray:
        return read_stored(stored[released]).reshape(shape(released))

    return CheckpointSource(prefix, "garden", {name: shape(name) for name in stored}, read, tuple(ignored))
