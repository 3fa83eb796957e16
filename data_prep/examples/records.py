"""Examples to TFRecord bytes, whole batches at once, without TensorFlow.

The bytes are those of `tf.train.Example.SerializeToString(deterministic=True)`, framed as `tf.io.TFRecordWriter` does;
TensorFlow itself would need a Python object for every feature of every record, and half a gigabyte in each process.

A record is an `Example` message: a map from names to lists of numbers, sorted by name. Integers are varints, so a
record is as long as its numbers are large; everything that is equally long in all records of a batch is laid out as
one array.

Axis letters: B records, L numbers of a feature, W bytes.
"""

import functools
import itertools
import struct
from collections.abc import Iterator, Mapping, Sequence

import google_crc32c
import numpy as np

from bert_tf.sequences.example_format import Feature

_LENGTH_DELIMITED = 2
_FEATURES, _ENTRY, _KEY, _VALUE, _NUMBERS = 1, 1, 1, 2, 1  # field numbers in the messages of tf.train.Example
_FLOAT_LIST, _INT64_LIST = 2, 3
_CRC_MASK = 0xA282EAD8


def _varint(number: int) -> bytes:
    """A number in base 128, lowest digit first; all digits but the last have their top bit set."""
    digits = bytearray()
    while number >= 0x80:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)


@functools.cache
def _field(number: int, length: int) -> bytes:
    """What stands before a field of `length` bytes."""
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(length)


class _VarintTable:
    """The varints of all numbers below a limit, four bytes each, and which of the bytes belong to them."""

    def __init__(self, limit: int) -> None:
        if limit > 1 << 28:
            raise ValueError(f"numbers of up to {limit} don't fit into four bytes")
        numbers = np.arange(limit, dtype=np.uint32)
        self._bytes = np.zeros((limit, 4), np.uint8)
        self._is_part = np.zeros((limit, 4), bool)
        for digit in range(4):
            rest = numbers >> np.uint32(7 * digit)
            self._is_part[:, digit] = (rest > 0) | (digit == 0)
            self._bytes[:, digit] = rest & 0x7F | np.where(rest >= 0x80, 0x80, 0)
        self.lengths = self._is_part.sum(axis=1, dtype=np.uint8)

    def encode(self, numbers: np.ndarray) -> np.ndarray:
        """The bytes [W] of numbers [B, L], one after the other."""
        numbers = numbers.ravel()
        encoded = self._bytes.view(np.uint32).ravel().take(numbers).view(np.uint8)
        return encoded.compress(self._is_part.view(np.uint32).ravel().take(numbers).view(bool))


class RecordEncoder:
    """Turns batches of examples into TFRecords.

    Args:
      features: what each record holds.
      limit: integers are below.
    """

    def __init__(self, features: Sequence[Feature], limit: int) -> None:
        self._features = sorted(features, key=lambda feature: feature.name)
        self._table = _VarintTable(max(limit, 0x80))

    def encode(self, values: Mapping[str, np.ndarray]) -> list[bytes]:
        """The records of a batch, framed.

        Args:
          values: by feature, arrays [B, L].

        Returns:
          What a file of these records consists of, one piece after the other.

        Raises:
          ValueError: if an array's length isn't its feature's.
        """
        columns = [self._column(feature, values[feature.name]) for feature in self._features]
        bodies = [b"".join(parts) for parts in zip(*itertools.chain(*_joined(columns)), strict=True)]
        return _framed([_field(_FEATURES, len(body)) + body for body in bodies])

    def _column(self, feature: Feature, numbers: np.ndarray) -> "np.ndarray | tuple[list[bytes], list[bytes]]":
        """A feature's part of all records: an array [B, W] if they are equally long, else heads and bodies."""
        if numbers.shape[1] != feature.length:
            raise ValueError(f"{feature.name} has {numbers.shape[1]} numbers, but {feature.length} are expected")
        if feature.is_float:
            return _with_head(feature, np.ascontiguousarray(numbers, "<f4").view(np.uint8))
        if numbers.max() < 0x80:
            return _with_head(feature, numbers.astype(np.uint8))
        lengths = self._table.lengths.take(numbers).sum(axis=1).tolist()
        heads = {length: _head(feature, length) for length in set(lengths)}
        encoded = self._table.encode(numbers).tobytes()
        ends = list(itertools.accumulate(lengths))
        bodies = [encoded[end - length : end] for end, length in zip(ends, lengths, strict=True)]
        return [heads[length] for length in lengths], bodies


def _framed(records: list[bytes]) -> list[bytes]:
    """length (8 bytes), its checksum (4), the record, its checksum (4); one record after the other."""
    checksums = np.array([google_crc32c.value(record) for record in records], np.uint64)
    feet = _masked(checksums).astype("<u4").tobytes()
    parts: list[bytes] = []
    for i, record in enumerate(records):
        parts += (_frame_head(len(record)), record, feet[4 * i : 4 * i + 4])
    return parts


@functools.cache
def _frame_head(length: int) -> bytes:
    head = struct.pack("<Q", length)
    return head + struct.pack("<I", int(_masked(np.uint64(google_crc32c.value(head)))))


@functools.cache
def _head(feature: Feature, length: int) -> bytes:
    """What stands before `length` bytes of numbers: entry of the map, key, value, list."""
    name = feature.name.encode()
    numbers = _field(_NUMBERS, length)
    kind = _field(_FLOAT_LIST if feature.is_float else _INT64_LIST, len(numbers) + length)
    key = _field(_KEY, len(name)) + name
    value = _field(_VALUE, len(kind) + len(numbers) + length)
    entry = _field(_ENTRY, len(key) + len(value) + len(kind) + len(numbers) + length)
    return entry + key + value + kind + numbers


def _with_head(feature: Feature, numbers: np.ndarray) -> np.ndarray:
    head = np.frombuffer(_head(feature, numbers.shape[1]), np.uint8)
    return np.concatenate([np.broadcast_to(head, (len(numbers), len(head))), numbers], axis=1)


def _joined(columns: Sequence) -> Iterator[tuple[list[bytes], ...]]:
    """Columns as lists of bytes; neighbouring arrays become one."""
    for is_array, group in itertools.groupby(columns, key=lambda column: isinstance(column, np.ndarray)):
        if is_array:
            block = np.concatenate(list(group), axis=1)
            data, width = block.tobytes(), block.shape[1]
            yield ([data[i : i + width] for i in range(0, len(data), width)],)
        else:
            yield from group


def _masked(checksums: np.ndarray) -> np.ndarray:
    """TFRecord's masking of checksums: rotated by 15 bits, plus a constant, modulo 2**32."""
    rotated = checksums >> np.uint64(15) | checksums << np.uint64(17)
    return (rotated + np.uint64(_CRC_MASK)) & np.uint64(0xFFFFFFFF)
