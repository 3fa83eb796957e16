"""The files that are made, and the sidecar beside each."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from bert_tf.runtime import files
from bert_tf.runtime.files import InputError
from bert_tf.sequences.example_format import Feature, Sidecar, names


def output_paths(output_file: str, num_shards: int = 0) -> tuple[str, ...]:
    """The files that the flags ask for.

    Args:
      output_file: names, separated by commas, as in the release; or one name.
      num_shards: how many files one name stands for: "name-00000-of-00004" and so on. 0 takes the names as they are.

    Raises:
      InputError: if no name is given, one is given twice or is a folder, or several come with a number of shards.
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
    for path in paths:
        files.check_output_file(path, "--output_file")
    return tuple(paths)


@dataclasses.dataclass(frozen=True)
class OutputSet:
    """The shards of one run.

    Attributes:
      paths: one a shard.
      features: what their records hold.
      vocab_sha256: see `vocabulary_hash`.
      settings: everything else that makes them.
    """

    paths: tuple[str, ...]
    features: tuple[Feature, ...]
    vocab_sha256: str
    settings: Mapping[str, Any]

    def sidecar(self, shard: int, file_size: int, counts: Mapping[str, int]) -> Sidecar:
        """What is said of a shard.

        Args:
          shard: which.
          file_size: its bytes.
          counts: see `examples.count_examples`.
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

    def are_finished(self) -> bool:
        """True if all shards of this very set are there, whole."""
        return all(self.is_finished(shard) for shard in range(len(self.paths)))

    def is_finished(self, shard: int) -> bool:
        """True if a shard of this very set is there, whole."""
        path = self.paths[shard]
        found = Sidecar.read(path) if files.exists(path) else None
        return (
            found is not None
            and found.file_size == files.size(path)
            and found == self.sidecar(shard, found.file_size, found.counts)
        )


def name_of(*parts: Any) -> str:
    """A name that two things share only if they are equal."""
    text = json.dumps(parts, default=dataclasses.asdict, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
