"""Measures the time of a pre-training step compared with the original graph in the same run.

    python -m benchmarks.train_step [--sizes=base,small] [--dtypes=float32,bfloat16] [--rounds=5] [--without_products]
        [--compare_python=PATH]

The contenders alternate after each step, so that other load on the machine affects all of them equally. The table shows
the median of each. If --compare_python is the interpreter of an environment with torch and transformers, transformers
trains the same model on the same examples, in the same precisions. With the default flags it takes about ten minutes on
2 cores.
"""

import contextlib
import functools
import statistics
import tempfile
import time

import keras
import numpy as np
from absl import app, flags

from benchmarks import transformers_peer
from benchmarks.pretraining_step import make_batch, our_step, without_products
from benchmarks.released_graph import ReleasedGraph
from bert_tf.config import BertConfig
from bert_tf.runtime import reporting

_SIZES = flags.DEFINE_list("sizes", ["base", "small"], "Released sizes to measure.")
_DTYPES = flags.DEFINE_list("dtypes", ["float32", "bfloat16"], "Data types of our matrix multiplications.")
_ROUNDS = flags.DEFINE_integer("rounds", 7, "Steps of each contender.")
_LENGTH = flags.DEFINE_integer("max_seq_length", 128, "Length of the sequences.")
_WITHOUT_PRODUCTS = flags.DEFINE_bool(
    "without_products",
    False,
    "Replace the results of all matrix multiplications, ours and the original's, by one number.",
)
_COMPARE_PYTHON = flags.DEFINE_string("compare_python", "", "Python interpreter with torch and transformers.")
_BATCHES = flags.DEFINE_list("batches", [], "Batch sizes. Default: 8 and 32 for base, 32 for the others.")


def released_step(config, batch):
    """Returns a function that runs one step of the original graph."""
    graph = ReleasedGraph(config)
    return lambda: graph.step(batch).numpy()


def examples_of(batch):
    """Yields the examples of a batch in the format of transformers, which predicts tokens whose label is not -100."""
    batch = {name: values.numpy() for name, values in batch.items()}
    labels = np.full(batch["input_ids"].shape, -100)
    np.put_along_axis(labels, batch["masked_lm_positions"], batch["masked_lm_ids"], axis=1)
    columns = (batch["input_ids"], batch["segment_ids"], labels, batch["next_sentence_labels"])
    for values in zip(*(column.tolist() for column in columns), strict=True):
        yield dict(zip(("input_ids", "token_type_ids", "labels", "next_sentence_label"), values, strict=True))


def measure(contenders, rounds):
    """Returns the median seconds of each contender. The contenders alternate."""
    times = {name: [] for name in contenders}
    for step in contenders.values():
        step(), step()
    for _ in range(rounds):
        for name, step in contenders.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def compare(size, batch_size):
    """Returns the rows of the table for a model and a batch size."""
    config = BertConfig.named(size)
    keras.utils.set_random_seed(1)
    batch = make_batch(config, batch_size, _LENGTH.value)
    contenders = {"released graph, float32": released_step(config, batch)}
    contenders |= {f"ours, {dtype}": our_step(config, batch, dtype) for dtype in _DTYPES.value}
    with contextlib.ExitStack() as context:
        if _COMPARE_PYTHON.value:
            folder = context.enter_context(tempfile.TemporaryDirectory())
            transformers_peer.write(folder, config, "BertForPreTraining", examples_of(batch))
            for dtype in _DTYPES.value:
                peer = transformers_peer.steps(_COMPARE_PYTHON.value, folder, dtype, batch_size)
                contenders[f"transformers, {dtype}"] = functools.partial(context.enter_context(peer), 1)
        if _WITHOUT_PRODUCTS.value:
            context.enter_context(without_products())
        seconds = measure(contenders, _ROUNDS.value)
    baseline = seconds["released graph, float32"]
    return [
        {"model": size, "batch": batch_size, "contender": name, "seconds": s, "times as fast": baseline / s}
        for name, s in seconds.items()
    ]


def main(_):
    rows = []
    for size in _SIZES.value:
        for batch_size in map(int, _BATCHES.value or (["8", "32"] if size == "base" else ["32"])):
            rows += compare(size, batch_size)
            print(reporting.table(rows), flush=True)


if __name__ == "__main__":
    app.run(main)
