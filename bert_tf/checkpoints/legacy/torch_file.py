"""Reads PyTorch's weights (`pytorch_model.bin`) without PyTorch and without running code.

Since version 1.6, PyTorch writes a zip file, which contains a pickle with descriptions of tensors and the uncompressed
data. Earlier versions wrote five pickles (a magic number, the version of the format, the byte order, the descriptions,
and the keys of the data), and then the number of elements and the data for each key.

The unpickler accepts only the operations that `torch.save` uses for weights. It creates only dictionaries with texts as
keys, lists, tuples, numbers, texts and descriptions of tensors. Other globals are errors. A value may refer to another
value many times, so the unpickled values are never printed, compared or hashed.
"""

import io
import math
import pickle
import struct
import zipfile
import zlib
from typing import Annotated, Any, ClassVar, Literal

import ml_dtypes
import msgspec
import numpy as np

from bert_tf.checkpoints.saver import ReadTensor, Shapes
from bert_tf.runtime import files
from bert_tf.runtime.errors import InputError

# The first bytes of a file written by PyTorch before version 1.6: a pickled number.
_OLDER_FORM = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
# For comparison: the pickle of BERT-Large has about 60 kB.
_MAX_PICKLE_BYTES = 1 << 20
_KINDS = {"Float": "f4", "Double": "f8", "Half": "f2", "BFloat16": ml_dtypes.bfloat16, "Long": "i8"}
_DTYPES = {f"{name}Storage": np.dtype(kind) for name, kind in _KINDS.items()}
# The operations that `torch.save` uses, by their names in the module `pickle`.
_OPERATIONS = (
    *("PROTO", "STOP", "MARK", "GLOBAL", "REDUCE", "BINPERSID", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
    *("NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINSTRING"),
    *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT"),
)

_Sizes = Annotated[tuple[int, ...], msgspec.Meta(max_length=8)]
_Data = tuple[int, int, int | None]  # position in the file, bytes, and the checksum in a zip file
_Storage = tuple[str, Literal[tuple(_DTYPES)], int]  # key, type and number of elements


class _Tensor(tuple):
    """The description of a tensor: storage (key, type and size), offset, shape and strides, in elements."""


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, _grad: Any = None, _hooks: Any = None) -> _Tensor:
    """Replaces PyTorch's `_rebuild_tensor_v2`: returns a description instead of a tensor."""
    fields = msgspec.convert((storage, offset, shape, strides), tuple[_Storage, int, _Sizes, _Sizes])
    (_, _, size), offset, shape, strides = tensor = _Tensor(fields)
    if min((offset, *shape, *strides)) < 0 or max(math.prod(shape), offset + _span(shape, strides)) > size:
        raise ValueError(f"a tensor of shape {list(shape)} is larger than its data")
    return tensor


def _dictionary() -> dict[str, Any]:
    """Replaces `OrderedDict`. It takes no arguments, because these could contain keys that take forever to hash."""
    return {}


def _span(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Returns the number of elements from the first to the last element of a tensor."""
    return 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True)) if all(shape) else 0


_GLOBALS = {
    ("collections", "OrderedDict"): _dictionary,
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): lambda tensor, grad, hooks: tensor,
    **{("torch", name): name for name in _DTYPES},
}


class _Operations(dict):
    def __missing__(self, code: int) -> Any:
        raise ValueError(f"the operation {code:#x} of its pickle is not used for weights")


class _Unpickler(pickle._Unpickler):
    """Creates descriptions of tensors.

    The base class is the version in Python, because a few bytes can make the memo of `pickle.Unpickler` fill the
    memory.
    """

    dispatch: ClassVar = _Operations(
        {getattr(pickle, name)[0]: pickle._Unpickler.dispatch[getattr(pickle, name)[0]] for name in _OPERATIONS}
        | {
            pickle.SETITEM[0]: lambda self: self.set_items([self.stack.pop(-2), self.stack.pop()]),
            pickle.SETITEMS[0]: lambda self: self.set_items(self.pop_mark()),
            # Skip the state of objects. Only dictionaries have a state here, which is a version number.
            pickle.BUILD[0]: lambda self: self.stack.pop(),
        }
    )

    def set_items(self, items: list[Any]) -> None:
        """Adds keys and values, in turn, to the dictionary at the top of the stack."""
        for name, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(name, str):
                raise ValueError("a key of a dictionary is not a text")
            self.stack[-1][name] = value

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _GLOBALS:
            raise ValueError(f"it refers to {module}.{name}, which is not a part of a tensor")
        return _GLOBALS[module, name]

    def persistent_load(self, identity: Any) -> tuple[Any, Any, Any]:
        _, dtype, key, _, size, *view = identity  # the fourth part is the device
        if view and view != [None]:
            raise ValueError("it contains a view of a storage")
        return key, dtype, size


def open_torch(path: str, where: str) -> tuple[Shapes, ReadTensor]:
    """Opens a file of `torch.save`.

    Args:
      path: the file.
      where: the beginning of error messages.

    Raises:
      InputError: if the file is damaged, or contains anything except tensors. The returned function also raises an
        InputError if the data of a tensor is damaged.
    """
    try:
        tensors, stored = _parsed(path)
    except Exception as error:  # a damaged pickle or zip file can raise errors of many classes
        problem = " ".join(str(error).split()) or type(error).__name__
        remedy = "Save the weights alone with save_pretrained, or copy the file again."
        problem = f"not a file of a model's weights, or damaged ({problem:.200}). Nothing in it was run"
        raise InputError(f"{where}: {problem}. {remedy}") from None
    checked: set[str] = set()

    def read(name: str) -> np.ndarray:
        (key, kind, size), offset, shape, strides = tensors[name]
        dtype, (start, _, crc) = _DTYPES[kind], stored[key]
        # The first reader of a storage reads all of it for the checksum. Other tensors may share the storage.
        first, count = (offset, _span(shape, strides)) if key in checked else (0, size)
        with files.open_file(path, "rb") as reader:
            reader.seek(start + first * dtype.itemsize)
            content = reader.read(count * dtype.itemsize)
        if key not in checked and crc not in (None, zlib.crc32(content)):
            raise InputError(f"{name} is damaged (the checksum does not match). Copy the file again.", where)
        checked.add(key)
        flat = np.frombuffer(content, dtype)[offset - first :]
        steps = [stride * dtype.itemsize for stride in strides]
        array = np.lib.stride_tricks.as_strided(flat, shape, steps, writeable=False)
        return array if dtype.kind == "i" else array.astype(np.float32)

    return {name: tensor[2] for name, tensor in tensors.items()}, read


def _parsed(path: str) -> tuple[dict[str, _Tensor], dict[str, _Data]]:
    """Returns the descriptions of the tensors by name, and the positions of the data by key."""
    with files.open_file(path, "rb") as reader:
        is_older = reader.read(len(_OLDER_FORM)) == _OLDER_FORM
        reader.seek(0)
        tensors, stored = (_parsed_pickles if is_older else _parsed_zip)(reader)
    for name, tensor in tensors.items():
        key, kind, size = tensor[0]
        start, num_bytes, _ = stored[key]
        if num_bytes != size * _DTYPES[kind].itemsize or start + num_bytes > files.size(path):
            raise ValueError(f"the data of {name} has another size")
    return tensors, stored


def _tensors(unpickled: Any) -> dict[str, _Tensor]:
    if not isinstance(unpickled, dict):
        raise ValueError("the content is not a dictionary")
    for name, tensor in unpickled.items():
        if not isinstance(tensor, _Tensor):
            raise ValueError(f"{name[:60]!r} is not a tensor")
    return unpickled


def _parsed_zip(reader: Any) -> tuple[dict[str, _Tensor], dict[str, _Data]]:
    with zipfile.ZipFile(reader) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        if len(entries) < len(archive.infolist()):
            raise ValueError("two of its files have the same name")
        (pickled,) = (name for name in entries if name.count("/") == 1 and name.endswith("/data.pkl"))
        root = pickled.partition("/")[0]
        for name in entries.keys() & {pickled, f"{root}/byteorder"}:
            if entries[name].compress_type != zipfile.ZIP_STORED or entries[name].file_size > _MAX_PICKLE_BYTES:
                raise ValueError(f"{name} is compressed or too large")
        if f"{root}/byteorder" in entries and archive.read(f"{root}/byteorder") != b"little":
            raise ValueError("its numbers are not little-endian")
        tensors = _tensors(_Unpickler(io.BytesIO(archive.read(pickled))).load())

    stored = {}
    for (key, _, _), *_ in tensors.values():
        entry = entries[f"{root}/data/{key}"]
        reader.seek(entry.header_offset + 26)
        start = reader.tell() + 4 + sum(struct.unpack("<HH", reader.read(4)))  # after the name and the extra field
        # The checksum does not match compressed data.
        stored[key] = start, entry.file_size, entry.CRC
    return tensors, stored


def _parsed_pickles(reader: Any) -> tuple[dict[str, _Tensor], dict[str, _Data]]:
    pickles = io.BytesIO(reader.read(_MAX_PICKLE_BYTES))
    _, _, system, unpickled, keys = (_Unpickler(pickles).load() for _ in range(5))
    if system["little_endian"] is not True:
        raise ValueError("its numbers are not little-endian")
    tensors = _tensors(unpickled)
    kinds = {key: kind for (key, kind, _), *_ in tensors.values()}
    stored, start = dict[str, _Data](), pickles.tell()
    for key in msgspec.convert(keys, list[str]):
        reader.seek(start)
        (size,) = struct.unpack("<q", reader.read(8))
        stored[key] = start + 8, size * _DTYPES[kinds[key]].itemsize, None
        start = sum(stored[key][:2])
    return tensors, stored
