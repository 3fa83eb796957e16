"""The outer loop around the training step: restore, train, report, save, evaluate; and evaluation alone.

The loop itself is `orbit.Controller`; what a step does is in `training_step`.
"""

import contextlib
import io
import signal
import time
from collections.abc import Callable, Mapping

import orbit
import tensorflow as tf

from bert_tf import checkpoint_names, checkpoint_saver, checkpoints, distribution, reporting
from bert_tf.files import InputError
from bert_tf.optimization import learning_rate
from bert_tf.program import say
from bert_tf.training_step import Batch, MetricMeans, NonFiniteError, TrainableModel, Trainer, TrainingConfig


class Preempted(SystemExit):
    """The run was asked to stop (SIGTERM) and saved its state first."""


@contextlib.contextmanager
def _preemption_flag() -> "contextlib.AbstractContextManager[list[int]]":
    """Collects SIGTERMs instead of dying of them; the list is empty until one comes."""
    received: list[int] = []
    previous = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, previous)


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
    own = checkpoint_saver.latest_checkpoint(output_dir)
    if own:
        source = checkpoints.open_checkpoint(own, "--output_dir")
        return checkpoints.restore(trainer.state(), source, may_be_fresh="", may_be_ignored="", what="--output_dir")
    if init_checkpoint:
        source = checkpoints.without(checkpoints.open_checkpoint(init_checkpoint), fresh_variables)
        variables = checkpoints.named_variables(trainer.model.variables)
        return checkpoints.restore(variables, source, may_be_fresh=f"{checkpoint_names.HEADS}|{fresh_variables}")
    return None


def restore_for_evaluation(model: TrainableModel, output_dir: str, init_checkpoint: str | None) -> int:
    """Gives a model the weights of a run's newest checkpoint, or else those of `init_checkpoint`.

    Returns:
      The global step of the checkpoint; 0 if it has none.

    Raises:
      InputError: if there is neither, or it lacks a variable of the model.
    """
    own = checkpoint_saver.latest_checkpoint(output_dir)
    if not own and not init_checkpoint:
        raise InputError(
            f"--output_dir: {output_dir} holds no checkpoint, and no --init_checkpoint is given. Train first."
        )
    source = checkpoints.open_checkpoint(own or init_checkpoint, "--output_dir" if own else "--init_checkpoint")
    say(str(checkpoints.restore(checkpoints.named_variables(model.variables), source, may_be_fresh="")))
    return int(source.read("global_step")) if "global_step" in source.shapes else 0


def train(
    model: TrainableModel,
    config: TrainingConfig,
    strategy: tf.distribute.Strategy,
    dataset_from_step: Callable[[int, tf.distribute.InputContext], tf.data.Dataset],
    init_checkpoint: str | None = None,
    evaluate: Callable[[int], Mapping[str, float]] | None = None,
    eval_steps: int = 0,
    describe_data: Callable[[int], str] = lambda step: "",
    should_stop: Callable[[], bool] = lambda: False,
    fresh_variables: str = "",
) -> dict[str, float]:
    """Trains a model to the last step, from wherever its run directory stands.

    Args:
      model: built in the strategy's scope.
      config: how to train.
      strategy: where.
      dataset_from_step: endless per-pipeline batches from a step on.
      init_checkpoint: see `restore_or_initialize`.
      evaluate: called with the step every `eval_steps` steps and at the end.
      eval_steps: 0 for never.
      describe_data: names the data of a step, for messages.
      should_stop: asked at the start and after each evaluation; True ends training early, with a checkpoint.
      fresh_variables: see `restore_or_initialize`.

    Returns:
      The means of the last steps' metrics.

    Raises:
      InputError: if the starting point doesn't fit, the data is damaged, or a loss is not finite.
      Preempted: after a SIGTERM, when the state was saved.
    """
    chief = distribution.is_chief(strategy)
    with strategy.scope():
        trainer = Trainer(model, config, strategy)
    summary = restore_or_initialize(trainer, config.output_dir, init_checkpoint, fresh_variables)
    start, end = int(trainer.global_step.numpy()), config.num_train_steps
    if chief:
        say(str(summary) if summary else "Starting from fresh initial values.")
        decayed = sum(trainer.optimizer.decayed)
        say(f"Trained variables: {decayed} with weight decay, {len(trainer.optimizer.decayed) - decayed} without.")
    if start >= end:
        say(f"The run in {config.output_dir} has reached step {start} of {end} already.")
        return {}
    saver = checkpoint_saver.CheckpointSaver(config.output_dir, config.keep_checkpoint_max)
    log = reporting.MetricsLog(config.output_dir, start) if chief else None
    trainer.iterator = iter(
        strategy.distribute_datasets_from_function(lambda context: dataset_from_step(start, context))
    )
    bar = reporting.progress_bar(end, "train", initial=start, shown=chief)
    last: dict[str, float] = {}
    loop_start = time.perf_counter()

    def steps_until_something_is_due(step: int) -> int:
        intervals = [config.save_checkpoints_steps, config.log_steps, *([eval_steps] if eval_steps else [])]
        due = min(interval - step % interval for interval in intervals)
        return int(min(due, config.iterations_per_loop, end - step))

    def report(means: Mapping[str, tf.Tensor]) -> None:
        nonlocal loop_start
        now = time.perf_counter()
        step = int(trainer.global_step.numpy())
        last.clear()
        last.update(means)
        last["learning_rate"] = float(learning_rate(config.optimizer, tf.constant(step - 1)))
        if trainer.loss_scale.enabled:
            last["loss_scale"] = float(trainer.loss_scale.scale.numpy())
        last["seconds"] = now - loop_start
        loop_start = now
        bar.set_postfix({name: reporting.format_number(value) for name, value in means.items()}, refresh=False)
        if log and (step % config.log_steps == 0 or step == end or (eval_steps and step % eval_steps == 0)):
            log.write("train", step, last)

    def save_if_due(means: Mapping[str, tf.Tensor]) -> None:
        step = int(trainer.global_step.numpy())
        if chief and (step % config.save_checkpoints_steps == 0 or step == end or stop_signals):
            saver.save(step, trainer.state())
        if stop_signals:
            raise Preempted(f"Stopped by a signal after step {step}, which is saved. Run again to go on.")

    def count_step(count: int) -> None:
        bar.update(count)

    trainer.on_step = count_step
    controller = orbit.Controller(
        global_step=trainer.global_step,
        trainer=trainer,
        strategy=strategy,
        steps_per_loop=steps_until_something_is_due,
        summary_dir=config.output_dir if chief else None,
        train_actions=[report, save_if_due],
    )
    with bar, _preemption_flag() as stop_signals, _translated_errors(trainer, describe_data):
        step = start
        while step < end and not should_stop():
            target = min(end, step + eval_steps - step % eval_steps) if eval_steps else end
            # The controller prints a line for each loop, which would tear the progress bar.
            with contextlib.redirect_stdout(io.StringIO()):
                controller.train(target)
            step = target
            if evaluate is not None:
                results = evaluate(step)
                if log:
                    log.write("eval", step, results)
                loop_start = time.perf_counter()
        if chief and start < step < end:  # stopped early
            saver.save(step, trainer.state())
    return last


@contextlib.contextmanager
def _translated_errors(trainer: Trainer, describe_data: Callable[[int], str]) -> "contextlib.AbstractContextManager":
    """Adds to errors what the user needs to find their cause."""
    try:
        yield
    except NonFiniteError as error:
        raise InputError(f"{error} Data of that step: {describe_data(error.step) or 'unknown'}.") from None
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
        if "record" not in error.message and "Example" not in error.message:
            raise
        step = int(trainer.global_step.numpy())
        raise InputError(
            f"--input_file: the data after step {step} ({describe_data(step)}) is damaged: {error.message} "
            "Make the file anew; the last checkpoint is intact."
        ) from None


def evaluate_batches(
    model: TrainableModel,
    strategy: tf.distribute.Strategy,
    dataset: Callable[[tf.distribute.InputContext], tf.data.Dataset],
    steps: int,
) -> dict[str, float]:
    """The means of a model's metrics, and of its loss, over some batches, without dropout.

    Args:
      model: built in the strategy's scope.
      strategy: where.
      dataset: per-pipeline batches.
      steps: how many batches.
    """
    with strategy.scope():
        means = MetricMeans((*model.metric_names, "loss"))

    def replica_step(batch: Batch) -> None:
        replica = tf.distribute.get_replica_context()
        totals = replica.all_reduce(tf.distribute.ReduceOp.SUM, model.totals(batch))
        loss, metrics = model.loss(batch, totals, None)
        loss = replica.all_reduce(tf.distribute.ReduceOp.SUM, loss)
        means.add({**metrics, "loss": (loss, tf.constant(1.0))})

    @tf.function(autograph=False)
    def step(iterator: tf.data.Iterator) -> None:
        strategy.run(replica_step, args=(next(iterator),))

    iterator = iter(strategy.distribute_datasets_from_function(dataset))
    shown = distribution.is_chief(strategy)
    with reporting.progress_bar(steps, "eval", unit="batch", shown=shown) as bar:
        for _ in range(steps):
            step(iterator)
            bar.update(1)
    return means.take()
