"""The input pipeline of the training loop."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.distribution.devices import part_of_batch
from bert_tf.finetuning.feature_sets import BatchSampler
from bert_tf.text.placement import Packer
from bert_tf.training import micro_batches
from bert_tf.training.settings import Shapes


def batches(
    sampler: BatchSampler,
    packer: Packer | None,
    start_step: int,
    end_step: int,
    shapes: Shapes,
    context: tf.distribute.InputContext,
) -> tf.data.Dataset:
    """Returns the batches of one input pipeline, split evenly among its replicas.

    Args:
      sampler: chooses the examples of each step. For `Shapes.ONE`, it must have a single bucket length.
      packer: packs the sequences into rows; None to pad each of them.
      start_step: the first step.
      end_step: the step after the last one.
      shapes: the shapes of the batches. For `Shapes.ONE`, the graph contains the shape, as a TPU requires.
      context: defines which part of each batch this pipeline provides.
    """
    features = sampler.features
    own, replicas = part_of_batch(sampler.batch_size, context)

    def parts_of(examples: np.ndarray, length: int) -> Iterator[dict[str, Any]]:
        if packer is None:
            for part in np.split(examples[own], replicas):
                yield features.batch(part, length)
        else:
            for layouts in packer.place(features.sizes(examples[own]), length):
                yield micro_batches.part([(layout, features.packed(layout.of(examples[own]))) for layout in layouts])

    def parts() -> Iterator[dict[str, Any]]:
        for step in range(start_step, end_step):
            examples = sampler.examples(step)
            yield from parts_of(examples, sampler.bucket(examples))

    sample = next(parts_of(np.zeros(sampler.batch_size, np.int64), int(sampler.buckets[-1])))
    tokens = features.token_names | {"sequence_ids", "position_ids"}

    def spec(name: str, x: Any) -> Any:
        if isinstance(x, dict):
            return {each: spec(each, values) for each, values in x.items()}
        if shapes is Shapes.ONE or name not in tokens:
            return tf.TensorSpec(x.shape, x.dtype)
        return tf.TensorSpec([len(x) if packer is None else None, None, *x.shape[2:]], x.dtype)

    # TensorFlow never releases the function passed to `from_generator`, so it must not refer to the examples.
    once = [parts()]
    return tf.data.Dataset.from_generator(once.pop, output_signature=spec("", sample)).prefetch(2)
