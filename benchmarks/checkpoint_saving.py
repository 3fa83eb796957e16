"""Measures how long training waits for a checkpoint that is saved in the background or in the foreground.

    python -m benchmarks.checkpoint_saving [--size=base] [--batch_size=8] [--steps=6] [--rounds=5] [--threads=1]
        [--directory=DIR]

A round consists of several training steps. Three variants alternate: no checkpoint, one that is completed before the
next step begins, and one that is written during the next steps. The table shows medians. With the default flags the
benchmark takes about six minutes on 2 cores, 6 GB of memory, and 4 GB in --directory, which should be on the disk of
the run directories.
"""

import functools
import statistics
import tempfile
import time

import tensorflow as tf
from absl import app, flags

from benchmarks.common import medians, seconds
from benchmarks.pretraining_step import make_batch, make_trainer, steps_of
from bert_tf.checkpoints.saver import CheckpointSaver
from bert_tf.config import BertConfig
from bert_tf.runtime import reporting

_SIZE = flags.DEFINE_string("size", "base", "The released size to measure.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 8, "Examples per step.")
_LENGTH = flags.DEFINE_integer("max_seq_length", 128, "Length of the sequences.")
_STEPS = flags.DEFINE_integer("steps", 6, "Steps per round.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Rounds of each variant.")
_DIRECTORY = flags.DEFINE_string("directory", None, "Directory for checkpoints. Default: the temporary directory.")
_THREADS = flags.DEFINE_integer(
    "threads",
    0,
    "Threads of a training step; 0 for all cores. Fewer leave cores for writing.",
)


def main(_):
    tf.config.threading.set_intra_op_parallelism_threads(_THREADS.value)
    config = BertConfig.named(_SIZE.value)
    trainer = make_trainer(_BATCH_SIZE.value, config)
    batches = iter(tf.data.Dataset.from_tensors(make_batch(config, _BATCH_SIZE.value, _LENGTH.value)).repeat())
    size = sum(tf.size(x).numpy() * x.dtype.size for x in trainer.state().values())
    print(f"A checkpoint has {size / 1e9:.2f} GB.")

    step = steps_of(trainer, batches)
    step(2)

    def save_nothing(saver):
        pass

    def save_and_wait(saver):
        saver.save(trainer.step, trainer.state())

    def save_in_background(saver):
        saver.begin(trainer.step, trainer.state())

    def measure(save, directory):
        with CheckpointSaver(directory, keep_checkpoint_max=1) as saver:
            start = time.perf_counter()
            save(saver)
            wait = time.perf_counter() - start
            of_steps = [seconds(step) for _ in range(_STEPS.value)]
            return wait, statistics.median(of_steps), time.perf_counter() - start

    contenders = {
        "no checkpoint": save_nothing,
        "training waits": save_and_wait,
        "in the background": save_in_background,
    }
    with tempfile.TemporaryDirectory(dir=_DIRECTORY.value) as directory:
        rounds = {name: functools.partial(measure, save, directory) for name, save in contenders.items()}
        measured = medians(rounds, _ROUNDS.value)
    rows = [
        {
            "contender": name,
            "seconds until the next step": wait,
            "seconds per step": of_step,
            f"seconds of {_STEPS.value} steps": total,
            "more than without": total - measured["no checkpoint"][2],
        }
        for name, (wait, of_step, total) in measured.items()
    ]
    print(reporting.table(rows))


if __name__ == "__main__":
    app.run(main)
