"""Shows which operations take the time of a served model, and how fast its matrix multiplications are.

    taskset -c 0,1 python -m benchmarks.serving_profile --model_dir=MODEL [--threads=2] [--calls=20]

MODEL is an exported classifier of pairs, for example of `python -m benchmarks.serving --role=exporter
--directory=MODEL`. The program answers one pair of 128 tokens several times, and adds up the times that TensorFlow
records for each operation. The last column compares matrix multiplications with the fastest multiplication of large
matrices of the same type in the same process.
"""

import collections
import functools
import itertools
import re
import statistics
import time

from absl import app, flags

from benchmarks.common import seconds
from bert_tf.runtime import lazy_imports, reporting

_MODEL_DIR = flags.DEFINE_string("model_dir", None, "Directory of the exported model.", required=True)
_THREADS = flags.DEFINE_integer("threads", 2, "Threads of an operation.")
_CALLS = flags.DEFINE_integer("calls", 20, "Answers to add up.")

_PAIR = {"text_a": "a " * 10, "text_b": "a " * 115}  # with [CLS] and two [SEP], 128 tokens
_PEAK_SIZE, _WARM_UP = 2048, 3
# Multiplications and additions of BERT-Base for 128 tokens: weights, and products of the attention.
_WEIGHT_FLOPS = 2 * 128 * 12 * (4 * 768 * 768 + 2 * 768 * 3072)
_ATTENTION_FLOPS = 2 * 2 * 12 * 128 * 128 * 768


def peak_gflops(session) -> float:
    """Returns the speed of the fastest of ten products of large square matrices, in a session of TensorFlow 1."""
    import tensorflow.compat.v1 as tf

    with session.graph.as_default():
        matrix = tf.random.normal([_PEAK_SIZE, _PEAK_SIZE])
        product = tf.reduce_sum(matrix @ matrix)
    value = session.run(matrix)
    times = [seconds(session.run, product, {matrix: value}) for _ in range(10)]
    return 2 * _PEAK_SIZE**3 / min(times) / 1e9


def kind_of(operation: str) -> str:
    """Returns the kind of an operation of TensorFlow, such as a fused product with weights."""
    if re.search("BatchMatMul", operation):
        return "products of the attention"
    if re.search("MatMul", operation):
        return "products with weights"
    return operation.removeprefix("_Mkl").removeprefix("_")


def main(_) -> None:
    lazy_imports.import_tensorflow_for_serving()
    import tensorflow.compat.v1 as tf
    import tensorflow_text  # noqa: F401 (registers the operations)

    from bert_tf.serving.export_config import SERVING_DEFAULT, keep_packed_weights

    keep_packed_weights()
    config = tf.ConfigProto(intra_op_parallelism_threads=_THREADS.value, inter_op_parallelism_threads=1)
    latencies, counts, microseconds = [], collections.Counter(), collections.Counter()
    with tf.Session(graph=tf.Graph(), config=config) as session:
        model = tf.saved_model.load(session, ["serve"], _MODEL_DIR.value).signature_def[SERVING_DEFAULT]
        feed = {model.inputs[name].name: [text] for name, text in _PAIR.items()}
        answer = functools.partial(session.run, model.outputs["probabilities"].name, feed)
        for _ in range(_WARM_UP + _CALLS.value):
            start = time.perf_counter()
            answer()
            latencies.append(time.perf_counter() - start)
        trace = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
        for _ in range(_CALLS.value):
            metadata = tf.RunMetadata()
            answer(options=trace, run_metadata=metadata)
            for node in itertools.chain.from_iterable(device.node_stats for device in metadata.step_stats.dev_stats):
                operation = re.search(r" = (\w+)\(", node.timeline_label)
                kind = kind_of(operation[1] if operation else node.node_name)
                counts[kind] += 1
                microseconds[kind] += node.op_end_rel_micros - node.op_start_rel_micros
        peak = peak_gflops(session)
    total = sum(microseconds.values())
    flops = {"products with weights": _WEIGHT_FLOPS, "products of the attention": _ATTENTION_FLOPS}
    rows = []
    for kind, time_of_kind in microseconds.most_common(12):
        gflops = flops.get(kind, 0) * _CALLS.value / time_of_kind / 1e3
        rows.append(
            {
                "operation": kind,
                "times": round(counts[kind] / _CALLS.value),
                "ms": round(time_of_kind / _CALLS.value / 1e3, 2),
                "share": f"{time_of_kind / total:.1%}",
                "GFLOP/s": round(gflops) if gflops else "",
                "of the largest": f"{gflops / peak:.0%}" if gflops else "",
            }
        )
    print(reporting.table(rows))
    print(
        f"An answer takes {statistics.median(latencies[_WARM_UP:]) * 1e3:.1f} ms (median). The operations take "
        f"{total / _CALLS.value / 1e3:.1f} ms. Large matrices: {peak:.0f} GFLOP/s."
    )


if __name__ == "__main__":
    app.run(main)
