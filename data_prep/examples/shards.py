"""The shards of a set of examples: their paths and sidecars, and how they grow from buckets of records."""

import collections
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bert_tf.runtime import files
from bert_tf.runtime.files import InputError
from bert_tf.sequences.example_format import Feature, Sidecar, names

_COPY_BYTES = 1 << 20
# With more examples per shard, none is empty: examples are spread by hashes, or in turn. So they need not be looked at.
_MAY_BE_EMPTY = 64


def output_paths(
    output_file: str, num_shards: int = 0, inputs: Mapping[str, Iterable[str]] | None = None
) -> tuple[str, ...]:
    """Returns the paths of the shards that the flags ask for.

    Args:
      output_file: file names, separated by commas, as in the release.
      num_shards: if not 0, `output_file` is one name, and the shards are "name-00000-of-00004" and so on.
      inputs: the files that are read, by the flags that gave them.

    Raises:
      InputError: if there is no name, a name occurs twice or can't be an output (see `files.check_output_files`), or
        several names come with `num_shards`.
    """
    paths = [path.strip() for path in output_file.split(",") if path.strip()]
    if not paths:
        raise InputError("--output_file is needed, but it is not given.")
    if len(set(paths)) < len(paths):
        raise InputError(f"--output_file names a file twice: {output_file}.")
    if num_shards < 0 or (num_shards and len(paths) > 1):
        raise InputError(
            f"--num_shards is {num_shards}, but --output_file names {len(paths)} files. Give one name to make "
            "num_shards files of it, or leave --num_shards out."
        )
    if num_shards:
        paths = [f"{paths[0]}-{i:05d}-of-{num_shards:05d}" for i in range(num_shards)]
    files.check_output_files([*paths, *map(Sidecar.path_of, paths)], "--output_file", inputs)
    return tuple(paths)


@dataclasses.dataclass(frozen=True)
class ShardSet:
    """All shards of one set of examples.

    Attributes:
      paths: [shards] their files.
      features: the features of their records.
      vocab_sha256: see `vocabulary_hash`.
      settings: all other settings that decide the content.
    """

    paths: tuple[str, ...]
    features: tuple[Feature, ...]
    vocab_sha256: str
    settings: Mapping[str, Any]

    def sidecar(self, shard: int, file_size: int, counts: Mapping[str, int]) -> Sidecar:
        """Returns the description of a shard.

        Args:
          shard: its number.
          file_size: its size in bytes.
          counts: see `records.count_examples`.
        """
        lengths = {feature.name: feature.length for feature in self.features}
        return Sidecar(
            records=counts.get("records", 0),
            file_size=file_size,
            max_seq_length=lengths["input_ids"],
            max_predictions_per_seq=lengths.get("masked_lm_ids", 0),
            vocab_sha256=self.vocab_sha256,
            settings={**self.settings, "shard": shard, "num_shards": len(self.paths)},
            features=names(self.features),
            counts=dict(counts),
        )

    def staged(self, path: str) -> str:
        """Returns the hidden name beside `path` under which a file waits until all files of the set are complete."""
        folder, name = os.path.split(path)
        return os.path.join(folder, f".{name}.{fingerprint(self.features, self.vocab_sha256, self.settings)}")

    def stage(self, shard: int, source: str, counts: Mapping[str, int]) -> None:
        """Moves a finished shard to the folder of its path, under its hidden name.

        Args:
          shard: its number.
          source: its file.
          counts: see `records.count_examples`.
        """
        staged = self.staged(self.paths[shard])
        self.sidecar(shard, files.size(source), counts).write(staged)
        if source != staged:
            files.move(source, staged)

    def is_staged(self, shard: int) -> bool:
        """Returns True if a shard is complete under its hidden name."""
        return files.exists(self.staged(self.paths[shard]))

    def publish(self) -> None:
        """Moves the shards to their paths, when all of them are staged.

        An older set at these paths stays whole until then: nothing from here on needs room on the disk. If this is
        interrupted, it can be done again. Sidecars are moved first; they match no older shard.
        """
        for path in self.paths:
            staged = self.staged(path)
            for source, target in ((Sidecar.path_of(staged), Sidecar.path_of(path)), (staged, path)):
                if files.exists(source):
                    files.rename(source, target)

    def count_empty(self, examples: int) -> int:
        """Returns the number of shards without examples; `examples` is that of all shards together."""
        if examples > _MAY_BE_EMPTY * len(self.paths):
            return 0
        return sum(files.size(path) == 0 for path in self.paths)

    def are_finished(self) -> bool:
        """Returns True if all shards exist, are complete, and were made with these settings."""
        return all(self.is_finished(shard) for shard in range(len(self.paths)))

    def is_finished(self, shard: int) -> bool:
        """Returns True if a shard exists, is complete, and was made with these settings."""
        path = self.paths[shard]
        found = Sidecar.read(path) if files.exists(path) else None
        return (
            found is not None
            and found.file_size == files.size(path)
            and found == self.sidecar(shard, found.file_size, found.counts)
        )


def fingerprint(*parts: Any) -> str:
    """Returns a name that is the same for equal values only."""
    text = json.dumps(parts, default=dataclasses.asdict, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class PartialShard:
    """A shard that grows: each of its buckets is appended as soon as all buckets before it are there.

    A bucket is removed when it has been appended, so the disk holds the output only once, and most buckets are removed
    before the system has written them to the disk. After a crash, a bucket that is missing is already in the shard.

    Args:
      path: the file that grows.
      buckets: paths of the buckets, in order.

    Attributes:
      path: the file that grows.
      size: its size in bytes so far.
    """

    def __init__(self, path: str, buckets: Sequence[str]) -> None:
        self.path = path
        self._buckets = buckets
        self._sizes: dict[int, int] = {}
        self._joined = 0
        self.size = 0

    def add(self, number: int, size: int) -> None:
        """Takes a finished bucket; a second call with the same bucket changes nothing.

        Args:
          number: the bucket's place in the shard.
          size: its size in bytes.

        Raises:
          InputError: if a bucket is neither on the disk nor in the shard, for example after a power failure.
        """
        self._sizes[number] = size
        while self._joined in self._sizes:
            self._append(self._buckets[self._joined], self._sizes[self._joined])
            self._joined += 1

    def _append(self, bucket: str, size: int) -> None:
        end = self.size + size
        if files.exists(bucket):
            with open(self.path, "r+b" if self.size else "wb") as writer, open(bucket, "rb") as reader:
                # Another task that appends the same bucket at the same time writes the same bytes to the same place.
                writer.seek(self.size)
                shutil.copyfileobj(reader, writer, _COPY_BYTES)
            files.remove(bucket)
        elif not files.exists(self.path) or files.size(self.path) < end:
            raise InputError(
                f"--work_dir: {bucket} was written, but is neither there nor in {self.path}: files got lost. Remove "
                f"the folder {os.path.dirname(self.path)} and run the same command again."
            )
        self.size = end


class ShardAssembler:
    """Assembles shards.

    Args:
      folder: the folder in which they grow.
      shards: all shards.
      own: the numbers of the shards to assemble.
      buckets: paths of the buckets of all shards, in order; all shards have equally many.
    """

    def __init__(self, folder: str, shards: ShardSet, own: Iterable[int], buckets: Sequence[str]) -> None:
        self._shards = shards
        self._per_shard = len(buckets) // len(shards.paths)
        self._partial: dict[int, PartialShard] = {}
        for shard in own:
            path = os.path.join(folder, f"shard-{shard:05d}")
            # An earlier run may have moved it already.
            if files.exists(path) or not (shards.is_staged(shard) or shards.is_finished(shard)):
                self._partial[shard] = PartialShard(path, [buckets[number] for number in self._buckets_of(shard)])

    def _buckets_of(self, shard: int) -> range:
        return range(shard * self._per_shard, (shard + 1) * self._per_shard)

    def add(self, bucket: int, counts: Mapping[str, Any]) -> None:
        """Takes a bucket that has been written."""
        shard, number = divmod(bucket, self._per_shard)
        if shard in self._partial:
            self._partial[shard].add(number, counts["file_size"])

    def finish(self, shard: int, written: Sequence[Mapping[str, Any]]) -> None:
        """Stages a shard, unless an earlier run has moved it already.

        Args:
          shard: its number.
          written: the counts of all buckets, which have been taken before.
        """
        if shard in self._partial:
            counts = add_up(written[bucket] for bucket in self._buckets_of(shard))
            self._shards.stage(shard, self._partial[shard].path, counts)


def add_up(written: Iterable[Mapping[str, Any]]) -> collections.Counter[str]:
    """Returns the sums of the buckets' counts (see `records.count_examples`), without their file sizes."""
    counts: collections.Counter[str] = collections.Counter()
    for bucket in written:
        counts.update(bucket)
    del counts["file_size"]
    return counts
