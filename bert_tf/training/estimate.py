"""The end of a dry run: traces a training step, and prints the size of the run and estimates."""

import functools
import itertools
from collections.abc import Sequence

import numpy as np

from bert_tf.distribution import hardware, strategies
from bert_tf.model import estimates, row_attention
from bert_tf.runtime import reporting
from bert_tf.runtime.messages import say
from bert_tf.training.errors import explain_errors
from bert_tf.training.interface import TrainingData
from bert_tf.training.step import micro_batches
from bert_tf.training.step.trainer import Trainer

# Means are computed over steps with about this total number of examples.
_EXAMPLES = 4096
# The fraction of the peak throughput that the estimated time assumes.
_SHARE = 0.4


def report(trainer: Trainer, data: TrainingData) -> None:
    """Traces a step of each phase, and prints the size of the run, the memory and the time.

    All batches of a phase have the same size, and all sequences the same padded length.

    Raises:
      InputError: if the data is damaged.
    """
    config, strategy, start, end = trainer.config, trainer.strategy, trainer.step, trainer.config.num_train_steps
    say(f"***** Dry run ({config.output_dir}) *****\n  Devices = {strategy.description}")
    if start >= end:
        return
    changes = [*data.boundaries, *([config.second_batch.start] if config.second_batch else [])]
    starts = sorted({start, *(step for step in changes if start < step < end)})
    total, phases, shapes = np.zeros(2), [], []
    for first, last in itertools.pairwise([*starts, end]):
        batch, (examples, positions) = config.batch_at(first), data.size(first)
        with explain_errors(data, config.output_dir, lambda step=first: step):
            tokens, teraflops, rows, length = _means_of_step(trainer, data, first, last)
        total += (last - first) * np.array([tokens, teraflops])
        shapes.append((rows / strategy.num_replicas_in_sync / batch.gradient_accumulation_steps, length))
        phases.append(
            {
                "steps": f"{first:,} to {last:,}",
                "batch": batch.train_batch_size,
                "epochs": f"{(last - first) * batch.train_batch_size / examples:,.1f}",
                "tokens a step": f"{tokens:,.0f}",
                "padding of the data": f"{1 - tokens / (batch.train_batch_size * positions):.1%}",
                "rows x length": f"{rows:.4g} x {length:.4g}",
                "padding of the rows": f"{1 - tokens / (rows * length):.1%}",
                "TFLOPs a step": teraflops,
            }
        )
    say(f"  Steps = {end - start:,}\n  Tokens = {total[0]:,.0f}\n  TFLOPs = {total[1]:,.4g}")
    say(reporting.table(phases))
    say(f"Estimated memory of a device and time on all devices, with --dtype={config.dtype} (docs/howto/memory.md):")
    say(reporting.table(_device_rows(trainer, shapes, total[1])))
    if hardware.is_tpu(strategy):
        say("For closer estimates, compile the step: python -m benchmarks.tpu_compile (docs/howto/tpu.md).")


def _means_of_step(trainer: Trainer, data: TrainingData, start: int, end: int) -> np.ndarray:
    """Traces a step, and returns the means of tokens, TFLOPs, rows and their length over a sample of steps."""
    sizes, pipelines = trainer.config.batch_at(start), strategies.input_pipelines(trainer.strategy)
    batches = strategies.batches(trainer.strategy, functools.partial(data.from_step, start))
    steps, totals = min(end - start, -(-_EXAMPLES // sizes.train_batch_size)), np.zeros(4)
    for batch in itertools.islice(batches, steps * trainer.strategy.num_replicas_in_sync // pipelines):
        tokens, flops = micro_batches.tokens_and_flops(trainer.model, batch)
        rows, length = micro_batches.rows_and_length(batch)
        totals += float(tokens), float(flops) * 1e-12, rows, rows * length
    trainer.trace(batches, batch, sizes.gradient_accumulation_steps, data.shapes)
    return totals * pipelines / steps / [1, 1, 1, totals[2] * pipelines / steps]


def _device_rows(trainer: Trainer, shapes: Sequence[tuple[float, float]], teraflops: float) -> list[dict[str, object]]:
    """Returns a table row for each type of device that supports the dtype.

    Args:
      trainer: the trainer.
      shapes: for each phase, the number of rows in a micro-batch and the length of a row.
      teraflops: the floating-point operations of the run.
    """
    config, encoder = trainer.config, getattr(trainer.model, "encoder", None)  # a feature-based tagger has none
    options, rows = (config.dtype, config.gradient_checkpointing), []
    for name, device in estimates.DEVICES.items():
        peak = getattr(device, config.dtype)
        if not peak:
            continue
        needed = [
            estimates.memory_gib(encoder.config, *trainer.model.parameter_counts, *shape, *options, keeps_scores)
            for shape in (shapes if encoder else ())
            for keeps_scores in [not name.startswith("TPU") or shape[1] < row_attention.MIN_LENGTH]
        ]
        hours = teraflops / (_SHARE * peak * trainer.strategy.num_replicas_in_sync) / 3600
        rows.append(
            {
                "device": name,
                "GiB": device.gib,
                "GiB needed": f"{max(needed):.1f}" if needed else "",
                "peak TFLOP/s": peak,
                f"hours at {_SHARE:.0%} of the peak": f"{hours:.3g}",
            }
        )
    return rows
