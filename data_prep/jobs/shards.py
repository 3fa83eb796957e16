"""Joins the buckets of each shard while others are still being written, and puts the shards in their places."""

import collections
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bert_tf.runtime import files
from bert_tf.runtime.files import InputError
from bert_tf.runtime.reporting import progress_bar
from bert_tf.sequences.example_format import Sidecar
from data_prep.examples.outputs import OutputSet
from data_prep.jobs.stages import WriteStage

_COPY_BYTES = 1 << 20


class GrowingShard:
    """A shard to which its buckets are appended in their order, each as soon as all before it are there.

    A bucket is removed as soon as it is appended, so the disk holds the output once, and most buckets never get from
    memory to the disk. What a crash left is taken up: a bucket that is gone is in the shard already.

    Args:
      path: where it grows.
      buckets: the buckets' paths, in their order.

    Attributes:
      path: where it grows.
      size: its bytes so far.
    """

    def __init__(self, path: str, buckets: Sequence[str]) -> None:
        self.path = path
        self._buckets = buckets
        self._sizes: dict[int, int] = {}
        self._joined = 0
        self.size = 0

    def add(self, number: int, size: int) -> None:
        """Takes the bucket of a number, which is finished and has so many bytes; twice does no harm.

        Raises:
          InputError: if a bucket is neither there nor in the shard, as after a power failure.
        """
        self._sizes[number] = size
        while self._joined in self._sizes:
            self._append(self._buckets[self._joined], self._sizes[self._joined])
            self._joined += 1

    def _append(self, bucket: str, size: int) -> None:
        end = self.size + size
        if files.exists(bucket):
            with open(self.path, "r+b" if self.size else "wb") as writer, open(bucket, "rb") as reader:
                writer.seek(self.size)
                shutil.copyfileobj(reader, writer, _COPY_BYTES)
                writer.truncate()
            files.remove(bucket)
        elif not files.exists(self.path) or files.size(self.path) < end:
            raise InputError(
                f"--work_dir: {bucket} was written, but is neither there nor in {self.path}: files got lost. Remove "
                f"the folder {os.path.dirname(self.path)} and run the same command again."
            )
        self.size = end


class OwnShards:
    """The shards that a task joins and puts in their places.

    Args:
      folder: where they grow.
      write: the stage that writes the buckets, those of a shard next to one another.
      outputs: all shards' places.
      own: which of them are the task's.
    """

    def __init__(self, folder: str, write: WriteStage, outputs: OutputSet, own: Iterable[int]) -> None:
        self._outputs = outputs
        self._buckets = write.buckets
        self._jobs: list[list[int]] = [[] for _ in outputs.paths]
        for job, bucket in enumerate(write.buckets):
            self._jobs[bucket.shard].append(job)
        self._growing: dict[int, GrowingShard] = {}
        for shard in own:
            path = os.path.join(folder, f"shard-{shard:05d}")
            # A run before may have put it in its place already.
            if files.exists(path) or not outputs.is_finished(shard):
                self._growing[shard] = GrowingShard(path, [write.path(job) for job in self._jobs[shard]])

    def add(self, job: int, counts: Mapping[str, Any]) -> None:
        """Takes a bucket that is written."""
        shard = self._buckets[job].shard
        if shard in self._growing:
            self._growing[shard].add(job - self._jobs[shard][0], counts["file_size"])

    def finish(self, written: Sequence[Mapping[str, Any]]) -> None:
        """Takes the other tasks' buckets too, and puts the shards in their places."""
        with progress_bar(len(self._growing), "shards", unit="shard") as bar:
            for shard, growing in self._growing.items():
                for job in self._jobs[shard]:
                    self.add(job, written[job])
                counts = add_up(written[job] for job in self._jobs[shard])
                _publish(growing.path, self._outputs.paths[shard], self._outputs.sidecar(shard, growing.size, counts))
                bar.update()


def add_up(written: Iterable[Mapping[str, Any]]) -> collections.Counter[str]:
    """What buckets hold together, see `examples.count_examples`; not how large their files are."""
    counts: collections.Counter[str] = collections.Counter()
    for bucket in written:
        counts.update(bucket)
    del counts["file_size"]
    return counts


def _publish(source: str, target: str, sidecar: Sidecar) -> None:
    """Moves a shard to its place.

    The sidecar goes first: until the shard stands beside it, it fits no file that may be there.
    """
    sidecar.write(target)
    files.move(source, target)
