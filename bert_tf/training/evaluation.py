"""Evaluates a model with its own metrics and its loss. Pre-training uses it."""

from collections.abc import Callable

import tensorflow as tf

from bert_tf.runtime import distribution, reporting
from bert_tf.training.contract import Batch, TrainableModel
from bert_tf.training.metric_means import MetricMeans


class BatchEvaluator:
    """Averages a model's metrics and its loss over batches, without dropout. The step is compiled only once.

    Args:
      model: the model, built in the strategy's scope.
      strategy: the strategy.
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
        """Averages the metrics over some batches.

        Args:
          dataset: returns the batches of one input pipeline, at least as many as `steps`.
          steps: number of batches.

        Returns:
          The means by name; the loss is the mean over the batches.
        """
        iterator = iter(self.strategy.distribute_datasets_from_function(dataset))
        shown = distribution.is_chief(self.strategy)
        with reporting.progress_bar(steps, "eval", unit="batch", shown=shown) as bar:
            for _ in range(steps):
                self._step(iterator)
                bar.update(1)
        return self.means.take()
