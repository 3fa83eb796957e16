"""One training step, the same for pre-training and fine-tuning, on one device or many.

A model is anything with `TrainableModel`'s methods. In each replica:

    batch -> totals over all replicas -> loss of this replica's part -> gradients -> sum over replicas -> update

Losses are divided by totals over the *global* batch, so that it doesn't matter how the batch was split: into replicas,
into micro-batches, or not at all.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import keras
import orbit
import tensorflow as tf

from bert_tf import checkpoints
from bert_tf.model.dropout import fold_in
from bert_tf.optimization import LossScale, OptimizerConfig, build_optimizer, learning_rate
from bert_tf.runtime import distribution
from bert_tf.runtime.files import InputError

Batch = Mapping[str, tf.Tensor]
# name -> (sum over examples, sum of their weights); the metric is their quotient, over any number of batches.
MetricSums = Mapping[str, tuple[tf.Tensor, tf.Tensor]]

# How many steps several processes take between two looks at whether one of them was asked to stop.
_STEPS_PER_VOTE = 10

DTYPES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


class TrainableModel(Protocol):
    """What the loop needs of a model.

    Attributes:
      variables: all of them, by their released paths.
      trained_variables: those that the loss reaches.
      metric_names: what `loss` reports.
    """

    variables: list[keras.Variable]
    trained_variables: list[keras.Variable]
    metric_names: tuple[str, ...]

    def flops(self, batch: Batch) -> tf.Tensor:
        """Floating-point operations of a training step on a part of a batch."""

    def totals(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Scalars by which losses are divided, for a part of a batch; they are summed over the parts."""

    def loss(
        self, batch: Batch, totals: Mapping[str, tf.Tensor], seed: tf.Tensor | None
    ) -> tuple[tf.Tensor, MetricSums]:
        """This part's share of the loss (shares are summed), and its metrics; dropout if there is a seed."""


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How a model is trained, whatever the task.

    Attributes:
      output_dir: checkpoints, logs and summaries go there.
      optimizer: rates, schedule and clipping; holds the number of steps.
      train_batch_size: examples in a step, over all replicas and micro-batches.
      save_checkpoints_steps: how often a checkpoint is saved; the last step always is.
      keep_checkpoint_max: how many checkpoints are kept; 0 for all.
      iterations_per_loop: steps between two looks at the device: on TPU they run in one go.
      log_steps: how often metrics are written.
      seed: of initial values, data order and dropout.
      dtype: "float32", "bfloat16" or "float16": what products are computed in.
      jit_compile: compile the step with XLA.
      gradient_accumulation_steps: micro-batches that each replica's part of a batch is split into.
      recompute_gradients: see `BertEncoder`.
      peak_tflops: what all devices together can do at best, in 10^12 operations a second, to report how much of it is
        used; 0 if it isn't known.
    """

    output_dir: str
    optimizer: OptimizerConfig
    train_batch_size: int
    save_checkpoints_steps: int = 1000
    keep_checkpoint_max: int = 5
    iterations_per_loop: int = 1000
    log_steps: int = 100
    seed: int = 12345
    dtype: str = "float32"
    jit_compile: bool = False
    gradient_accumulation_steps: int = 1
    recompute_gradients: bool = False
    peak_tflops: float = 0.0

    def __post_init__(self) -> None:
        for name in (
            "train_batch_size",
            "save_checkpoints_steps",
            "iterations_per_loop",
            "log_steps",
            "gradient_accumulation_steps",
        ):
            if getattr(self, name) < 1:
                raise InputError(f"--{name} is {getattr(self, name)}, but at least 1 is expected.")
        if self.keep_checkpoint_max < 0:
            raise InputError(f"--keep_checkpoint_max is {self.keep_checkpoint_max}, but at least 0 is expected.")
        if self.dtype not in DTYPES:
            raise InputError(f"--dtype is {self.dtype!r}, but one of {', '.join(DTYPES)} is expected.")

    @property
    def num_train_steps(self) -> int:
        """The step at which training ends."""
        return self.optimizer.num_train_steps

    def check_batch(self, strategy: tf.distribute.Strategy) -> None:
        """Raises an InputError if a batch can't be split evenly into replicas, and their parts into micro-batches."""
        size = distribution.per_replica_batch_size(self.train_batch_size, strategy, "--train_batch_size")
        if size % self.gradient_accumulation_steps:
            raise InputError(
                f"--train_batch_size={self.train_batch_size} gives each of {strategy.num_replicas_in_sync} replicas "
                f"{size} examples, which is not a multiple of "
                f"--gradient_accumulation_steps={self.gradient_accumulation_steps}."
            )

    def decisive(self) -> dict[str, object]:
        """The settings that change the weights, be it by other dropout: a run that resumes must have the same."""
        return {
            **dataclasses.asdict(self.optimizer),
            "train_batch_size": self.train_batch_size,
            "seed": self.seed,
            "dtype": self.dtype,
            "jit_compile": self.jit_compile,
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
        }


class NonFiniteError(InputError):
    """The loss or the gradient of a step was not finite."""

    def __init__(self, step: int) -> None:
        super().__init__(
            f"the loss or the gradient of step {step} is not finite. The weights were not updated with it; the last "
            "checkpoint is intact. A smaller --learning_rate, more --num_warmup_steps or float32 may help."
        )
        self.step = step


class MetricMeans:
    """Weighted means that each replica adds to without talking to the others; read and reset from outside.

    Args:
      names: the metrics.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._sums = tf.Variable(
            tf.zeros([len(self.names), 2]),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )

    def add(self, sums: MetricSums) -> None:
        """Adds one replica's sums; every name must be there."""
        self._sums.assign_add(tf.stack([tf.stack([tf.cast(x, tf.float32) for x in sums[n]]) for n in self.names]))

    def take(self) -> dict[str, float]:
        """The means since the last call; a metric without weight is 0, as in the release."""
        sums = self._sums.numpy() if hasattr(self._sums, "numpy") else tf.convert_to_tensor(self._sums).numpy()
        self._sums.assign(tf.zeros_like(sums))
        return {
            name: float(total / weight) if weight else 0.0
            for name, (total, weight) in zip(self.names, sums, strict=True)
        }


class Trainer(orbit.AbstractTrainer):
    """Runs training steps; `orbit.Controller` calls `train` for a few of them at a time.

    Construct it in the strategy's scope, after the model.

    Args:
      model: what is trained.
      config: how.
      strategy: where.
      on_step: called on the host after each step, or after each loop of steps on TPU, with the number of steps.
    """

    def __init__(
        self,
        model: TrainableModel,
        config: TrainingConfig,
        strategy: tf.distribute.Strategy,
        on_step: Callable[[int], None] = lambda count: None,
    ) -> None:
        self.model = model
        self.config = config
        self.strategy = strategy
        self.on_step = on_step
        self.optimizer = build_optimizer(config.optimizer, model.trained_variables)
        self.loss_scale = LossScale(enabled=config.dtype == "float16")
        self.metrics = MetricMeans((*model.metric_names, "loss", "gradient_norm", "tokens", "teraflops"))
        self.first_bad_step = tf.Variable(
            -1, dtype=tf.int64, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
        )
        # Whether this process was asked to stop, and how many of all were before the last step.
        self.stop_vote, self.stop_votes = (
            tf.Variable(0.0, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA) for _ in range(2)
        )
        self.steps_since_vote = 0
        self.iterator = None
        # Without AutoGraph, which would only take time: everything below is written in TensorFlow's terms.
        compiled = functools.partial(tf.function, autograph=False)
        replica_step = compiled(self.replica_step, jit_compile=True) if config.jit_compile else self.replica_step

        @compiled
        def step(iterator: tf.data.Iterator) -> None:
            strategy.run(replica_step, args=(next(iterator),))

        @compiled
        def loop(iterator: tf.data.Iterator, count: tf.Tensor) -> None:
            def step_and_count(i: tf.Tensor) -> tuple[tf.Tensor]:
                step(iterator)
                return (i + 1,)

            tf.while_loop(lambda i: i < count, step_and_count, (tf.constant(0),))

        self._step, self._loop = step, loop

    @property
    def global_step(self) -> tf.Variable:
        """How many steps were finished."""
        return self.optimizer.global_step

    def state(self) -> dict[str, tf.Variable]:
        """Everything a checkpoint holds, by its name there."""
        return checkpoints.named_variables(self.model.variables) | self.optimizer.state() | self.loss_scale.state()

    def train(self, num_steps: tf.Tensor) -> dict[str, float]:
        """Runs some steps and returns the means of their metrics."""
        if distribution.is_tpu(self.strategy):
            self._loop(self.iterator, num_steps)
            self.on_step(int(num_steps))
        else:
            for _ in range(int(num_steps)):
                self._step(self.iterator)
                self.on_step(1)
        return self.take_means()

    def take_means(self) -> dict[str, float]:
        """The means of the metrics since the last call.

        Raises:
          NonFiniteError: if one of the steps was not finite.
        """
        bad_step = int(self.first_bad_step.numpy())
        if bad_step >= 0:
            raise NonFiniteError(bad_step)
        # The rate of the last update.
        rate = float(learning_rate(self.config.optimizer, tf.identity(self.global_step) - 1))
        scale = {"loss_scale": float(self.loss_scale.scale.numpy())} if self.loss_scale.enabled else {}
        return {**self.metrics.take(), "learning_rate": rate, **scale}

    def is_to_stop(self, asked: bool) -> bool:
        """Whether to stop here, after the same step in all processes.

        Where there are others, all of them look at the votes after every few steps: each look waits for the device.

        Args:
          asked: whether this process was asked to stop.
        """
        if not distribution.is_multi_worker(self.strategy):
            return asked
        self.stop_vote.assign(float(asked))
        self.steps_since_vote = (self.steps_since_vote + 1) % _STEPS_PER_VOTE
        return self.steps_since_vote == 0 and self.stop_votes.numpy() > 0

    def replica_step(self, batch: Batch) -> None:
        """One step of one replica."""
        replica = tf.distribute.get_replica_context()
        totals = self.model.totals(batch)
        if distribution.is_multi_worker(self.strategy):
            totals, votes = replica.all_reduce(tf.distribute.ReduceOp.SUM, (totals, tf.identity(self.stop_vote)))
            tf.raw_ops.AssignVariableOp(resource=self.stop_votes.handle, value=votes)
        else:
            totals = replica.all_reduce(tf.distribute.ReduceOp.SUM, totals)
        step = tf.identity(self.global_step)
        seed = tf.random.experimental.stateless_fold_in([self.config.seed, 0], step)
        seed = fold_in(seed, replica.replica_id_in_sync_group)

        loss, metrics, gradients = self._accumulated_gradients(batch, totals, seed)
        loss, gradients = replica.all_reduce(tf.distribute.ReduceOp.SUM, (loss, gradients))
        if self.loss_scale.enabled:
            gradients = [gradient / self.loss_scale.scale for gradient in gradients]
        norm = tf.linalg.global_norm(gradients)
        finite = tf.math.is_finite(loss) & tf.math.is_finite(norm)
        # A step that is not finite changes no weight. The run stops, unless a smaller loss scale may help.
        tf.cond(finite, lambda: self.optimizer.apply(gradients, norm), lambda: tf.constant(0.0))
        failed = ~finite & ~(tf.math.is_finite(loss) & self.loss_scale.can_shrink()) & (self.first_bad_step < 0)
        self.loss_scale.update(finite)
        tf.raw_ops.AssignVariableOp(
            resource=self.first_bad_step.handle,
            value=tf.where(failed, step, tf.identity(self.first_bad_step)),
        )
        tf.raw_ops.AssignVariableOp(resource=self.global_step.handle, value=step + 1)

        weight = tf.where(finite, 1.0, 0.0)
        share = 1.0 / self.strategy.num_replicas_in_sync
        self.metrics.add(
            {
                **metrics,
                # The sums over replicas are the same in each of them, and so is their mean.
                "loss": (tf.where(finite, loss, 0.0), weight),
                "gradient_norm": (tf.where(finite, norm, 0.0), weight),
                # Of all replicas together, padding included.
                "tokens": (tf.size(batch["input_ids"]), share),
                "teraflops": (self.model.flops(batch) * 1e-12, share),
            }
        )

    def _accumulated_gradients(
        self, batch: Batch, totals: Mapping[str, tf.Tensor], seed: tf.Tensor
    ) -> tuple[tf.Tensor, MetricSums, list[tf.Tensor]]:
        """Loss, metrics and gradients of a replica's part of the batch, one micro-batch after the other."""
        count = self.config.gradient_accumulation_steps
        if count == 1:
            return self._gradients(batch, totals, seed)
        parts = {name: tf.reshape(x, [count, -1, *x.shape[1:]]) for name, x in batch.items()}

        def add_part(i: tf.Tensor, so_far: tuple) -> tuple:
            part = {name: x[i] for name, x in parts.items()}
            new = self._gradients(part, totals, fold_in(seed, i))
            return i + 1, tf.nest.map_structure(tf.add, so_far, new)

        first = self._gradients({name: x[0] for name, x in parts.items()}, totals, fold_in(seed, 0))
        return tf.while_loop(lambda i, _: i < count, add_part, (tf.constant(1), first))[1]

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
                raise ValueError(f"the loss doesn't reach {variable.path}; it must not be in trained_variables")
        return loss, metrics, [tf.convert_to_tensor(gradient) for gradient in gradients]
