"""Evaluates a pre-training run: on held-out data during training, and on its own data afterwards."""

import math
import os

from bert_tf import checkpoints
from bert_tf.checkpoints import run_record
from bert_tf.distribution import devices, strategies
from bert_tf.pretraining.example_sets import ExampleSet
from bert_tf.pretraining.training_batches import batches, packer_of
from bert_tf.runtime import reporting
from bert_tf.runtime.files import InputError
from bert_tf.sequences.placement import Packer
from bert_tf.training import worker_checks
from bert_tf.training.errors import explain_data
from bert_tf.training.evaluation import has_smallest_loss, save_best
from bert_tf.training.hooks import PeriodicEvaluation
from bert_tf.training.run import Run
from bert_tf.training.settings import SecondBatch


def while_training(run: Run, examples: ExampleSet) -> PeriodicEvaluation:
    """Returns the evaluation on held-out examples, to repeat during training.

    Each example is used at most once. The last examples are ignored if they do not fill a batch.

    Raises:
      InputError: if there are fewer examples than in a batch, or a batch can't be split evenly among the replicas.
    """
    config, output_dir = run.settings.held_out, run.training_config.output_dir
    batch_size, flag_name = config.batch_size, examples.flag_name
    devices.per_replica_batch_size(batch_size, run.strategy, "--eval_batch_size")
    steps = min(config.max_steps, examples.records // batch_size)
    if steps < 1:
        raise InputError(
            f"{flag_name}: {config.input_file} has fewer examples than --eval_batch_size={batch_size}. Use a smaller "
            "batch size."
        )
    settings = {**examples.identity(), "steps": steps, "batch_size": batch_size}
    packer = packer_of(run, examples, SecondBatch(0, batch_size, 1), None)

    def evaluate(step: int) -> dict[str, float]:
        means = _means(run, examples, packer, batch_size, steps)
        means["perplexity"] = math.exp(min(means["masked_lm_loss"], 700.0))
        if config.use_best_checkpoint:
            is_chief = strategies.is_chief(run.strategy)
            if is_chief and has_smallest_loss(output_dir, means["loss"], settings):
                save_best(run.model, output_dir, step, means, settings)
            # Until the checkpoint is complete, no process may end or read it.
            strategies.wait_for_workers(run.strategy)
        return means

    settings_of_best = settings | {"use_best_checkpoint": config.use_best_checkpoint}
    return PeriodicEvaluation(evaluate, config.steps, settings=settings_of_best)


def evaluate(run: Run, examples: ExampleSet, batch_size: int, steps: int) -> dict[str, float]:
    """Evaluates on `steps` batches, as the original code does. If there are fewer, the batches are repeated.

    Uses the best weights if the run saved them, or else the last weights. Writes the results to eval_results.txt.

    Returns:
      global_step, loss (the mean over the batches), and the means of the model's metrics.

    Raises:
      InputError: if the run was trained with another model, objective or vocabulary; the message names the
        differences.
    """
    output_dir = run.training_config.output_dir
    _check_trained_with(run)
    step = run.restore()
    worker_checks.require(
        run.strategy, lambda: worker_checks.state(step, checkpoints.named_variables(run.model.variables))
    )
    devices.per_replica_batch_size(batch_size, run.strategy, "--eval_batch_size")
    packer = packer_of(run, examples, SecondBatch(0, batch_size, 1), None)
    results = {"global_step": step, **_means(run, examples, packer, batch_size, steps)}
    if strategies.is_chief(run.strategy):
        reporting.report_results(results, os.path.join(output_dir, "eval_results.txt"))
    return results


def _check_trained_with(run: Run) -> None:
    """Refuses a run that was trained with another model, objective or vocabulary."""
    output_dir = run.training_config.output_dir
    settings = run_record.all_settings(run.config, run.vocab_file, {"objective": run.settings.objective})
    trained = run_record.recorded(output_dir).get("bert_config", {})
    # These settings have an effect only in training.
    ignored = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")
    settings["bert_config"] |= {name: trained[name] for name in ignored if name in trained}
    run_record.check_trained_with(output_dir, settings, "objective")


def _means(run: Run, examples: ExampleSet, packer: Packer | None, batch_size: int, steps: int) -> dict[str, float]:
    """Returns the means of loss and metrics over `steps` batches."""
    paths = ", ".join(shard.path for shard in examples.shards)
    with explain_data(lambda: f"{examples.flag_name}: one of {paths}"):
        return run.evaluator.evaluate(
            lambda context: batches(run, examples, batch_size, context=context, packer=packer), steps
        )
