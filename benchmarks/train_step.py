"""How long a pre-training step takes, against the released graph's on the same machine in the same run.

    python benchmarks/train_step.py [--sizes=base,small] [--dtypes=float32,bfloat16] [--rounds=5]

The contenders take turns, one step each, so that whatever else the machine does falls on all of them; the table gives
each one's median. The default takes about five minutes on 4 cores.
"""

import statistics
import tempfile
import time

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags
from released_graph import ReleasedGraph

from bert_tf import distribution, reporting
from bert_tf.config import BertConfig
from bert_tf.optimization import OptimizerConfig
from bert_tf.pretraining import PretrainingModel
from bert_tf.training_step import DTYPES, Trainer, TrainingConfig

_SIZES = flags.DEFINE_list("sizes", ["base", "small"], "Released sizes to measure.")
_DTYPES = flags.DEFINE_list("dtypes", ["float32", "bfloat16"], "What our products are computed in.")
_ROUNDS = flags.DEFINE_integer("rounds", 7, "Steps of each contender.")
_LENGTH = flags.DEFINE_integer("max_seq_length", 128, "Length of the sequences.")
_BATCHES = flags.DEFINE_list("batches", [], "Batch sizes; by default 8 and 32 for base, 32 for the others.")

PREDICTIONS = 20


def make_batch(config, batch_size, length):
    """A batch of random examples, as full as they come."""
    rng = np.random.default_rng(0)
    return {
        "input_ids": tf.constant(rng.integers(0, config.vocab_size, (batch_size, length)), tf.int32),
        "input_mask": tf.ones([batch_size, length], tf.int32),
        "segment_ids": tf.constant(rng.integers(0, 2, (batch_size, length)), tf.int32),
        "masked_lm_positions": tf.constant(rng.integers(0, length, (batch_size, PREDICTIONS)), tf.int32),
        "masked_lm_ids": tf.constant(rng.integers(0, config.vocab_size, (batch_size, PREDICTIONS)), tf.int32),
        "masked_lm_weights": tf.ones([batch_size, PREDICTIONS]),
        "next_sentence_labels": tf.constant(rng.integers(0, 2, batch_size), tf.int32),
    }


def our_step(config, batch, dtype, **options):
    """A function that runs one of our training steps."""
    size = batch["input_ids"].shape[0]
    settings = TrainingConfig(tempfile.gettempdir(), OptimizerConfig(1e-4, 10000, 100), size, dtype=dtype, **options)
    strategy = distribution.build_strategy(distribution.DistributionConfig())
    with strategy.scope():
        trainer = Trainer(PretrainingModel(config, dtype=DTYPES[dtype]), settings, strategy)
    trainer.iterator = iter(tf.data.Dataset.from_tensors(batch).repeat())
    return lambda: trainer.train(tf.constant(1))


def released_step(config, batch):
    """A function that runs one step of the released graph."""
    graph = ReleasedGraph(config)
    return lambda: graph.step(batch).numpy()


def measure(contenders, rounds):
    """Median seconds of each contender, which take turns."""
    times = {name: [] for name in contenders}
    for step in contenders.values():
        step(), step()
    for _ in range(rounds):
        for name, step in contenders.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def main(_):
    rows = []
    for size in _SIZES.value:
        config = BertConfig.named(size)
        for batch_size in map(int, _BATCHES.value or (["8", "32"] if size == "base" else ["32"])):
            keras.utils.set_random_seed(1)
            batch = make_batch(config, batch_size, _LENGTH.value)
            contenders = {"released graph, float32": released_step(config, batch)}
            contenders |= {f"ours, {dtype}": our_step(config, batch, dtype) for dtype in _DTYPES.value}
            seconds = measure(contenders, _ROUNDS.value)
            baseline = seconds["released graph, float32"]
            rows += [
                {"model": size, "batch": batch_size, "step of": name, "seconds": s, "times as fast": baseline / s}
                for name, s in seconds.items()
            ]
            print(reporting.table(rows[-len(seconds) :]), flush=True)
    print("\n" + reporting.table(rows))


if __name__ == "__main__":
    app.run(main)
