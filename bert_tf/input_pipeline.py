"""From shards of TFRecords to batches: a pure function of (files, seed, step).

Training reads an endless stream: epoch after epoch, each with the shards in an order of its own. The stream is cut
into windows of some thousand records, and each window is shuffled with a seed of its own. So the batch of any step is
known without the steps before it; to resume, whole shards are skipped by their counts, then records, and nothing about
an iterator is ever saved.

Axis letters: B batch, W window.
"""

import dataclasses
import os
from collections.abc import Callable, Sequence

import tensorflow as tf

from bert_tf.example_format import Feature, parse
from bert_tf.record_shards import Shard

# Masks a batch that is read: called with its features, the step, its first row in the global batch and the global size.
Masker = Callable[[dict[str, tf.Tensor], tf.Tensor, tf.Tensor, int], dict[str, tf.Tensor]]

# A window is the smallest number of whole batches that holds so many records.
_WINDOW_RECORDS = 8192
_READ_BUFFER = 8 << 20


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
