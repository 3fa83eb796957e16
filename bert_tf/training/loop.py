"""The training loop for pre-training and fine-tuning: steps, logs, checkpoints, evaluations and the end of a run."""

import contextlib
import functools
from collections.abc import Sequence

from bert_tf.checkpoints import RestoreSummary
from bert_tf.checkpoints.saver import CheckpointSaver
from bert_tf.distribution import hardware, strategies
from bert_tf.optimization import build_optimizer
from bert_tf.runtime import dry_run, signals
from bert_tf.runtime.errors import InputError
from bert_tf.runtime.messages import say
from bert_tf.runtime.settings import WORKERS
from bert_tf.runtime.storage import locks
from bert_tf.training import estimate, evaluation, resume, worker_checks
from bert_tf.training.errors import Preempted, explain_errors
from bert_tf.training.hooks import Hook, Hooks
from bert_tf.training.interface import TrainingData
from bert_tf.training.log import TrainingLog, with_known_peak
from bert_tf.training.run import Run
from bert_tf.training.settings import Compilation, TrainingConfig
from bert_tf.training.step.trainer import Trainer


def train(run: Run, data: TrainingData, hooks: Sequence[Hook] = ()) -> dict[str, float]:
    """Trains a run to its last step.

    1. Builds the optimizer. Restores model and optimizer from the newest checkpoint in the run directory. If there is
       none, restores the model from `init_checkpoint`.
    2. Compares the state with the other workers.
    3. Runs steps until an event is due: a log line, a checkpoint, an evaluation, a new phase, or the end.
    4. Then writes the log, starts to save the checkpoint, and evaluates, in this order. An interrupted evaluation is
       therefore repeated, and no step is lost.

    Args:
      run: the run.
      data: the training data.
      hooks: evaluations and callbacks, in the order in which they are called.

    Returns:
      The means of the last logged metrics; empty after a dry run.

    Raises:
      InputError: if the checkpoint doesn't match the model, the data is damaged, or a loss is not finite. Also if the
        workers differ, or a worker is lost.
      Preempted: after SIGTERM or Ctrl-C, once the state has been saved.
    """
    # Build the optimizer, and restore the starting point.
    model, strategy = run.model, run.strategy
    config, is_chief = with_known_peak(run.training_config, strategy), strategies.is_chief(strategy)
    hooks = Hooks(hooks, config.num_train_steps)
    with strategy.scope():
        optimizer = build_optimizer(config.optimizer, model.trained_variables)
        trainer = Trainer(model, optimizer, config, strategy, run.compilation)
    start = (config.output_dir, run.init_checkpoint, run.new_variables)
    summary = resume.restore_or_initialize(model, trainer.state, *start)

    # Workers with different weights or settings would not train one model.
    worker_checks.require(
        strategy,
        lambda: {
            **worker_checks.state(trainer.step, trainer.state()),
            **config.resume_settings(strategy),
            **config.values_of(WORKERS),
            "evaluation": [{"every": hook.every, **hook.settings} for hook in hooks],
        },
    )
    if is_chief:
        _announce(run, trainer, summary)
    if dry_run.is_on():
        estimate.report(trainer, data)
        return {}
    if is_chief:
        run.record()
        evaluation.remove_stale_best(config.output_dir)

    step, batches, is_stopped = trainer.step, None, False
    with (
        locks.claimed(config.output_dir, "--output_dir") if is_chief else contextlib.nullcontext(),
        TrainingLog(config, step, is_shown=is_chief) as log,
        signals.stop_signals() as stop_signals,
        explain_errors(data, config.output_dir, lambda: trainer.step),
        CheckpointSaver(config.output_dir, config.keep_checkpoint_max) as saver,
    ):
        hooks.begin(log, trainer.metrics, step)
        while step < hooks.end(step) and not is_stopped:
            # At the start and in the first step of a phase, get the batches.
            if batches is None or step in data.boundaries:
                batches = strategies.batches(strategy, functools.partial(data.from_step, step))
                optimizer.begin_phase(step)

            # Run the steps to the next event. A signal or a hook can end training after any of them.
            log.profile(step)
            count_due = _steps_until_due(step, config, data, hooks)
            for count in trainer.steps(batches, count_due, data.shapes, data.is_short):
                log.advance(count)
                is_stopped = trainer.should_stop(bool(stop_signals))
                hooks.after_steps(count)
                if is_stopped or hooks.should_stop:
                    break
            step = trainer.step

            # Log the steps. Too many non-finite steps end the run here, before they are saved.
            for bad_step in trainer.nonfinite.take(data.describe):
                log.report_skipped(bad_step, data.describe(bad_step))
            log.log_training(step, trainer.take_means(), step == hooks.end(step) or hooks.are_logged(step))

            # Save in the background. An earlier save must have ended without an error.
            saver.check()
            if is_chief and (is_stopped or step % config.save_checkpoints_steps == 0 or step == hooks.end(step)):
                saver.begin(step, trainer.state())

            # Evaluate, and call the callbacks.
            if not is_stopped:
                hooks.at(step)
                if is_chief and hooks.should_stop:
                    saver.begin(step, trainer.state())

        # Until the checkpoint is complete, no process may end or read it.
        if not is_stopped:
            hooks.finish()
        saver.wait()
        strategies.wait_for_workers(strategy)
        if is_stopped:
            raise Preempted(step, stop_signals)
    if all(hook.prints_table for hook in hooks):
        log.print_table()
    return log.last


def _announce(run: Run, trainer: Trainer, summary: RestoreSummary | None) -> None:
    """Prints the starting point and the size of the run."""
    config, decayed = trainer.config, trainer.optimizer.decayed
    if run.compilation is not Compilation.NONE:
        compiled = "the training step" if run.compilation is Compilation.STEP else "the encoder's blocks"
        say(f"XLA compiles {compiled} for each shape (--jit_compile={config.jit_compile}).")
    say(str(summary) if summary else "Starting from randomly initialised weights.")
    if not decayed:
        raise InputError("all weights are frozen. Omit --freeze_encoder, or use a smaller --freeze_layers.")
    say(f"Trained variables: {sum(decayed)} with weight decay, {len(decayed) - sum(decayed)} without.")
    say("Parameters: {:,} ({:,} trained).".format(*run.model.parameter_counts))
    if config.dtype == "bfloat16" and (gpu := hardware.gpu_without_bfloat16()):
        say(f"Warning: {gpu} has no instructions for bfloat16. Use --dtype=float16.")
    if trainer.step >= config.num_train_steps:
        end = config.num_train_steps
        steps = f"step {trainer.step} of {end}" if trainer.step == end else f"step {trainer.step}, more than {end}"
        say(f"The run in {config.output_dir} is already complete ({steps}).")


def _steps_until_due(step: int, config: TrainingConfig, data: TrainingData, hooks: Hooks) -> int:
    """Returns the number of steps until the next event: log, save, call a hook, change the data, or end."""
    periods = [config.save_checkpoints_steps, config.log_steps, *(hook.every for hook in hooks)]
    ends = [boundary for boundary in (*data.boundaries, *config.traced_steps) if boundary > step] + [hooks.end(step)]
    return min(*(period - step % period for period in periods), min(ends) - step, config.iterations_per_loop)
