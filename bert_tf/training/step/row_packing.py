"""Chooses how the examples of a run are packed into rows."""

from collections.abc import Callable, Iterable

import numpy as np

from bert_tf.distribution import strategies
from bert_tf.sequences.placement import Packer, Sizes
from bert_tf.training.run import Run
from bert_tf.training.settings import SecondBatch, Shapes, TrainingConfig

# The shape of packed rows is chosen from about this number of examples.
_EXAMPLES_OF_SHAPE = 4096


def packer_for(
    run: Run,
    batch: TrainingConfig | SecondBatch,
    first_steps: Callable[[int], Iterable[Sizes]],
    length: int,
    most_predictions: int = 0,
    hidden_size: int | None = None,
) -> Packer:
    """Returns the packer of the examples of each input pipeline.

    Args:
      run: the run.
      batch: the sizes of a batch.
      first_steps: takes a number of steps and returns the sizes of the examples of each step. Called only if all
        batches have one shape. This shape depends only on the data and the settings.
      length: the length of a row (L) if there is only one shape.
      most_predictions: the largest number of predictions of an example.
      hidden_size: see `Packer`.
    """
    pipelines = strategies.input_pipelines(run.strategy)
    packer = Packer(
        run.strategy.num_replicas_in_sync // pipelines,
        batch.gradient_accumulation_steps,
        hidden_size=hidden_size,
        shares=run.training_config.optimizer.clip_gradients != "per_replica",
    )
    if run.shapes is not Shapes.ONE:
        return packer
    steps = first_steps(-(-_EXAMPLES_OF_SHAPE // batch.train_batch_size))
    samples = (Sizes(*sizes) for step in steps for sizes in zip(*(np.split(x, pipelines) for x in step), strict=True))
    return packer.with_shape(samples, length, most_predictions)
