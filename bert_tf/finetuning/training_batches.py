"""The batches of fine-tuning: the examples of each step, packed into rows or padded."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.distribution.devices import part_of_batch
from bert_tf.finetuning.feature_sets import BatchSampler, FeatureSet
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.sequences.placement import Packer
from bert_tf.training.interface import TrainingData, WholeBatchModel
from bert_tf.training.settings import Shapes
from bert_tf.training.step import micro_batches
from bert_tf.training.step.row_packing import packer_for


def training_data(run: FinetuningRun) -> TrainingData:
    """Returns the training loop's input: the batches of the run's training split."""
    features, config, shapes, packer = run.data.features(run.split), run.training_config, run.shapes, None
    sampler = batch_sampler(run, features)
    config.check_batch(run.strategy)
    if run.packs:
        width = run.config.hidden_size if shapes is Shapes.ANY else None
        steps, longest = lambda count: map(sampler.sizes, range(count)), int(sampler.buckets[-1])
        packer = packer_for(run, config, steps, longest, hidden_size=width)
    has_positions = isinstance(run.model, WholeBatchModel)
    return TrainingData(
        lambda step, context: batches(sampler, packer, step, shapes, context, has_positions),
        describe=lambda step: "examples " + ", ".join(map(str, sampler.examples(step))),
        size=lambda step: (len(features), features.choices * run.settings.max_seq_length),
        shapes=shapes,
        is_short=run.is_short,
    )


def batch_sampler(run: FinetuningRun, features: FeatureSet) -> BatchSampler:
    """Returns the object that chooses the examples of each step."""
    config, buckets = run.training_config, run.buckets(features, run.shapes)
    # The rows of all batches have the same length, so there are few graphs. Without rows, most batches are shorter.
    if run.shapes is Shapes.ONE or (run.shapes is Shapes.FEW and run.packs):
        buckets = [next(length for length in buckets if length >= features.max_length)]
    return BatchSampler(features, config.train_batch_size, config.seed, buckets)


def batches(
    sampler: BatchSampler,
    packer: Packer | None,
    start_step: int,
    shapes: Shapes,
    context: tf.distribute.InputContext,
    has_positions: bool = False,
) -> tf.data.Dataset:
    """Returns the batches of one input pipeline without an end, split evenly among its replicas.

    Args:
      sampler: chooses the examples of each step. For `Shapes.ONE`, it must have a single bucket length.
      packer: packs the sequences into rows; None to pad each of them.
      start_step: the first step.
      shapes: the shapes of the batches. For `Shapes.ONE`, the graph contains the shape, as a TPU requires.
      context: defines which part of each batch this pipeline provides.
      has_positions: whether the batches have `batch_positions`; see `WholeBatchModel`.
    """
    features = sampler.features
    of_pipeline, replicas = part_of_batch(sampler.batch_size, context)
    all_positions = np.arange(sampler.batch_size, dtype=np.int32)[of_pipeline]

    def positions(numbers: np.ndarray) -> dict[str, np.ndarray]:
        return {"batch_positions": all_positions[np.maximum(numbers, 0).reshape(-1)]} if has_positions else {}

    def arrays_of(examples: np.ndarray, length: int) -> Iterator[dict[str, Any]]:
        if packer is None:
            for numbers in np.split(np.arange(len(examples)), replicas):
                yield features.batch(examples[numbers], length) | positions(numbers)
        else:
            for layouts in packer.place(features.sizes(examples), length):
                packed = [features.packed(layout.of(examples)) | positions(layout.examples) for layout in layouts]
                yield micro_batches.join(list(zip(layouts, packed, strict=True)))

    def arrays() -> Iterator[dict[str, Any]]:
        for step in itertools.count(start_step):
            examples = sampler.examples(step)
            yield from arrays_of(examples[of_pipeline], sampler.bucket(examples))

    sample = next(arrays_of(np.zeros(sampler.batch_size, np.int64)[of_pipeline], int(sampler.buckets[-1])))
    tokens = features.token_names | {"sequence_ids", "position_ids"}

    def spec(name: str, x: Any) -> Any:
        if isinstance(x, dict):
            return {key: spec(key, values) for key, values in x.items()}
        if shapes is Shapes.ONE or name not in tokens:
            return tf.TensorSpec(x.shape, x.dtype)
        return tf.TensorSpec([len(x) if packer is None else None, None, *x.shape[2:]], x.dtype)

    # TensorFlow never releases the function passed to `from_generator`, so it must not refer to the examples.
    once = [arrays()]
    dataset = tf.data.Dataset.from_generator(once.pop, output_signature=spec("", sample))
    # If the cardinality were unknown, all workers would synchronise before each step.
    return dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)).prefetch(2)
