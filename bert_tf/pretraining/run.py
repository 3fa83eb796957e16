"""A pre-training run: checks data, model and settings before training starts, then trains and evaluates."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

from keras.callbacks import Callback

from bert_tf import checkpoints
from bert_tf.checkpoints import pretrained, run_record, saver
from bert_tf.config import BertConfig, ModelFiles
from bert_tf.data_report import findings
from bert_tf.data_report.examples import shared_files
from bert_tf.distribution import devices, strategies
from bert_tf.pretraining import evaluation
from bert_tf.pretraining.example_sets import ExampleFinder
from bert_tf.pretraining.model import PretrainingModel
from bert_tf.pretraining.pretraining_config import PretrainingConfig
from bert_tf.pretraining.record_shards import contents
from bert_tf.pretraining.training_batches import Phase, phase_at, training_data
from bert_tf.runtime import dry_run, files
from bert_tf.runtime.messages import say
from bert_tf.training.callbacks import Callbacks
from bert_tf.training.hooks import Hook
from bert_tf.training.loop import train
from bert_tf.training.run import Run
from bert_tf.training.settings import TrainingConfig


class PretrainingRun(Run):
    """A pre-training run. The constructor connects the workers, and checks data and settings.

    Args:
      settings: the settings.
      config: the config of the encoder.
      vocab_file: the vocabulary that the data was made with; "" if unknown.

    Attributes:
      finder: finds and checks examples for the model.
      phases: the phases, in order.

    Raises:
      InputError: if the data, the vocabulary, the config and the flags do not match.
    """

    model: PretrainingModel
    settings: PretrainingConfig
    training_config: TrainingConfig
    config: BertConfig
    vocab_file: str
    several_hosts = True

    def __init__(self, settings: PretrainingConfig, config: BertConfig, vocab_file: str = "") -> None:
        training_config, phase_ends = settings.training_config, settings.phase_ends
        self.settings, self.config, self.vocab_file = settings, config, vocab_file
        config.check_layers(training_config.freeze_layers, "--freeze_layers")
        model_files = pretrained.find_files(ModelFiles(self.init_checkpoint), training_config.output_dir)
        directory = pretrained.model_directory(model_files, self.init_checkpoint)
        pretrained.check_size(config, directory, "--init_checkpoint")
        self.finder: ExampleFinder = ExampleFinder(
            config, settings.objective, vocab_file, training_config.seed, directory
        )
        self.connect()
        examples = [self.finder.find(data) for data in settings.phases]
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

    @property
    def rules(self) -> dict[str, bool] | None:
        """The tokenizer rules of all data found so far."""
        return self.finder.rules

    def build_model(self, **options: Any) -> PretrainingModel:
        """Returns the encoder with the heads of the objective."""
        model = PretrainingModel(self.config, self.settings.objective, **options)
        self.training_config.freeze(model.encoder)
        return model

    def check_directory(self) -> None:
        """Compares the settings and the data with those in the run directory. See `Run.check_directory`."""
        if strategies.is_chief(self.strategy) and self.settings.allow_changed_settings:
            self._report_jump()
        super().check_directory()

    def data_settings(self) -> dict[str, Any]:
        """Returns the settings and the data that influence the weights. Some bytes of every file are read."""
        return {
            "objective": self.settings.objective,
            "init_checkpoint": self.init_checkpoint and files.real_path(self.init_checkpoint),
            "phases": [{"steps": [phase.start, phase.end], **phase.examples.identity()} for phase in self.phases],
        }

    @property
    def data_counts(self) -> dict[str, Any]:
        """See `Run`."""
        return {phase.examples.flag_name: phase.examples.counts for phase in self.phases}

    def _report_jump(self) -> None:
        """Reports which examples are skipped or repeated if a run is resumed with another batch size."""
        checkpoint = saver.latest_checkpoint(self.training_config.output_dir)
        settings = run_record.recorded(self.training_config.output_dir)
        if not checkpoint or "train_batch_size" not in settings:
            return
        step = int(checkpoints.open_checkpoint(checkpoint, "--output_dir").read("global_step"))
        if step >= self.training_config.num_train_steps:
            return
        second = settings.get("second_batch")
        before = (second if second and step >= second["start"] else settings)["train_batch_size"]
        now = self.training_config.batch_at(step).train_batch_size
        steps = step - phase_at(self.phases, step).start
        if before != now and steps:
            say(
                f"Warning: the batch size changed from {before} to {now}. Training continues after example "
                f"{steps * now} of this phase, so about {steps * abs(now - before)} examples are "
                f"{'skipped' if now > before else 'repeated'}."
            )

    def announce(self) -> None:
        """Prints the phases, and a warning if the learning rate never reaches its peak."""
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
    run, held_out = PretrainingRun(config, model, vocab_file), config.held_out
    # If workers differed, one would wait for another in an evaluation, possibly after weeks of training.
    stages = {"do_train": config.do_train, "do_eval": config.do_eval}
    run.check_workers(**stages, eval_batch_size=held_out.batch_size, max_eval_steps=held_out.max_steps)
    if config.do_eval:
        devices.per_replica_batch_size(held_out.batch_size, run.strategy, "--eval_batch_size")

    results: dict[str, Any] = {}
    if config.do_train:
        for phase, data in zip(run.phases, config.phases, strict=True):
            phase.examples.report(data, config.allow_unusual_data)
        hooks: list[Hook] = []
        if data := config.held_out_data:
            examples = run.finder.find(data)
            training_files = itertools.chain.from_iterable(contents(phase.examples.shards) for phase in run.phases)
            findings.report(shared_files(contents(examples.shards), training_files, data.flag_name))
            hooks.append(evaluation.while_training(run, examples))
        if callbacks:
            hooks.append(Callbacks(callbacks, held_out.steps))
        run.check_directory()
        run.announce()
        results = train(run, training_data(run, run.phases), hooks)
        dry_run.end()

    if config.do_eval:
        examples = run.phases[-1].examples
        with dry_run.step():
            results = evaluation.evaluate(run, examples, held_out.batch_size, held_out.max_steps)
    return run, results
