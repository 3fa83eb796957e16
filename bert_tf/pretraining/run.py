"""A pre-training run: checks data, model and settings before training starts, then trains and evaluates."""

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from keras.callbacks import Callback

from bert_tf import checkpoints
from bert_tf.checkpoints import pretrained, run_directory, saver
from bert_tf.config import DTYPES, BertConfig, ModelFiles
from bert_tf.distribution import devices, strategies
from bert_tf.distribution.devices import DistributionConfig
from bert_tf.model.layers import initial_values_from
from bert_tf.pretraining import input_pipeline
from bert_tf.pretraining.data import ExampleFinder, ExampleSet
from bert_tf.pretraining.model import PretrainingModel
from bert_tf.pretraining.pretraining_config import PretrainingConfig, PretrainingData
from bert_tf.runtime import files, reporting
from bert_tf.runtime.files import InputError
from bert_tf.runtime.program import say
from bert_tf.training import agreement, loop, resume
from bert_tf.training.callbacks import Callbacks
from bert_tf.training.errors import explain_held_out
from bert_tf.training.evaluation import BatchEvaluator, has_smallest_loss, remove_stale_best, save_best
from bert_tf.training.interface import PeriodicEvaluation, TrainingData
from bert_tf.training.settings import TrainingConfig


@dataclasses.dataclass(frozen=True)
class Phase:
    """Consecutive steps on the same data. The paper has two phases: 90% of the steps use short sequences.

    Attributes:
      start: the first step.
      end: the step after the last one.
      examples: the examples.
    """

    start: int
    end: int
    examples: ExampleSet


class PretrainingRun:
    """A pre-training run. The constructor checks everything. The methods train and evaluate.

    Args:
      config: the config of the encoder.
      objective: see `PretrainingModel`.
      data: the training data of each phase.
      phase_ends: the step at which each phase ends; the last one is the end of training.
      training_config: the training settings, with the run directory.
      distribution_config: the devices.
      vocab_file: the vocabulary that the data was made with; "" if unknown.
      init_checkpoint: the checkpoint to start from if the folder contains no checkpoint of the run.
      num_train_epochs: if given, the number of passes over the data of the only phase, which determines its end.
      warmup_proportion: if given, the fraction of the steps with rising learning rate.

    Raises:
      InputError: if the data, the vocabulary, the config and the flags do not match.
    """

    def __init__(
        self,
        config: BertConfig,
        objective: str,
        data: Sequence[PretrainingData],
        phase_ends: Sequence[int],
        training_config: TrainingConfig,
        distribution_config: DistributionConfig,
        *,
        vocab_file: str = "",
        init_checkpoint: str | None = None,
        num_train_epochs: float | None = None,
        warmup_proportion: float | None = None,
    ) -> None:
        found = pretrained.find_files(ModelFiles(init_checkpoint), training_config.output_dir)
        folder = pretrained.model_folder(found, init_checkpoint)
        self._finder = ExampleFinder(config, objective, vocab_file, training_config.seed, folder)
        resume.require_starting_point(training_config.output_dir, init_checkpoint)
        # Workers must connect before TensorFlow is used for anything else.
        self.strategy = strategies.build_strategy(distribution_config, several_hosts=True)
        self.config = config
        self.objective = objective
        self.vocab_file = vocab_file
        self.init_checkpoint = init_checkpoint
        examples = [self._finder.find(part) for part in data]
        if num_train_epochs is not None:
            phase_ends = [math.ceil(num_train_epochs * examples[0].records / training_config.train_batch_size)]
        optimizer = training_config.optimizer.replace(num_train_steps=phase_ends[-1])
        if warmup_proportion is not None:
            optimizer = optimizer.replace(num_warmup_steps=int(warmup_proportion * phase_ends[-1]))
        self.training_config = training_config = training_config.replace(optimizer=optimizer)
        starts = [0, *phase_ends[:-1]]
        self.phases = [Phase(*phase) for phase in zip(starts, phase_ends, examples, strict=True)]
        training_config.check_batch(self.strategy)
        agreement.require_settings(self.strategy, config, vocab_file, lambda: self._resume_settings)

    @functools.cached_property
    def model(self) -> PretrainingModel:
        """The model with initial values from the seed, built in the strategy's scope on first use."""
        with self.strategy.scope(), initial_values_from(self.training_config.seed):
            model = PretrainingModel(
                self.config,
                self.objective,
                use_one_hot_embeddings=strategies.is_tpu(self.strategy),
                gradient_checkpointing=self.training_config.gradient_checkpointing,
                dtype=DTYPES[self.training_config.dtype],
            )
            self.training_config.freeze(model.encoder)
            return model

    @functools.cached_property
    def evaluator(self) -> BatchEvaluator:
        """The evaluator, which is compiled once for all evaluations of the run."""
        return BatchEvaluator(self.model, self.strategy)

    def record(self, flags: Mapping[str, Any], allow_changed_settings: bool = False) -> None:
        """Records the settings and the data in the run directory. See `run_directory.prepare`.

        Args:
          flags: the values of all flags, by name.
          allow_changed_settings: resume a run even if its settings have changed.

        Raises:
          InputError: if the folder contains a run with other settings.
        """
        if not strategies.is_chief(self.strategy):
            return
        if allow_changed_settings:
            self._report_jump()
        run_directory.prepare(
            self.training_config.output_dir,
            self.config,
            self.vocab_file,
            flags,
            self._resume_settings,
            rules=self._finder.rules,
            devices=strategies.devices(self.strategy),
            allow_changed_settings=allow_changed_settings,
        )

    @functools.cached_property
    def _resume_settings(self) -> dict[str, Any]:
        """The settings and the data that influence the weights. Some bytes of every file are read once."""
        return {
            "objective": self.objective,
            "init_checkpoint": self.init_checkpoint and files.real_path(self.init_checkpoint),
            "phases": [{"steps": [phase.start, phase.end], **phase.examples.identity()} for phase in self.phases],
            **self.training_config.resume_settings(self.strategy),
        }

    def _report_jump(self) -> None:
        """Reports which examples are skipped or repeated if a run is resumed with another batch size."""
        checkpoint = saver.latest_checkpoint(self.training_config.output_dir)
        settings = run_directory.recorded(self.training_config.output_dir)
        if not checkpoint or "train_batch_size" not in settings:
            return
        step = int(checkpoints.open_checkpoint(checkpoint, "--output_dir").read("global_step"))
        if step >= self.training_config.num_train_steps:
            return
        second = settings.get("second_batch")
        before = (second if second and step >= second["start"] else settings)["train_batch_size"]
        now = self.training_config.batch_at(step).train_batch_size
        steps = step - self._phase(step).start
        if before != now and steps:
            say(
                f"Warning: the batch size changed from {before} to {now}. Training continues after example "
                f"{steps * now} of this phase, so about {steps * abs(now - before)} examples are "
                f"{'skipped' if now > before else 'repeated'}."
            )

    def train(
        self, evaluation: PeriodicEvaluation | None = None, callbacks: Callbacks | None = None
    ) -> dict[str, float]:
        """Trains to the last step. If there is a checkpoint of the run, resumes from the newest. See `loop.train`."""
        config = self.training_config
        if config.optimizer.never_warm:
            say(
                f"Warning: --num_warmup_steps is {config.optimizer.num_warmup_steps}, but the run has only "
                f"{config.num_train_steps} steps, so the learning rate never reaches --learning_rate. Use about a "
                "tenth of the steps."
            )
        for phase in self.phases:
            examples = phase.examples
            say(
                f"Steps {phase.start} to {phase.end}: batches of {config.batch_at(phase.start).train_batch_size} "
                f"sequences of {examples.features[0].length} from "
                f"{examples.records} examples in {len(examples.shards)} files."
            )

        def from_step(step: int, context: tf.distribute.InputContext) -> tf.data.Dataset:
            phase = self._phase(step)
            return input_pipeline.training_batches(
                phase.examples.shards,
                phase.examples.features,
                global_batch_size=config.batch_at(step).train_batch_size,
                seed=config.seed,
                start_step=step - phase.start,
                context=context,
                masker=phase.examples.masker,
                reads_through=strategies.is_tpu(self.strategy),
            )

        def describe(step: int, shards_of: Callable[..., list[str]]) -> str:
            phase = self._phase(step)
            batch_size = config.batch_at(step).train_batch_size
            paths = shards_of(phase.examples.shards, batch_size, config.seed, step - phase.start)
            return ", ".join(os.path.basename(path) for path in paths)

        if strategies.is_chief(self.strategy):
            remove_stale_best(config.output_dir)
        data = TrainingData(
            from_step,
            tuple(phase.end for phase in self.phases[:-1]),
            describe=functools.partial(describe, shards_of=input_pipeline.shards_of_step),
            describe_reading=functools.partial(describe, shards_of=input_pipeline.shards_of_window),
        )
        options = {"init_checkpoint": self.init_checkpoint, "evaluation": evaluation, "callbacks": callbacks}
        return loop.train(self.model, config, self.strategy, data, **options)

    def _phase(self, step: int) -> Phase:
        return next(phase for phase in self.phases if step < phase.end)

    def held_out_evaluation(
        self, data: PretrainingData, batch_size: int, max_steps: int, every: int, use_best_checkpoint: bool = False
    ) -> PeriodicEvaluation:
        """Returns an evaluation on other data, to repeat during training. It uses each example at most once.

        Args:
          data: the held-out examples. The last ones are ignored if they don't fill a batch.
          batch_size: number of examples per batch.
          max_steps: largest number of batches per evaluation.
          every: number of training steps between two evaluations.
          use_best_checkpoint: if True, evaluate and export the weights with the lowest loss.

        Raises:
          InputError: if the data can't be used, or has fewer examples than a batch.
        """
        held_out = self._finder.find(data)
        devices.per_replica_batch_size(batch_size, self.strategy, "--eval_batch_size")
        batches = held_out.records // batch_size
        if batches < 1:
            raise InputError(
                f"{data.flag_name}: {data.input_file} has fewer examples than --eval_batch_size={batch_size}. Lower it."
            )
        steps = min(max_steps, batches)
        settings = {**held_out.identity(), "steps": steps, "batch_size": batch_size}

        def evaluate(step: int) -> dict[str, float]:
            means = self._evaluate(held_out, batch_size, steps)
            means["perplexity"] = math.exp(min(means["masked_lm_loss"], 700.0))
            output_dir = self.training_config.output_dir
            if use_best_checkpoint:
                is_chief = strategies.is_chief(self.strategy)
                if is_chief and has_smallest_loss(output_dir, means["loss"], settings):
                    save_best(self.model, output_dir, step, means, settings)
                # No process may end, or read the checkpoint, before it is complete.
                strategies.wait_for_workers(self.strategy)
            return means

        return PeriodicEvaluation(evaluate, every, settings=settings | {"use_best_checkpoint": use_best_checkpoint})

    def evaluate(self, batch_size: int, steps: int) -> dict[str, float]:
        """Evaluates on `steps` batches, as the original code does. If the data has fewer, it is repeated.

        The weights are the best ones if the run has kept them, and otherwise the last ones.

        Returns:
          global_step, loss (the mean over the batches), and the means of the model's metrics.

        Raises:
          InputError: if the run was trained with another model, objective or vocabulary; the message names the
            differences.
        """
        settings = run_directory.all_settings(self.config, self.vocab_file, {"objective": self.objective})
        trained = run_directory.recorded(self.training_config.output_dir).get("bert_config", {})
        # These matter only in training.
        ignored = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")
        settings["bert_config"] |= {name: trained[name] for name in ignored if name in trained}
        run_directory.check_trained_with(self.training_config.output_dir, settings, "objective")
        folder = run_directory.evaluated_folder(self.training_config.output_dir)
        step = resume.restore_for_evaluation(self.model, folder, self.init_checkpoint)
        agreement.require(
            self.strategy, lambda: agreement.state(step, checkpoints.named_variables(self.model.variables))
        )
        return {"global_step": step, **self._evaluate(self.phases[-1].examples, batch_size, steps)}

    def _evaluate(self, examples: ExampleSet, batch_size: int, steps: int) -> dict[str, float]:
        devices.per_replica_batch_size(batch_size, self.strategy, "--eval_batch_size")

        def batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
            return input_pipeline.evaluation_batches(
                examples.shards,
                examples.features,
                batch_size,
                context,
                examples.masker,
                reads_through=strategies.is_tpu(self.strategy),
            )

        with explain_held_out(examples.flag_name, [shard.path for shard in examples.shards]):
            return self.evaluator.evaluate(batches, steps)


def pretrain(
    config: PretrainingConfig, model: BertConfig, vocab_file: str = "", callbacks: Sequence[Callback] = ()
) -> tuple[PretrainingRun, dict]:
    """Trains and evaluates, as selected by the settings.

    Args:
      config: the settings.
      model: the encoder's config.
      vocab_file: the vocabulary that the data was made with; "" if unknown.
      callbacks: Keras callbacks.

    Returns:
      The run, and the mean metrics of the evaluation or, without one, of the last training steps.

    Raises:
      InputError: if the data can't be used, or the directory contains another run.
    """
    run = PretrainingRun(
        model,
        config.objective,
        config.phases,
        config.phase_ends,
        config.training_config,
        config.distribution,
        vocab_file=vocab_file,
        init_checkpoint=config.model.init_checkpoint,
        num_train_epochs=config.num_train_epochs,
        warmup_proportion=config.warmup_proportion,
    )
    held_out, results = config.held_out, {}
    # If workers differed, one would wait for another in an evaluation, possibly after weeks of training.
    steps = {"do_train": config.do_train, "do_eval": config.do_eval, "eval_batch_size": held_out.batch_size}
    agreement.require(run.strategy, lambda: steps | {"max_eval_steps": held_out.max_steps})
    if config.do_eval:
        devices.per_replica_batch_size(held_out.batch_size, run.strategy, "--eval_batch_size")
    if config.do_train:
        evaluation = None
        if config.held_out_data:
            evaluation = run.held_out_evaluation(
                config.held_out_data,
                batch_size=held_out.batch_size,
                max_steps=held_out.max_steps,
                every=held_out.steps,
                use_best_checkpoint=held_out.use_best_checkpoint,
            )
        run.record(config.flag_values() | config.flags, allow_changed_settings=config.allow_changed_settings)
        results = run.train(evaluation, Callbacks(callbacks, held_out.steps))
    if config.do_eval:
        results = run.evaluate(held_out.batch_size, held_out.max_steps)
        if strategies.is_chief(run.strategy):
            path = os.path.join(config.training.output_dir, "eval_results.txt")
            reporting.report_results(results, path)
    return run, results
