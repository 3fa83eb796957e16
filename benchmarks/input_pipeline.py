"""Measures how fast batches of pre-training examples are read, compared with the original input_fn.

    taskset -c 0,1 python -m benchmarks.input_pipeline [--records=40000] [--rounds=5]

The batches are not used for training. The goal is 20,000 sequences of 128 tokens per second on two cores.

The second table shows the processor time of one of several workers, and the bytes that the worker reads from the
system. Both numbers are divided by the number of sequences in the global batches. In the row "reads all", the worker
reads all files completely and skips the records of the other workers. In the row "reads its own", it reads only its own
records. The workers are simulated: an `InputContext` selects a part of each batch. The first passes, which read the
headers of all records, are not counted; a line shows their cost. The program takes about two minutes.

The last line is for fine-tuning on a TPU with 8 cores: the sequences that a core of the host packs per second. A batch
has 256 sequences, which are as long as the sequences of QNLI.
"""

import dataclasses
import functools
import os
import tempfile
import time

import numpy as np
import tensorflow as tf
from absl import app, flags

from benchmarks.common import medians
from bert_tf.finetuning import training_batches
from bert_tf.finetuning.feature_sets import BatchSampler, FeatureSet
from bert_tf.pretraining import input_pipeline, record_shards
from bert_tf.runtime import reporting
from bert_tf.sequences import example_format
from bert_tf.sequences.graph_masking import BatchMasker
from bert_tf.sequences.masking import MaskingPolicy, MaskingVocabulary
from bert_tf.sequences.placement import Packer
from bert_tf.training.settings import Shapes
from data_prep.examples.records import RecordEncoder

_RECORDS = flags.DEFINE_integer("records", 40000, "Number of examples to write into four files first.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Measurements of each pipeline; the table shows the median.")
_BATCH = flags.DEFINE_integer("batch_size", 256, "Examples per batch.")
_WORKERS_BATCH = flags.DEFINE_integer("workers_batch_size", 4096, "Examples per global batch of all workers.")

_WORKERS = flags.DEFINE_list("workers", ["1", "2", "4", "8", "64"], "Numbers of workers to simulate.")

LENGTH, PREDICTIONS, VOCAB_SIZE = 128, 20, 30522


def write_files(directory, features):
    """Writes random examples into four files."""
    rng, encoder = np.random.default_rng(0), RecordEncoder(features, VOCAB_SIZE)
    limits = dict.fromkeys(("input_mask", "segment_ids", "next_sentence_labels"), 2)
    paths = [os.path.join(directory, f"part-{i}.tfrecord") for i in range(4)]
    for path in paths:
        count = _RECORDS.value // len(paths)
        values = {f.name: rng.integers(0, limits.get(f.name, VOCAB_SIZE), (count, f.length)) for f in features}
        values["masked_lm_weights"] = np.ones((count, PREDICTIONS))
        with open(path, "wb") as file:
            file.writelines(encoder.encode(values))
    return paths


def released_pipeline(paths, features):
    """Returns the pipeline of the original input_fn, which parses each record separately before batching."""
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
    """Returns the speed of one pass over the records, after five batches for warming up."""
    batches = iter(dataset)
    for _ in range(5):
        next(batches)
    count = _RECORDS.value // _BATCH.value
    start = time.perf_counter()
    for _ in range(count):
        next(batches)
    return count * _BATCH.value / (time.perf_counter() - start)


def bytes_read():
    """Returns the number of bytes that this process has read from the system so far."""
    with open("/proc/self/io", encoding="utf-8") as reader:
        return int(reader.readline().split()[1])


def costs(dataset):
    """Returns the microseconds of processor time and the bytes read, per record of the global batches."""
    batches = iter(dataset)
    batches_per_pass = max(1, _RECORDS.value // _WORKERS_BATCH.value)
    for _ in range(batches_per_pass):
        next(batches)
    start, start_bytes = time.process_time(), bytes_read()
    for _ in range(4 * batches_per_pass):
        next(batches)
    records = 4 * batches_per_pass * _WORKERS_BATCH.value
    return (time.process_time() - start) / records * 1e6, (bytes_read() - start_bytes) / records


def workers_table(shards, features, masker):
    """Returns table rows for each number of workers, with the medians over all rounds."""
    rows = []
    for workers in map(int, _WORKERS.value):
        context = tf.distribute.InputContext(workers, 0, workers)

        def measure(reads_through, context=context):
            data = shards, features, _WORKERS_BATCH.value, 1, 0, context, masker
            return costs(input_pipeline.training_batches(*data, reads_through=reads_through))

        ways = {"reads all": functools.partial(measure, True), "reads its own": functools.partial(measure, False)}
        rows.append({"data": "static masks" if masker is None else "dynamic masks", "workers": workers})
        for way, (microseconds, size) in medians(ways, _ROUNDS.value).items():
            rows[-1] |= {f"{way}: us": microseconds, f"{way}: bytes": size}
    return rows


def packed_per_second():
    """Returns the number of fine-tuning sequences per second of processor time, packed for a TPU with 8 cores."""
    rng, replicas, steps = np.random.default_rng(0), 8, 60
    lengths = np.clip(rng.lognormal(np.log(47), 0.42, 20000), 10, LENGTH).astype(int)  # 51 tokens on average
    sequences = [(rng.integers(VOCAB_SIZE, size=length), np.zeros(length, int)) for length in lengths]
    labels = {"label_ids": np.zeros(len(lengths), np.int32)}
    sampler = BatchSampler(FeatureSet.from_sequences(sequences, labels, 1), _BATCH.value, 1, [LENGTH])
    packer = Packer(replicas).with_shape(map(sampler.sizes, range(16)), LENGTH, 0)
    context = tf.distribute.InputContext(1, 0, replicas)
    batches = iter(training_batches.batches(sampler, packer, 0, Shapes.ONE, context))
    for _ in range(3 * replicas):
        next(batches)
    start = time.process_time()
    for _ in range(steps * replicas):
        next(batches)
    return steps * _BATCH.value / (time.process_time() - start)


def main(_):
    features = example_format.pretraining_features(LENGTH, PREDICTIONS)
    unmasked = example_format.unmasked_features(LENGTH)
    vocabulary = MaskingVocabulary.of({"[PAD]": 0, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103, "[last]": VOCAB_SIZE - 1})
    masker = BatchMasker(MaskingPolicy(), vocabulary, PREDICTIONS, seed=1)
    with tempfile.TemporaryDirectory() as directory:
        paths = write_files(directory, features)
        shards = record_shards.find_shards(",".join(paths), LENGTH, PREDICTIONS, VOCAB_SIZE)
        rows = workers_table(shards, features, None)
        unmasked_directory = os.path.join(directory, "unmasked")
        os.mkdir(unmasked_directory)
        unmasked_shards = [
            dataclasses.replace(shard, path=path)
            for shard, path in zip(shards, write_files(unmasked_directory, unmasked), strict=True)
        ]
        rows += workers_table(unmasked_shards, unmasked, masker)
        start, start_bytes = time.process_time(), bytes_read()
        records = sum(len(example_format.record_offsets(path, "--input_file")) - 1 for path in paths)
        headers = (time.process_time() - start) / records * 1e6, (bytes_read() - start_bytes) / records
        pipelines = {
            "released input_fn": released_pipeline(paths, features),
            "ours": input_pipeline.training_batches(shards, features, _BATCH.value, seed=1, start_step=0),
        }
        contenders = {name: functools.partial(sequences_per_second, data) for name, data in pipelines.items()}
        speeds = medians(contenders, _ROUNDS.value)
    print(reporting.table(rows))
    print(f"Headers of all records, once: {headers[0]:.2f} us and {headers[1]:.0f} bytes per record.\n")
    baseline = speeds["released input_fn"]
    rows = [{"pipeline": x, "sequences per second": s, "times as fast": s / baseline} for x, s in speeds.items()]
    print(reporting.table(rows))
    print(f"Packed for fine-tuning on 8 TPU cores: {packed_per_second():,.0f} sequences per second of a core.")


if __name__ == "__main__":
    app.run(main)
