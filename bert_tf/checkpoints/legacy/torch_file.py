"""Reads PyTorch's weights (`pytorch_model.bin`) without PyTorch and without running code.

Since version 1.6, PyTorch writes a zip file. A pickle in it describes the tensors; their data is stored uncompressed.
This unpickler creates dictionaries, numbers, texts and descriptions of tensors. Any other global is refused by name.
"""

import collections
import io
import math
import pickle
import zipfile
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import ml_dtypes
import numpy as np

from bert_tf.checkpoints.saver import ReadTensor, Shapes
from bert_tf.runtime import files
from bert_tf.runtime.errors import InputError, check

# The beginning of a file in the form that PyTorch wrote before version 1.6: a pickled number.
_OLDER_FORM = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
# The pickle of BERT-Large has about 60 kB.
_MAX_PICKLE_BYTES = 1 << 24
_DTYPES = {
    "FloatStorage": np.dtype(np.float32),
    "DoubleStorage": np.dtype(np.float64),
    "HalfStorage": np.dtype(np.float16),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "LongStorage": np.dtype(np.int64),
}


class _Storage(NamedTuple):
    key: str
    dtype: np.dtype
    size: int


class _Tensor(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _Tensor:
    """Does what `_rebuild_tensor_v2` does, without the data."""
    tensor = check([storage, offset, shape, strides], tuple[tuple, int, tuple[int, ...], tuple[int, ...]], "a tensor")
    if not isinstance(storage, _Storage) or min((offset, *shape, *strides), default=0) < 0:
        raise ValueError("a tensor has no valid storage")
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if max(math.prod(shape), last + 1) > storage.size:
        raise ValueError(f"a tensor of shape {list(shape)} is larger than its data")
    return _Tensor(storage, *tensor[1:])


_GLOBALS = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
    **{("torch", name): name for name in _DTYPES},
}


class _Unpickler(pickle._Unpickler):
    """Creates descriptions of tensors.

    This base class is written in Python. A few bytes can make the memo of `pickle.Unpickler` fill the memory.
    """

    # The state of an object is skipped: the only objects with a state are dictionaries, where it is a version number.
    dispatch: ClassVar[dict[int, Callable]] = pickle._Unpickler.dispatch | {
        pickle.BUILD[0]: lambda self: self.stack.pop()
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _GLOBALS:
            raise ValueError(f"it refers to {module}.{name}, which is not a part of a tensor")
        return _GLOBALS[module, name]

    def persistent_load(self, identity: Any) -> _Storage:
        kind, dtype, key, _, size = identity
        if kind != "storage" or dtype not in _DTYPES:
            raise ValueError(f"unknown storage {dtype!r:.60}")
        return check([key, _DTYPES[dtype], size], _Storage, "a storage")


def open_torch(path: str, where: str) -> tuple[Shapes, ReadTensor]:
    """Opens a file of `torch.save`.

    Args:
      path: the file.
      where: the beginning of error messages.

    Raises:
      InputError: if the file has the form of PyTorch before 1.6, is damaged, or contains anything but tensors. The
        returned function raises it if the data of a tensor is damaged.
    """
    with files.open_file(path, "rb") as reader:
        start = reader.read(len(_OLDER_FORM))
    if start == _OLDER_FORM:
        raise InputError(
            f"{where}: PyTorch's older file format, from before version 1.6, is not read. In PyTorch, run "
            "torch.save(torch.load(PATH, weights_only=True), PATH)."
        )
    root, order, tensors = _parsed(path, where)

    def read(name: str) -> np.ndarray:
        storage, offset, shape, strides = tensors[name]
        try:
            data = _entry(path, f"{root}/data/{storage.key}", storage.size * storage.dtype.itemsize)
        except Exception as error:  # as below
            raise InputError(f"{name} is damaged ({error}). Copy the file again.", where) from None
        flat = np.frombuffer(data, storage.dtype.newbyteorder(order))[offset:]
        steps = [stride * flat.itemsize for stride in strides]
        return np.lib.stride_tricks.as_strided(flat, shape, steps, writeable=False).astype(np.float32)

    return {name: tensor.shape for name, tensor in tensors.items()}, read


def _parsed(path: str, where: str) -> tuple[str, str, dict[str, _Tensor]]:
    """Returns the directory in the zip file, the byte order, and the tensors by name."""
    try:
        with files.open_file(path, "rb") as file, zipfile.ZipFile(file) as archive:
            names = archive.namelist()
        (pickled,) = (name for name in names if name.count("/") == 1 and name.endswith("/data.pkl"))
        root = pickled.partition("/")[0]
        order = "<"
        if f"{root}/byteorder" in names and _entry(path, f"{root}/byteorder") == b"big":
            order = ">"
        tensors = _Unpickler(io.BytesIO(_entry(path, pickled))).load()
        if not isinstance(tensors, dict):
            raise ValueError("it is not a dictionary of tensors")
        for name, tensor in tensors.items():
            if not isinstance(name, str) or not isinstance(tensor, _Tensor):
                raise ValueError(f"{name!r:.60} is not a tensor")
    except Exception as error:  # a damaged pickle or zip file can raise errors of many classes
        found = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"{where}: not a file of a model's weights, or damaged ({found}). Nothing in it was run. Save the weights "
            "alone with save_pretrained, or copy the file again."
        ) from None
    return root, order, dict(tensors)


def _entry(path: str, name: str, size: int | None = None) -> bytes:
    """Returns the content of an uncompressed file in a zip file, after checking its size and its checksum."""
    with files.open_file(path, "rb") as file, zipfile.ZipFile(file) as archive:
        entry = archive.getinfo(name)
        if entry.compress_type != zipfile.ZIP_STORED or (size is None and entry.file_size > _MAX_PICKLE_BYTES):
            raise ValueError(f"{name} is compressed or too large")
        if size not in (None, entry.file_size):
            raise ValueError(f"{name} has {entry.file_size} bytes instead of {size}")
        return archive.read(entry)
