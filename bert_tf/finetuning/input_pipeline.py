"""The input pipeline of the training loop."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.distribution.devices import replicas_per_pipeline
from bert_tf.finetuning.feature_sets import BatchSampler
from bert_tf.text.placement import Packer, Sizes
from bert_tf.training import micro_batches
from bert_tf.training.interface import TrainingData
from bert_tf.training.settings import TrainingConfig

# Faster graphs pay off from this product of steps, tokens in a step and hidden size. Both the time for preparing graphs
# and the time saved per step are proportional to the number of blocks.
WORK_FOR_FAST_GRAPHS = 5e8


def is_short(config: TrainingConfig, length: int, hidden_size: int) -> bool:
    """Returns whether training is so short that faster graphs don't pay off. See `TrainingData`.

    The result depends on settings only, so a resumed run uses the same graphs as the interrupted one.

    Args:
      config: the training settings.
      length: length of the longest sequences.
      hidden_size: the encoder's hidden size.
    """
    return config.num_train_steps * config.train_batch_size * length * hidden_size < WORK_FOR_FAST_GRAPHS


def packer_for(
    sampler: BatchSampler, strategy: tf.distribute.Strategy, config: TrainingConfig, hidden_size: int | None
) -> Packer:
    """Returns the packer of the examples of each step. See `micro_batches.packer`."""

    def first_steps(count: int) -> Iterator[Sizes]:
        return (sampler.features.sizes(sampler.examples(step)) for step in range(count))

    longest = int(sampler.buckets[-1])
    return micro_batches.packer(strategy, config, config, first_steps, longest, hidden_size=hidden_size)


def training_data(
    sampler: BatchSampler,
    num_train_steps: int,
    is_short: bool = False,
    has_graph_per_shape: bool = False,
    has_static_shapes: bool = False,
    packer: Packer | None = None,
) -> TrainingData:
    """Returns the training loop's input.

    Args:
      sampler: chooses the examples of each step.
      num_train_steps: the step at which training ends.
      is_short: see `TrainingData`.
      has_graph_per_shape: see `TrainingData`.
      has_static_shapes: whether the graph contains the shapes of the batches, as a TPU requires. The sampler must then
        have only one length.
      packer: packs the sequences into rows; None to pad each of them.
    """
    return TrainingData(
        lambda step, context: _dataset(sampler, packer, step, num_train_steps, has_static_shapes, context),
        describe=lambda step: "examples " + ", ".join(map(str, sampler.examples(step))),
        is_short=is_short,
        has_graph_per_shape=has_graph_per_shape,
    )


def _dataset(
    sampler: BatchSampler,
    packer: Packer | None,
    start_step: int,
    end_step: int,
    has_static_shapes: bool,
    context: tf.distribute.InputContext,
) -> tf.data.Dataset:
    """Returns the batches from `start_step` on for one input pipeline, split evenly among its replicas."""
    features = sampler.features
    size = context.get_per_replica_batch_size(sampler.batch_size)
    own_size = size * replicas_per_pipeline(context)
    own = slice(context.input_pipeline_id * own_size, (context.input_pipeline_id + 1) * own_size)

    def parts_of(examples: np.ndarray, length: int) -> Iterator[dict[str, Any]]:
        if packer is None:
            for first in range(own.start, own.stop, size):
                yield features.batch(examples[first : first + size], length)
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
        if has_static_shapes or name not in tokens:
            return tf.TensorSpec(x.shape, x.dtype)
        return tf.TensorSpec([len(x) if packer is None else None, None, *x.shape[2:]], x.dtype)

    # TensorFlow never releases the function that it gets here, so the function must not refer to the examples.
    once = [parts()]
    return tf.data.Dataset.from_generator(once.pop, output_signature=spec("", sample)).prefetch(2)
