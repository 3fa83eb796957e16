"""Evaluation by a model's own metrics and its loss, as pre-training has it."""

from collections.abc import Callable

import tensorflow as tf

from bert_tf.runtime import distribution, reporting
from bert_tf.training.contract import Batch, TrainableModel
from bert_tf.training.metric_means import MetricMeans


class BatchEvaluator:
    """The means of a model's metrics, and of its loss, over some batches, without dropout; compiled once.

    Args:
      model: built in the strategy's scope.
      strategy: where.
    """

    def __init__(self, model: TrainableModel, strategy: tf.distribute.Strategy) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.means = means = MetricMeans((*model.metric_names, "loss"))

        def replica_step(batch: Batch) -> None:
            replica = tf.distribute.get_replica_context()
            totals = replica.all_reduce(tf.distribute.ReduceOp.SUM, model.totals(batch))
            loss, metrics = model.loss(batch, totals, None)
            loss = replica.all_reduce(tf.distribute.ReduceOp.SUM, loss)
            means.add({**metrics, "loss": (loss, tf.constant(1.0))})

        @tf.function(autograph=False)
        def step(iterator: tf.data.Iterator) -> None:
            strategy.run(replica_step, args=(next(iterator),))

        self._step = step

    def evaluate(
        self, dataset: Callable[[tf.distribute.InputContext], tf.data.Dataset], steps: int
    ) -> dict[str, float]:
        """Evaluates.

        Args:
          dataset: per-pipeline batches, at least as many as steps.
          steps: how many batches.
        """
        iterator = iter(self.strategy.distribute_datasets_from_function(dataset))
        shown = distribution.is_chief(self.strategy)
        with reporting.progress_bar(steps, "eval", unit="batch", shown=shown) as bar:
            for _ in range(steps):
                self._step(iterator)
                bar.update(1)
        return self.means.take()
