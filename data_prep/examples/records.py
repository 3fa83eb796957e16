"""Converts planned examples to TFRecords: packs, masks and encodes tokens in batches, and writes them to shards.

The bytes equal the output of `tf.train.Example.SerializeToString(deterministic=True)` and `tf.io.TFRecordWriter`. They
are written without TensorFlow, which would create a Python object per feature of each record and take 0.5 GB of memory
in each process.

A record is an `Example` message: a map from names to lists of numbers, sorted by name. Integers are varints, so the
length of a record depends on its values. Fields that have the same length in all records of a batch form one array.

Axis letters: B examples, T tokens, L numbers of a feature, W bytes.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import google_crc32c
import msgspec
import numpy as np

from bert_tf.runtime import files
from bert_tf.runtime.settings import Settings, about
from bert_tf.sequences.example_format import (
    Feature,
    Metadata,
    masked_checksums,
    names,
    pretraining_features,
    unmasked_features,
)
from bert_tf.sequences.masking import MaskingPolicy, MaskingVocabulary, mask_batch
from bert_tf.sequences.packing import pack_batch
from data_prep.corpus.word_segmentation import CONTINUES_WORD

_LENGTH_DELIMITED = 2
_FEATURES, _ENTRY, _KEY, _VALUE, _NUMBERS = 1, 1, 1, 2, 1  # field numbers in the messages of tf.train.Example
_FLOAT_LIST, _INT64_LIST = 2, 3


class ExampleOptions(Settings, frozen=True):
    """The content of a record.

    Attributes:
      max_seq_length: length of the sequences.
      max_predictions_per_seq: length of the masked-LM lists.
      is_masked: whether sequences are masked here. Otherwise the input pipeline masks them, or they stay unmasked
        (objective "ltr").
      policy: the masking rules.
      is_segmented: whether ids in the store have the bit `word_segmentation.CONTINUES_WORD`.

    Raises:
      InputError: if there is no room for a prediction.
    """

    max_seq_length: int
    max_predictions_per_seq: Annotated[int, about(ge=1)]
    is_masked: bool
    policy: MaskingPolicy
    is_segmented: bool = False

    @property
    def features(self) -> tuple[Feature, ...]:
        """The features of a record."""
        if self.is_masked:
            return pretraining_features(self.max_seq_length, self.max_predictions_per_seq)
        return unmasked_features(self.max_seq_length, word_starts=self.policy.whole_word)


class ExampleMaker:
    """Makes the records of planned examples.

    Args:
      options: the content of the records.
      vocab: maps tokens to ids.
    """

    def __init__(self, options: ExampleOptions, vocab: Mapping[str, int]) -> None:
        self._options = options
        self._vocabulary = MaskingVocabulary.of(vocab, options.policy.no_special_replacements)
        limit = max(len(self._vocabulary.continues_word), options.max_seq_length)
        self._encoder = RecordEncoder(options.features, limit)

    def make_from_tokens(self, keys: np.ndarray, examples: np.ndarray, tokens: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the features of examples as arrays [B, length].

        Args:
          keys: [B], keys for drawing the masks.
          examples: [B], of type `instances.EXAMPLE`.
          tokens: A and B of the first example, then A and B of the second example, and so on.
        """
        options, vocabulary = self._options, self._vocabulary
        continues_word = None
        if options.is_segmented:
            continues_word = tokens >= CONTINUES_WORD
            tokens = tokens & ~CONTINUES_WORD
        lengths = examples["length_a"], examples["length_b"]
        input_ids, input_mask, segment_ids, is_text = pack_batch(
            tokens, *lengths, options.max_seq_length, vocabulary.cls_id, vocabulary.sep_id
        )
        values = {
            "input_ids": input_ids,
            "input_mask": input_mask,
            "segment_ids": segment_ids,
            "next_sentence_labels": examples["is_random_next"][:, None],
        }
        word_starts = None
        if options.policy.whole_word:
            if continues_word is None:
                continues_word = vocabulary.continues_word[tokens]
            word_starts = np.zeros_like(is_text)
            word_starts[is_text] = ~continues_word
        if options.is_masked:
            rules = {"policy": options.policy, "max_predictions_per_seq": options.max_predictions_per_seq}
            masked = mask_batch(input_ids, is_text, keys, word_starts, vocabulary=vocabulary, **rules)
            return values | masked.features()
        return values if word_starts is None else values | {"word_starts": word_starts}

    def encode(self, values: Mapping[str, np.ndarray]) -> list[bytes]:
        """Returns the TFRecords of a batch. See `RecordEncoder.encode`."""
        return self._encoder.encode(values)


def count_examples(values: Mapping[str, np.ndarray], unknown_id: int | None) -> dict[str, int]:
    """Returns the counts of a batch of records, for the metadata of its shard. `unknown_id` is the id of [UNK]."""
    is_unknown = values["input_ids"] == unknown_id  # never in the padding
    counts = {
        "records": len(is_unknown),
        "tokens": np.count_nonzero(values["input_mask"]),
        "random_next": np.count_nonzero(values["next_sentence_labels"]),
        "unknown": np.count_nonzero(is_unknown),
    }
    if "masked_lm_weights" in values:
        counts["predictions"] = np.count_nonzero(values["masked_lm_weights"])
        # A masked token counts as it was before it was masked. Unused predictions are [PAD] at the position of [CLS].
        rows = np.flatnonzero(is_unknown.any(axis=1))
        now = np.take_along_axis(is_unknown[rows], values["masked_lm_positions"][rows], axis=1)
        counts["unknown"] += np.count_nonzero(values["masked_lm_ids"] == unknown_id) - np.count_nonzero(now)
    return {name: int(number) for name, number in counts.items()}


def digest_of_values(*values: Any) -> str:
    """Returns a hash of the values, for use in a name."""
    text = json.dumps(values, default=msgspec.to_builtins, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class ShardSet:
    """All shards of one set of examples. The shards have hidden names until all of them are complete.

    Symbolic links are followed: the files that they point to are replaced.

    Attributes:
      paths: [shards], the files.
      features: the features of the records.
      vocab_sha256: see `vocabulary_hash`.
      settings: all other settings that determine the content.
    """

    paths: tuple[str, ...]
    features: tuple[Feature, ...]
    vocab_sha256: str
    settings: Mapping[str, Any]

    def staged(self, shard: int) -> str:
        """Returns the hidden name of a finished shard."""
        return self._hidden(files.target_of(self.paths[shard]))

    def stage(self, shard: int, source: str, counts: Mapping[str, int]) -> None:
        """Moves a finished shard to its hidden name, and writes its metadata file.

        Args:
          shard: the index of the shard.
          source: the file of the shard, which may already have the hidden name.
          counts: see `count_examples`.
        """
        metadata = files.target_of(Metadata.path_of(self.paths[shard]))
        description = self._description(shard, files.size(source), counts)
        description.write(self._hidden(metadata))
        if source != self.staged(shard):
            files.move(source, self.staged(shard))

    def is_staged(self, shard: int) -> bool:
        """Returns True if a shard is complete, under its hidden name or under its final name."""
        return files.exists(self.staged(shard)) or self._is_finished(shard)

    def publish(self) -> None:
        """Renames the files once all shards are staged.

        Until then, an older set at these paths is unchanged. Renaming needs no disk space. After an interruption, call
        this method again. Metadata files are renamed first; they do not match older shards.
        """
        for path in self.paths:
            for target in map(files.target_of, (Metadata.path_of(path), path)):
                if files.exists(self._hidden(target)):
                    files.rename(self._hidden(target), target)

    def are_finished(self) -> bool:
        """Returns True if all shards exist, are complete, and were made with these settings."""
        return all(map(self._is_finished, range(len(self.paths))))

    def _is_finished(self, shard: int) -> bool:
        path = self.paths[shard]
        metadata = Metadata.read(path) if files.exists(path) else None
        return (
            metadata is not None
            and metadata.file_size == files.size(path)
            and metadata == self._description(shard, metadata.file_size, metadata.counts)
        )

    def _description(self, shard: int, file_size: int, counts: Mapping[str, int]) -> Metadata:
        lengths = {feature.name: feature.length for feature in self.features}
        return Metadata(
            records=counts.get("records", 0),
            file_size=file_size,
            max_seq_length=lengths["input_ids"],
            max_predictions_per_seq=lengths.get("masked_lm_ids", 0),
            vocab_sha256=self.vocab_sha256,
            settings={**self.settings, "shard": shard, "num_shards": len(self.paths)},
            features=names(self.features),
            counts=dict(counts),
        )

    def _hidden(self, path: str) -> str:
        directory, name = os.path.split(path)
        return os.path.join(directory, f".{name}.{digest_of_values(self.features, self.vocab_sha256, self.settings)}")


def _varint(number: int) -> bytes:
    """Encodes a number in base 128, lowest digit first. All digits except the last have their top bit set."""
    digits = bytearray()
    while number >= 0x80:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)


@functools.cache
def _field(number: int, length: int) -> bytes:
    """Returns the tag and the length that precede a field of `length` bytes."""
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(length)


class _VarintTable:
    """The varints of all numbers below a limit: four bytes per number, and a mask of the used bytes."""

    def __init__(self, limit: int) -> None:
        if limit > 1 << 28:
            raise ValueError(f"numbers of up to {limit} don't fit into four bytes")
        numbers = np.arange(limit, dtype=np.uint32)
        self._bytes = np.zeros((limit, 4), np.uint8)
        self._is_used = np.zeros((limit, 4), bool)
        for digit in range(4):
            rest = numbers >> np.uint32(7 * digit)
            self._is_used[:, digit] = (rest > 0) | (digit == 0)
            self._bytes[:, digit] = rest & 0x7F | np.where(rest >= 0x80, 0x80, 0)
        self.lengths = self._is_used.sum(axis=1, dtype=np.uint8)

    def encode(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the concatenated bytes [W] of numbers [B, L]."""
        numbers = numbers.ravel()
        encoded = self._bytes.view(np.uint32).ravel().take(numbers).view(np.uint8)
        return encoded.compress(self._is_used.view(np.uint32).ravel().take(numbers).view(bool))


class RecordEncoder:
    """Encodes batches of examples as TFRecords.

    Args:
      features: the features of each record.
      limit: upper bound of all integers (exclusive).
    """

    def __init__(self, features: Sequence[Feature], limit: int) -> None:
        self._features = sorted(features, key=lambda feature: feature.name)
        self._table = _VarintTable(max(limit, 0x80))

    def encode(self, values: Mapping[str, np.ndarray]) -> list[bytes]:
        """Encodes the records of a batch.

        Args:
          values: maps features to arrays [B, L].

        Returns:
          The content of a file with these records, as chunks to concatenate.

        Raises:
          ValueError: if the length of an array differs from its feature's.
        """
        columns = [self._column(feature, values[feature.name]) for feature in self._features]
        bodies = [b"".join(fields) for fields in zip(*itertools.chain(*_joined(columns)), strict=True)]
        return _framed([_field(_FEATURES, len(body)) + body for body in bodies])

    def _column(self, feature: Feature, numbers: np.ndarray) -> "np.ndarray | tuple[list[bytes], list[bytes]]":
        """Encodes one feature of all records: an array [B, W], or the heads and the numbers if their lengths differ."""
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
    """Frames each record: length (8 bytes), checksum of the length (4), the record, checksum of the record (4)."""
    checksums = np.array([google_crc32c.value(record) for record in records], np.uint64)
    feet = masked_checksums(checksums).astype("<u4").tobytes()
    chunks: list[bytes] = []
    for i, record in enumerate(records):
        chunks += (_frame_head(len(record)), record, feet[4 * i : 4 * i + 4])
    return chunks


@functools.cache
def _frame_head(length: int) -> bytes:
    head = struct.pack("<Q", length)
    return head + struct.pack("<I", int(masked_checksums(np.uint64(google_crc32c.value(head)))))


@functools.cache
def _head(feature: Feature, length: int) -> bytes:
    """Returns the bytes that precede `length` bytes of numbers: entry of the map, key, value, list."""
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
    """Converts columns to lists of bytes, one item per record. Adjacent arrays are joined first."""
    for is_array, group in itertools.groupby(columns, key=lambda column: isinstance(column, np.ndarray)):
        if is_array:
            block = np.concatenate(list(group), axis=1)
            data, width = block.tobytes(), block.shape[1]
            yield ([data[i : i + width] for i in range(0, len(data), width)],)
        else:
            yield from group
