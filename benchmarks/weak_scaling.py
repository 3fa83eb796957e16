"""Measures how much slower two processes become when they train one model together.

    python -m benchmarks.weak_scaling [--dtype=bfloat16] [--batch_size=16] [--max_seq_length=64] [--steps=20]

Each process has one core and its own batch. The contenders alternate: one process alone, two independent processes, and
two workers of MultiWorkerMirroredStrategy. The goal is that two workers reach 0.9 of twice the speed of one process.
The program takes about seven minutes on 2 idle cores.
"""

import functools
import json
import os
import statistics
import sys
import time

from absl import app, flags

from benchmarks.common import Peer, medians
from benchmarks.local_cluster import worker_configs

CONTENDERS = {"one process": 1, "two single processes": 2, "two workers": 2}

if __name__ == "__main__":  # benchmarks.side_by_side, which imports this module, has other flags with the same names
    _DTYPE = flags.DEFINE_string("dtype", "float32", "Data type of matrix multiplications.")
    _SUM_DTYPE = flags.DEFINE_string("gradient_sum_dtype", "float32", "Data type of the workers' gradient sums.")
    _SIZE = flags.DEFINE_string("model_size", "small", "Released size of the model.")
    _BATCH_SIZE = flags.DEFINE_integer("batch_size", 16, "Examples per step and process.")
    _LENGTH = flags.DEFINE_integer("max_seq_length", 64, "Length of the sequences.")
    _STEPS = flags.DEFINE_integer("steps", 20, "Steps of each contender per round.")
    _ROUNDS = flags.DEFINE_integer("rounds", 3, "Number of rounds.")
    _CORE = flags.DEFINE_integer("core", None, "Core of a process that this program starts.")


def train():
    """Trains on the core of this process. Prints the median seconds per step."""
    os.sched_setaffinity(0, [_CORE.value])
    import tensorflow as tf

    from benchmarks.pretraining_step import make_batch, make_trainer, steps_of
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

    step, seconds = steps_of(trainer, batches), []
    for _ in range(_STEPS.value + 2):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    print(json.dumps(statistics.median(seconds[2:])), flush=True)


def measure(name, arguments):
    """Runs the processes of a contender with flags. Returns the mean seconds per step."""
    count = CONTENDERS[name]
    configs = worker_configs(count)
    cores = sorted(os.sched_getaffinity(0))
    peers = []
    for index in range(count):
        environment = dict(os.environ)
        if "workers" in name:
            environment["TF_CONFIG"] = configs[index]
        command = [sys.executable, "-m", "benchmarks.weak_scaling", *arguments, f"--core={cores[index]}"]
        peers.append(Peer(command, env=environment))
    times = [peer.read() for peer in peers]
    for peer in peers:
        peer.close()
    return statistics.mean(times)


def main(_):
    if _CORE.value is not None:
        train()
        return
    from bert_tf.runtime import reporting

    measured = medians({name: functools.partial(measure, name, sys.argv[1:]) for name in CONTENDERS}, _ROUNDS.value)
    one, single, workers = measured.values()
    print(reporting.table([{"contender": name, "seconds a step": elapsed} for name, elapsed in measured.items()]))
    print(
        f"Share of twice one process's speed: two single processes {one / single:.2f}, two workers {one / workers:.2f}."
    )


if __name__ == "__main__":
    app.run(main)
