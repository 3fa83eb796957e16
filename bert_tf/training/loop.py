"""The outer loop around the training step: restore, train, report, save, evaluate.

The loop itself is `orbit.Controller`; what a step does is in `training_step`.
"""

import contextlib
import dataclasses
import errno
import io
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping

import orbit
import tensorflow as tf

from bert_tf import checkpoints
from bert_tf.checkpoints import foreign_names, saver
from bert_tf.runtime import distribution, program, reporting
from bert_tf.runtime.files import InputError
from bert_tf.runtime.program import say
from bert_tf.training.step import NonFiniteError, TrainableModel, Trainer, TrainingConfig

# What stands in the progress bar; the rest is in the logs.
_SHOWN = re.compile("^loss$|accuracy$|learning_rate|_per_second$|flop_utilisation")


class Preempted(SystemExit):
    """The run was asked to stop (SIGTERM, Ctrl-C) and saved its state first."""


class _StopRequested(Exception):
    """A signal to stop came; raised between two steps."""


def restore_or_initialize(
    trainer: Trainer, output_dir: str, init_checkpoint: str | None, fresh_variables: str = ""
) -> checkpoints.RestoreSummary | None:
    """Gives a fresh trainer its starting point.

    1. A checkpoint of this very run in `output_dir`: everything is restored, and training goes on from its step.
    2. Otherwise `init_checkpoint`: the model's variables are restored; heads it lacks stay fresh, and so do the
       optimizer, the step, and the variables whose names match the pattern `fresh_variables`.
    3. Otherwise the fresh initial values stay.

    Raises:
      InputError: if the checkpoint and the model don't fit.
    """
    own = saver.latest_checkpoint(output_dir)
    if own:
        source = checkpoints.open_checkpoint(own, "--output_dir")
        return checkpoints.restore(trainer.state(), source, may_be_fresh="", may_be_ignored="", what="--output_dir")
    if init_checkpoint:
        source = checkpoints.without(checkpoints.open_checkpoint(init_checkpoint), fresh_variables)
        variables = checkpoints.named_variables(trainer.model.variables)
        return checkpoints.restore(variables, source, may_be_fresh=f"{foreign_names.PUT_ON_TOP}|{fresh_variables}")
    return None


def require_starting_point(output_dir: str, init_checkpoint: str | None) -> None:
    """Looks for the checkpoint that will be read, so that its absence is noticed before hours of preparation.

    Raises:
      InputError: if `init_checkpoint` is needed, but isn't there.
    """
    if init_checkpoint and not saver.latest_checkpoint(output_dir):
        checkpoints.find_checkpoint(init_checkpoint)


def restore_for_evaluation(model: TrainableModel, output_dir: str, init_checkpoint: str | None) -> int:
    """Gives a model the weights of a run's newest checkpoint, or else those of `init_checkpoint`.

    Returns:
      The global step of the checkpoint; 0 if it has none.

    Raises:
      InputError: if there is neither, or it lacks a variable of the model.
    """
    own = saver.latest_checkpoint(output_dir)
    if not own and not init_checkpoint:
        raise InputError(
            f"--output_dir: {output_dir} holds no checkpoint, and no --init_checkpoint is given. Train first."
        )
    source = checkpoints.open_checkpoint(own or init_checkpoint, "--output_dir" if own else "--init_checkpoint")
    say(str(checkpoints.restore(checkpoints.named_variables(model.variables), source, may_be_fresh="")))
    return int(source.read("global_step")) if "global_step" in source.shapes else 0


@dataclasses.dataclass(frozen=True)
class TrainingData:
    """What the loop reads.

    Attributes:
      from_step: per-pipeline batches without end, from those of a step on.
      boundaries: steps at which the batches change their shape, as between the two phases of pre-training.
      describe: names the data of a step, for messages.
      describe_reading: names what is read for a step, where that may be more than what the step is given.
    """

    from_step: Callable[[int, tf.distribute.InputContext], tf.data.Dataset]
    boundaries: tuple[int, ...] = ()
    describe: Callable[[int], str] = lambda step: "unknown"
    describe_reading: Callable[[int], str] | None = None


@dataclasses.dataclass(frozen=True)
class PeriodicEvaluation:
    """An evaluation while training goes on.

    Attributes:
      evaluate: gets the step and gives named scores.
      every: after how many steps; it also runs at the end.
      should_stop: asked at the start and after each evaluation; True ends training, with a checkpoint.
      table: whether all scores are printed as a table at the end.
    """

    evaluate: Callable[[int], Mapping[str, float]]
    every: int
    should_stop: Callable[[], bool] = lambda: False
    table: bool = True

    def is_due(self, step: int, last_step: int) -> bool:
        """Whether it runs after a step."""
        return step % self.every == 0 or step == last_step


def train(
    model: TrainableModel,
    config: TrainingConfig,
    strategy: tf.distribute.Strategy,
    data: TrainingData,
    init_checkpoint: str | None = None,
    evaluation: PeriodicEvaluation | None = None,
    fresh_variables: str = "",
) -> dict[str, float]:
    """Trains a model to the last step, from wherever its run directory stands.

    Args:
      model: built in the strategy's scope.
      config: how to train.
      strategy: where.
      data: what to train on.
      init_checkpoint: see `restore_or_initialize`.
      evaluation: see `PeriodicEvaluation`.
      fresh_variables: see `restore_or_initialize`.

    Returns:
      The means of the last steps' metrics.

    Raises:
      InputError: if the starting point doesn't fit, the data is damaged, or a loss is not finite.
      Preempted: after a SIGTERM or Ctrl-C, when the state was saved.
    """
    with strategy.scope():
        trainer = Trainer(model, config, strategy)
    summary = restore_or_initialize(trainer, config.output_dir, init_checkpoint, fresh_variables)
    start, end = int(trainer.global_step.numpy()), config.num_train_steps
    if distribution.is_chief(strategy):
        say(str(summary) if summary else "Starting from fresh initial values.")
        decayed = sum(trainer.optimizer.decayed)
        say(f"Trained variables: {decayed} with weight decay, {len(trainer.optimizer.decayed) - decayed} without.")
    if start >= end:
        say(f"The run in {config.output_dir} has reached step {start} of {end} already.")
    return _Loop(trainer, data, evaluation, start).run()


class _Loop:
    """Runs `orbit.Controller` from one thing that is due to the next: a report, a checkpoint, an evaluation."""

    def __init__(self, trainer: Trainer, data: TrainingData, evaluation: PeriodicEvaluation | None, start: int) -> None:
        self.trainer = trainer
        self.config = trainer.config
        self.data = data
        self.evaluation = evaluation
        self.start, self.end = start, trainer.config.num_train_steps
        self.chief = distribution.is_chief(trainer.strategy)
        self.saver = saver.CheckpointSaver(self.config.output_dir, self.config.keep_checkpoint_max)
        self.was_evaluated = any(
            line["kind"] == "eval" and line["step"] == start for line in reporting.read_metrics(self.config.output_dir)
        )
        self.log = reporting.MetricsLog(self.config.output_dir, start) if self.chief else None
        self.bar = reporting.progress_bar(self.end, "train", initial=start, shown=self.chief)
        self.last: dict[str, float] = {}
        self.evaluations: list[dict[str, float]] = []
        self.loop_start = (start, time.perf_counter())
        self.stop_signals: list[int] = []
        trainer.on_step = self._count_steps
        self.controller = orbit.Controller(
            global_step=trainer.global_step,
            trainer=trainer,
            evaluator=None if evaluation is None else _Evaluator(lambda: evaluation.evaluate(self.step)),
            strategy=trainer.strategy,
            steps_per_loop=self._steps_until_something_is_due,
            summary_dir=self.config.output_dir if self.chief else None,
            eval_summary_dir=os.path.join(self.config.output_dir, "eval") if self.chief else None,
            train_actions=[self._report, self._save_if_due],
        )

    @property
    def step(self) -> int:
        """How many steps were finished."""
        return int(self.trainer.global_step.numpy())

    def run(self) -> dict[str, float]:
        """Trains to the last step and returns the last means."""
        with (
            self.bar,
            program.stop_signals() as self.stop_signals,
            self._translated_errors(),
            self._saved_when_stopped(),
        ):
            # The run may have been stopped between its last checkpoint and the evaluation that was due then.
            if self.start and self._evaluation_is_due() and not self.was_evaluated:
                self._evaluate()
            self._ask_whether_to_stop()
            while self.step < self.end:
                self._read_from(self.step)
                stage_end = min([b for b in self.data.boundaries if b > self.step] + [self.end])
                while self.step < min(stage_end, self.end):
                    self._quietly(self.controller.train, min(stage_end, self._next_evaluation()))
                    if self._evaluation_is_due():
                        self._evaluate()
                        self._ask_whether_to_stop()
        if self.chief and (self.evaluation is None or self.evaluation.table):
            trained = {name: value for name, value in self.last.items() if name not in ("tokens", "teraflops")}
            rows = self.evaluations or ([{"step": self.step, **trained}] if trained else [])
            if rows:
                say(reporting.table(rows))
        return self.last

    def _ask_whether_to_stop(self) -> None:
        if self.evaluation is not None and self.evaluation.should_stop():
            self.end = self.step
            if self.step > self.start:
                self._save()

    def _evaluation_is_due(self) -> bool:
        return self.evaluation is not None and self.evaluation.is_due(self.step, self.end)

    def _read_from(self, step: int) -> None:
        self.trainer.iterator = iter(
            self.trainer.strategy.distribute_datasets_from_function(lambda context: self.data.from_step(step, context))
        )

    def _quietly(self, function: Callable[[int], object], argument: int) -> object:
        """The controller prints a line for each loop, which would tear the progress bar."""
        with contextlib.redirect_stdout(io.StringIO()):
            return function(argument)

    def _next_evaluation(self) -> int:
        every = self.evaluation.every if self.evaluation else self.end
        return min(self.end, self.step + every - self.step % every)

    def _steps_until_something_is_due(self, step: int) -> int:
        due = min(every - step % every for every in (self.config.save_checkpoints_steps, self.config.log_steps))
        return int(min(due, self.config.iterations_per_loop, self.end - step))

    def _count_steps(self, count: int) -> None:
        self.bar.update(count)
        if self.trainer.is_to_stop(bool(self.stop_signals)):
            raise _StopRequested

    def _report(self, means: Mapping[str, float]) -> None:
        step, now = self.step, time.perf_counter()
        steps, seconds = step - self.loop_start[0], now - self.loop_start[1]
        self.loop_start = (step, now)
        self.last = dict(means) | self._speed(seconds / steps, means)
        self.bar.set_postfix(
            {name: reporting.format_number(value) for name, value in self.last.items() if _SHOWN.search(name)},
            refresh=False,
        )
        if self.log and (step % self.config.log_steps == 0 or step == self.end or self._evaluation_is_due()):
            self.log.write("train", step, self.last)

    def _speed(self, seconds_per_step: float, means: Mapping[str, float]) -> dict[str, float]:
        speed = {
            "sequences_per_second": self.config.train_batch_size / seconds_per_step,
            "tokens_per_second": means["tokens"] / seconds_per_step,
        }
        if self.config.peak_tflops:
            speed["flop_utilisation"] = means["teraflops"] / seconds_per_step / self.config.peak_tflops
        return speed

    def _save_if_due(self, means: Mapping[str, float]) -> None:
        if self.step % self.config.save_checkpoints_steps == 0 or self.step == self.end:
            self._save()

    def _save(self) -> None:
        if self.chief:
            self.saver.save(self.step, self.trainer.state())
        # Whoever goes on to evaluate, or ends, has the checkpoint.
        distribution.wait_for_workers(self.trainer.strategy)

    def _evaluate(self) -> None:
        results = self._quietly(self.controller.evaluate, -1)
        self.evaluations.append({"step": self.step, **results})
        if self.log:
            self.log.write("eval", self.step, results)
        self.loop_start = (self.step, time.perf_counter())

    @contextlib.contextmanager
    def _saved_when_stopped(self) -> Iterator[None]:
        """Ends a run that is asked to stop as if its last step had been a loop's: checked, reported and saved."""
        try:
            yield
        except _StopRequested:
            self._report(self.trainer.take_means())
            self._save()
            raise Preempted(
                f"Stopped by a signal after step {self.step}, which is saved. Run again to go on."
            ) from None

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Adds to errors what the user needs to find their cause."""
        try:
            yield
        except NonFiniteError as error:
            raise InputError(f"{error} Data of that step: {self.data.describe(error.step)}.") from None
        except (tf.errors.ResourceExhaustedError, OSError) as error:
            if os.strerror(errno.ENOSPC) not in str(error):
                raise
            raise InputError(
                f"--output_dir: {self.config.output_dir} can't be written to ({error}). The last checkpoint is intact; "
                "make room and start again to go on from it."
            ) from None
        except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
            outside = re.search(r"= (-?\d+) is not in \[0, \d+\)", error.message)
            if outside:
                found = f"holds the id {outside.group(1)}, which the model doesn't have"
            elif "record" in error.message or "Example" in error.message:
                found = f"is damaged: {error.message}"
            else:
                raise
            read = (self.data.describe_reading or self.data.describe)(self.step)
            raise InputError(
                f"--input_file: the data after step {self.step} ({read}) {found}. "
                "Make the file anew; the last checkpoint is intact."
            ) from None


class _Evaluator(orbit.AbstractEvaluator):
    """Lets the controller evaluate and write the summaries."""

    def __init__(self, scores: Callable[[], Mapping[str, float]]) -> None:
        self.scores = scores

    def evaluate(self, num_steps: tf.Tensor) -> dict[str, float]:
        return dict(self.scores())
