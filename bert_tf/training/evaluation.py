"""Evaluations during training: averages a model's metrics and loss, and keeps the checkpoint with the best score."""

import math
import os
from collections.abc import Callable, Mapping
from typing import Any, NotRequired, TypedDict

import numpy as np
import tensorflow as tf

from bert_tf import checkpoints
from bert_tf.checkpoints import run_directory, saver
from bert_tf.distribution import strategies
from bert_tf.runtime import files, json_files, reporting
from bert_tf.runtime.messages import say
from bert_tf.training.interface import Batch, TrainableModel
from bert_tf.training.step import micro_batches
from bert_tf.training.step.metric_means import MetricMeans

# The step and the scores of the best checkpoint.
_BEST_SCORES_FILE = "scores.json"


class _Best(TypedDict):
    step: int
    loss: float
    data: NotRequired[dict[str, Any]]


def has_smallest_loss(output_dir: str, loss: float, data: Mapping[str, Any]) -> bool:
    """Returns whether a loss is smaller than the loss of the weights kept by `save_best`.

    After a kill, the kept weights may be from a step after the last checkpoint. When this step is repeated, its loss is
    the same, so the weights are not replaced. Losses on different data can't be compared: if the kept weights were
    evaluated on other data, a warning is printed and the search for the best weights starts over.

    Args:
      output_dir: the run directory.
      loss: the loss of the evaluated step.
      data: identifies the evaluation data, as in `save_best`.
    """
    path = os.path.join(output_dir, run_directory.BEST_DIRECTORY, _BEST_SCORES_FILE)
    best = json_files.read(path, "--output_dir", _Best) if files.exists(path) else None
    if best and best.get("data") != data:
        say(
            f"Warning: the best weights so far (step {best['step']}) were found with other held-out data or batches, "
            "so the losses can't be compared. The search for the best weights starts over."
        )
        best = None
    return loss < (best["loss"] if best else math.inf)


def save_best(
    model: TrainableModel,
    output_dir: str,
    step: int,
    scores: Mapping[str, float],
    data: Mapping[str, Any] | None = None,
) -> None:
    """Saves the weights and their scores in a separate directory, and removes the previous best weights.

    Args:
      model: the model.
      output_dir: the run directory.
      step: the global step of the weights.
      scores: the scores by name.
      data: identifies the evaluation data, JSON-serialisable; None if it is never compared.
    """
    directory = os.path.join(output_dir, run_directory.BEST_DIRECTORY)
    tensors = {**checkpoints.named_variables(model.variables), "global_step": np.int64(step)}
    saver.CheckpointSaver(directory, keep_checkpoint_max=1).save(step, tensors)
    described = {} if data is None else {"data": data}
    files.write_json(os.path.join(directory, _BEST_SCORES_FILE), {"step": step, **scores, **described})


def remove_stale_best(output_dir: str) -> None:
    """Removes an earlier run's best checkpoint if the directory has no checkpoint to resume from."""
    if not saver.latest_checkpoint(output_dir):
        directory = os.path.join(output_dir, run_directory.BEST_DIRECTORY)
        saver.remove_checkpoints(directory)
        files.remove(os.path.join(directory, _BEST_SCORES_FILE))


class BatchEvaluator:
    """Averages a model's metrics and loss over batches, without dropout. The step is compiled only once.

    Args:
      model: the model, built in the strategy's scope.
      strategy: the strategy.
    """

    def __init__(self, model: TrainableModel, strategy: tf.distribute.Strategy) -> None:
        self.strategy = strategy
        with strategy.scope():
            means = MetricMeans((*model.metric_names, "loss"))
        self.means: MetricMeans = means

        def replica_step(batch: Batch) -> None:
            replica = tf.distribute.get_replica_context()
            totals = replica.all_reduce(tf.distribute.ReduceOp.SUM, micro_batches.totals(model, batch))
            loss, metrics = micro_batches.sums(lambda micro_batch, number: model.loss(micro_batch, totals, None), batch)
            loss = replica.all_reduce(tf.distribute.ReduceOp.SUM, loss)
            means.add({**metrics, "loss": (loss, tf.constant(1.0))})

        @tf.function(autograph=False)
        def step(iterator: tf.data.Iterator) -> None:
            strategy.run(replica_step, args=(next(iterator),))

        self._step = strategies.computing(step)

    def evaluate(
        self, dataset: Callable[[tf.distribute.InputContext], tf.data.Dataset], steps: int
    ) -> dict[str, float]:
        """Averages the metrics over some batches.

        Args:
          dataset: returns at least `steps` batches of one input pipeline.
          steps: number of batches.

        Returns:
          The means by name. The loss is averaged over the batches.
        """
        iterator = strategies.batches(self.strategy, dataset)
        shown = strategies.is_chief(self.strategy)
        with reporting.progress_bar(steps, "eval", unit="batch", shown=shown) as bar:
            for _ in range(steps):
                self._step(iterator)
                bar.update(1)
        return self.means.take()
