"""Makes batches from TFRecord files. The batch of a step depends only on the files, the seed and the step.

Training reads an endless sequence of records:

- In each epoch, the shards are in a different random order.
- The records of an epoch, in this order, are split into a few streams of equal length. The streams are interleaved:
  one record is taken from each stream in turn, so records from different files are mixed.
- The resulting sequence is split into shuffle windows of a few thousand records, and each window is shuffled with its
  own seed.

A run can therefore resume at any step without saved iterator state. If one pipeline provides complete batches, it reads
the files from beginning to end. To resume, complete shards are skipped by their record counts, and then single records.
If each of several workers provides a part of each batch, it locates its own records and reads only these.

Axis letters: B batch, W shuffle window.
"""

import functools
import types
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from bert_tf.distribution.devices import part_of_batch
from bert_tf.pretraining import packed_examples
from bert_tf.pretraining.record_reader import RecordReader
from bert_tf.pretraining.record_shards import Shard
from bert_tf.sequences.example_format import Feature, parse
from bert_tf.sequences.placement import Packer

# Masks a batch. Arguments: the features, the step, and the index in the global batch of the first row.
Masker = Callable[[dict[str, tf.Tensor], tf.Tensor, tf.Tensor], dict[str, tf.Tensor]]

# The original code reads four files in turn. Here, eight streams are read in turn. A stream can begin inside a shard:
# it skips the earlier records. If skipping takes long, there are at most as many streams as shards.
_INTERLEAVED_STREAMS, _LARGE_SHARD = 8, 1_000_000
# A shuffle window has as many complete batches as are needed for this number of records.
_WINDOW_RECORDS = 8192
_READ_BUFFER = 8 << 20


def locate(shards: Sequence[Shard], indices: np.ndarray, seed: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Finds the shards and the positions of some records in the endless sequence.

    Args:
      shards: the files.
      indices: [n], the indices of the records in the sequence, before shuffling in windows.
      seed: the seed of the order of the shards; None to read the shards one after another in the given order.

    Returns:
      The index of each record's shard in `shards`, [n], and the index of the record in this shard, [n].
    """
    counts = tuple(shard.records for shard in shards)
    total = sum(counts)
    epochs, rows = np.divmod(indices, total)
    streams = _stream_count(len(shards), total, seed)
    shard_indices, record_indices = np.empty_like(indices), np.empty_like(indices)
    for epoch in np.unique(epochs):
        in_epoch = epochs == epoch
        order, starts = _epoch_layout(counts, int(epoch), seed)
        position = _stream_start(rows[in_epoch] % streams, total, streams, ops=np) + rows[in_epoch] // streams
        shard = np.searchsorted(starts, position, side="right") - 1
        shard_indices[in_epoch], record_indices[in_epoch] = order[shard], position - starts[shard]
    return shard_indices, record_indices


@functools.lru_cache(maxsize=4)
def _epoch_layout(counts: tuple[int, ...], epoch: int, seed: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Returns the order of an epoch's shards, and the index of each shard's first record, then the total."""
    order = np.asarray(_shuffled(np.arange(len(counts)), len(counts), seed, epoch))
    return order, np.cumsum([0, *(counts[i] for i in order)])


def _shuffled(
    positions: np.ndarray | tf.Tensor, count: int, seed: int | None, number: int | tf.Tensor
) -> np.ndarray | tf.Tensor:
    """Returns the values at some positions of a permutation of 0..count-1, which depends on the seed and the number.

    Without a seed, nothing is permuted.
    """
    if seed is None:
        return positions
    pair = tf.stack([tf.cast(seed, tf.int64), tf.cast(number, tf.int64)])
    return tf.random.experimental.index_shuffle(positions, seed=pair, max_index=count - 1)


def _stream_count(shards: int, records: int, seed: int | None) -> int:
    if seed is None:
        return 1
    return _INTERLEAVED_STREAMS if records <= _LARGE_SHARD * shards else min(_INTERLEAVED_STREAMS, shards)


def _stream_start(
    stream: np.ndarray | tf.Tensor, total: int, streams: int, ops: types.ModuleType = tf
) -> np.ndarray | tf.Tensor:
    """Returns the index of a stream's first record. The first `total % streams` streams are one record longer."""
    return stream * (total // streams) + ops.minimum(stream, total % streams)


def _records_from(shards: Sequence[Shard], index: int, seed: int | None) -> tf.data.Dataset:
    """Returns the endless sequence of serialised records, beginning with the record `index`."""
    paths = tf.constant([shard.path for shard in shards])
    counts = tf.constant([shard.records for shard in shards], tf.int64)
    total = sum(shard.records for shard in shards)
    streams = _stream_count(len(shards), total, seed)
    first_epoch, first_row = divmod(index, total)

    def epoch_records(epoch: tf.Tensor) -> tf.data.Dataset:
        order = _shuffled(np.arange(len(shards)), len(shards), seed, epoch)
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
    """Returns the number of records that are shuffled together, a multiple of the batch size."""
    return global_batch_size * -(-_WINDOW_RECORDS // global_batch_size)


# The functions below have no Python control flow on tensors, so AutoGraph, which datasets use, is not needed.
@tf.autograph.experimental.do_not_convert
def training_batches(
    shards: Sequence[Shard],
    features: Sequence[Feature],
    global_batch_size: int,
    seed: int | None,
    start_step: int,
    context: tf.distribute.InputContext | None = None,
    masker: Masker | None = None,
    *,
    packer: Packer | None = None,
    reads_through: bool = False,
) -> tf.data.Dataset:
    """Returns the endless sequence of batches, beginning with the batch of `start_step`.

    Args:
      shards: the files.
      features: the features in each record.
      global_batch_size: B, over all replicas.
      seed: the seed for shuffling the shards and the windows; None to read the files in order.
      start_step: the number of batches that were used before.
      context: defines which part of each global batch this pipeline provides; None for all of it.
      masker: masks unmasked examples; None for masked ones.
      packer: packs the sequences into rows, in Python; None for one padded sequence per row, as in the files.
      reads_through: if True, read all records even if this pipeline provides only a part of each batch. Reading single
        records needs Python functions, which the remote hosts of a TPU can't call.

    Returns:
      A dataset. Its elements are parts of batches, one for each replica of this pipeline in turn.
    """
    window = global_batch_size if seed is None else window_size(global_batch_size)
    first_window, skipped_batches = divmod(start_step, window // global_batch_size)
    batch_slice, replicas = part_of_batch(global_batch_size, context)
    size = batch_slice.stop - batch_slice.start
    positions = np.arange(window).reshape(-1, global_batch_size)[:, batch_slice]  # positions in the shuffled window
    reads_through = reads_through or context is None or context.num_input_pipelines == 1
    dataset = _own_records(shards, positions, seed, window, first_window, reads_through)

    def parse_batch(step: tf.Tensor, records: tf.Tensor) -> tf.data.Dataset:
        batch = parse(features, tf.ensure_shape(records, [size]))
        if masker is not None:
            batch = masker(batch, step, tf.constant(batch_slice.start, tf.int64))
        if packer is not None:
            return packed_examples.packed(batch, packer)
        return {name: tf.reshape(x, [replicas, size // replicas, *x.shape[1:]]) for name, x in batch.items()}

    dataset = dataset.skip(skipped_batches).enumerate(start=start_step)
    dataset = dataset.map(parse_batch, num_parallel_calls=tf.data.AUTOTUNE)
    dataset = dataset.flat_map(tf.data.Dataset.from_tensor_slices)
    # If the cardinality were unknown, all workers would synchronise before each step.
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    return _options(dataset).prefetch(tf.data.AUTOTUNE)


def _own_records(
    shards: Sequence[Shard], indices: np.ndarray, seed: int | None, window: int, first_window: int, reads_through: bool
) -> tf.data.Dataset:
    """Returns the serialised records at `indices` in each shuffled window, one batch per row of `indices`."""
    if reads_through:
        windows = _records_from(shards, first_window * window, seed).batch(window, drop_remainder=True)
        dataset = windows.enumerate(start=first_window).map(
            lambda number, records: tf.gather(records, _shuffled(indices.ravel(), window, seed, number))
        )
    else:
        reader = RecordReader([shard.path for shard in shards], [shard.records for shard in shards])

        def read(record_indices: np.ndarray) -> np.ndarray:
            return np.array(reader.read(*locate(shards, record_indices, seed)), object)

        dataset = tf.data.Dataset.counter(tf.constant(first_window, tf.int64)).map(
            lambda number: tf.numpy_function(
                read, [number * window + _shuffled(indices.ravel(), window, seed, number)], tf.string
            )
        )
    return dataset.prefetch(1).flat_map(
        lambda records: tf.data.Dataset.from_tensor_slices(tf.reshape(records, indices.shape))
    )


def _options(dataset: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.deterministic = True
    # `part_of_batch` already selects the pipeline's part of a batch.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(options)


def shards_of_step(
    shards: Sequence[Shard], global_batch_size: int, seed: int, step: int, reads_window: bool = False
) -> list[str]:
    """Returns the paths of the shards that contain the records of a step's batch.

    If `reads_window` is True, returns the shards of the step's complete shuffle window, which are read for the step.
    """
    window = window_size(global_batch_size)
    number, row = divmod(step * global_batch_size, window)
    records = np.arange(window)
    if not reads_window:
        records = _shuffled(records[row : row + global_batch_size], window, seed, number).numpy().astype(np.int64)
    return [shards[i].path for i in np.unique(locate(shards, number * window + records, seed)[0])]
