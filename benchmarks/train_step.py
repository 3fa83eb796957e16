"""How long a pre-training step takes, against the released graph's on the same machine in the same run.

    python -m benchmarks.train_step [--sizes=base,small] [--dtypes=float32,bfloat16] [--rounds=5] [--without_products]

The contenders take turns, one step each, so that whatever else the machine does falls on all of them; the table gives
each one's median. The default takes about five minutes on 4 cores.
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

_SIZES = flags.DEFINE_list("sizes", ["base", "small"], "Released sizes to measure.")
_DTYPES = flags.DEFINE_list("dtypes", ["float32", "bfloat16"], "What our products are computed in.")
_ROUNDS = flags.DEFINE_integer("rounds", 7, "Steps of each contender.")
_LENGTH = flags.DEFINE_integer("max_seq_length", 128, "Length of the sequences.")
_WITHOUT_PRODUCTS = flags.DEFINE_bool(
    "without_products", False, "Replace each product, of ours and the release's, by writing one number everywhere."
)
_BATCHES = flags.DEFINE_list("batches", [], "Batch sizes; by default 8 and 32 for base, 32 for the others.")


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
            with without_products() if _WITHOUT_PRODUCTS.value else contextlib.nullcontext():
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
