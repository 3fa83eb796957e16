"""The features of a record and the metadata file of a shard. `data_prep` writes both; the input pipeline reads them.

Writing and parsing use the same specification. TensorFlow is imported only to parse records.
"""

import array
import dataclasses
import math
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from bert_tf.runtime import files, json_files
from bert_tf.runtime.errors import InputError, check

if TYPE_CHECKING:
    import tensorflow as tf

# A TFRecord has the length of the data (8 bytes), a checksum of the length (4), the data, and its checksum (4).
FRAME_HEADER, FRAME_FOOTER = 12, 4
_CRC_MASK = 0xA282EAD8

METADATA_SUFFIX = ".meta.json"
NOT_RECORDS = (METADATA_SUFFIX,)
FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Feature:
    """One feature of a record.

    Attributes:
      name: name of the feature in the original code.
      length: number of values.
      is_float: if True, the values are floats; otherwise, integers.
      limit: integers must be >= 0 and less than `limit`; None for no limit.
      stored_name: name of the feature in the records, if another program wrote them; "" for `name`.
    """

    name: str
    length: int
    is_float: bool = False
    limit: int | None = None
    stored_name: str = ""


def _sequence(max_seq_length: int) -> tuple[Feature, ...]:
    return tuple(Feature(name, max_seq_length) for name in ("input_ids", "input_mask", "segment_ids"))


def pretraining_features(max_seq_length: int, max_predictions_per_seq: int) -> tuple[Feature, ...]:
    """Returns the features of a pre-training example, as in the original create_pretraining_data.py."""
    return (
        *_sequence(max_seq_length),
        Feature("masked_lm_positions", max_predictions_per_seq),
        Feature("masked_lm_ids", max_predictions_per_seq),
        Feature("masked_lm_weights", max_predictions_per_seq, is_float=True),
        Feature("next_sentence_labels", 1),
    )


def unmasked_features(max_seq_length: int, word_starts: bool = False) -> tuple[Feature, ...]:
    """Returns the features of a pre-training example that the input pipeline will mask.

    Args:
      max_seq_length: length of the sequences.
      word_starts: whether records mark the first token of each word, for whole-word masking.
    """
    features = (*_sequence(max_seq_length), Feature("next_sentence_labels", 1))
    return (*features, Feature("word_starts", max_seq_length)) if word_starts else features


def names(features: Sequence[Feature]) -> tuple[str, ...]:
    """Returns the names of features, in order."""
    return tuple(feature.name for feature in features)


def parse(features: Sequence[Feature], serialized: "tf.Tensor") -> "dict[str, tf.Tensor]":
    """Parses records [B] to features [B, length], or [B] if the length is 1. Integers become int32.

    Raises:
      tf.errors.InvalidArgumentError: if a record has other features, or an integer is out of bounds.
    """
    import tensorflow as tf

    spec = {
        f.stored_name or f.name: tf.io.FixedLenFeature(
            [f.length] if f.length > 1 else [], tf.float32 if f.is_float else tf.int64
        )
        for f in features
    }
    parsed = tf.io.parse_example(serialized, spec)
    batch = {}
    for feature in features:
        values = parsed[feature.stored_name or feature.name]
        batch[feature.name] = values if feature.is_float else tf.cast(values, tf.int32)
    for feature in features:
        if feature.limit is not None:
            # As unsigned integers, negative numbers are larger than all valid numbers.
            largest = tf.reduce_max(tf.bitcast(batch[feature.name], tf.uint32))
            value = tf.bitcast(largest, tf.int32)
            message = tf.strings.format(f"{feature.name} = {{}} is not in [0, {feature.limit})", value)
            tf.debugging.Assert((value >= 0) & (value < feature.limit), [message])
    return batch


def masked_checksums(checksums: np.ndarray) -> np.ndarray:
    """Masks CRC-32C checksums as in TFRecords: rotates them by 15 bits and adds a constant, modulo 2**32."""
    rotated = checksums >> np.uint64(15) | checksums << np.uint64(17)
    return (rotated + np.uint64(_CRC_MASK)) & np.uint64(0xFFFFFFFF)


def record_offsets(path: str, flag_name: str, most: float = math.inf) -> np.ndarray:
    """Finds the positions of the records in a file. Reads only the headers of the records.

    Args:
      path: a TFRecord file.
      flag_name: the flag with the file, for messages.
      most: number of records after which the search stops.

    Returns:
      The position of each record's header in bytes and the end of the last record, [records + 1].

    Raises:
      InputError: if the file ends inside a record.
    """
    size = files.size(path)
    offsets = array.array("Q", [0])
    position = 0
    with files.open_file(path, "rb") as reader:
        while position < size and len(offsets) <= most:
            reader.seek(position)
            header = reader.read(FRAME_HEADER)
            length = struct.unpack("<Q", header[:8])[0] if len(header) == FRAME_HEADER else size
            position += FRAME_HEADER + length + FRAME_FOOTER
            if position > size:
                raise InputError(
                    f"{flag_name}: {path} ends inside its record {len(offsets)}, or is not a TFRecord file. "
                    "It is incomplete or damaged. Regenerate it."
                )
            offsets.append(position)
    # To save memory, four bytes per position are used if the file is small enough.
    return np.frombuffer(offsets, np.uint64).astype(np.uint32 if size < 1 << 32 else np.int64)


class Metadata(msgspec.Struct, frozen=True):
    """The metadata of a shard, stored in a JSON file next to the shard.

    Attributes:
      records: number of examples in the shard.
      file_size: size of the shard in bytes. If the size differs, the shard was truncated or changed.
      max_seq_length: length of the sequences.
      max_predictions_per_seq: length of the masked-LM lists; 0 if the records are not masked yet.
      vocab_sha256: see `vocabulary_hash`.
      settings: all other settings: masking policy, seed, casing, tool version and so on.
      features: names of the records' features, in order.
      counts: numbers of tokens, predictions, random next sentences and so on.
      format_version: version of this file's format.
    """

    records: Annotated[int, Meta(ge=0)]
    file_size: int
    max_seq_length: Annotated[int, Meta(ge=1)]
    max_predictions_per_seq: Annotated[int, Meta(ge=0)]
    vocab_sha256: str
    settings: dict[str, Any]
    features: tuple[str, ...] = names(pretraining_features(1, 1))
    counts: dict[str, int | float] = {}
    format_version: int = FORMAT_VERSION

    @staticmethod
    def path_of(shard: str) -> str:
        """Returns the path of a shard's metadata file."""
        return shard + METADATA_SUFFIX

    @property
    def tokenizer(self) -> Mapping[str, Any]:
        """The record of the tokenizer; see `tokenizer_record`."""
        return {"vocab_sha256": self.vocab_sha256} | self.settings.get("tokenizer", {})

    @property
    def is_masked(self) -> bool:
        """Whether the records are masked. If False, the input pipeline masks them (`--masking=dynamic`)."""
        return "masked_lm_ids" in self.features

    def record_features(self) -> tuple[Feature, ...]:
        """Returns the features of each record."""
        if self.is_masked:
            return pretraining_features(self.max_seq_length, self.max_predictions_per_seq)
        return unmasked_features(self.max_seq_length, word_starts="word_starts" in self.features)

    def write(self, path: str) -> None:
        """Writes the metadata file of a finished shard; `path_of` returns its final path."""
        files.write_json(path, msgspec.to_builtins(self))

    @classmethod
    def read(cls, shard: str, where: str = "--input_file") -> "Metadata | None":
        """Reads the metadata file of a shard. Returns None if there is none, as for shards of the original code.

        Args:
          shard: the file of records.
          where: the flag with the shard, for messages.

        Raises:
          InputError: if the metadata file can't be read or has another format version.
        """
        path = cls.path_of(shard)
        if not files.exists(path):
            return None
        values = json_files.read(path, where, dict[str, Any])
        if values.get("format_version") != FORMAT_VERSION or values.keys() != {*cls.__struct_fields__}:
            raise InputError(
                f"{where}: {path} is not a metadata file of format {FORMAT_VERSION}, so another version of "
                "create_pretraining_data wrote it. Regenerate the data."
            )
        metadata = check(values, cls, f"{where}: {path}")
        unmasked = [names(unmasked_features(1, word_starts)) for word_starts in (False, True)]
        if metadata.features not in (names(pretraining_features(1, 1)), *unmasked):
            unknown = ", ".join(metadata.features)
            raise InputError(f"{where}: {path}, at features: unknown names ({unknown}). Regenerate the data.")
        return metadata
