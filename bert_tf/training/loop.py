"""The training loop for pre-training and fine-tuning: steps, logs, checkpoints, evaluations and the end of a run."""

import contextlib
import functools
from collections.abc import Sequence

import tensorflow as tf

from bert_tf.checkpoints.saver import CheckpointSaver
from bert_tf.distribution import hardware, strategies
from bert_tf.runtime import dry_run, locks, signals
from bert_tf.runtime.messages import say
from bert_tf.training import estimate, evaluation, resume, worker_checks
from bert_tf.training.errors import Preempted, explain_errors
from bert_tf.training.hooks import Hook
from bert_tf.training.interface import TrainableModel, TrainingData
from bert_tf.training.log import TrainingLog, with_known_peak
from bert_tf.training.settings import TrainingConfig
from bert_tf.training.trainer import Trainer


def train(
    model: TrainableModel,
    config: TrainingConfig,
    strategy: tf.distribute.Strategy,
    data: TrainingData,
    init_checkpoint: str | None = None,
    hooks: Sequence[Hook] = (),
    new_variables: str = "",
) -> dict[str, float]:
    """Trains a model to the last step. If the run directory has a checkpoint, training resumes from the newest one.

    Args:
      model: the model, built in the strategy's scope.
      config: the settings.
      strategy: the strategy.
      data: the training data.
      init_checkpoint: see `resume.restore_or_initialize`.
      hooks: evaluations and callbacks, in the order in which they are called.
      new_variables: see `resume.restore_or_initialize`.

    Returns:
      The means of the last logged metrics; empty after a dry run.

    Raises:
      InputError: if the checkpoint doesn't match the model, the data is damaged, or a loss is not finite. Also if the
        workers differ, or a worker is lost.
      Preempted: after SIGTERM or Ctrl-C, once the state has been saved.
    """
    config = with_known_peak(config, strategy)
    trainer = _start(model, config, strategy, init_checkpoint, hooks, new_variables)
    if dry_run.is_on():
        estimate.report(trainer, data)
        return {}
    is_chief, step = strategies.is_chief(strategy), trainer.step
    if is_chief:
        evaluation.remove_stale_best(config.output_dir)

    def hook_stops() -> bool:
        return any(hook.should_stop for hook in hooks)

    def end() -> int:
        return trainer.step if hook_stops() else config.num_train_steps

    def save() -> None:
        if is_chief:
            saver.begin(step, trainer.state())

    with (
        locks.claimed(config.output_dir, "--output_dir") if is_chief else contextlib.nullcontext(),
        TrainingLog(config, step, is_shown=is_chief) as log,
        signals.stop_signals() as stop_signals,
        explain_errors(data, config.output_dir, lambda: trainer.step),
        CheckpointSaver(config.output_dir, config.keep_checkpoint_max) as saver,
    ):
        for hook in hooks:
            hook.begin(log, trainer.metrics, step, end())
        batches, is_stopped = None, False
        while step < end() and not is_stopped:
            if batches is None or step in data.boundaries:
                batches = strategies.batches(strategy, functools.partial(data.from_step, step))
                trainer.optimizer.begin_phase(step)
            log.profile(step)
            due = _steps_until_due(step, end(), config, data, hooks)
            for count in trainer.steps(batches, due, data.shapes, data.is_short):
                log.advance(count)
                is_stopped = trainer.should_stop(bool(stop_signals))
                for hook in hooks:
                    hook.after_steps(count)
                if is_stopped or hook_stops():
                    break
            step = trainer.step
            for bad_step in trainer.nonfinite.take(data.describe):
                log.report_skipped(bad_step, data.describe(bad_step))
            due_hooks = [hook for hook in hooks if hook.is_due(step, end())]
            log.log_training(step, trainer.take_means(), step == end() or any(hook.is_logged for hook in due_hooks))
            saver.check()
            if is_stopped or step % config.save_checkpoints_steps == 0 or step == end():
                save()
            if not is_stopped:
                for hook in hooks:
                    if hook.is_due(step, end()):  # an earlier hook may just have ended training
                        hook.at(step, end())
                if hook_stops():
                    save()
        if not is_stopped:
            for hook in hooks:
                hook.finish()
        saver.wait()
        # Until the checkpoint is complete, no process may end or read it.
        strategies.wait_for_workers(strategy)
        if is_stopped:
            raise Preempted(step, stop_signals)
    if all(hook.prints_table for hook in hooks):
        log.print_table()
    return log.last


def _start(
    model: TrainableModel,
    config: TrainingConfig,
    strategy: tf.distribute.Strategy,
    init_checkpoint: str | None,
    hooks: Sequence[Hook],
    new_variables: str,
) -> Trainer:
    """Returns a trainer with the restored state, after comparing it between the workers. See `train`."""
    with strategy.scope():
        trainer = Trainer(model, config, strategy)
    summary = resume.restore_or_initialize(model, trainer.state, config.output_dir, init_checkpoint, new_variables)
    worker_checks.require(
        strategy,
        lambda: {
            **worker_checks.state(trainer.step, trainer.state()),
            **config.resume_settings(strategy),
            **config.meeting_settings(),
            "evaluation": [{"every": hook.every, **hook.settings} for hook in hooks],
        },
    )
    if strategies.is_chief(strategy):
        say(str(summary) if summary else "Starting from randomly initialised weights.")
        decayed = sum(trainer.optimizer.decayed)
        say(f"Trained variables: {decayed} with weight decay, {len(trainer.optimizer.decayed) - decayed} without.")
        say("Parameters: {:,} ({:,} trained).".format(*model.parameter_counts))
        if config.dtype == "bfloat16" and (gpu := hardware.gpu_without_bfloat16()):
            say(f"Warning: {gpu} has no instructions for bfloat16. Use --dtype=float16.")
        if trainer.step >= config.num_train_steps:
            end = config.num_train_steps
            say(f"The run in {config.output_dir} is already complete (step {trainer.step} of {end}).")
    return trainer


def _steps_until_due(step: int, end: int, config: TrainingConfig, data: TrainingData, hooks: Sequence[Hook]) -> int:
    """Returns the number of steps until the next event: log, save, call a hook, change the data, or end."""
    periods = [config.save_checkpoints_steps, config.log_steps, *(hook.every for hook in hooks)]
    ends = [boundary for boundary in (*data.boundaries, *config.traced_steps) if boundary > step] + [end]
    return min(*(period - step % period for period in periods), min(ends) - step, config.iterations_per_loop)
