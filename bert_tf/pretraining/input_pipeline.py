"""From shards of TFRecords to batches: a pure function of (files, seed, step).

Training reads an endless stream: epoch after epoch, each with the shards in an order of its own. Laid end to end in
that order, they are cut into streams of one length, which are interleaved, a record of each in turn, so that files
of different sources are mixed. The stream is cut into windows of some thousand records, and each window is shuffled
with a seed of its own. So the batch of any step is known without the steps before it; to resume, whole shards are
skipped by their counts, then records, and nothing about an iterator is ever saved.

Axis letters: B batch, W window.
"""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from bert_tf.pretraining.record_shards import Shard
from bert_tf.sequences.example_format import Feature, parse

# Masks a batch that is read: called with its features, the step, its first row in the global batch and the global size.
Masker = Callable[[dict[str, tf.Tensor], tf.Tensor, tf.Tensor, int], dict[str, tf.Tensor]]

# The release reads four files at a time. A stream begins inside a shard, and the records before that must be skipped;
# where that takes long, no shard gets more streams than one.
_INTERLEAVED_STREAMS, _LARGE_SHARD = 8, 1_000_000
# A window is the smallest number of whole batches that holds so many records.
_WINDOW_RECORDS = 8192
_READ_BUFFER = 8 << 20


def locate(shards: Sequence[Shard], indices: np.ndarray, seed: int | None) -> tuple[np.ndarray, np.ndarray]:
    """The places of the stream's records.

    Args:
      shards: what is read.
      indices: [n] numbers of records in the stream.
      seed: of the shards' order; None leaves them in order, one after the other.

    Returns:
      [n] the index into `shards` of each record's shard, and [n] its number in that shard.
    """
    total = sum(shard.records for shard in shards)
    epochs, rows = np.divmod(indices, total)
    streams = _stream_count(len(shards), total, seed)
    found = np.empty_like(indices), np.empty_like(indices)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        order = _epoch_order(len(shards), int(epoch), seed).numpy()
        starts = np.cumsum([0, *(shards[i].records for i in order)])
        position = _stream_start(rows[here] % streams, total, streams).numpy() + rows[here] // streams
        shard = np.searchsorted(starts, position, side="right") - 1
        found[0][here], found[1][here] = order[shard], position - starts[shard]
    return found


def _epoch_order(count: int, epoch: int | tf.Tensor, seed: int | None) -> tf.Tensor:
    """The order of the shards in an epoch, the same in the graph and outside of it."""
    if seed is None:
        return tf.range(count)
    return _shuffled_range(count, seed, epoch)


def _shuffled_range(count: int, seed: int, number: int | tf.Tensor) -> tf.Tensor:
    """A permutation of 0..count-1 for each (seed, number)."""
    pair = tf.stack([tf.cast(seed, tf.int64), tf.cast(number, tf.int64)])
    return tf.random.experimental.index_shuffle(tf.range(count), seed=pair, max_index=count - 1)


def _stream_count(shards: int, records: int, seed: int | None) -> int:
    if seed is None:
        return 1
    return _INTERLEAVED_STREAMS if records <= _LARGE_SHARD * shards else min(_INTERLEAVED_STREAMS, shards)


def _stream_start(stream: np.ndarray | tf.Tensor, total: int, streams: int) -> tf.Tensor:
    """Where a stream begins in an epoch's shards laid end to end; the first ones are longer by what doesn't divide."""
    return stream * (total // streams) + tf.minimum(stream, total % streams)


def _records_from(shards: Sequence[Shard], index: int, seed: int | None) -> tf.data.Dataset:
    """The endless stream of serialised records, from its `index`-th on."""
    paths = tf.constant([shard.path for shard in shards])
    counts = tf.constant([shard.records for shard in shards], tf.int64)
    total = sum(shard.records for shard in shards)
    streams = _stream_count(len(shards), total, seed)
    first_epoch, first_row = divmod(index, total)

    def epoch_records(epoch: tf.Tensor) -> tf.data.Dataset:
        order = _epoch_order(len(shards), epoch, seed)
        ordered_paths = tf.gather(paths, order)
        starts = tf.cumsum(tf.gather(counts, order), exclusive=True)
        row = tf.where(epoch == first_epoch, tf.constant(first_row, tf.int64), 0)

        def stream_records(stream: tf.Tensor) -> tf.data.Dataset:
            taken = (row - stream + streams - 1) // streams
            position = _stream_start(stream, total, streams) + taken
            shard = tf.searchsorted(starts, position[None], side="right")[0] - 1
            skips = tf.maximum(position - starts, 0)
            rest = tf.data.Dataset.from_tensor_slices((ordered_paths[shard:], skips[shard:]))
            records = rest.flat_map(lambda path, skip: _read(path).skip(skip))
            return records.take(_stream_start(stream + 1, total, streams) - position)

        turn = (tf.range(streams, dtype=tf.int64) + row) % streams
        return tf.data.Dataset.from_tensor_slices(turn).interleave(stream_records, cycle_length=streams, block_length=1)

    return tf.data.Dataset.counter(tf.constant(first_epoch, tf.int64)).flat_map(epoch_records)


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


def shards_of_step(shards: Sequence[Shard], global_batch_size: int, seed: int, step: int) -> list[str]:
    """The paths of the shards that the records of a step's batch come from."""
    window = window_size(global_batch_size)
    number, row = divmod(step * global_batch_size, window)
    batch = _shuffled_range(window, seed, number)[row : row + global_batch_size]
    return _paths(shards, number * window + batch.numpy().astype(np.int64), seed)


def shards_of_window(shards: Sequence[Shard], global_batch_size: int, seed: int, step: int) -> list[str]:
    """The paths of the shards that must be read for a step's batch."""
    window = window_size(global_batch_size)
    first = step * global_batch_size // window * window
    return _paths(shards, np.arange(first, first + window), seed)


def _paths(shards: Sequence[Shard], indices: np.ndarray, seed: int) -> list[str]:
    return [shards[i].path for i in np.unique(locate(shards, indices, seed)[0])]
