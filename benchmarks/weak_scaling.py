"""Measures how much slower two processes become when they train one model together.

    python -m benchmarks.weak_scaling [--dtype=bfloat16] [--batch_size=16] [--max_seq_length=64] [--steps=20]

Each process has one core and its own batch. The contenders alternate: one process alone, two independent processes, and
two workers of MultiWorkerMirroredStrategy. The goal is 0.9 of twice the speed of one process. It takes about ten
minutes on 2 idle cores.
"""

import json
import os
import statistics
import subprocess
import sys
import time

from absl import app, flags

from benchmarks.local_cluster import worker_configs

CONTENDERS = {"one process": 1, "two single processes": 2, "two workers": 2}

_DTYPE = flags.DEFINE_string("dtype", "float32", "Data type of matrix multiplications.")
_SUM_DTYPE = flags.DEFINE_string("gradient_sum_dtype", "float32", "Data type of the sums of the workers' gradients.")
_SIZE = flags.DEFINE_string("model_size", "small", "Released size of the model.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 16, "Examples per step and process.")
_LENGTH = flags.DEFINE_integer("max_seq_length", 64, "Length of the sequences.")
_STEPS = flags.DEFINE_integer("steps", 20, "Steps of each contender per round.")
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Number of rounds.")
_CORE = flags.DEFINE_integer("core", None, "Train in this process, on this core; for the processes that are started.")


def train():
    """Trains on the core of this process, and prints the medians of a step's elapsed seconds and processor seconds."""
    os.sched_setaffinity(0, [_CORE.value])
    import tensorflow as tf

    from benchmarks.pretraining_step import make_batch, make_trainer
    from bert_tf.config import BertConfig
    from bert_tf.distribution import strategies
    from bert_tf.distribution.devices import DistributionConfig

    kind = "multi_worker" if "TF_CONFIG" in os.environ else "one_device"
    strategy = strategies.build_strategy(DistributionConfig(kind))
    config = BertConfig.named(_SIZE.value)
    batch_size = _BATCH_SIZE.value * strategy.num_replicas_in_sync
    trainer = make_trainer(batch_size, config, _DTYPE.value, strategy, gradient_sum_dtype=_SUM_DTYPE.value)
    batch = make_batch(config, _BATCH_SIZE.value, _LENGTH.value)
    batches = strategies.batches(strategy, lambda context: tf.data.Dataset.from_tensors(batch).repeat())
    seconds = []
    for _ in range(_STEPS.value + 2):
        start = time.perf_counter(), time.process_time()
        sum(trainer.steps(batches, 1))
        trainer.take_means()
        seconds.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    print(json.dumps([statistics.median(column) for column in zip(*seconds[2:], strict=True)]), flush=True)


def start(name):
    """Starts the processes of a contender."""
    count = CONTENDERS[name]
    configs = worker_configs(count)
    cores = sorted(os.sched_getaffinity(0))
    processes = []
    for index in range(count):
        environment = dict(os.environ)
        if name == "two workers":
            environment["TF_CONFIG"] = configs[index]
        command = [sys.executable, "-m", "benchmarks.weak_scaling", *sys.argv[1:], f"--core={cores[index]}"]
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    return processes


def main(_):
    if _CORE.value is not None:
        train()
        return
    from bert_tf.runtime import reporting

    speeds = {name: [] for name in CONTENDERS}
    processor = {name: [] for name in CONTENDERS}
    for _ in range(_ROUNDS.value):
        for name in CONTENDERS:
            seconds = [json.loads(process.communicate()[0].splitlines()[-1]) for process in start(name)]
            speeds[name].append(sum(_BATCH_SIZE.value / each for each, _ in seconds))
            processor[name].append(statistics.mean(each for _, each in seconds))
    one = statistics.median(speeds["one process"])
    rows = [
        {
            "contender": name,
            "sequences/s": statistics.median(speeds[name]),
            "of twice one": statistics.median(speeds[name]) / (2 * one),
            "processor seconds a step": statistics.median(processor[name]),
        }
        for name in CONTENDERS
    ]
    print(reporting.table(rows))


if __name__ == "__main__":
    app.run(main)
