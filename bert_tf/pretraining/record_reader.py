"""Reads single records of TFRecord files at any position, so each worker reads only its own records."""

import itertools
from collections.abc import Sequence

import google_crc32c
import numpy as np

from bert_tf.runtime import files
from bert_tf.runtime.files import InputError
from bert_tf.sequences.example_format import FRAME_FOOTER, FRAME_HEADER, masked_checksums, record_offsets

# A request to remote storage takes about as long as reading this many bytes.
_REMOTE_GAP = 1 << 20
_FLAG_NAME = "--input_file"  # for messages


class RecordReader:
    """Reads records of some files in any order.

    Adjacent records are read at once. On remote storage, gaps of up to 1 MiB between records are also read. The first
    time that a file is used, the headers of all records are read, and their positions are kept in memory.

    Args:
      paths: the files.
      counts: the number of records in each file.
    """

    def __init__(self, paths: Sequence[str], counts: Sequence[int]) -> None:
        self._paths = list(paths)
        self._counts = list(counts)
        self._offsets: dict[int, np.ndarray] = {}

    def read(self, file_indices: np.ndarray, record_indices: np.ndarray) -> list[bytes]:
        """Reads records.

        Args:
          file_indices: [n], the index of each record's file.
          record_indices: [n], the index of each record in its file.

        Returns:
          The n records, in the given order.

        Raises:
          InputError: if a record is damaged or has moved.
        """
        records: list[bytes] = [b""] * len(file_indices)
        in_order = np.lexsort((record_indices, file_indices))
        changes = np.flatnonzero(np.diff(file_indices[in_order])) + 1
        for positions in np.split(in_order, changes):
            file_records = self._read_file(int(file_indices[positions[0]]), record_indices[positions])
            for position, record in zip(positions.tolist(), file_records, strict=True):
                records[position] = record
        return records

    def _read_file(self, file_index: int, indices: np.ndarray) -> list[bytes]:
        """Reads records [n] of one file, in ascending order. A record may be requested several times."""
        path = self._paths[file_index]
        if file_index not in self._offsets:
            offsets = record_offsets(path, _FLAG_NAME)
            if len(offsets) != self._counts[file_index] + 1:
                raise InputError(
                    f"{_FLAG_NAME}: {path} has {len(offsets) - 1} records instead of {self._counts[file_index]}. It is "
                    "damaged, or was changed after the run began. Regenerate it."
                )
            self._offsets[file_index] = offsets
        offsets = self._offsets[file_index]
        starts, ends = offsets[indices].astype(np.int64), offsets[indices + 1].astype(np.int64)
        gap = _REMOTE_GAP if files.is_remote(path) else 0
        first_of_run = np.flatnonzero(np.append(True, starts[1:] > ends[:-1] + gap))
        frames: list[bytes] = []
        with files.open_file(path, "rb", buffering=0) as reader:
            bounds = list(zip(starts.tolist(), ends.tolist(), strict=True))
            for first, end in itertools.pairwise([*first_of_run.tolist(), len(bounds)]):
                base = bounds[first][0]
                reader.seek(base)
                block = reader.read(bounds[end - 1][1] - base)
                frames += [block[start - base : stop - base] for start, stop in bounds[first:end]]
        records = [frame[FRAME_HEADER:-FRAME_FOOTER] for frame in frames]
        _check(path, indices, records, frames, _FLAG_NAME)
        return records


def first_record(path: str, flag_name: str) -> bytes:
    """Reads the first record of a file. If its length is wrong, TensorFlow's reader may end the process.

    Raises:
      InputError: if the file ends inside the record, or the record is damaged.
    """
    end = int(record_offsets(path, flag_name, most=1)[-1])
    with files.open_file(path, "rb") as reader:
        frame = reader.read(end)
    record = frame[FRAME_HEADER:-FRAME_FOOTER]
    _check(path, np.zeros(1, np.int64), [record], [frame], flag_name)
    return record


def _check(path: str, indices: np.ndarray, records: list[bytes], frames: list[bytes], flag_name: str) -> None:
    """Compares records [n] with the checksums in their frames. In a truncated file, the last checksum differs."""
    expected = np.frombuffer(b"".join(frame[-FRAME_FOOTER:].rjust(FRAME_FOOTER) for frame in frames), "<u4")
    checksums = masked_checksums(np.array([google_crc32c.value(record) for record in records], np.uint64))
    damaged = np.flatnonzero(checksums != expected)
    if damaged.size:
        raise InputError(
            f"{flag_name}: record {indices[damaged[0]] + 1} of {path} is damaged, or was changed after the run began. "
            "Regenerate it."
        )
