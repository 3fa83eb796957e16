"""Opens checkpoints in the formats of the release, of Hugging Face and of Model Garden.

Training runs of this project write the release's format: a TensorFlow bundle with the released variable names,
`global_step` and the optimizer's slots. So the original code can load them, and one function reads both kinds.
"""

import dataclasses
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

import ml_dtypes
import numpy as np
import safetensors

from bert_tf.checkpoints import download, foreign_names, run_directory
from bert_tf.checkpoints.download import NO_PICKLES, SAFETENSORS_FILE, SHARDS_FILE
from bert_tf.checkpoints.saver import READ_ERRORS, latest_checkpoint, open_reader
from bert_tf.runtime import files, json_files
from bert_tf.runtime.files import InputError

_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".pkl")


@dataclasses.dataclass(frozen=True)
class CheckpointSource:
    """A checkpoint in any format, with the released names for its tensors.

    Attributes:
      path: the file or the prefix that was opened.
      kind: "tf1" (the release's format, which is also ours), "hf" or "garden".
      shapes: released name -> shape, for every tensor that has a released name.
      read: returns the tensor with a released name.
      ignored: stored names of the tensors that are ignored on purpose.
    """

    path: str
    kind: str
    shapes: Mapping[str, tuple[int, ...]] = dataclasses.field(repr=False)
    read: Callable[[str], np.ndarray] = dataclasses.field(repr=False)
    ignored: tuple[str, ...] = dataclasses.field(default=(), repr=False)


def open_checkpoint(path: str | os.PathLike[str], flag_name: str = "--init_checkpoint") -> CheckpointSource:
    """Opens a checkpoint and recognises its format.

    Args:
      path: the prefix of a TensorFlow checkpoint (the release's, Model Garden's or ours), a training folder, a folder
        with `model.safetensors` or `model.safetensors.index.json`, that file, or a name that `download.local_path`
        knows.
      flag_name: the flag that gave the path, for messages.

    Raises:
      InputError: if there is no checkpoint, if it can't be read, or if it is a pickled PyTorch file.
    """
    prefix = find_checkpoint(os.fspath(path), flag_name)
    if prefix.endswith(_HF_SUFFIXES):
        return _open_hf(prefix, flag_name)
    try:
        reader = open_reader(prefix)
    except READ_ERRORS as error:
        raise InputError(f"{flag_name}: {prefix} can't be read as a TensorFlow checkpoint ({error}).") from None
    stored = reader.get_variable_to_shape_map()
    if "_CHECKPOINTABLE_OBJECT_GRAPH" in stored:
        return _open_garden(prefix, reader, flag_name)
    shapes = {name: tuple(shape) for name, shape in stored.items()}
    return CheckpointSource(prefix, "tf1", shapes, lambda name: _read_tensor(reader, name, prefix, flag_name))


def find_checkpoint(path: str, flag_name: str = "--init_checkpoint") -> str:
    """Finds the checkpoint prefix or the safetensors file for a path or a name.

    In a folder, this is the first of the following that exists:

    1. The checkpoint with which a training run is evaluated: the best one on the dev set if the run kept it, otherwise
       the newest one. If the folder contains several trials, those of the best trial are used.
    2. `model.safetensors`, or `model.safetensors.index.json` for weights in several files.
    3. The only TensorFlow checkpoint in the folder.

    Raises:
      InputError: if there is no checkpoint, more than one, or only a pickled one.
    """
    if path.endswith(_PICKLE_SUFFIXES):
        raise InputError(f"{flag_name}: {path}: {NO_PICKLES}")
    path = download.local_path(path, flag_name)
    if files.is_folder(path):
        evaluated = latest_checkpoint(run_directory.evaluated_folder(run_directory.folder_of_model(path)))
        if evaluated:
            return evaluated
        for name in (SAFETENSORS_FILE, SHARDS_FILE):
            if files.exists(os.path.join(path, name)):
                return os.path.join(path, name)
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
                raise InputError(f"{flag_name}: {os.path.join(path, name)}: {NO_PICKLES}")
        raise InputError(
            f"{flag_name}: the folder {path} holds no checkpoint (a TensorFlow *.index file or {SAFETENSORS_FILE})."
        )
    prefix = path.removesuffix(".index").removesuffix(".data-00000-of-00001")
    if files.exists(f"{prefix}.index") or (path.endswith(_HF_SUFFIXES) and files.exists(path)):
        return prefix
    raise InputError(
        f"{flag_name}: there is no checkpoint {path!r}. Give the prefix (…/bert_model.ckpt, without .index or .data), "
        f"a training folder, a folder with {SAFETENSORS_FILE}, or the name of a repository on the Hugging Face Hub "
        "with its owner (google-bert/bert-base-uncased; hf://owner/name where there is a folder of the owner's name)."
    )


def _read_tensor(reader: Any, name: str, prefix: str, flag_name: str) -> np.ndarray:
    try:
        return reader.get_tensor(name)
    except READ_ERRORS as error:
        raise InputError(f"{flag_name}: {prefix} is damaged: {name} can't be read ({error}).") from None


def _open_hf(path: str, flag_name: str) -> CheckpointSource:
    tensors = _read_shards(path, flag_name) if path.endswith(SHARDS_FILE) else _read_safetensors(path, flag_name)
    stored: dict[str, str] = {}
    ignored: list[str] = []
    for name in tensors:
        released = foreign_names.hf_to_released(name)
        if re.fullmatch(foreign_names.HF_COPIES, name):
            ignored.append(name)
        elif released is None:
            raise InputError(f"{flag_name}: {path} holds {name!r}, which is not the name of a tensor of BERT.")
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


def _read_safetensors(path: str, flag_name: str) -> dict[str, dict[str, Any]]:
    with files.open_file(path, "rb") as reader:
        data = reader.read()
    try:
        return dict(safetensors.deserialize(data))
    except safetensors.SafetensorError as error:
        raise InputError(f"{flag_name}: {path} is not a whole safetensors file ({error}).") from None


class _ShardsFile(TypedDict):
    weight_map: dict[str, str]


def _read_shards(path: str, flag_name: str) -> dict[str, dict[str, Any]]:
    """Reads the tensors of all files that an index names."""
    shard_of = json_files.read(path, flag_name, _ShardsFile)["weight_map"]
    if not shard_of:
        raise InputError(f"{flag_name}: {path} has no weight_map, which says in which file each tensor is.")
    tensors: dict[str, dict[str, Any]] = {}
    for shard in sorted(set(shard_of.values())):
        shard_path = os.path.join(os.path.dirname(path), shard)
        if os.path.basename(shard) != shard or not files.exists(shard_path):
            raise InputError(f"{flag_name}: {path} names the file {shard!r}, which is not beside it.")
        tensors |= _read_safetensors(shard_path, flag_name)
    missing = [f"{name} (of {shard})" for name, shard in shard_of.items() if name not in tensors]
    if missing:
        raise InputError(f"{flag_name}: {path} names tensors that are in none of its files: {', '.join(missing)}.")
    return tensors


_HF_SUFFIXES = (".safetensors", SHARDS_FILE)
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
        # Model Garden has separate axes for N heads of size D: [H, N, D], [N, D, H] and [N, D], where the release has
        # [H, H], [H, H] and [H].
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
