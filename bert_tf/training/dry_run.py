"""The end of a dry run: traces a training step, and prints the size of the run and estimates."""

import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from bert_tf.distribution import strategies
from bert_tf.distribution.assumed_devices import AssumedDevices
from bert_tf.model import estimates, row_attention
from bert_tf.runtime import reporting
from bert_tf.runtime.messages import say
from bert_tf.training import micro_batches
from bert_tf.training.errors import explain_errors
from bert_tf.training.interface import Batch, TrainableModel, TrainingData
from bert_tf.training.settings import SecondBatch, Shapes, TrainingConfig

# Means are computed over the steps of about this number of examples.
_EXAMPLES = 4096
# The share of the devices' peak that the estimated time assumes.
_SHARE = 0.4


class Trainer(Protocol):
    """The parts of a `loop.Trainer` that a dry run needs."""

    model: TrainableModel
    config: TrainingConfig
    strategy: AssumedDevices
    step: int

    def trace(self, batches: tf.data.Iterator, batch: Batch, parts: int, shapes: Shapes) -> None:
        """Traces a step without running it."""


class Phase(NamedTuple):
    """Consecutive training steps with batches of one size, and the means of some of them.

    Attributes:
      start: the first step.
      end: the step after the last one.
      batch: the sizes of a batch.
      tokens: the number of tokens of a step.
      teraflops: the floating-point operations of a step in units of 1e12.
      rows: the number of rows of a step.
      length: the length of a row.
    """

    start: int
    end: int
    batch: TrainingConfig | SecondBatch
    tokens: float
    teraflops: float
    rows: float
    length: float

    def row(self, data: TrainingData) -> dict[str, object]:
        """Returns the row of the phase in the printed table."""
        examples, positions = data.size(self.start)
        batch_size = self.batch.train_batch_size
        return {
            "steps": f"{self.start:,} to {self.end:,}",
            "batch": batch_size,
            "epochs": (self.end - self.start) * batch_size / examples,
            "tokens a step": f"{self.tokens:,.0f}",
            "padding of the data": f"{1 - self.tokens / (batch_size * positions):.1%}",
            "rows x length": f"{self.rows:.4g} x {self.length:.4g}",
            "padding of the rows": f"{1 - self.tokens / (self.rows * self.length):.1%}",
            "TFLOPs a step": self.teraflops,
        }


def report(trainer: Trainer, data: TrainingData) -> None:
    """Traces a step of each phase, and prints the size of the run, the memory and the time.

    Raises:
      InputError: if the data is damaged.
    """
    config, strategy, start, end = trainer.config, trainer.strategy, trainer.step, trainer.config.num_train_steps
    say(f"***** Dry run ({config.output_dir}) *****\n  Devices = {strategy.description}")
    if start >= end:
        return
    changes = [*data.boundaries, *([config.second_batch.start] if config.second_batch else [])]
    starts = sorted({start, *(step for step in changes if start < step < end)})
    with explain_errors(data, config.output_dir, lambda: start):
        phases = [_measured(trainer, data, *steps) for steps in itertools.pairwise([*starts, end])]
    tokens, teraflops = (
        sum((phase.end - phase.start) * getattr(phase, name) for phase in phases) for name in ("tokens", "teraflops")
    )
    say(f"  Steps = {end - start:,}\n  Tokens = {tokens:,.0f}\n  TFLOPs = {teraflops:,.4g}")
    say(reporting.table([phase.row(data) for phase in phases]))
    say(f"Estimates for --dtype={config.dtype}; see docs/howto/memory.md:")
    say(reporting.table(_device_rows(trainer, phases, teraflops)))
    if strategies.is_tpu(strategy):
        say(
            "The compiler of TPUs estimates memory and time more exactly: python -m benchmarks.tpu_compile (see "
            "docs/howto/tpu.md)."
        )


def _measured(trainer: Trainer, data: TrainingData, start: int, end: int) -> Phase:
    """Returns a phase after tracing its step."""
    sizes, pipelines = trainer.config.batch_at(start), strategies.input_pipelines(trainer.strategy)
    batches = strategies.batches(trainer.strategy, functools.partial(data.from_step, start))
    steps = min(end - start, -(-_EXAMPLES // sizes.train_batch_size))
    totals = np.zeros(4)
    for batch in itertools.islice(batches, steps * trainer.strategy.num_replicas_in_sync // pipelines):
        tokens, flops = micro_batches.tokens_and_flops(trainer.model, batch)
        rows, length = micro_batches.rows_and_length(batch)
        totals += float(tokens), float(flops) * 1e-12, rows, rows * length
    trainer.trace(batches, batch, sizes.gradient_accumulation_steps, data.shapes)
    tokens, teraflops, rows, positions = totals * pipelines / steps
    return Phase(start, end, sizes, tokens, teraflops, rows, positions / rows)


def _device_rows(trainer: Trainer, phases: Sequence[Phase], teraflops: float) -> list[dict[str, object]]:
    """Returns a row for each type of device that has the type of the matrix multiplications."""
    config, replicas = trainer.config, trainer.strategy.num_replicas_in_sync
    encoder = getattr(trainer.model, "encoder", None)  # a feature-based tagger has none
    parameters, trained = trainer.model.parameter_counts

    def memory(phase: Phase, keeps_scores: bool) -> float:
        rows = phase.rows / replicas / phase.batch.gradient_accumulation_steps
        sizes = (parameters, trained, rows, phase.length, config.dtype, config.gradient_checkpointing, keeps_scores)
        return sum(estimates.memory(encoder.config, *sizes))

    def row(name: str, device: estimates.Device, peak: float) -> dict[str, object]:
        by_rows = name.startswith("TPU") and phases[-1].length >= row_attention.MIN_LENGTH
        needed = max(memory(phase, not by_rows) for phase in phases) if encoder else 0.0
        return {
            "device": name,
            "GiB": device.gib,
            "GiB needed": f"{needed:.1f}" if encoder else "",
            "peak TFLOP/s": peak,
            f"hours at {_SHARE:.0%} of the peak": f"{teraflops / (_SHARE * peak * replicas) / 3600:.3g}",
        }

    peaks = {name: getattr(device, config.dtype) for name, device in estimates.DEVICES.items()}
    return [row(name, device, peaks[name]) for name, device in estimates.DEVICES.items() if peaks[name]]
