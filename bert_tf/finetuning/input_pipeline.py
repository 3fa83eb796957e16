"""The input pipeline of the training loop."""

from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from bert_tf.finetuning.feature_sets import BatchSampler
from bert_tf.finetuning.row_counts import RowCounts, Shape
from bert_tf.pretraining.input_pipeline import replicas_per_pipeline
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


def training_data(
    sampler: BatchSampler,
    num_train_steps: int,
    is_short: bool = False,
    has_graph_per_shape: bool = False,
    has_static_shapes: bool = False,
    row_counts: RowCounts | None = None,
) -> TrainingData:
    """Returns the training loop's input.

    Args:
      sampler: chooses the examples of each step.
      num_train_steps: the step at which training ends.
      is_short: see `TrainingData`.
      has_graph_per_shape: see `TrainingData`.
      has_static_shapes: whether the graph contains the shapes of the batches, as a TPU requires. The sampler must then
        have only one length.
      row_counts: chooses the shapes of batches without padding; None to compute padding too.
    """
    return TrainingData(
        lambda step, context: _dataset(sampler, row_counts, step, num_train_steps, has_static_shapes, context),
        describe=lambda step: "examples " + ", ".join(map(str, sampler.examples(step))),
        is_short=is_short,
        has_graph_per_shape=has_graph_per_shape,
    )


def _dataset(
    sampler: BatchSampler,
    row_counts: RowCounts | None,
    start_step: int,
    end_step: int,
    has_static_shapes: bool,
    context: tf.distribute.InputContext,
) -> tf.data.Dataset:
    """Returns the batches from `start_step` on for one input pipeline, split evenly among its replicas."""
    size = context.get_per_replica_batch_size(sampler.batch_size)
    num_replicas = replicas_per_pipeline(context)
    replicas = range(context.input_pipeline_id * num_replicas, (context.input_pipeline_id + 1) * num_replicas)

    def parts() -> Iterator[dict[str, np.ndarray]]:
        for step in range(start_step, end_step):
            examples = sampler.examples(step)
            length = sampler.bucket(examples)
            shape = None
            if row_counts is not None:
                examples = row_counts.arranged(examples)
                shape = row_counts.of(examples)
            for replica in replicas:
                batch = sampler.features.batch(examples[replica * size : (replica + 1) * size], length)
                yield batch if shape is None else batch | row_counts.inputs(batch["input_mask"], shape, size)

    sample = sampler.features.batch(np.zeros(size, np.int64), int(sampler.buckets[-1]))
    dynamic = set() if has_static_shapes else sampler.features.token_names
    signature = {
        name: tf.TensorSpec([len(x), None, *x.shape[2:]] if name in dynamic else x.shape, x.dtype)
        for name, x in sample.items()
    }
    if row_counts is not None:
        mask = sample["input_mask"]
        for name, x in row_counts.inputs(mask, Shape(mask.size, mask.shape[1]), size).items():
            signature[name] = tf.TensorSpec([*x.shape[:-1], None], x.dtype)
    # TensorFlow never releases the function that it gets here, so the function must not refer to the examples.
    once = [parts()]
    return tf.data.Dataset.from_generator(once.pop, output_signature=signature).prefetch(2)
