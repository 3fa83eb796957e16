"""Calls that the training loop makes every few steps: evaluations and Keras callbacks."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bert_tf.training.log import TrainingLog
from bert_tf.training.step.metric_means import MetricMeans


class Hook:
    """The methods that the training loop calls. Subclasses override the ones they need.

    Attributes:
      every: number of steps between two calls of `at`, which is also called after the last step.
      should_stop: whether training ends after the current step. The state is then saved, and the run is complete.
      settings: JSON-serialisable settings of the hook; they must be the same on all workers.
      is_logged: whether the training metrics are logged before each call of `at`.
      prints_table: whether the loop prints all evaluations as a table at the end.
    """

    every: int
    should_stop: bool = False
    settings: Mapping[str, Any] = {}
    is_logged = False
    prints_table = True

    def begin(self, log: TrainingLog, metrics: MetricMeans, start: int, end: int) -> None:
        """Begins training.

        Args:
          log: the log of the run.
          metrics: the means of the training metrics.
          start: the number of finished steps.
          end: the last step.
        """

    def after_steps(self, count: int) -> None:
        """Called after each step; on a TPU, after each device loop of `count` steps."""

    def is_due(self, step: int, end: int) -> bool:
        """Returns whether `at` is called after a step."""
        return step % self.every == 0 or step == end

    def at(self, step: int, end: int) -> None:
        """Called if due, after the checkpoint and the log lines of the step are written."""

    def finish(self) -> None:
        """Ends training, unless it was interrupted."""


@dataclasses.dataclass
class PeriodicEvaluation(Hook):
    """An evaluation that is repeated during training.

    If an earlier process was stopped after saving a checkpoint but before evaluating it, the checkpoint is evaluated
    at the start.

    Attributes:
      evaluate: takes the step and returns scores by name.
      every: see `Hook`.
      stops: called at the start and after each evaluation; returns whether training ends.
      prints_table: see `Hook`.
      settings: see `Hook`.
    """

    evaluate: Callable[[int], Mapping[str, float]]
    every: int
    stops: Callable[[], bool] = lambda: False
    prints_table: bool = True
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    is_logged = True

    def begin(self, log: TrainingLog, metrics: MetricMeans, start: int, end: int) -> None:
        """Evaluates the restored weights if their evaluation is missing."""
        self._log = log
        if start and self.is_due(start, end) and not log.scores(start):
            self.at(start, end)
        else:
            self.should_stop: bool = self.stops()

    def at(self, step: int, end: int) -> None:
        """Evaluates the weights after a step."""
        self._log.log_evaluation(step, self.evaluate(step))
        self.should_stop = self.stops()


class Hooks(list[Hook]):
    """The hooks of a run, in the order in which they are called. They are called like one hook.

    Args:
      hooks: the hooks.
      last_step: the step at which training ends if no hook ends it earlier.
    """

    def __init__(self, hooks: Iterable[Hook], last_step: int) -> None:
        super().__init__(hooks)
        self._last_step = last_step

    @property
    def should_stop(self) -> bool:
        """Whether a hook has ended training."""
        return any(hook.should_stop for hook in self)

    def end(self, step: int) -> int:
        """Returns the step at which training ends: the current step if a hook has ended training."""
        return step if self.should_stop else self._last_step

    def are_logged(self, step: int) -> bool:
        """Returns whether the training metrics are logged because a hook is due."""
        return any(hook.is_logged and hook.is_due(step, self.end(step)) for hook in self)

    def begin(self, log: TrainingLog, metrics: MetricMeans, start: int) -> None:
        """Begins training. See `Hook`."""
        for hook in self:
            hook.begin(log, metrics, start, self.end(start))

    def after_steps(self, count: int) -> None:
        """See `Hook`."""
        for hook in self:
            hook.after_steps(count)

    def at(self, step: int) -> None:
        """Calls the hooks that are due. Each is checked just before its call, as an earlier one may end training."""
        for hook in self:
            if hook.is_due(step, self.end(step)):
                hook.at(step, self.end(step))

    def finish(self) -> None:
        """Ends training, unless it was interrupted."""
        for hook in self:
            hook.finish()
