"""Joins the buckets of a shard while others are still being written."""

import os
import shutil
from collections.abc import Sequence

from bert_tf import files
from bert_tf.files import InputError

_COPY_BYTES = 1 << 20


class GrowingShard:
    """A shard to which its buckets are appended in their order, each as soon as all before it are there.

    A bucket is removed as soon as it is appended, so the disk holds the output once, and most buckets never get from
    memory to the disk. What a crash left is taken up: a bucket that is gone is in the shard already.

    Args:
      path: where it grows.
      buckets: the buckets' paths, in their order.

    Attributes:
      size: its bytes so far.
    """

    def __init__(self, path: str, buckets: Sequence[str]) -> None:
        self._path = path
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
            with open(self._path, "r+b" if self.size else "wb") as writer, open(bucket, "rb") as reader:
                writer.seek(self.size)
                shutil.copyfileobj(reader, writer, _COPY_BYTES)
                writer.truncate()
            files.remove(bucket)
        elif not files.exists(self._path) or files.size(self._path) < end:
            raise InputError(
                f"--work_dir: {bucket} was written, but is neither there nor in {self._path}: files got lost. Remove "
                f"the folder {os.path.dirname(self._path)} and run the same command again."
            )
        self.size = end
