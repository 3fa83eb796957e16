"""A pre-training run: checks data, model and settings before training starts, then trains and evaluates."""

import dataclasses
import functools
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from keras.callbacks import Callback

from bert_tf import checkpoints
from bert_tf.checkpoints import pretrained, run_directory, saver
from bert_tf.config import BertConfig, ModelFiles
from bert_tf.distribution import devices, hardware, strategies
from bert_tf.pretraining import input_pipeline, packed_examples
from bert_tf.pretraining.example_sets import ExampleFinder, ExampleSet
from bert_tf.pretraining.model import PretrainingModel
from bert_tf.pretraining.pretraining_config import PretrainingConfig
from bert_tf.runtime import dry_run, files, reporting
from bert_tf.runtime.files import InputError
from bert_tf.runtime.messages import say
from bert_tf.text.placement import Packer, Sizes
from bert_tf.training import worker_checks
from bert_tf.training.callbacks import Callbacks
from bert_tf.training.errors import explain_data
from bert_tf.training.evaluation import BatchEvaluator, has_smallest_loss, save_best
from bert_tf.training.hooks import Hook, PeriodicEvaluation
from bert_tf.training.interface import TrainingData
from bert_tf.training.run import Run
from bert_tf.training.settings import SecondBatch, TrainingConfig


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


class PretrainingRun(Run):
    """A pre-training run. The constructor checks data and settings. The methods train and evaluate.

    Args:
      settings: the settings.
      config: the config of the encoder.
      vocab_file: the vocabulary that the data was made with; "" if unknown.

    Raises:
      InputError: if the data, the vocabulary, the config and the flags do not match.
    """

    model: PretrainingModel
    settings: PretrainingConfig
    training_config: TrainingConfig
    config: BertConfig
    vocab_file: str

    def __init__(self, settings: PretrainingConfig, config: BertConfig, vocab_file: str = "") -> None:
        training_config, phase_ends = settings.training_config, settings.phase_ends
        self.settings, self.config, self.vocab_file = settings, config, vocab_file
        config.check_layers(training_config.freeze_layers, "--freeze_layers")
        found = pretrained.find_files(ModelFiles(self.init_checkpoint), training_config.output_dir)
        directory = pretrained.model_directory(found, self.init_checkpoint)
        self._finder = ExampleFinder(config, settings.objective, vocab_file, training_config.seed, directory)
        self.strategy  # noqa: B018 (workers must connect before TensorFlow is used for anything else)
        examples = [self._finder.find(part) for part in settings.phases]
        if settings.num_train_epochs is not None:
            records = examples[0].records
            phase_ends = [math.ceil(settings.num_train_epochs * records / training_config.train_batch_size)]
        optimizer = training_config.optimizer.replace(num_train_steps=phase_ends[-1])
        if settings.warmup_proportion is not None:
            optimizer = optimizer.replace(num_warmup_steps=int(settings.warmup_proportion * phase_ends[-1]))
        self.training_config = training_config.replace(optimizer=optimizer)
        starts = [0, *phase_ends[:-1]]
        self.phases: list[Phase] = [Phase(*phase) for phase in zip(starts, phase_ends, examples, strict=True)]
        self.training_config.check_batch(self.strategy)

    @functools.cached_property
    def strategy(self) -> tf.distribute.Strategy:
        """The distribution strategy, which may use a TPU whose hosts are other machines."""
        return strategies.build_strategy(self.settings.distribution, several_hosts=True)

    @property
    def rules(self) -> dict[str, bool] | None:
        """The tokenizer rules of all data found so far."""
        return self._finder.rules

    def build_model(self, **options: Any) -> PretrainingModel:
        """Returns the encoder with the heads of the objective."""
        model = PretrainingModel(self.config, self.settings.objective, **options)
        self.training_config.freeze(model.encoder)
        return model

    @functools.cached_property
    def evaluator(self) -> BatchEvaluator:
        """The evaluator, which is compiled once for all evaluations of the run."""
        return BatchEvaluator(self.model, self.strategy)

    def record(self) -> None:
        """Records the settings and the data in the run directory. See `Run.record`."""
        if strategies.is_chief(self.strategy) and self.settings.allow_changed_settings:
            self._report_jump()
        super().record()

    def data_settings(self) -> dict[str, Any]:
        """Returns the settings and the data that influence the weights. Some bytes of every file are read."""
        return {
            "objective": self.settings.objective,
            "init_checkpoint": self.init_checkpoint and files.real_path(self.init_checkpoint),
            "phases": [{"steps": [phase.start, phase.end], **phase.examples.identity()} for phase in self.phases],
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

    def train(self, hooks: Sequence[Hook] = ()) -> dict[str, float]:
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
            phase, batch = self._phase(step), config.batch_at(step)
            packer = self._packer(phase.examples, batch, config.seed)
            return self._batches(
                phase.examples, batch.train_batch_size, context, packer, config.seed, step - phase.start
            )

        def describe(step: int, reads_window: bool = False) -> str:
            phase, batch_size = self._phase(step), config.batch_at(step).train_batch_size
            order = (batch_size, config.seed, step - phase.start)
            paths = input_pipeline.shards_of_step(phase.examples.shards, *order, reads_window=reads_window)
            return ", ".join(os.path.basename(path) for path in paths)

        ends = tuple(phase.end for phase in self.phases[:-1])

        def size(step: int) -> tuple[int, int]:
            examples = self._phase(step).examples
            return examples.records, examples.features[0].length

        describe_reading = functools.partial(describe, reads_window=True)
        return self.train_on(TrainingData(from_step, ends, describe, describe_reading, size, self.shapes), hooks)

    def _batches(
        self,
        examples: ExampleSet,
        batch_size: int,
        context: tf.distribute.InputContext | None = None,
        packer: Packer | None = None,
        seed: int | None = None,
        start_step: int = 0,
    ) -> tf.data.Dataset:
        """Returns the batches of some examples; see `input_pipeline.training_batches`."""
        data = (examples.shards, examples.features, batch_size, seed, start_step, context, examples.masker)
        reads_through = hardware.is_tpu(self.strategy)
        return input_pipeline.training_batches(*data, packer=packer, reads_through=reads_through)

    def _packer(self, examples: ExampleSet, batch: TrainingConfig | SecondBatch, seed: int | None) -> Packer | None:
        """Returns the packer of sequences into rows; None if each sequence has a row of its own.

        Args:
          examples: the examples.
          batch: the sizes of a batch.
          seed: the seed of the order of the examples; None to read them in order.
        """
        if self.training_config.pad_to_max_seq_length or not strategies.can_read_with_python(self.strategy):
            return None

        def first_steps(count: int) -> Iterator[Sizes]:
            batches = self._batches(examples, batch.train_batch_size, seed=seed).take(count)
            return map(packed_examples.sizes, batches.as_numpy_iterator())

        lengths = {feature.name: feature.length for feature in examples.features}
        masked = examples.masker.max_predictions_per_seq if examples.masker else 0
        most_predictions = lengths.get("masked_lm_ids", masked)
        return self.packer(batch, first_steps, lengths["input_ids"], most_predictions)

    def _phase(self, step: int) -> Phase:
        return next(phase for phase in self.phases if step < phase.end)

    def held_out_evaluation(self) -> PeriodicEvaluation | None:
        """Returns the evaluation on held-out data, to repeat during training; None if there is no such data.

        Each example is used at most once. The last examples are ignored if they do not fill a batch.

        Raises:
          InputError: if the data can't be used, or has fewer examples than a batch.
        """
        config, data = self.settings.held_out, self.settings.held_out_data
        if data is None:
            return None
        held_out, batch_size = self._finder.find(data), config.batch_size
        devices.per_replica_batch_size(batch_size, self.strategy, "--eval_batch_size")
        batches = held_out.records // batch_size
        if batches < 1:
            raise InputError(
                f"{data.flag_name}: {data.input_file} has fewer examples than --eval_batch_size={batch_size}. Lower it."
            )
        steps = min(config.max_steps, batches)
        settings = {**held_out.identity(), "steps": steps, "batch_size": batch_size}
        packer = self._packer(held_out, SecondBatch(0, batch_size, 1), None)

        def evaluate(step: int) -> dict[str, float]:
            means = self._evaluate(held_out, packer, batch_size, steps)
            means["perplexity"] = math.exp(min(means["masked_lm_loss"], 700.0))
            output_dir = self.training_config.output_dir
            if config.use_best_checkpoint:
                is_chief = strategies.is_chief(self.strategy)
                if is_chief and has_smallest_loss(output_dir, means["loss"], settings):
                    save_best(self.model, output_dir, step, means, settings)
                # Until the checkpoint is complete, no process may end or read it.
                strategies.wait_for_workers(self.strategy)
            return means

        settings_of_best = settings | {"use_best_checkpoint": config.use_best_checkpoint}
        return PeriodicEvaluation(evaluate, config.steps, settings=settings_of_best)

    def evaluate(self, batch_size: int, steps: int) -> dict[str, float]:
        """Evaluates on `steps` batches, as the original code does. If the data has fewer, its batches are repeated.

        Uses the best weights if the run saved them, or else the last weights.

        Returns:
          global_step, loss (the mean over the batches), and the means of the model's metrics.

        Raises:
          InputError: if the run was trained with another model, objective or vocabulary; the message names the
            differences.
        """
        settings = run_directory.all_settings(self.config, self.vocab_file, {"objective": self.settings.objective})
        trained = run_directory.recorded(self.training_config.output_dir).get("bert_config", {})
        # These settings have an effect only in training.
        ignored = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")
        settings["bert_config"] |= {name: trained[name] for name in ignored if name in trained}
        run_directory.check_trained_with(self.training_config.output_dir, settings, "objective")
        step = self.restore()
        worker_checks.require(
            self.strategy, lambda: worker_checks.state(step, checkpoints.named_variables(self.model.variables))
        )
        devices.per_replica_batch_size(batch_size, self.strategy, "--eval_batch_size")
        examples = self.phases[-1].examples
        packer = self._packer(examples, SecondBatch(0, batch_size, 1), None)
        return {"global_step": step, **self._evaluate(examples, packer, batch_size, steps)}

    def _evaluate(self, examples: ExampleSet, packer: Packer | None, batch_size: int, steps: int) -> dict[str, float]:
        dry_run.end()
        paths = ", ".join(shard.path for shard in examples.shards)
        with explain_data(lambda: f"{examples.flag_name}: one of {paths}"):
            return self.evaluator.evaluate(lambda context: self._batches(examples, batch_size, context, packer), steps)


def pretrain(
    config: PretrainingConfig, model: BertConfig, vocab_file: str = "", callbacks: Sequence[Callback] = ()
) -> tuple[PretrainingRun, dict[str, Any]]:
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
    run = PretrainingRun(config, model, vocab_file)
    held_out, results = config.held_out, {}
    # If workers differed, one would wait for another in an evaluation, possibly after weeks of training.
    steps = {"do_train": config.do_train, "do_eval": config.do_eval}
    run.check_workers(**steps, eval_batch_size=held_out.batch_size, max_eval_steps=held_out.max_steps)
    if config.do_eval:
        devices.per_replica_batch_size(held_out.batch_size, run.strategy, "--eval_batch_size")
    if config.do_train:
        epochs = Callbacks(callbacks, held_out.steps) if callbacks else None
        hooks = [hook for hook in (run.held_out_evaluation(), epochs) if hook]
        run.record()
        results = run.train(hooks)
        dry_run.end()
    if config.do_eval:
        with dry_run.step():
            results = run.evaluate(held_out.batch_size, held_out.max_steps)
            if strategies.is_chief(run.strategy):
                path = os.path.join(config.training.output_dir, "eval_results.txt")
                reporting.report_results(results, path)
    return run, results
