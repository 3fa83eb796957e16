"""Measures the time of a pre-training step in comparison with the released graph in the same run.

    python -m benchmarks.train_step [--sizes=base,small] [--dtypes=float32,bfloat16] [--rounds=5] [--without_products]

The contenders alternate after each step, so that other load on the machine affects all of them equally; the table gives
the median of each. With the default flags it takes about five minutes on 4 cores.
"""

import contextlib
import statistics
import time

import keras
from absl import app, flags

from benchmarks.pretraining_step import make_batch, our_step, without_products
from benchmarks.released_graph import ReleasedGraph
from bert_tf.config import BertConfig
from bert_tf.runtime import reporting

_SIZES = flags.DEFINE_list("sizes", ["base", "small"], "The released sizes to measure.")
_DTYPES = flags.DEFINE_list("dtypes", ["float32", "bfloat16"], "The types of our matrix products.")
_ROUNDS = flags.DEFINE_integer("rounds", 7, "Number of steps of each contender.")
_LENGTH = flags.DEFINE_integer("max_seq_length", 128, "Length of the sequences.")
_WITHOUT_PRODUCTS = flags.DEFINE_bool(
    "without_products",
    False,
    "Replace the result of every matrix product, ours and the release's, by one number.",
)
_BATCHES = flags.DEFINE_list("batches", [], "Batch sizes; by default 8 and 32 for base, 32 for the others.")


def released_step(config, batch):
    """Returns a function that runs one step of the released graph."""
    graph = ReleasedGraph(config)
    return lambda: graph.step(batch).numpy()


def measure(contenders, rounds):
    """Returns the median seconds of each contender; the contenders alternate."""
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
            with without_products() if _WITHOUT_PRODUCTS.value else contextlib.nullcontext():
                seconds = measure(contenders, _ROUNDS.value)
            baseline = seconds["released graph, float32"]
            rows += [
                {"model": size, "batch": batch_size, "contender": name, "seconds": s, "times as fast": baseline / s}
                for name, s in seconds.items()
            ]
            print(reporting.table(rows[-len(seconds) :]), flush=True)
    print("\n" + reporting.table(rows))


if __name__ == "__main__":
    app.run(main)
