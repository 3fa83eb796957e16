"""The interface between the training loop and its callers: model and data."""

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import keras
import tensorflow as tf

from bert_tf.training.settings import Shapes

Batch = Mapping[str, tf.Tensor]
# Maps a metric's name to (weighted sum over examples, sum of weights). The metric is the quotient of both, summed over
# batches.
MetricSums = Mapping[str, tuple[tf.Tensor, tf.Tensor]]


class TrainableModel(abc.ABC):
    """A model that the loop can train.

    A loss is divided by totals over the *global* batch, so the gradients do not depend on how the batch is split into
    replicas and micro-batches.

    Attributes:
      variables: all variables. Their paths are the names in released checkpoints.
      metric_names: the names of the metrics that `loss` returns.
      classes: the class names of the output layer's rows; None if there are none.
      target_scale: mean and standard deviation by which the targets of a regression are standardised.
      uses_pooler: whether the loss depends on the pooler, if there is one.
    """

    variables: list[keras.Variable]
    metric_names: tuple[str, ...] = ()
    classes: Sequence[str] | None = None
    target_scale: tuple[float, float] = (0.0, 1.0)
    uses_pooler = True

    @property
    def trained_variables(self) -> list[keras.Variable]:
        """The variables that are not frozen and that the loss depends on.

        An unused pooler gets no gradient. As in the original code, it has no weight decay and no moments.
        """
        unused = () if self.uses_pooler else ("bert/pooler/",)
        return [v for v in self.variables if v.trainable and not v.path.startswith(unused)]

    @property
    def parameter_counts(self) -> tuple[int, int]:
        """The number of weights, and the number of trained weights."""
        every, trained = ([math.prod(v.shape) for v in of] for of in (self.variables, self.trained_variables))
        return sum(every), sum(trained)

    @abc.abstractmethod
    def flops(self, batch: Batch) -> tf.Tensor:
        """Returns the number of floating-point operations, a scalar, of a training step on this part of a batch."""

    @abc.abstractmethod
    def totals(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns the scalars that losses are divided by, for a part of a batch. The loop sums them over all parts."""

    @abc.abstractmethod
    def loss(
        self, batch: Batch, totals: Mapping[str, tf.Tensor], seed: tf.Tensor | None
    ) -> tuple[tf.Tensor, MetricSums]:
        """Returns the loss and the metrics of a part of a batch. The loop sums them over all parts.

        Args:
          batch: the part of the batch.
          totals: the sums of `totals` over the global batch.
          seed: the seed for dropout, int32 [2]; None turns dropout off.
        """


class WholeBatchModel(TrainableModel):
    """A model whose loss compares the examples of a batch, such as a loss with negatives from the same batch.

    If a batch has several parts, the loop first computes the values of all examples without gradients (`collect`).
    `loss_of_all` returns the loss of the whole batch and its gradient with respect to the values. The loop passes both
    to `loss` among the totals, so each part continues the backward pass (Gao et al., 2021, "GradCache"). The gradients
    are the same as without parts.
    """

    @abc.abstractmethod
    def collect(self, batch: Batch, size: int, seed: tf.Tensor | None) -> dict[str, tf.Tensor]:
        """Returns the values of a part's examples.

        Args:
          batch: the part of the batch. `batch_positions` has the position of each example in the global batch.
          size: the number of examples of the global batch.
          seed: see `loss`.

        Returns:
          Float32 arrays [size, ...]. Rows of other parts are zero. The loop adds up the arrays of all parts.
        """

    @abc.abstractmethod
    def loss_of_all(self, values: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the loss of all examples and its gradients with respect to `values`, as further totals for `loss`."""


@dataclasses.dataclass(frozen=True)
class TrainingData:
    """The batches to train on.

    Attributes:
      from_step: returns the endless batches of one input pipeline, starting at the given step.
      boundaries: steps at which the shape of the batches changes, such as between two phases of pre-training.
      describe: returns the names of the files that a step's data comes from, for messages.
      describe_reading: returns the names of all files read for a step, if `describe` returns other files.
      size: returns the number of examples of a step's data, and the number of positions of a padded example.
      shapes: the shapes of the batches.
      is_short: whether training is so short that, on CPUs, optimizing the graph of a step takes longer than it saves.
    """

    from_step: Callable[[int, tf.distribute.InputContext], tf.data.Dataset]
    boundaries: tuple[int, ...] = ()
    describe: Callable[[int], str] = lambda step: "unknown"
    describe_reading: Callable[[int], str] | None = None
    size: Callable[[int], tuple[int, int]] = lambda step: (1, 1)
    shapes: Shapes = Shapes.ANY
    is_short: bool = False
