"""Reads PyTorch's weights (`pytorch_model.bin`) without PyTorch and without running code.

Since version 1.6, PyTorch writes a zip file, which contains a pickle with descriptions of tensors and the uncompressed
data. This unpickler creates only dictionaries, numbers, texts and descriptions of tensors. Other globals are errors.
"""

import collections
import io
import math
import pickle
import zipfile
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from bert_tf.checkpoints.saver import ReadTensor, Shapes
from bert_tf.runtime import files
from bert_tf.runtime.errors import InputError, check

# The first bytes of a file written by PyTorch before version 1.6: a pickled number.
_OLDER_FORM = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
# For comparison: the pickle of BERT-Large has about 60 kB.
_MAX_PICKLE_BYTES = 1 << 24
_KINDS = {"Float": "f4", "Double": "f8", "Half": "f2", "BFloat16": ml_dtypes.bfloat16, "Long": "i8"}
_DTYPES = {f"{name}Storage": np.dtype(kind) for name, kind in _KINDS.items()}


class _Tensor(tuple):
    """The description of a tensor: storage (key, type and size), offset, shape and strides, in elements."""


def _tensor(*described: Any) -> _Tensor:
    """Replaces PyTorch's `_rebuild_tensor_v2`: returns a description instead of a tensor."""
    kind = tuple[tuple[str, str, int], int, tuple[int, ...], tuple[int, ...]]
    (_, _, size), offset, shape, strides = tensor = _Tensor(check(described[:4], kind, "a tensor"))
    last = offset + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
    if min((offset, *shape, *strides)) < 0 or max(math.prod(shape), last + 1) > size:
        raise ValueError(f"a tensor of shape {list(shape)} is larger than its data")
    return tensor


_GLOBALS = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
    **{("torch", name): name for name in _DTYPES},
}


class _Unpickler(pickle._Unpickler):
    """Creates descriptions of tensors.

    The base class is the version in Python, because a few bytes can make the memo of `pickle.Unpickler` fill the
    memory.
    """

    # Skip the state of objects. Only dictionaries have a state here, which is a version number.
    dispatch: ClassVar = pickle._Unpickler.dispatch | {pickle.BUILD[0]: lambda self: self.stack.pop()}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _GLOBALS:
            raise ValueError(f"it refers to {module}.{name}, which is not a part of a tensor")
        return _GLOBALS[module, name]

    def persistent_load(self, identity: Any) -> tuple[str, str, int]:
        _, dtype, key, _, size = identity
        return key, dtype, size


def open_torch(path: str, where: str) -> tuple[Shapes, ReadTensor]:
    """Opens a file of `torch.save`.

    Args:
      path: the file.
      where: the beginning of error messages.

    Raises:
      InputError: if PyTorch before 1.6 wrote the file, or it is damaged, or it contains anything except tensors. The
        returned function also raises an InputError if the data of a tensor is damaged.
    """
    with files.open_file(path, "rb") as reader:
        if reader.read(len(_OLDER_FORM)) == _OLDER_FORM:
            raise InputError(
                f"{where}: PyTorch's older file format, from before version 1.6, is not read. In PyTorch, run "
                "torch.save(torch.load(PATH, weights_only=True), PATH)."
            )
    try:
        root, tensors = _parsed(path)
    except Exception as error:  # a damaged pickle or zip file can raise errors of many classes
        found = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"{where}: not a file of a model's weights, or damaged ({found}). Nothing in it was run. Save the weights "
            "alone with save_pretrained, or copy the file again."
        ) from None

    def read(name: str) -> np.ndarray:
        (key, kind, size), offset, shape, strides = tensors[name]
        try:
            flat = np.frombuffer(_entry(path, f"{root}/data/{key}", size * _DTYPES[kind].itemsize), _DTYPES[kind])
        except Exception as error:  # as above
            raise InputError(f"{name} is damaged ({error}). Copy the file again.", where) from None
        steps = [stride * flat.itemsize for stride in strides]
        return np.lib.stride_tricks.as_strided(flat[offset:], shape, steps, writeable=False).astype(np.float32)

    return {name: tensor[2] for name, tensor in tensors.items()}, read


def _parsed(path: str) -> tuple[str, dict[str, _Tensor]]:
    """Returns the directory in the zip file, and the tensors by name."""
    with files.open_file(path, "rb") as file, zipfile.ZipFile(file) as archive:
        names = archive.namelist()
    (pickled,) = (name for name in names if name.count("/") == 1 and name.endswith("/data.pkl"))
    root = pickled.partition("/")[0]
    if f"{root}/byteorder" in names and _entry(path, f"{root}/byteorder") != b"little":
        raise ValueError("its numbers are not little-endian")
    tensors = _Unpickler(io.BytesIO(_entry(path, pickled))).load()
    for name, tensor in check(tensors, dict, "the content").items():
        if not isinstance(name, str) or not isinstance(tensor, _Tensor):
            raise ValueError(f"{name!r:.60} is not a tensor")
    return root, dict(tensors)


def _entry(path: str, name: str, size: int | None = None) -> bytes:
    """Returns the content of an uncompressed file in a zip file, after checking its size and its checksum."""
    with files.open_file(path, "rb") as file, zipfile.ZipFile(file) as archive:
        entry = archive.getinfo(name)
        if entry.compress_type != zipfile.ZIP_STORED or (size is None and entry.file_size > _MAX_PICKLE_BYTES):
            raise ValueError(f"{name} is compressed or too large")
        if size not in (None, entry.file_size):
            raise ValueError(f"{name} has {entry.file_size} bytes instead of {size}")
        return archive.read(entry)
