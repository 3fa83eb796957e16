"""Measures how much slower two processes become when they train one model together.

    python -m benchmarks.weak_scaling [--dtype=bfloat16] [--batch_size=16] [--max_seq_length=64] [--steps=20]

Each process has one core and its own batch. The contenders alternate: one process alone, two independent processes, two
workers of MultiWorkerMirroredStrategy, and two workers that only sum gradients and train nothing. The goal is 0.9 of
twice the speed of one process.

The last line gives bounds of the workers' speed. If they never waited, a step would take their processor time, and not
less than a step of independent processes and the processor time of the sums. If they wait in each sum, it takes at
least a step of independent processes and the whole time of the sums. It takes about ten minutes on 2 idle cores.
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

CONTENDERS = {"one process": 1, "two single processes": 2, "two workers": 2, "sums of two workers": 2}

if __name__ == "__main__":  # benchmarks.side_by_side imports this module and has other flags with these names
    _DTYPE = flags.DEFINE_string("dtype", "float32", "Data type of matrix multiplications.")
    _SUM_DTYPE = flags.DEFINE_string("gradient_sum_dtype", "float32", "Data type of the workers' gradient sums.")
    _SIZE = flags.DEFINE_string("model_size", "small", "Released size of the model.")
    _BATCH_SIZE = flags.DEFINE_integer("batch_size", 16, "Examples per step and process.")
    _LENGTH = flags.DEFINE_integer("max_seq_length", 64, "Length of the sequences.")
    _STEPS = flags.DEFINE_integer("steps", 20, "Steps of each contender per round.")
    _ROUNDS = flags.DEFINE_integer("rounds", 3, "Number of rounds.")
    _SUMS_ONLY = flags.DEFINE_bool("sums_only", False, "Sum gradients without training, in a process with --core.")
    _CORE = flags.DEFINE_integer("core", None, "Core of a process that this program starts.")


def train():
    """Trains on the core of this process. Prints the medians of a step's seconds and processor seconds."""
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

    def sums():
        weights = [tf.identity(variable.value) for variable in trainer.model.trained_variables]
        return strategies.sum_over_replicas(tf.reduce_mean(weights[0]), weights, _SUM_DTYPE.value)

    @tf.function(autograph=False)
    def add_up():
        return strategy.run(sums)

    step, seconds = add_up if _SUMS_ONLY.value else steps_of(trainer, batches), []
    for _ in range(_STEPS.value + 2):
        start = time.perf_counter(), time.process_time()
        step()
        seconds.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    print(json.dumps([statistics.median(column) for column in zip(*seconds[2:], strict=True)]), flush=True)


def measure(name, arguments):
    """Runs the processes of a contender with flags. Returns the means of a step's seconds and processor seconds."""
    count = CONTENDERS[name]
    configs = worker_configs(count)
    cores = sorted(os.sched_getaffinity(0))
    peers = []
    for index in range(count):
        environment = dict(os.environ)
        if "workers" in name:
            environment["TF_CONFIG"] = configs[index]
        command = [sys.executable, "-m", "benchmarks.weak_scaling", *arguments, f"--core={cores[index]}"]
        if "sums" in name:
            command.append("--sums_only")
        peers.append(Peer(command, env=environment))
    times = [peer.read() for peer in peers]
    for peer in peers:
        peer.close()
    return tuple(map(statistics.mean, zip(*times, strict=True)))


def main(_):
    if _CORE.value is not None:
        train()
        return
    from bert_tf.runtime import reporting

    measured = medians({name: functools.partial(measure, name, sys.argv[1:]) for name in CONTENDERS}, _ROUNDS.value)
    (one, _), (single, _), (workers, busy), (sums, summing) = measured.values()
    rows = [
        {"contender": name, "seconds a step": elapsed, "processor seconds a step": processor}
        for name, (elapsed, processor) in measured.items()
    ]
    print(reporting.table(rows))
    print(
        f"Of twice the speed of one process: two single processes {one / single:.2f}, two workers {one / workers:.2f}. "
        f"If workers never waited: at most {one / busy:.2f}, and {one / (single + summing):.2f} from the single "
        f"processes and the sums. If they wait in each sum: {one / (single + sums):.2f}."
    )


if __name__ == "__main__":
    app.run(main)
