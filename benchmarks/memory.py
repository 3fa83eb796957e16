"""Measures the peak memory of a pre-training step with and without --gradient_checkpointing.

    python -m benchmarks.memory [--size=large] [--max_seq_length=512] [--batches=1,2,4]

For each row a separate process runs two steps. The peak is the largest resident set size of the process. The memory for
activations and gradients is the peak minus the memory after the model and the optimizer were built.
BERT_LARGE takes about ten minutes on 4 idle cores.
"""

import json
import resource

from absl import app, flags

from benchmarks.common import answer, command, seconds
from bert_tf.runtime import reporting

_SIZE = flags.DEFINE_string("size", "large", "The released size to measure.")
_LENGTH = flags.DEFINE_integer("max_seq_length", 512, "Length of the sequences.")
_BATCHES = flags.DEFINE_list("batches", ["1", "2", "4"], "Batch sizes.")
_ONE = flags.DEFINE_integer("one", 0, "Measure only this batch size, in this process.")
_RECOMPUTE = flags.DEFINE_bool("gradient_checkpointing", False, "With --one: recompute activations.")


def measure() -> None:
    """Prints idle and peak memory in GB, and the seconds of the second step."""
    from benchmarks.pretraining_step import make_batch, our_step  # imported here: the parent needs no TensorFlow
    from bert_tf.config import BertConfig

    config = BertConfig.named(_SIZE.value)
    batch = make_batch(config, _ONE.value, _LENGTH.value)
    step = our_step(config, batch, gradient_checkpointing=_RECOMPUTE.value)
    idle = peak_memory()
    step()
    print(json.dumps([idle, peak_memory(), seconds(step)]))


def peak_memory() -> float:
    """Returns the peak memory of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main(_) -> None:
    if _ONE.value:
        measure()
        return
    rows = []
    for batch_size in _BATCHES.value:
        for recompute in ("false", "true"):
            options = {"size": _SIZE.value, "max_seq_length": _LENGTH.value, "gradient_checkpointing": recompute}
            idle, peak, of_step = answer(command("-m", "benchmarks.memory", one=batch_size, **options))
            rows.append(
                {
                    "batch": batch_size,
                    "recompute": recompute,
                    "peak GB": peak,
                    "activations and gradients GB": peak - idle,
                    "seconds per step": of_step,
                }
            )
            print(reporting.table(rows[-1:]), flush=True)
    print("\n" + reporting.table(rows))


if __name__ == "__main__":
    app.run(main)
