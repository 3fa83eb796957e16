"""Finds, counts and checks the TFRecord files of a run before training starts."""

import concurrent.futures
import dataclasses
import json
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import tensorflow as tf
from google.protobuf.message import DecodeError

from bert_tf.pretraining import record_reader
from bert_tf.runtime import files
from bert_tf.runtime.files import InputError
from bert_tf.sequences.example_format import (
    FRAME_FOOTER,
    FRAME_HEADER,
    NOT_RECORDS,
    SIDECAR_SUFFIX,
    Feature,
    Sidecar,
    names,
    pretraining_features,
    record_offsets,
)

File = TypeVar("File")
Result = TypeVar("Result")

# There may be thousands of files, and in the cloud it takes long to open one.
_MAX_OPEN_FILES = 32
# Settings of masking in the metadata of earlier versions -> their names of today.
_RENAMED = {"draw_per_word": "replace_words_jointly", "ordinary_replacements": "no_special_replacements"}


@dataclasses.dataclass(frozen=True)
class Shard:
    """A TFRecord file that has been checked.

    Attributes:
      path: the file.
      records: the number of its records.
      sidecar: the description that `data_prep` wrote beside it; None if there is none, as for the release's files.
    """

    path: str
    records: int
    sidecar: Sidecar | None


def find_shards(
    patterns: str,
    max_seq_length: int,
    max_predictions_per_seq: int,
    vocab_size: int,
    vocab_sha256: str | None = None,
    *,
    flag_name: str = "--input_file",
) -> list[Shard]:
    """Finds the files of pre-training examples, and checks that they have the expected lengths and vocabulary.

    Empty files are left out: where there are more shards than examples, some get none.

    Args:
      patterns: file names and glob patterns, separated by commas; sidecars that match are ignored.
      max_seq_length: the flag's value.
      max_predictions_per_seq: the flag's value.
      vocab_size: the model's vocabulary size; all ids must be smaller.
      vocab_sha256: the hash of the vocabulary that will be used; None if it isn't known.
      flag_name: the flag that gave the patterns, for messages.

    Raises:
      InputError: if a file is missing or incomplete, or was made with other lengths or another vocabulary, or if all
        files are empty.
    """
    paths = [path for path in files.expand_patterns(patterns, flag_name) if not path.endswith(NOT_RECORDS)]
    if not paths:
        raise InputError(f"{flag_name}: {patterns!r} matches only sidecars ({SIDECAR_SUFFIX}), and no TFRecord files.")

    def check(path: str) -> Shard | None:
        files.require_file(path, flag_name, may_be_empty=True)
        sidecar = Sidecar.read(path, flag_name)
        size = files.size(path)
        if sidecar is None:
            records = len(record_offsets(path, flag_name)) - 1
        else:
            if size != sidecar.file_size:
                raise InputError(
                    f"{flag_name}: {path} has {size} bytes, but {sidecar.file_size} are expected by its sidecar. The "
                    "file is incomplete or was changed; make it again."
                )
            records = sidecar.records
            for name, expected in (
                ("max_seq_length", max_seq_length),
                ("max_predictions_per_seq", max_predictions_per_seq),
            ):
                found = getattr(sidecar, name)
                if found != expected and (sidecar.is_masked or name == "max_seq_length"):
                    raise InputError(
                        f"{flag_name}: {path} was made with --{name}={found}, but --{name} is {expected}. "
                        f"Set --{name}={found}, or make the data again."
                    )
            if vocab_sha256 is not None and sidecar.vocab_sha256 != vocab_sha256:
                raise InputError(
                    f"{flag_name}: {path} was made with another vocabulary than --vocab_file "
                    f"(hash {sidecar.vocab_sha256[:12]}, not {vocab_sha256[:12]}). Use the vocabulary of the data."
                )
        if records == 0 and size == 0:
            return None
        if records == 0:
            raise InputError(f"{flag_name}: {path} has {size} bytes, but no records by its sidecar. Make it again.")
        shard = Shard(path, records, sidecar)
        _check_first_record(
            path, record_features([shard], max_seq_length, max_predictions_per_seq), vocab_size, flag_name
        )
        return shard

    shards = [shard for shard in _for_each_file(paths, check) if shard]
    if not shards:
        raise InputError(f"{flag_name}: {patterns!r} holds no records: every file is empty. Make the data again.")
    return shards


def record_features(
    shards: Sequence[Shard], max_seq_length: int, max_predictions_per_seq: int, flag_name: str = "--input_file"
) -> tuple[Feature, ...]:
    """The features in each record of the shards. Shards without a sidecar have the features that the release writes.

    Raises:
      InputError: if some shards are masked and others are not, or if they were made for different masks.
    """
    released = pretraining_features(max_seq_length, max_predictions_per_seq)
    by_policy: dict[str, tuple[Shard, tuple[Feature, ...]]] = {}
    for shard in shards:
        features = released if shard.sidecar is None else shard.sidecar.record_features()
        policy = "" if features == released else json.dumps([names(features), masking_settings(shard)], sort_keys=True)
        by_policy.setdefault(policy, (shard, features))
    if len(by_policy) > 1:
        (first, _), (second, _) = list(by_policy.values())[:2]
        raise InputError(
            f"{flag_name}: {first.path} and {second.path} don't go together: they were made with different "
            "--masking, or for different masks. Train on one kind of data at a time."
        )
    return next(iter(by_policy.values()))[1]


def masking_settings(shard: Shard) -> Mapping[str, Any] | None:
    """The fields of the `MaskingPolicy` for which a shard was made; None if it isn't known."""
    policy = None if shard.sidecar is None else shard.sidecar.settings.get("masking_policy")
    return {_RENAMED.get(name, name): value for name, value in policy.items()} if isinstance(policy, dict) else policy


def identities(shards: Sequence[Shard]) -> list[str]:
    """What tells the data of each file from other data, wherever the file is.

    Its name, the number of its records, and a fingerprint: its size, and the checksums of its first and its last
    record. The fingerprint changes when the data is made again with the same name. Only a few bytes of a file are read.
    """

    def identity(shard: Shard) -> str:
        return f"{os.path.basename(shard.path)}: {shard.records} records, {_fingerprint(shard.path)}"

    return _for_each_file(shards, identity)


def _for_each_file(files_or_paths: Sequence[File], function: Callable[[File], Result]) -> list[Result]:
    """Calls a function for each file, in many threads, and returns the results in order."""
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


def _check_first_record(path: str, features: Sequence[Feature], vocab_size: int, flag_name: str) -> None:
    try:
        found = tf.train.Example.FromString(record_reader.first_record(path, flag_name)).features.feature
    except DecodeError as error:
        raise InputError(
            f"{flag_name}: the first record of {path} can't be read ({error}). Is it made by create_pretraining_data?"
        ) from None
    for feature in features:
        entry = found.get(feature.name)
        values = () if entry is None else (entry.float_list if feature.is_float else entry.int64_list).value
        if len(values) != feature.length:
            flag_of_length = "max_predictions_per_seq" if feature.name.startswith("masked_lm") else "max_seq_length"
            raise InputError(
                f"{flag_name}: {path}, record 1: {feature.name} has {len(values)} numbers, but {feature.length} are "
                f"expected. The data was made with another --{flag_of_length}, or is not pre-training data."
            )
    largest = max(found["input_ids"].int64_list.value)
    if largest >= vocab_size:
        raise InputError(
            f"{flag_name}: {path}, record 1: the id {largest} is outside the model's vocabulary of {vocab_size}. "
            "Use the config and the vocabulary that the data was made with."
        )
