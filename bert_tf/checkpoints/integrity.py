"""Tells whether a checkpoint is whole, by checksums that are recorded beside it or, without them, by reading it."""

import os
import zlib
from typing import Any, TypedDict

import tensorflow as tf

from bert_tf.runtime import files, json_files
from bert_tf.runtime.files import InputError

# TensorFlow's reader has no error class of its own.
READ_ERRORS = (tf.errors.OpError, IndexError, RuntimeError, ValueError)
CHECKSUMS_SUFFIX = ".checksums.json"
# The files of a checkpoint that a run of this project writes.
SUFFIXES = (".index", ".data-00000-of-00001")

_BLOCK_BYTES = 1 << 22


class _Checksum(TypedDict):
    bytes: int
    crc32: str


def record(prefix: str) -> None:
    """Writes the sizes and the checksums of a checkpoint's files into a file beside them.

    The checksum is CRC-32, which finds accidental damage, and is quick on gigabytes.
    """
    paths = [prefix + suffix for suffix in SUFFIXES]
    checksums = {os.path.basename(path): {"bytes": files.size(path), "crc32": _crc32(path)} for path in paths}
    files.write_json(prefix + CHECKSUMS_SUFFIX, checksums)
    _known[prefix, _stamps(prefix)] = ""


def damage(prefix: str) -> str:
    """What is wrong with a checkpoint; "" if it is whole. A process reads the files again only if they have changed."""
    stamps = _stamps(prefix)
    if (prefix, stamps) not in _known:
        _known[prefix, stamps] = _damage(prefix)
    return _known[prefix, stamps]


# (prefix, size and time of each file) -> what is wrong.
_known: dict[tuple[str, tuple], str] = {}


def _stamps(prefix: str) -> tuple[tuple[int, int] | None, ...]:
    return tuple(files.stamp(prefix + suffix) for suffix in (*SUFFIXES, CHECKSUMS_SUFFIX))


def _damage(prefix: str) -> str:
    if not files.exists(f"{prefix}.index"):
        return f"{os.path.basename(prefix)}.index is missing"
    kind = kind_of_files(prefix)
    if kind:
        return kind
    has_checksums = files.exists(prefix + CHECKSUMS_SUFFIX)
    return _difference_from_checksums(prefix) if has_checksums else _unreadable_part(prefix)


def kind_of_files(prefix: str) -> str:
    """Says which file of a checkpoint is no regular file, as reading a pipe would never end; otherwise ""."""
    for path in [] if files.is_remote(prefix) else [prefix + suffix for suffix in SUFFIXES]:
        if files.kind_of(path):
            return f"{os.path.basename(path)} is {files.kind_of(path)}, not a regular file"
    return ""


def _difference_from_checksums(prefix: str) -> str:
    try:
        recorded = json_files.read(prefix + CHECKSUMS_SUFFIX, "--output_dir", dict[str, _Checksum])
        expected = {name: (values["bytes"], values["crc32"]) for name, values in recorded.items()}
    except InputError as error:
        return f"its checksums can't be read: {error}"
    for name, (size, checksum) in expected.items():
        path = os.path.join(os.path.dirname(prefix), name)
        if not files.exists(path):
            return f"{name} is missing"
        if files.size(path) != size:
            return f"{name} has {files.size(path)} bytes, not {size}"
        if _crc32(path) != checksum:
            return f"the content of {name} does not have the checksum that was recorded"
    return ""


def _unreadable_part(prefix: str) -> str:
    """Reads every tensor of a checkpoint without recorded checksums; TensorFlow has a checksum of each."""
    try:
        reader = open_reader(prefix)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except READ_ERRORS as error:
        return f"it can't be read: {error}"
    return ""


def open_reader(prefix: str) -> Any:
    """Opens a checkpoint with TensorFlow's reader, which raises `READ_ERRORS`."""
    folder, name = os.path.split(prefix)
    return tf.train.load_checkpoint(os.path.join(files.plain_name(folder), name))


def _crc32(path: str) -> str:
    checksum = 0
    with files.open_file(path, "rb") as reader:
        while block := reader.read(_BLOCK_BYTES):
            checksum = zlib.crc32(block, checksum)
    return f"{checksum:08x}"
