"""Finds, counts and checks the TFRecord files of a run before training starts."""

import atexit
import concurrent.futures
import dataclasses
import gzip
import os
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import tensorflow as tf
from google.protobuf.message import DecodeError

from bert_tf.pretraining import record_reader
from bert_tf.runtime import files, path_checks
from bert_tf.runtime.errors import InputError, first_of
from bert_tf.runtime.messages import say
from bert_tf.sequences.example_format import (
    FRAME_FOOTER,
    FRAME_HEADER,
    METADATA_SUFFIX,
    NOT_RECORDS,
    Feature,
    Metadata,
    names,
    pretraining_features,
    record_offsets,
)

File = TypeVar("File")
Result = TypeVar("Result")

# Model Garden's names of the features whose names differ.
_GARDEN_NAMES = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}
# The first bytes of a gzip file.
_GZIP = b"\x1f\x8b\x08"

# There may be thousands of files, and opening a remote file takes long.
_MAX_OPEN_FILES = 32


@dataclasses.dataclass(frozen=True)
class Shard:
    """A checked TFRecord file.

    Attributes:
      path: the file.
      records: the number of its records.
      metadata: the content of the file's metadata file, which `data_prep` writes; None if there is none, as for files
        of the original code.
      features: the features of each record.
    """

    path: str
    records: int
    metadata: Metadata | None
    features: tuple[Feature, ...]

    @property
    def tokenizer(self) -> Mapping[str, Any]:
        """The record of the tokenizer that made the file; empty if there is none."""
        return self.metadata.tokenizer if self.metadata else {}


def find_shards(
    patterns: str,
    max_seq_length: int,
    max_predictions_per_seq: int,
    vocab_size: int,
    *,
    flag_name: str = "--input_file",
    needs_next_sentence: bool = True,
) -> list[Shard]:
    """Finds the files of pre-training examples, and checks that they have the expected lengths.

    Empty files are ignored. If there are more shards than examples, some shards are empty.

    Args:
      patterns: file names and glob patterns, separated by commas. Matching metadata files are ignored.
      max_seq_length: the flag's value.
      max_predictions_per_seq: the flag's value.
      vocab_size: the model's vocabulary size; all ids must be smaller.
      flag_name: the flag that gave the patterns, for messages.
      needs_next_sentence: whether records of other programs must have labels for next sentence prediction.

    Raises:
      InputError: if a file is missing or incomplete or was made with other lengths, or if all files are empty.
    """
    paths = [path for path in path_checks.expand_patterns(patterns, flag_name) if not path.endswith(NOT_RECORDS)]
    if not paths:
        raise InputError(
            f"{flag_name}: {patterns!r} matches only metadata files ({METADATA_SUFFIX}). Pass TFRecord files."
        )

    def check(path: str) -> Shard | None:
        files.require_file(path, flag_name, may_be_empty=True)
        metadata = Metadata.read(path, flag_name)
        path = path if metadata else _decompressed(path, flag_name)
        size = files.size(path)
        if metadata is None:
            records = len(record_offsets(path, flag_name)) - 1
        else:
            if size != metadata.file_size:
                raise InputError(
                    f"{flag_name}: {path} has {size} bytes, but {metadata.file_size} according to its metadata file. "
                    "It is incomplete or was changed. Regenerate it."
                )
            records = metadata.records
            for name, expected in (
                ("max_seq_length", max_seq_length),
                ("max_predictions_per_seq", max_predictions_per_seq),
            ):
                recorded = getattr(metadata, name)
                if recorded != expected and (metadata.is_masked or name == "max_seq_length"):
                    raise InputError(
                        f"{flag_name}: {path} was made with --{name}={recorded}, but --{name} is {expected}. "
                        f"Set --{name}={recorded}, or regenerate the data."
                    )
        if records == 0 and size == 0:
            return None
        if records == 0:
            raise InputError(
                f"{flag_name}: {path} has {size} bytes, but no records according to its metadata file. Regenerate it."
            )
        example = _first_example(path, flag_name)
        if metadata:
            features = metadata.record_features()
        else:
            expected = pretraining_features(max_seq_length, max_predictions_per_seq)
            features = _stored_features(expected, example, path, flag_name, needs_next_sentence)
        _check_example(example, path, features, vocab_size, flag_name)
        return Shard(path, records, metadata, features)

    shards = [shard for shard in _for_each_file(paths, check) if shard]
    if not shards:
        raise InputError(f"{flag_name}: {patterns!r} matches only empty files. Regenerate the data.")
    return shards


def record_features(shards: Sequence[Shard], flag_name: str = "--input_file") -> tuple[Feature, ...]:
    """Returns the features in each record of the shards.

    Raises:
      InputError: if some shards are masked and others are not, or if their masking differs.
    """

    def kind(shard: Shard) -> tuple:
        is_masked = "masked_lm_ids" in names(shard.features)
        return shard.features, None if is_masked else masking_settings(shard)

    first = shards[0]
    for shard in shards:
        if kind(shard) != kind(first):
            raise InputError(
                f"{flag_name}: {first.path} and {shard.path} can't be combined. They were made with different masking "
                "settings, such as --masking. Train on one type of data at a time."
            )
    return first.features


def masking_settings(shard: Shard) -> Mapping[str, Any] | None:
    """Returns the fields of the `MaskingPolicy` of a shard; None if unknown."""
    return None if shard.metadata is None else shard.metadata.settings.get("masking_policy")


def identities(shards: Sequence[Shard]) -> list[str]:
    """Returns a description that identifies the data of each file, independent of its directory.

    A description consists of the file name, the number of records, and a fingerprint: the size, and the checksums of
    the first and last record. The fingerprint changes if the file is regenerated. Only a few bytes of a file are read.
    """
    names_of_files = [os.path.basename(shard.path) for shard in shards]
    return [f"{name}: {text}" for name, text in zip(names_of_files, contents(shards), strict=True)]


def contents(shards: Sequence[Shard]) -> list[str]:
    """Returns a description that identifies the data of each file, independent of its name. See `identities`."""
    return _for_each_file(shards, lambda shard: f"{shard.records} records, {_fingerprint(shard.path)}")


def _for_each_file(files_or_paths: Sequence[File], function: Callable[[File], Result]) -> list[Result]:
    """Calls a function for each file in many threads, and returns the results in order."""
    with concurrent.futures.ThreadPoolExecutor(_MAX_OPEN_FILES) as pool:
        return list(pool.map(function, files_or_paths))


def _fingerprint(path: str) -> str:
    size = files.size(path)
    with files.open_file(path, "rb") as reader:
        (length,) = struct.unpack("<Q", reader.read(8))
        reader.seek(FRAME_HEADER + length)
        first = reader.read(FRAME_FOOTER)
        reader.seek(size - FRAME_FOOTER)
        return f"{size}-{first.hex()}-{reader.read(FRAME_FOOTER).hex()}"


def _decompressed(path: str, flag_name: str) -> str:
    """Returns the path of a file or, if it is gzip-compressed, of a plain copy. The copy is removed at exit."""
    with files.open_file(path, "rb") as reader:
        if reader.read(len(_GZIP)) != _GZIP:
            return path
    directory = tempfile.mkdtemp(prefix="bert_tf_records_")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    plain = os.path.join(directory, os.path.basename(path))
    with files.open_file(path, "rb") as packed, gzip.open(packed) as reader, open(plain, "wb") as writer:
        try:
            shutil.copyfileobj(reader, writer)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(f"{flag_name}: {path}: damaged gzip file ({error}). Regenerate it.") from None
    say(f"{path} is compressed. A plain copy is created in {directory} and removed when the program ends.")
    return plain


def _first_example(path: str, flag_name: str) -> Mapping[str, Any]:
    try:
        return tf.train.Example.FromString(record_reader.first_record(path, flag_name)).features.feature
    except DecodeError as error:
        raise InputError(
            f"{flag_name}: the first record of {path} can't be read ({error}). Use files of create_pretraining_data."
        ) from None


def _stored_features(
    expected: Sequence[Feature], example: Mapping[str, Any], path: str, flag_name: str, needs_next_sentence: bool
) -> tuple[Feature, ...]:
    """Returns the features of another program's records, which have the original's or Model Garden's names.

    Raises:
      InputError: if a feature is missing; the message names it.
    """
    features = []
    for feature in expected:
        name, garden_name = feature.name, _GARDEN_NAMES.get(feature.name, feature.name)
        if name in example:
            features.append(feature)
        elif garden_name in example:
            features.append(dataclasses.replace(feature, stored_name=garden_name))
        elif name != "next_sentence_labels" or needs_next_sentence:
            hint = " --objective=mlm does not need it." if name == "next_sentence_labels" else ""
            raise InputError(
                f"{flag_name}: {path}, record 1: there is no {name}, only {first_of(sorted(example)) or 'nothing'}."
                f"{hint} Use pre-training data."
            )
    return tuple(features)


def _check_example(
    example: Mapping[str, Any], path: str, features: Sequence[Feature], vocab_size: int, flag_name: str
) -> None:
    for feature in features:
        entry = example.get(feature.stored_name or feature.name)
        values = () if entry is None else (entry.float_list if feature.is_float else entry.int64_list).value
        if len(values) != feature.length:
            flag_of_length = "max_predictions_per_seq" if feature.name.startswith("masked_lm") else "max_seq_length"
            raise InputError(
                f"{flag_name}: {path}, record 1: {feature.name} has {len(values)} numbers instead of {feature.length}. "
                f"The data was made with another --{flag_of_length}, or is not pre-training data."
            )
    ids = next(feature.stored_name or feature.name for feature in features if feature.name == "input_ids")
    largest = max(example[ids].int64_list.value)
    if largest >= vocab_size:
        raise InputError(
            f"{flag_name}: {path}, record 1: the id {largest} is outside the model's vocabulary of {vocab_size}. "
            "Use the config and the vocabulary that the data was made with."
        )
