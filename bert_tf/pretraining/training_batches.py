"""The batches of pre-training: the examples of the step's phase, packed into rows."""

import dataclasses
import functools
import os
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from bert_tf.distribution import hardware, strategies
from bert_tf.pretraining import input_pipeline, packed_examples
from bert_tf.pretraining.example_sets import ExampleSet
from bert_tf.sequences.placement import Packer, Sizes
from bert_tf.training.interface import TrainingData
from bert_tf.training.run import Run
from bert_tf.training.settings import SecondBatch, TrainingConfig
from bert_tf.training.step.row_packing import packer_for


@dataclasses.dataclass(frozen=True)
class Phase:
    """Consecutive steps on the same data. The paper has two phases: 90% of the steps use short sequences.

    Attributes:
      start: the first step.
      end: the step after the last one.
      examples: the examples.
    """

    start: int
    end: int
    examples: ExampleSet


def phase_at(phases: Sequence[Phase], step: int) -> Phase:
    """Returns the phase of a step."""
    return next(phase for phase in phases if step < phase.end)


def training_data(run: Run, phases: Sequence[Phase]) -> TrainingData:
    """Returns the training loop's input."""
    config = run.training_config

    def from_step(step: int, context: tf.distribute.InputContext) -> tf.data.Dataset:
        phase, batch = phase_at(phases, step), config.batch_at(step)
        packer = packer_of(run, phase.examples, batch, config.seed)
        order = {"seed": config.seed, "start_step": step - phase.start}
        return batches(run, phase.examples, batch.train_batch_size, context=context, packer=packer, **order)

    def describe(step: int, reads_window: bool = False) -> str:
        phase, batch_size = phase_at(phases, step), config.batch_at(step).train_batch_size
        order = (batch_size, config.seed, step - phase.start)
        paths = input_pipeline.shards_of_step(phase.examples.shards, *order, reads_window=reads_window)
        return ", ".join(os.path.basename(path) for path in paths)

    def size(step: int) -> tuple[int, int]:
        examples = phase_at(phases, step).examples
        return examples.records, examples.features[0].length

    return TrainingData(
        from_step,
        boundaries=tuple(phase.end for phase in phases[:-1]),
        describe=describe,
        describe_reading=functools.partial(describe, reads_window=True),
        size=size,
        shapes=run.shapes,
    )


def batches(run: Run, examples: ExampleSet, batch_size: int, **reading: Any) -> tf.data.Dataset:
    """Returns the batches of some examples, in their order by default; see `input_pipeline.training_batches`."""
    reading = {"seed": None, "start_step": 0, "masker": examples.masker, **reading}
    reads_through = hardware.is_tpu(run.strategy)
    return input_pipeline.training_batches(
        examples.shards, examples.features, batch_size, reads_through=reads_through, **reading
    )


def packer_of(run: Run, examples: ExampleSet, batch: TrainingConfig | SecondBatch, seed: int | None) -> Packer | None:
    """Returns the packer of sequences into rows; None if each sequence has a row of its own.

    Args:
      run: the run.
      examples: the examples.
      batch: the sizes of a batch.
      seed: the seed of the order of the examples; None to read them in order.
    """
    if run.training_config.pad_to_max_seq_length or not strategies.can_read_with_python(run.strategy):
        return None

    def first_steps(count: int) -> Iterator[Sizes]:
        first_batches = batches(run, examples, batch.train_batch_size, seed=seed).take(count)
        return map(packed_examples.sizes, first_batches.as_numpy_iterator())

    lengths = {feature.name: feature.length for feature in examples.features}
    masked = examples.masker.max_predictions_per_seq if examples.masker else 0
    most_predictions = lengths.get("masked_lm_ids", masked)
    return packer_for(run, batch, first_steps, lengths["input_ids"], most_predictions)
