"""From shards of TFRecords to batches: a pure function of (files, seed, step).

Training reads an endless stream: epoch after epoch, each with the shards in an order of its own. The stream is cut
into windows of some thousand records, and each window is shuffled with a seed of its own. So the batch of any step is
known without the steps before it; to resume, whole shards are skipped by their counts, then records, and nothing about
an iterator is ever saved.

Axis letters: B batch, W window.
"""

import dataclasses
import json
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError

from bert_tf import files
from bert_tf.example_format import SIDECAR_SUFFIX, Feature, Sidecar, names, parse, pretraining_features
from bert_tf.files import InputError

# Masks a batch that is read: called with its features, the step, its first row in the global batch and the global size.
Masker = Callable[[dict[str, tf.Tensor], tf.Tensor, tf.Tensor, int], dict[str, tf.Tensor]]

# A window is the smallest number of whole batches that holds so many records.
_WINDOW_RECORDS = 8192
# A TFRecord is its length (8 bytes), the length's checksum (4), the data, and the data's checksum (4).
_RECORD_HEADER, _RECORD_FOOTER = 12, 4
_READ_BUFFER = 8 << 20


@dataclasses.dataclass(frozen=True)
class Shard:
    """A file of TFRecords that was looked at.

    Attributes:
      path: the file.
      records: how many it holds.
      sidecar: what `data_prep` says of it; None for the release's own files.
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
    what: str = "--input_file",
) -> list[Shard]:
    """The shards that hold pre-training examples of the expected lengths.

    Args:
      patterns: comma-separated names and globs; sidecars among the matches are passed over.
      max_seq_length: the flag's value.
      max_predictions_per_seq: the flag's value.
      vocab_size: the model's; ids must be below.
      vocab_sha256: the vocabulary that will be used; None where it isn't known.
      what: how the user knows the files, for messages.

    Raises:
      InputError: if a file is missing, cut short or empty, or was made with other lengths or another vocabulary.
    """
    paths = [path for path in files.expand_patterns(patterns, what) if not path.endswith(SIDECAR_SUFFIX)]
    shards = []
    for path in paths:
        files.require_file(path, what)
        sidecar = Sidecar.read(path)
        if sidecar is None:
            records = count_records(path, what)
        else:
            size = tf.io.gfile.stat(path).length
            if size != sidecar.file_size:
                raise InputError(
                    f"{what}: {path} has {size} bytes, but {sidecar.file_size} by its sidecar. It was cut short or "
                    "changed; make it anew."
                )
            records = sidecar.records
            for name, expected in (
                ("max_seq_length", max_seq_length),
                ("max_predictions_per_seq", max_predictions_per_seq),
            ):
                found = getattr(sidecar, name)
                if found != expected and (sidecar.is_masked or name == "max_seq_length"):
                    raise InputError(
                        f"{what}: {path} was made with --{name}={found}, but --{name} is {expected}. "
                        f"Set --{name}={found}, or make the data anew."
                    )
            if vocab_sha256 is not None and sidecar.vocab_sha256 != vocab_sha256:
                raise InputError(
                    f"{what}: {path} was made with another vocabulary than --vocab_file "
                    f"(hash {sidecar.vocab_sha256[:12]}, not {vocab_sha256[:12]}). Use the vocabulary of the data."
                )
        if records == 0:
            raise InputError(f"{what}: {path} holds no records.")
        shard = Shard(path, records, sidecar)
        _check_first_record(path, record_features([shard], max_seq_length, max_predictions_per_seq), vocab_size, what)
        shards.append(shard)
    if not shards:
        raise InputError(f"{what}: {patterns!r} matches only sidecars ({SIDECAR_SUFFIX}), and no TFRecord files.")
    return shards


def record_features(
    shards: Sequence[Shard], max_seq_length: int, max_predictions_per_seq: int, what: str = "--input_file"
) -> tuple[Feature, ...]:
    """What each record of some shards holds; those without a sidecar hold what the release writes.

    Raises:
      InputError: if some are masked and some are not, or masked by other rules.
    """
    released = pretraining_features(max_seq_length, max_predictions_per_seq)
    by_policy: dict[str, tuple[Shard, tuple[Feature, ...]]] = {}
    for shard in shards:
        features = released if shard.sidecar is None else shard.sidecar.record_features()
        policy = "" if features == released else json.dumps([names(features), masking_settings(shard)], sort_keys=True)
        by_policy.setdefault(policy, (shard, features))
    if len(by_policy) > 1:
        (one, _), (other, _) = list(by_policy.values())[:2]
        raise InputError(
            f"{what}: {one.path} and {other.path} don't go together: they were made with different --masking, or for "
            "different masks. Train on one kind of data at a time."
        )
    return next(iter(by_policy.values()))[1]


def masking_settings(shard: Shard) -> Mapping[str, Any] | None:
    """The values of the `MaskingPolicy` that a shard was made for; None if that isn't known."""
    return None if shard.sidecar is None else shard.sidecar.settings.get("masking_policy")


def count_records(path: str, what: str) -> int:
    """Counts a file's records by their headers, without reading the data.

    Raises:
      InputError: if the file ends inside a record.
    """
    count = 0
    size = tf.io.gfile.stat(path).length
    position = 0
    with files.open_file(path, "rb") as reader:
        while position < size:
            reader.seek(position)
            header = reader.read(_RECORD_HEADER)
            length = struct.unpack("<Q", header[:8])[0] if len(header) == _RECORD_HEADER else size
            position += _RECORD_HEADER + length + _RECORD_FOOTER
            if position > size:
                raise InputError(
                    f"{what}: {path} ends inside its record {count + 1}, or is not a TFRecord file. "
                    "It was cut short or damaged; make it anew."
                )
            count += 1
    return count


def _check_first_record(path: str, features: Sequence[Feature], vocab_size: int, what: str) -> None:
    try:
        record = next(iter(tf.data.TFRecordDataset(path).take(1))).numpy()
        found = tf.train.Example.FromString(record).features.feature
    except (tf.errors.OpError, DecodeError) as error:
        raise InputError(f"{what}: the first record of {path} can't be read ({error}).") from None
    for feature in features:
        entry = found.get(feature.name)
        values = () if entry is None else (entry.float_list if feature.is_float else entry.int64_list).value
        if len(values) != feature.length:
            flag = "max_predictions_per_seq" if feature.name.startswith("masked_lm") else "max_seq_length"
            raise InputError(
                f"{what}: {path}, record 1: {feature.name} has {len(values)} numbers, but {feature.length} are "
                f"expected. The data was made with another --{flag}, or is no pre-training data."
            )
    largest = max(found["input_ids"].int64_list.value)
    if largest >= vocab_size:
        raise InputError(
            f"{what}: {path}, record 1: the id {largest} is outside the model's vocabulary of {vocab_size}. "
            "Use the config and the vocabulary that the data was made with."
        )


@dataclasses.dataclass(frozen=True)
class RecordPosition:
    """Where in the stream of shards a record lies.

    Attributes:
      epoch: how often all shards were read before.
      shards: the shards of this epoch, in its order.
      shard: index into `shards`.
      record: index into that shard.
    """

    epoch: int
    shards: list[Shard]
    shard: int
    record: int


def locate(shards: Sequence[Shard], index: int, seed: int | None) -> RecordPosition:
    """The place of the stream's `index`-th record; a `seed` of None leaves the shards in order."""
    epoch, rest = divmod(index, sum(shard.records for shard in shards))
    order = _epoch_order(len(shards), epoch, seed).numpy()
    position = 0
    while rest >= shards[order[position]].records:
        rest -= shards[order[position]].records
        position += 1
    return RecordPosition(epoch, [shards[i] for i in order], position, rest)


def _epoch_order(count: int, epoch: int | tf.Tensor, seed: int | None) -> tf.Tensor:
    """The order of the shards in an epoch, the same in the graph and outside of it."""
    if seed is None:
        return tf.range(count)
    return _shuffled_range(count, seed, epoch)


def _shuffled_range(count: int, seed: int, number: int | tf.Tensor) -> tf.Tensor:
    """A permutation of 0..count-1 for each (seed, number)."""
    pair = tf.stack([tf.cast(seed, tf.int64), tf.cast(number, tf.int64)])
    return tf.random.experimental.index_shuffle(tf.range(count), seed=pair, max_index=count - 1)


def _records_from(shards: Sequence[Shard], index: int, seed: int | None) -> tf.data.Dataset:
    """The endless stream of serialised records, from its `index`-th on."""
    start = locate(shards, index, seed)
    paths = tf.constant([shard.path for shard in shards])

    def paths_of_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(tf.gather(paths, _epoch_order(len(shards), epoch, seed)))

    first = _read(start.shards[start.shard].path).skip(start.record)
    rest_of_epoch = [shard.path for shard in start.shards[start.shard + 1 :]]
    later_epochs = tf.data.Dataset.counter(start.epoch + 1).flat_map(paths_of_epoch)
    later = tf.data.Dataset.from_tensor_slices(tf.constant(rest_of_epoch, tf.string)).concatenate(later_epochs)
    return first.concatenate(later.flat_map(_read))


def _read(path: str | tf.Tensor) -> tf.data.Dataset:
    return tf.data.TFRecordDataset(path, buffer_size=_READ_BUFFER)


def window_size(global_batch_size: int) -> int:
    """How many records are shuffled together: whole batches."""
    return global_batch_size * -(-_WINDOW_RECORDS // global_batch_size)


def training_batches(
    shards: Sequence[Shard],
    features: Sequence[Feature],
    global_batch_size: int,
    seed: int,
    start_step: int,
    context: tf.distribute.InputContext | None = None,
    masker: Masker | None = None,
) -> tf.data.Dataset:
    """Shuffled batches without end, from that of `start_step` on.

    Args:
      shards: what is read.
      features: what each record holds.
      global_batch_size: B over all replicas.
      seed: of both orders, that of the shards and that within windows.
      start_step: how many batches were used before.
      context: which part of each global batch this pipeline feeds; all of it if None.
      masker: what masks unmasked sequences.
    """
    window = window_size(global_batch_size)
    batches_per_window = window // global_batch_size
    first_window, batches_to_skip = divmod(start_step, batches_per_window)
    part, size = _part_of_batch(global_batch_size, context)

    def shuffle(number: tf.Tensor, records: tf.Tensor) -> tf.data.Dataset:  # [W] -> batches [B / replicas]
        order = _shuffled_range(window, seed, number)
        batches = tf.reshape(tf.gather(records, order), [batches_per_window, global_batch_size])
        return tf.data.Dataset.from_tensor_slices(tf.reshape(batches[:, part], [-1, size]))

    windows = _records_from(shards, first_window * window, seed).batch(window, drop_remainder=True)
    dataset = windows.enumerate(start=first_window).prefetch(1).flat_map(shuffle)
    dataset = dataset.skip(batches_to_skip * replicas_per_pipeline(context))
    return _parsed(dataset, features, global_batch_size, start_step, context, masker)


def evaluation_batches(
    shards: Sequence[Shard],
    features: Sequence[Feature],
    global_batch_size: int,
    context: tf.distribute.InputContext | None = None,
    masker: Masker | None = None,
) -> tf.data.Dataset:
    """Batches in the files' order, without end: as released, a short file is gone over again.

    Unmasked sequences get the same masks in every evaluation.
    """
    part, size = _part_of_batch(global_batch_size, context)
    dataset = _records_from(shards, 0, None).batch(global_batch_size, drop_remainder=True)
    dataset = dataset.map(lambda records: records[part]).unbatch().batch(size, drop_remainder=True)
    return _parsed(dataset, features, global_batch_size, 0, context, masker)


def _parsed(
    dataset: tf.data.Dataset,
    features: Sequence[Feature],
    global_batch_size: int,
    start_step: int,
    context: tf.distribute.InputContext | None,
    masker: Masker | None,
) -> tf.data.Dataset:
    """Batches of records, parsed and masked; each replica's part of a step's batch stands by itself."""
    replicas = replicas_per_pipeline(context)
    part, size = _part_of_batch(global_batch_size, context)

    def parse_batch(number: tf.Tensor, records: tf.Tensor) -> dict[str, tf.Tensor]:
        batch = parse(features, tf.ensure_shape(records, [size]))
        if masker is None:
            return batch
        return masker(batch, number // replicas, (part.start or 0) + number % replicas * size, global_batch_size)

    dataset = dataset.enumerate(start=start_step * replicas).map(parse_batch, num_parallel_calls=tf.data.AUTOTUNE)
    return _options(dataset).prefetch(tf.data.AUTOTUNE)


def replicas_per_pipeline(context: tf.distribute.InputContext | None) -> int:
    """How many replicas one input pipeline feeds; each takes the next batch in turn."""
    return 1 if context is None else context.num_replicas_in_sync // context.num_input_pipelines


def _part_of_batch(global_batch_size: int, context: tf.distribute.InputContext | None) -> tuple[slice, int]:
    """Which of a global batch's examples a pipeline feeds, and how many each of its replicas takes."""
    if context is None:
        return slice(None), global_batch_size
    size = context.get_per_replica_batch_size(global_batch_size)
    fed = size * replicas_per_pipeline(context)
    return slice(context.input_pipeline_id * fed, (context.input_pipeline_id + 1) * fed), size


def _options(dataset: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.deterministic = True
    # Each pipeline takes its own part of a batch itself.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(options)


def describe_position(shards: Sequence[Shard], global_batch_size: int, seed: int, step: int) -> str:
    """Names the shards that the records of a step's batch may come from."""
    window = window_size(global_batch_size)
    first = step * global_batch_size // window * window
    start, end = locate(shards, first, seed), locate(shards, first + window - 1, seed)
    names = [os.path.basename(start.shards[start.shard].path), os.path.basename(end.shards[end.shard].path)]
    return names[0] if names[0] == names[1] else f"{names[0]} to {names[1]}"
