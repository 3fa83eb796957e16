"""Measures how fast batches of pre-training examples are read, in comparison with the released input_fn.

    taskset -c 0,1 python -m benchmarks.input_pipeline [--records=40000] [--rounds=5]

The batches are not used for training. The goal is 20,000 sequences of 128 tokens per second on two cores. The program
takes about a minute.
"""

import os
import statistics
import tempfile
import time

import numpy as np
import tensorflow as tf
from absl import app, flags

from bert_tf.pretraining import input_pipeline, record_shards
from bert_tf.runtime import reporting
from bert_tf.sequences import example_format

_RECORDS = flags.DEFINE_integer("records", 40000, "Number of examples in the four files that are written first.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Number of measurements of each pipeline; the table gives the median.")
_BATCH = flags.DEFINE_integer("batch_size", 256, "Number of examples in a batch.")

LENGTH, PREDICTIONS, VOCAB_SIZE = 128, 20, 30522


def write_files(folder, features):
    """Writes random examples in the release's format into four files."""
    rng = np.random.default_rng(0)
    values = {
        feature.name: rng.integers(0, 2 if feature.length == LENGTH else VOCAB_SIZE, feature.length)
        for feature in features
    }
    values["masked_lm_weights"] = np.ones(PREDICTIONS)
    paths = [os.path.join(folder, f"part-{i}.tfrecord") for i in range(4)]
    for path in paths:
        with tf.io.TFRecordWriter(path) as writer:
            for _ in range(_RECORDS.value // len(paths)):
                values["input_ids"] = rng.integers(0, VOCAB_SIZE, LENGTH)
                values["next_sentence_labels"] = [int(rng.integers(2))]
                writer.write(example_format.serialize(features, values))
    return paths


def released_pipeline(paths, features):
    """Returns the pipeline of the release's input_fn, which parses each record alone before it makes batches."""
    spec = {
        f.name: tf.io.FixedLenFeature([f.length], tf.float32 if f.name == "masked_lm_weights" else tf.int64)
        for f in features
    }

    def parse(record):
        parsed = tf.io.parse_single_example(record, spec)
        return {name: tf.cast(x, tf.int32) if x.dtype == tf.int64 else x for name, x in parsed.items()}

    names = tf.data.Dataset.from_tensor_slices(paths).repeat().shuffle(len(paths))
    records = names.interleave(tf.data.TFRecordDataset, cycle_length=4, deterministic=False).shuffle(100)
    return records.map(parse, num_parallel_calls=4).batch(_BATCH.value, drop_remainder=True)


def sequences_per_second(dataset):
    """Measures a pass over as many records as there are, after five batches for warming up."""
    batches = iter(dataset)
    for _ in range(5):
        next(batches)
    count = _RECORDS.value // _BATCH.value
    start = time.perf_counter()
    for _ in range(count):
        next(batches)
    return count * _BATCH.value / (time.perf_counter() - start)


def main(_):
    features = example_format.pretraining_features(LENGTH, PREDICTIONS)
    with tempfile.TemporaryDirectory() as folder:
        paths = write_files(folder, features)
        shards = record_shards.find_shards(",".join(paths), LENGTH, PREDICTIONS, VOCAB_SIZE)
        pipelines = {
            "released input_fn": released_pipeline(paths, features),
            "ours": input_pipeline.training_batches(shards, features, _BATCH.value, seed=1, start_step=0),
        }
        speeds = {name: [] for name in pipelines}
        for _ in range(_ROUNDS.value):
            for name, dataset in pipelines.items():
                speeds[name].append(sequences_per_second(dataset))
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    print(
        reporting.table(
            [
                {"pipeline": name, "sequences per second": speed, "times as fast": speed / medians["released input_fn"]}
                for name, speed in medians.items()
            ]
        )
    )


if __name__ == "__main__":
    app.run(main)
