"""Sorted runs: sorts more records than fit into the memory.

A run is a file of keys [n] in ascending order, followed by their records [n]. Keys are 64-bit numbers that are spread
evenly, such as hashes. Runs are in an order themselves: records with equal keys keep it.

To read a range of keys, each run is opened. If there were as many runs as the data are large, and as many ranges, the
number of opens would grow with the square of the data; so many runs are merged to `MOST_RUNS` first.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from bert_tf.runtime import files

MOST_RUNS = 256


@dataclasses.dataclass(frozen=True)
class SortedRun:
    """A run.

    Attributes:
      path: its file.
      records: its number of records.
    """

    path: str
    records: int

    def between(self, first_key: int, end_key: int, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
        """Returns the keys in [first_key, end_key) and their records."""
        data = np.memmap(self.path, np.uint8, "r")
        first_record = self.records * 8
        keys = data[:first_record].view(np.uint64)
        start, end = (
            self.records if key >= 1 << 64 else int(np.searchsorted(keys, np.uint64(key)))
            for key in (first_key, end_key)
        )
        found = data[first_record + start * dtype.itemsize : first_record + end * dtype.itemsize]
        return np.array(keys[start:end]), np.frombuffer(found.tobytes(), dtype)


class RunWriter:
    """Sorts records, and writes a run whenever there are enough of them.

    Args:
      stem: the beginning of the runs' paths.
      dtype: type of the records.
      run_records: number of records that are sorted in memory.

    Attributes:
      runs: the numbers of records of the runs that were written.
    """

    def __init__(self, stem: str, dtype: np.dtype, run_records: int) -> None:
        self._stem = stem
        self._dtype = dtype
        self._run_records = run_records
        self._waiting: list[tuple[np.ndarray, np.ndarray]] = []
        self._number = 0
        self.runs: list[int] = []

    def add(self, keys: np.ndarray, records: np.ndarray) -> None:
        """Takes keys [n] and records [n]."""
        self._waiting.append((keys, records))
        self._number += len(keys)
        if self._number >= self._run_records:
            self.finish()

    def finish(self) -> None:
        """Writes the records that are left."""
        if self._number:
            keys, records = (np.concatenate(column) for column in zip(*self._waiting, strict=True))
            order = np.argsort(keys, kind="stable")
            with files.replacing(_run_file(self._stem, len(self.runs)), "wb") as writer:
                writer.write(keys[order].tobytes())
                writer.write(records[order].astype(self._dtype, copy=False).tobytes())
            self.runs.append(self._number)
        self._waiting.clear()
        self._number = 0


def _run_file(stem: str, number: int) -> str:
    return f"{stem}-run-{number:03d}"


def runs_of(stem: str, records: Sequence[int]) -> list[SortedRun]:
    """Returns the runs that a `RunWriter` wrote; `records` is its attribute `runs`."""
    return [SortedRun(_run_file(stem, number), count) for number, count in enumerate(records)]


def gather(runs: Sequence[SortedRun], first_key: int, end_key: int, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Returns the keys of all runs in [first_key, end_key), in ascending order, and their records."""
    found = [run.between(first_key, end_key, dtype) for run in runs]
    if not found:
        return np.empty(0, np.uint64), np.empty(0, dtype)
    keys, records = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.argsort(keys, kind="stable")
    return keys[order], records[order]


def cut_keys(count: int) -> Iterator[tuple[int, int]]:
    """Divides all keys into equal ranges; yields the first key of each, and the key behind its last one."""
    return itertools.pairwise((i << 64) // count for i in range(count + 1))


def merge(runs: Sequence[SortedRun], path: str, dtype: np.dtype, at_a_time: int) -> SortedRun:
    """Makes one run of several; about `at_a_time` records are in memory."""
    total = sum(run.records for run in runs)
    done = 0
    with files.replacing(path, "wb") as writer:
        for first_key, end_key in cut_keys(-(-total // at_a_time)):
            keys, records = gather(runs, first_key, end_key, dtype)
            writer.seek(done * keys.itemsize)
            writer.write(keys.tobytes())
            writer.seek(total * keys.itemsize + done * dtype.itemsize)
            writer.write(records.tobytes())
            done += len(keys)
    return SortedRun(path, total)
