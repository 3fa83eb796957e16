"""A fine-tuning run: its records, its checks and its predictions, in the same way for every task."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bert_tf.checkpoints import class_names, pretrained, run_directory, run_record, saver
from bert_tf.config import BertConfig, BiLstmConfig
from bert_tf.distribution import devices, hardware, strategies
from bert_tf.finetuning import feature_sets, reports
from bert_tf.finetuning.feature_sets import FeatureSet
from bert_tf.finetuning.finetuning_config import FinetuningConfig
from bert_tf.finetuning.models import EncoderModel, FinetuningModel
from bert_tf.finetuning.task import Task, TaskData
from bert_tf.runtime import dry_run, files, reporting
from bert_tf.runtime.messages import say
from bert_tf.sequences.text_packer import document_means
from bert_tf.text import Tokenizer
from bert_tf.text.hf_tokenizer import RULES
from bert_tf.training import resume
from bert_tf.training.run import Run
from bert_tf.training.settings import Shapes

# The smallest product of steps, tokens in a step and hidden size for which faster graphs save time. The time to prepare
# graphs and the time saved per step are both proportional to the number of blocks.
WORK_FOR_FAST_GRAPHS = 5e8


class FinetuningRun(Run):
    """A fine-tuning run: a task, a model and a run directory.

    Devices are initialised on first use, because the worker processes that tokenize must be started before.

    Args:
      task: the task.
      settings: the settings.
      model: the encoder's config and the tokenizer; None to read them from the files in the settings.
      data: the `TaskData` of another run of the same task, to share it; None to create one.
      split: the split to train on.

    Raises:
      InputError: if the config, the vocabulary and the settings do not match.
    """

    model: FinetuningModel
    settings: FinetuningConfig
    tokenizer: Tokenizer
    rules: Mapping[str, bool]
    split: str
    # The split and the step of the last evaluation, and the model's outputs.
    _evaluated: tuple[tuple[str, int], dict[str, np.ndarray]] | None = None

    def __init__(
        self,
        task: Task,
        settings: FinetuningConfig,
        model: tuple[BertConfig, Tokenizer] | None = None,
        data: TaskData | None = None,
        split: str = "train",
    ) -> None:
        self.task: Task = task
        self.settings, self.training_config, self.split = settings, settings.training, split
        self.config, self.tokenizer = model or pretrained.read_model(settings.model, self.training_config.output_dir)
        self.vocab_file, self.rules = self.tokenizer.vocab_file, self.tokenizer.rules
        self.data: TaskData = data or TaskData(task, self.config, self.tokenizer, settings)
        settings.check_model(self.config)
        self.config.check_vocabulary(len(self.tokenizer.vocab), self.vocab_file)
        if settings.distribution.tpu_name not in (None, "local"):
            self.connect()  # refuses remote TPUs before the data is tokenized

    @property
    def output_weights(self) -> str:
        """See `Run`."""
        return self.task.output_weights

    @property
    def new_variables(self) -> str:
        """See `Run`."""
        count, layers = self.settings.reinit_layers, self.config.num_hidden_layers
        patterns = ["bert/pooler/.*"] if count else []
        patterns += [f"bert/encoder/layer_{number}/.*" for number in range(layers - count, layers)]
        patterns += [class_names.HEAD_VARIABLES] if self.settings.reset_head else []
        return "|".join(patterns)

    def with_settings(
        self, settings: FinetuningConfig, config: BertConfig | None = None, split: str = "train"
    ) -> "FinetuningRun":
        """Returns a run of the same task with a new model and the same `TaskData`.

        Args:
          settings: the settings.
          config: the encoder's config; None to keep the current one.
          split: the split to train on.

        Raises:
          InputError: if the config does not match the vocabulary or the sequence length.
        """
        return FinetuningRun(self.task, settings, (config or self.config, self.tokenizer), self.data, split)

    def build_model(self, **options: Any) -> FinetuningModel:
        """Returns the encoder with the task's output layer."""
        model = self.task.build_model(self.config, causal=self.causal, bilstm=self.bilstm, **options)
        if isinstance(model, EncoderModel):  # the feature-based tagger has no encoder
            self.training_config.freeze(model.encoder)
        return model

    @property
    def causal(self) -> bool:
        """Whether each position attends only to itself and earlier positions, as recorded in the run of the weights."""
        return run_record.is_causal(self._starting_point)

    @property
    def bilstm(self) -> BiLstmConfig | None:
        """The BiLSTM in the settings or, if there is none, in the run that the weights come from."""
        return self.settings.bilstm or run_record.recorded_bilstm(self._starting_point)

    @property
    def _starting_point(self) -> str | None:
        return saver.latest_checkpoint(self.training_config.output_dir) or self.init_checkpoint

    @property
    def model_directory(self) -> str:
        """The directory of the model: the run's own or, if it has none, the directory of `init_checkpoint`."""
        return run_directory.directory_of_checkpoint(self._starting_point or self.training_config.output_dir)

    @property
    def tokenizer_settings(self) -> dict[str, Any]:
        """The settings that determine how texts become ids."""
        compared = ("vocab_sha256", "added_tokens", *RULES)
        return {name: value for name, value in self.tokenizer.record.items() if name in compared}

    def check_model(self) -> None:
        """Checks that the model was fine-tuned with the same tokenizer and classes.

        Raises:
          InputError: if there is no fine-tuned model, or if anything differs; the message names the differences.
        """
        if self.task.uses_model_of_run:
            directory = run_directory.evaluated_directory(self.training_config.output_dir)
            resume.evaluated_source(directory, self.init_checkpoint, self.output_weights)
        if not self.settings.allow_changed_settings:
            advice = " Or pass --allow_changed_settings."
            self.check_reading({"task": self.task.name, **self.task.input_settings()}, advice)

    def check_reading(self, settings: Mapping[str, Any] | None = None, advice: str = "") -> None:
        """Checks that the model was trained with the same tokenizer and length, and with the given settings.

        Raises:
          InputError: if anything differs; the message names the differences.
        """
        compared = {**self.tokenizer_settings, "max_seq_length": self.settings.max_seq_length, **(settings or {})}
        run_record.check_trained_with(self.model_directory, compared, advice=advice)

    def data_settings(self) -> dict[str, Any]:
        """Returns the settings that influence the weights, except the hyperparameters. Reads the training split."""
        examples = self.task.split(self.split)
        return {
            "task": self.task.name,
            **self.task.resume_settings(),
            "init_checkpoint": self.init_checkpoint and files.real_path(self.init_checkpoint),
            "num_examples": len(examples),
            "training_rows_sha256": run_record.digest_of_rows(examples),
            "max_seq_length": self.settings.max_seq_length,
            **self.tokenizer_settings,
            "new_variables": self.new_variables,
            "causal": self.causal,
            **(self.bilstm.resume_settings() if self.bilstm else {}),
        }

    def record(self) -> None:
        """Writes also the settings of the task, such as the classes. See `Run.record`."""
        super().record()
        output_dir = self.training_config.output_dir
        self.task.write_settings(output_dir, self.config, self.settings.max_seq_length)

    @property
    def data_counts(self) -> Mapping[str, Any]:
        """See `Run`."""
        return self.data.counts

    @property
    def is_short(self) -> bool:
        """See `Run`. The value depends only on settings, so a resumed run uses the same graphs."""
        config = self.training_config
        tokens = config.num_train_steps * config.train_batch_size * self.settings.max_seq_length
        return tokens * self.config.hidden_size < WORK_FOR_FAST_GRAPHS

    @property
    def _has_one_length(self) -> bool:
        """Whether all rows have the same length. A TPU requires this."""
        return self.training_config.pad_to_max_seq_length or hardware.is_tpu(self.strategy)

    @property
    def packs(self) -> bool:
        """Whether sequences are packed into rows in training and, on a TPU, in evaluation."""
        return isinstance(self.model, EncoderModel) and not self.training_config.pad_to_max_seq_length

    def buckets(self, features: FeatureSet, shapes: Shapes) -> list[int]:
        """Returns the lengths of rows or padded sequences; see `feature_sets.bucket_lengths`."""
        longest = max(self.settings.max_seq_length, features.max_length)
        return [longest] if self._has_one_length else feature_sets.bucket_lengths(longest, shapes)

    def explainer(self) -> "FinetuningRun":
        """Returns a run with the same weights that computes in float32, and whose gradients reach the embeddings."""
        run = self
        if self.training_config.dtype != "float32":
            training = self.training_config.replace(dtype="float32")
            run = self.with_settings(self.settings.replace(training=training))
            run.restore()
        run.model.encoder.trainable = True
        return run

    def announce(self) -> None:
        """Prints the size of the training set, and a warning if the encoder starts from random weights."""
        if not self._starting_point and isinstance(self.model, EncoderModel):
            say("Warning: --init_checkpoint is not given. Training starts from randomly initialised weights.")
        if self.settings.group_by_length:
            say("Note: --group_by_length has no effect. Batches have examples of all lengths.")
        num_features = len(self.data.features(self.split))
        reports.announce_training(self.training_config, len(self.task.split(self.split)), num_features)

    def evaluate(self, split: str, step: int) -> dict[str, np.ndarray]:
        """Returns the model's outputs for a dev split; see `predict`.

        The last outputs are kept, because the last evaluation in training and --do_eval use the same outputs.

        Args:
          split: the dev split.
          step: the global step of the weights in the model.
        """
        if self._evaluated is None or self._evaluated[0] != (split, step):
            outputs = self.predict(self.data.features(split), self.settings.eval_batch_size, split)
            self._evaluated = (split, step), outputs
        return self._evaluated[1]

    @functools.cached_property
    def _predict(self) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
        return strategies.replicated(self.model.predict, self.strategy, has_static_shapes=self._has_one_length)

    def predict(
        self, features: FeatureSet, batch_size: int, description: str = "predict", shown: bool = True
    ) -> dict[str, np.ndarray]:
        """Returns the model's outputs for all examples, in their order.

        Args:
          features: the examples.
          batch_size: the number of examples in a batch of the largest length, across all replicas. Batches of shorter
            examples have more.
          description: the label of the progress bar.
          shown: whether to show a progress bar.

        Returns:
          Maps output names to arrays with one row per example, or per document if there are windows. Outputs with one
          value per token are padded with zeros.

        Raises:
          InputError: if there are several workers, or the batch can't be divided evenly among the replicas.
        """
        self.settings.distribution.check_one_worker(description)
        collected: dict[str, list[np.ndarray]] = {}
        order: list[np.ndarray] = []
        rows = devices.per_replica_batch_size(batch_size, self.strategy, "batch_size")
        replicas = self.strategy.num_replicas_in_sync
        buckets = self.buckets(features, Shapes.ANY)
        if self.packs and hardware.is_tpu(self.strategy):
            batches = feature_sets.packed_batches(features, rows, replicas, buckets[-1])
        else:
            multiple = None if self._has_one_length else replicas
            padded = feature_sets.batches_by_length(features, batch_size, buckets, multiple)
            batches = ((numbers, slice(len(numbers)), batch) for numbers, batch in padded)
        shown = shown and not dry_run.is_on()  # a dry run ends at the first batch
        with reporting.progress_bar(len(features), description, unit="example", shown=shown) as bar:
            for numbers, positions, batch in batches:
                for name, values in self._predict(batch).items():
                    collected.setdefault(name, []).append(values[positions])
                order.append(numbers)
                bar.update(len(numbers))
        original_order = np.argsort(np.concatenate(order), kind="stable")
        outputs = {name: feature_sets.joined(arrays)[original_order] for name, arrays in collected.items()}
        if features.windows is None:
            return outputs
        logits = document_means(outputs["logits"], features.windows)
        of_documents = self.model.outputs(logits, features.document_values("label_ids"))
        return {name: np.asarray(values) for name, values in of_documents.items()}
