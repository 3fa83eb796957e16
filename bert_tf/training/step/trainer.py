"""The training step, on one or several devices.

    a replica's batch -> totals over all replicas -> loss -> gradients -> sum over all replicas -> update

`Trainer.steps` runs some steps. Each of them is `replica_step` on every replica. With `Compilation.STEP`, XLA compiles
the two parts between the sums: `replica_gradients` and `update`.
"""

import contextlib
import functools
import time
from collections.abc import Container, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from bert_tf import checkpoints
from bert_tf.distribution import hardware, strategies
from bert_tf.model.dropout import fold_in
from bert_tf.optimization import LossScale, Optimizer, global_norm, learning_rate
from bert_tf.training.interface import Batch, MetricSums, TrainableModel, WholeBatchModel
from bert_tf.training.settings import Compilation, Shapes, TrainingConfig
from bert_tf.training.step import micro_batches
from bert_tf.training.step.metric_means import MetricMeans
from bert_tf.training.step.nonfinite import NonfiniteSteps

# Several processes check whether one of them was asked to stop: after about this number of seconds, and at the latest
# after this number of steps.
_SECONDS_PER_STOP_CHECK, _STEPS_PER_STOP_CHECK = 5.0, 10


class Trainer:
    """The training step of a model and its optimizer.

    Construct it in the strategy's scope.

    Args:
      model: the model.
      optimizer: the optimizer of the model's trained variables.
      config: the settings.
      strategy: the strategy.
      compilation: the functions that XLA compiles. On a TPU, it compiles complete steps in any case.
    """

    stop_request: tf.Variable
    stop_requests: tf.Variable

    def __init__(
        self,
        model: TrainableModel,
        optimizer: Optimizer,
        config: TrainingConfig,
        strategy: tf.distribute.Strategy,
        compilation: Compilation = Compilation.NONE,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.config, self.strategy = config, strategy
        self.loss_scale: LossScale = LossScale(enabled=config.dtype == "float16")
        self.metrics: MetricMeans = MetricMeans((*model.metric_names, "loss", "gradient_norm", "tokens", "teraflops"))
        self.nonfinite: NonfiniteSteps = NonfiniteSteps(config.max_nonfinite_steps)
        # The request of this process to stop and the duration of its steps, and the sums of both over all replicas.
        start, aggregation = [0.0, _SECONDS_PER_STOP_CHECK], tf.VariableAggregation.ONLY_FIRST_REPLICA
        self.stop_request, self.stop_requests = (
            tf.Variable(start, trainable=False, aggregation=aggregation) for _ in range(2)
        )
        self._steps_to_check, self._checked_steps = 1, 1
        self._checked_at, self._seconds = time.perf_counter(), _SECONDS_PER_STOP_CHECK
        # The methods have no Python control flow on tensors, so AutoGraph is not needed.
        self._one_step, self._many_steps = (
            tf.function(method, autograph=False) for method in (self.one_step, self.many_steps)
        )
        is_compiled = compilation is Compilation.STEP and not hardware.is_tpu(strategy)
        self._collected, self._replica_gradients, self._update = (
            tf.function(method, autograph=False, jit_compile=True) if is_compiled else method
            for method in (self.collected, self.replica_gradients, self.update)
        )

    @property
    def step(self) -> int:
        """The number of finished steps."""
        return int(self.optimizer.global_step.numpy())

    def state(self, stored: Container[str] = ()) -> dict[str, tf.Variable]:
        """Returns all variables to save or restore, by their names in checkpoints.

        Counts of skipped steps are included if they are not 0, independent of the settings.

        Args:
          stored: the names in the checkpoint to restore. Counts of skipped steps listed there are always included.
        """
        state = checkpoints.named_variables(self.model.variables) | self.optimizer.state() | self.loss_scale.state()
        counts = {"skipped_steps": self.optimizer.skipped_steps, **self.nonfinite.state()}
        return state | {name: count for name, count in counts.items() if name in stored or count.numpy()}

    def steps(
        self, batches: tf.data.Iterator, count: int, shapes: Shapes = Shapes.ANY, is_short: bool = False
    ) -> Iterator[int]:
        """Runs `count` steps. Yields 1 after each step; on a TPU, yields `count` after all of them.

        Args:
          batches: the iterator of the batches.
          count: the number of steps.
          shapes: see `TrainingData`.
          is_short: see `TrainingData`.
        """
        num_micro_batches = self.config.batch_at(self.step).gradient_accumulation_steps
        if hardware.is_tpu(self.strategy):
            self._many_steps(batches, tf.constant(count), num_micro_batches)
            yield count
        else:
            for _ in range(count):
                with hardware.without_graph_optimizer() if is_short else contextlib.nullcontext():
                    # A graph traced for a batch has fixed shapes. A graph with an iterator has unknown shapes.
                    self._one_step(next(batches) if shapes is Shapes.FEW else batches, num_micro_batches)
                yield 1

    def trace(
        self, batches: tf.data.Iterator, batch: Batch, num_micro_batches: int, shapes: Shapes = Shapes.ANY
    ) -> None:
        """Traces a step without running it. See `steps`; `batch` is one of the batches."""
        if hardware.is_tpu(self.strategy):
            self._many_steps.get_concrete_function(batches, tf.constant(1), num_micro_batches)
        else:
            self._one_step.get_concrete_function(batch if shapes is Shapes.FEW else batches, num_micro_batches)

    def take_means(self) -> dict[str, float]:
        """Returns the means of the metrics since the last call, and resets them."""
        # The global step was incremented after the last update.
        rate = float(learning_rate(self.config.optimizer, tf.identity(self.optimizer.global_step) - 1))
        scale = {"loss_scale": float(self.loss_scale.scale.numpy())} if self.loss_scale.enabled else {}
        skipped = {"nonfinite_steps": self.nonfinite.count} if self.config.max_nonfinite_steps else {}
        return {**self.metrics.take(), "learning_rate": rate, **scale, **skipped}

    def should_stop(self, requested: bool) -> bool:
        """Returns whether to stop now. The result is the same in all processes after the same step.

        Several processes read the sum of their requests only every few steps, because reading waits for the device. All
        of them choose the same step for the next check, because they also read the sum of their step durations.

        Args:
          requested: whether this process was asked to stop.
        """
        if not strategies.is_multi_worker(self.strategy):
            return requested
        self.stop_request.assign([float(requested), self._seconds])
        self._steps_to_check -= 1
        if self._steps_to_check:
            return False
        requests, seconds = self.stop_requests.numpy() / self.strategy.num_replicas_in_sync
        now = time.perf_counter()
        self._seconds, self._checked_at = (now - self._checked_at) / self._checked_steps, now
        self._checked_steps = int(np.clip(_SECONDS_PER_STOP_CHECK / seconds, 1, _STEPS_PER_STOP_CHECK))
        self._steps_to_check = self._checked_steps
        return requests > 0

    def one_step(self, source: tf.data.Iterator | Batch, num_micro_batches: int) -> None:
        """Runs a step on all replicas. `source` is a batch, or an iterator of batches; see `replica_step`."""
        batch = source if isinstance(source, Mapping) else next(source)
        self.strategy.run(functools.partial(self.replica_step, num_micro_batches=num_micro_batches), args=(batch,))

    def many_steps(self, batches: tf.data.Iterator, count: tf.Tensor, num_micro_batches: int) -> None:
        """Runs `count` steps in a loop on the device."""

        def step_and_count(i: tf.Tensor) -> tuple[tf.Tensor]:
            self._one_step(batches, num_micro_batches)
            return (i + 1,)

        tf.while_loop(lambda i: i < count, step_and_count, (tf.constant(0),))

    def replica_step(self, batch: Batch, num_micro_batches: int) -> None:
        """Runs one step on one replica. Its part of the batch is split into `num_micro_batches` micro-batches.

        1. The totals, such as the number of predicted tokens, are summed over the replicas, because the loss is a mean
           over the complete batch.
        2. `replica_gradients` computes the gradients of the replica.
        3. Loss and gradients are summed over the replicas.
        4. `update` updates the weights.

        On a TPU, steps without spill micro-batches use a separate branch. A loop over gradients, even without
        iterations, would prevent the compiler from fusing the backward pass with the update. On one device, a
        `WholeBatchModel` uses it too, because a batch with several parts needs another forward pass.
        """
        replica_totals = micro_batches.totals(self.model, batch)
        totals = self._summed(replica_totals | micro_batches.spills(batch))
        spills = totals.pop("spills", None)
        divisors = replica_totals if self._clips_per_replica else totals

        def finish(has_spills: bool) -> None:
            seed = tf.random.experimental.stateless_fold_in(
                [self.config.seed, 0], tf.identity(self.optimizer.global_step)
            )
            seed = fold_in(seed, tf.distribute.get_replica_context().replica_id_in_sync_group)
            arguments = seed, num_micro_batches, has_spills
            all_divisors = {**divisors, **self._loss_of_all(batch, *arguments)}
            losses, gradients, *sums = self._replica_gradients(batch, all_divisors, *arguments)
            losses, gradients = strategies.sum_over_replicas(losses, gradients, self.config.gradient_sum_dtype)
            self._update(losses, gradients, *sums)

        is_whole = isinstance(self.model, WholeBatchModel) and self.strategy.num_replicas_in_sync == 1
        if spills is None or not (hardware.computes_on_tpu() or is_whole):
            finish(has_spills=spills is not None)
        else:
            tf.cond(spills > 0, lambda: finish(has_spills=True), lambda: finish(has_spills=False))

    def _summed(self, totals: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the sums of totals over the replicas. Several workers exchange their stop requests with them."""
        replica = tf.distribute.get_replica_context()
        if not strategies.is_multi_worker(self.strategy):
            return replica.all_reduce(tf.distribute.ReduceOp.SUM, totals)
        totals, requests = replica.all_reduce(tf.distribute.ReduceOp.SUM, (totals, tf.identity(self.stop_request)))
        tf.raw_ops.AssignVariableOp(resource=self.stop_requests.handle, value=requests)
        return totals

    def replica_gradients(
        self,
        batch: Batch,
        divisors: Mapping[str, tf.Tensor],
        seed: tf.Tensor,
        num_micro_batches: int,
        has_spills: bool,
    ) -> tuple[list[tf.Tensor], list[tf.Tensor], MetricSums, tuple[tf.Tensor, tf.Tensor]]:
        """Computes the gradients of one replica.

        Args:
          batch: the replica's part of the batch.
          divisors: the totals that the loss is divided by.
          seed: [2], the seed of the dropout.
          num_micro_batches: the number of micro-batches, without spill micro-batches.
          has_spills: whether to compute the spill micro-batches.

        Returns:
          The loss and, if the replica has clipped its gradients, their norm; the gradients; the sums of the metrics;
          the numbers of tokens and of floating-point operations. Losses, norms and gradients are summed over the
          replicas.
        """

        def gradients_of(micro_batch: Batch, number: int | tf.Tensor | None) -> tuple:
            return self._gradients(micro_batch, divisors, _seed_of(number, seed))

        loss, metrics, gradients = micro_batches.sums(gradients_of, batch, num_micro_batches, has_spills)
        if self.loss_scale.enabled:
            gradients = [gradient / self.loss_scale.scale for gradient in gradients]
        losses = [loss]
        if self._clips_per_replica:
            norm, clip_norm = global_norm(gradients), self.config.optimizer.clip_norm
            gradients = [gradient * tf.minimum(clip_norm / norm, 1.0) for gradient in gradients]
            # Loss and norm become means over the replicas; the gradients are summed, as in the original code.
            losses = [x / self.strategy.num_replicas_in_sync for x in (loss, norm)]
        return losses, gradients, metrics, micro_batches.tokens_and_flops(self.model, batch)

    def update(
        self,
        losses: Sequence[tf.Tensor],
        gradients: Sequence[tf.Tensor],
        metrics: MetricSums,
        size: tuple[tf.Tensor, tf.Tensor],
    ) -> None:
        """Updates the weights. Assignments to variables are executed in the order of the calls below.

        Args:
          losses: the sums over the replicas; see `replica_gradients`.
          gradients: the sums over the replicas.
          metrics: the sums of the metrics of this replica.
          size: the numbers of tokens and of floating-point operations of this replica.
        """
        step = tf.identity(self.optimizer.global_step)
        loss, norm = losses if self._clips_per_replica else (*losses, global_norm(gradients))
        is_finite = tf.math.is_finite(loss) & tf.math.is_finite(norm)
        # A non-finite step changes no weights.
        self.optimizer.apply(gradients, None if self._clips_per_replica else norm, is_finite)
        self._count(step, loss, is_finite)
        self._record(metrics, size, loss, norm, is_finite)

    def _loss_of_all(
        self, batch: Batch, seed: tf.Tensor, num_micro_batches: int, has_spills: bool
    ) -> dict[str, tf.Tensor]:
        """Returns `WholeBatchModel.loss_of_all`; empty for other models, and for a batch with one part."""
        model, is_reduced = self.model, self.strategy.num_replicas_in_sync > 1 and not self._clips_per_replica
        if not isinstance(model, WholeBatchModel) or not (num_micro_batches > 1 or has_spills or is_reduced):
            return {}
        values = self._collected(batch, seed, num_micro_batches, has_spills)
        replica = tf.distribute.get_replica_context()
        return model.loss_of_all(replica.all_reduce(tf.distribute.ReduceOp.SUM, values) if is_reduced else values)

    def collected(
        self, batch: Batch, seed: tf.Tensor, num_micro_batches: int, has_spills: bool
    ) -> dict[str, tf.Tensor]:
        """Returns `WholeBatchModel.collect`, summed over the micro-batches. For the arguments, see `replica_gradients`.

        XLA compiles this function if it compiles the gradients, because both must draw the same dropout.
        """

        def collect(micro_batch: Batch, number: int | tf.Tensor | None) -> dict[str, tf.Tensor]:
            return self.model.collect(micro_batch, self.config.train_batch_size, _seed_of(number, seed))

        return micro_batches.sums(collect, batch, num_micro_batches, has_spills)

    @property
    def _clips_per_replica(self) -> bool:
        return self.config.optimizer.clip_gradients == "per_replica"

    def _count(self, step: tf.Tensor, loss: tf.Tensor, is_finite: tf.Tensor) -> None:
        """Updates the loss scale, and counts the step."""
        # A non-finite step is bad, unless a smaller loss scale can help.
        is_bad = ~is_finite & ~(tf.math.is_finite(loss) & self.loss_scale.can_shrink())
        self.loss_scale.update(is_finite)
        self.nonfinite.add(step, is_bad)
        global_step, skipped_steps = self.optimizer.global_step, self.optimizer.skipped_steps
        tf.raw_ops.AssignVariableOp(
            resource=skipped_steps.handle, value=tf.identity(skipped_steps) + tf.cast(~is_finite, tf.int64)
        )
        tf.raw_ops.AssignVariableOp(resource=global_step.handle, value=step + 1)

    def _record(
        self,
        metrics: MetricSums,
        size: tuple[tf.Tensor, tf.Tensor],
        loss: tf.Tensor,
        norm: tf.Tensor,
        is_finite: tf.Tensor,
    ) -> None:
        """Adds the step to the means of the metrics."""
        weight = tf.where(is_finite, 1.0, 0.0)
        metrics = tf.nest.map_structure(lambda x: tf.where(tf.math.is_finite(loss), x, tf.zeros_like(x)), metrics)
        share = 1.0 / self.strategy.num_replicas_in_sync
        tokens, flops = size
        self.metrics.add(
            {
                **metrics,
                # Loss and norm are the same on all replicas, so averaging does not change them.
                "loss": (tf.where(is_finite, loss, 0.0), weight),
                "gradient_norm": (tf.where(is_finite, norm, 0.0), weight),
                # The weight turns the mean over the replicas into their sum.
                "tokens": (tokens, share),
                "teraflops": (flops * 1e-12, share),
            }
        )

    def _gradients(
        self, batch: Batch, totals: Mapping[str, tf.Tensor], seed: tf.Tensor
    ) -> tuple[tf.Tensor, MetricSums, list[tf.Tensor]]:
        trained = [variable.value for variable in self.model.trained_variables]
        with tf.GradientTape() as tape:
            loss, metrics = self.model.loss(batch, totals, seed)
            scaled = loss * self.loss_scale.scale if self.loss_scale.enabled else loss
        gradients = tape.gradient(scaled, trained)
        for variable, gradient in zip(self.model.trained_variables, gradients, strict=True):
            if gradient is None:
                raise ValueError(f"the loss doesn't depend on {variable.path}, so it must not be in trained_variables")
        return loss, metrics, [tf.convert_to_tensor(gradient) for gradient in gradients]


def _seed_of(number: int | tf.Tensor | None, seed: tf.Tensor) -> tf.Tensor:
    """Returns the seed of a micro-batch; see `micro_batches.sums` for its number."""
    return seed if number is None else fold_in(seed, number)
