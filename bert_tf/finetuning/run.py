"""A fine-tuning run: tokenize, train, restore and predict, in the same way for every task."""

import copy
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.checkpoints import output_layers, pretrained, run_directory, saver
from bert_tf.config import DTYPES, BertConfig, BiLstmConfig
from bert_tf.distribution import devices, strategies
from bert_tf.finetuning import feature_sets, input_pipeline, reports
from bert_tf.finetuning.feature_sets import BatchSampler, FeatureSet
from bert_tf.finetuning.finetuning_config import FinetuningConfig
from bert_tf.finetuning.models import EncoderModel
from bert_tf.finetuning.task import FinetuningModel, Task
from bert_tf.model.layers import initial_values_from
from bert_tf.runtime import files, reporting
from bert_tf.runtime.program import say
from bert_tf.text import Tokenizer, long_documents
from bert_tf.text.tokenizer_config import RULES
from bert_tf.training import agreement, loop, micro_batches, resume
from bert_tf.training.evaluation import remove_stale_best
from bert_tf.training.hooks import Hook
from bert_tf.training.interface import TrainingData
from bert_tf.training.settings import TrainingConfig


class FinetuningRun:
    """A fine-tuning run: a task, a model and a run directory.

    Devices are initialised on first use, because `prepare` can start worker processes only before that.

    Args:
      task: the task.
      settings: the settings.
      model: the encoder's config and the tokenizer; None to read them from the files in the settings.

    Raises:
      InputError: if the config, the vocabulary and the settings do not match.
    """

    # The split and the step of the last evaluation, and the model's outputs.
    _evaluated: tuple[tuple[str, int], dict[str, np.ndarray]] | None = None

    def __init__(
        self, task: Task, settings: FinetuningConfig, model: tuple[BertConfig, Tokenizer] | None = None
    ) -> None:
        self.task = task
        self.settings = settings
        self.config, self.tokenizer = model or pretrained.read_model(settings.model, self.training_config.output_dir)
        self._build_strategy = functools.cache(lambda: strategies.build_strategy(settings.distribution))
        self._examples: dict[str, list[Any]] = {}
        self._features: dict[str, FeatureSet] = {}
        self._check(self.config)
        resume.require_starting_point(self.training_config.output_dir, self.init_checkpoint)
        if settings.distribution.tpu_name not in (None, "local"):
            self.strategy  # noqa: B018 (refuses remote TPUs before the data is tokenized)

    def _check(self, config: BertConfig) -> None:
        self.settings.check_model(config)
        config.check_vocabulary(len(self.tokenizer.vocab), self.tokenizer.vocab_file)

    @property
    def training_config(self) -> TrainingConfig:
        """The training settings."""
        return self.settings.training

    @property
    def init_checkpoint(self) -> str | None:
        """The pre-trained model; ignored if the directory has a checkpoint of this run."""
        return self.settings.model.init_checkpoint

    @property
    def fresh_variables(self) -> str:
        """A pattern of the variables that are not restored from `init_checkpoint`; "" if there are none."""
        count, layers = self.settings.reinit_layers, self.config.num_hidden_layers
        patterns = ["bert/pooler/.*"] if count else []
        patterns += [f"bert/encoder/layer_{number}/.*" for number in range(layers - count, layers)]
        patterns += [output_layers.HEAD_VARIABLES] if self.settings.reset_head else []
        return "|".join(patterns)

    def with_settings(self, settings: FinetuningConfig, config: BertConfig | None = None) -> "FinetuningRun":
        """Returns a run of the same task with a new model. It shares the features and the devices.

        Args:
          settings: the settings.
          config: the encoder's config; None to keep the current one.

        Raises:
          InputError: if the config does not match the vocabulary or the sequence length.
        """
        other = copy.copy(self)
        for cached in ("model", "_predict", "_evaluated"):
            vars(other).pop(cached, None)
        other.settings, other.config = settings, config or self.config
        other._check(other.config)
        return other

    def with_task(self, task: Task, output_dir: str) -> "FinetuningRun":
        """Returns a run of another task in another directory, on the same devices."""
        other = self.with_settings(self.settings.in_folder(output_dir))
        other.task, other._examples, other._features = task, {}, {}
        return other

    @property
    def strategy(self) -> tf.distribute.Strategy:
        """The distribution strategy; its first use initialises the devices."""
        return self._build_strategy()

    @functools.cached_property
    def model(self) -> FinetuningModel:
        """The model, built on first use, with initial values that depend on the seed."""
        with self.strategy.scope(), initial_values_from(self.training_config.seed):
            model = self.task.build_model(
                self.config,
                use_one_hot_embeddings=strategies.is_tpu(self.strategy),
                gradient_checkpointing=self.training_config.gradient_checkpointing,
                causal=self.causal,
                bilstm=self.bilstm,
                dtype=DTYPES[self.training_config.dtype],
            )
        if isinstance(model, EncoderModel):  # the feature-based tagger has no encoder
            self.training_config.freeze(model.encoder)
        return model

    @property
    def causal(self) -> bool:
        """Whether each position attends only to itself and earlier positions. Recorded in the run of the weights."""
        return run_directory.is_causal(self._starting_point)

    @property
    def bilstm(self) -> BiLstmConfig | None:
        """The requested BiLSTM, or else the one of the run that the weights come from."""
        return self.settings.bilstm or run_directory.recorded_bilstm(self._starting_point)

    @property
    def _starting_point(self) -> str | None:
        return saver.latest_checkpoint(self.training_config.output_dir) or self.init_checkpoint

    def prepare(self, splits: Iterable[str]) -> None:
        """Reads and tokenizes splits and keeps them in memory.

        Call this first, because worker processes can't be started once TensorFlow has run an operation.
        """
        for split in splits:
            if split not in self._features:
                examples = self.examples(split)
                features = self._features[split] = self.featurize(examples)
                truncated, max_seq_length = features.num_truncated, self.settings.max_seq_length
                reporting.report_truncation(truncated, len(examples), split, max_seq_length)

    def examples(self, split: str) -> list[Any]:
        """Returns the rows of a split. They are not tokenized yet."""
        if split not in self._examples:
            self._examples[split] = self.task.examples(split)
        return self._examples[split]

    def features(self, split: str) -> FeatureSet:
        """Returns the features of a split."""
        self.prepare([split])
        return self._features[split]

    def featurize(self, examples: Sequence[Any]) -> FeatureSet:
        """Returns the features of some rows."""
        features = self.task.featurize(
            examples, self.tokenizer, self.settings.max_seq_length, self.settings.num_workers
        )
        self.config.check_segments(bool((features.first_lengths < features.lengths).any()))
        return features

    @property
    def has_one_length(self) -> bool:
        """Whether all rows have the same length. A TPU requires this."""
        return self.settings.training.pad_to_max_seq_length or strategies.is_tpu(self.strategy)

    @property
    def packs(self) -> bool:
        """Whether sequences are packed into rows in training and, on a TPU, in evaluation."""
        return isinstance(self.model, EncoderModel) and not self.settings.training.pad_to_max_seq_length

    def buckets(self, features: FeatureSet, traced: bool = False) -> list[int]:
        """Returns the lengths of rows or padded sequences; see `feature_sets.bucket_lengths`."""
        longest = max(self.settings.max_seq_length, features.max_length)
        if self.has_one_length:
            return [longest]
        return feature_sets.bucket_lengths(longest, self.training_config.jit_compile, traced)

    @property
    def is_short(self) -> bool:
        """Whether faster graphs don't pay off in training; see `TrainingData`."""
        return input_pipeline.is_short(self.training_config, self.settings.max_seq_length, self.config.hidden_size)

    @property
    def has_graph_per_shape(self) -> bool:
        """Whether training has a graph for each length; see `TrainingData`."""
        with self.strategy.scope():
            return not self.is_short and not self.training_config.jit_compile and strategies.compiles_parts()

    @property
    def tokenizer_settings(self) -> dict[str, Any]:
        """The settings that determine how texts become ids."""
        compared = ("vocab_sha256", "added_tokens", *RULES)
        return {name: value for name, value in self.tokenizer.record.items() if name in compared}

    def check_model(self) -> None:
        """Checks that the model was fine-tuned, and with this tokenizer and these classes.

        Raises:
          InputError: if there is no fine-tuned model, or if anything differs; the message names the differences.
        """
        folder = run_directory.evaluated_folder(self.training_config.output_dir)
        if self.task.uses_model_of_run:
            resume.evaluated_source(folder, self.init_checkpoint, self.task.output_weights)
        if not self.settings.allow_changed_settings:
            advice = " Or pass --allow_changed_settings."
            self.check_reading({"task": self.task.name, **self.task.input_settings()}, advice)

    def check_reading(self, settings: Mapping[str, Any] | None = None, advice: str = "") -> None:
        """Checks that the model was trained with this tokenizer, this length and the given settings.

        Raises:
          InputError: if anything differs; the message names the differences.
        """
        compared = {**self.tokenizer_settings, "max_seq_length": self.settings.max_seq_length, **(settings or {})}
        run_directory.check_trained_with(self.model_folder, compared, advice=advice)

    def resume_settings(self, split: str = "train") -> dict[str, Any]:
        """Returns the settings that influence the weights, except the hyperparameters. Reads the training split."""
        return {
            "task": self.task.name,
            **self.task.resume_settings(),
            "init_checkpoint": self.init_checkpoint and files.real_path(self.init_checkpoint),
            "num_examples": len(self.examples(split)),
            "training_rows_sha256": run_directory.fingerprint(self.examples(split)),
            "max_seq_length": self.settings.max_seq_length,
            **self.tokenizer_settings,
            "fresh_variables": self.fresh_variables,
            "causal": self.causal,
            "group_by_length": "auto" if self.settings.group_by_length is None else self.settings.group_by_length,
            **(self.bilstm.resume_settings() if self.bilstm else {}),
        }

    def record(self, split: str = "train") -> None:
        """Writes the run's config, vocabulary and settings to its folder, before it trains on a split.

        Raises:
          InputError: if workers differ, or if the directory contains a run with other settings and
            `allow_changed_settings` is False.
        """
        resume_settings = {**self.resume_settings(split), **self.training_config.resume_settings(self.strategy)}
        agreement.require_settings(self.strategy, self.config, self.tokenizer.vocab_file, lambda: resume_settings)
        if strategies.is_chief(self.strategy):
            run_directory.prepare(
                self.training_config.output_dir,
                self.config,
                self.tokenizer.vocab_file,
                self.settings.flag_values() | self.settings.flags,
                resume_settings,
                rules=self.tokenizer.rules,
                devices=strategies.devices(self.strategy),
                allow_changed_settings=self.settings.allow_changed_settings,
            )

    def train(self, features: FeatureSet, hooks: Sequence[Hook] = ()) -> dict[str, float]:
        """Trains to the last step, starting from the run's newest checkpoint if there is one. See `loop.train`."""
        training_config = self.training_config
        data = self.training_data(features)
        if not self._starting_point and isinstance(self.model, EncoderModel):
            say("Warning: --init_checkpoint is not given. Training starts from randomly initialised weights.")
        splits = (split for split, own in self._features.items() if own is features)
        num_examples = next((len(self.examples(split)) for split in splits), len(features))
        reports.announce_training(training_config, num_examples, len(features))
        remove_stale_best(training_config.output_dir)
        start = (self.init_checkpoint, hooks, self.fresh_variables)
        return loop.train(self.model, training_config, self.strategy, data, *start)

    def batch_sampler(self, features: FeatureSet) -> BatchSampler:
        """Returns the object that chooses the examples of each step."""
        buckets, group_by_length = self.buckets(features, self.has_graph_per_shape), self.settings.group_by_length
        batch_size = self.training_config.train_batch_size
        has_one_shape = micro_batches.has_one_shape(self.strategy, self.training_config)
        if group_by_length is None:
            is_large = len(features) >= feature_sets.MIN_BATCHES_TO_GROUP * batch_size
            group_by_length = is_large and len(buckets) > 1 and not has_one_shape
        if has_one_shape or (self.has_graph_per_shape and not group_by_length):
            # All batches have the same length, so there are few graphs.
            buckets = [next(length for length in buckets if length >= features.max_length)]
        return BatchSampler(features, batch_size, self.training_config.seed, buckets, group_by_length)

    def training_data(self, features: FeatureSet) -> TrainingData:
        """Returns the training loop's input."""
        training_config, sampler = self.training_config, self.batch_sampler(features)
        training_config.check_batch(self.strategy)
        has_one_shape = micro_batches.has_one_shape(self.strategy, training_config)
        packer = None
        if self.packs:
            has_one_graph = not (has_one_shape or self.has_graph_per_shape)
            width = self.config.hidden_size if has_one_graph else None
            packer = input_pipeline.packer_for(sampler, self.strategy, training_config, width)
        return input_pipeline.training_data(
            sampler,
            training_config.num_train_steps,
            self.is_short,
            self.has_graph_per_shape,
            has_static_shapes=has_one_shape,
            packer=packer,
        )

    @property
    def best_folder(self) -> str:
        """The folder of the weights with the best dev score. It exists only if they are kept."""
        return os.path.join(self.training_config.output_dir, run_directory.BEST_FOLDER)

    @property
    def model_folder(self) -> str:
        """The folder of the model: the run's own or, if it has none, the folder of `init_checkpoint`."""
        return run_directory.folder_of_checkpoint(self._starting_point or self.training_config.output_dir)

    def restore(self) -> int:
        """Loads the weights for evaluation and prediction into the model, and returns their global step.

        The first existing one of the following is loaded:

        1. the weights with the best dev score;
        2. the run's newest checkpoint;
        3. `init_checkpoint`.
        """
        folder = run_directory.evaluated_folder(self.training_config.output_dir)
        return resume.restore_for_evaluation(self.model, folder, self.init_checkpoint, self.task.output_weights)

    def evaluate(self, split: str, step: int) -> dict[str, np.ndarray]:
        """Returns the model's outputs for a dev split; see `predict`.

        The last outputs are kept, because the end of training and --do_eval need the same ones.

        Args:
          split: the dev split.
          step: the global step of the weights in the model.
        """
        if self._evaluated is None or self._evaluated[0] != (split, step):
            found = self.predict(self.features(split), self.settings.eval_batch_size, split)
            self._evaluated = (split, step), found
        return self._evaluated[1]

    @functools.cached_property
    def _predict(self) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
        return strategies.replicated(self.model.predict, self.strategy, has_static_shapes=self.has_one_length)

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
        buckets, replicas = self.buckets(features), self.strategy.num_replicas_in_sync
        if self.packs and strategies.is_tpu(self.strategy):
            batches = feature_sets.packed_batches(features, rows, replicas, buckets[-1])
        else:
            multiple = None if self.has_one_length else replicas
            padded = feature_sets.batches_by_length(features, batch_size, buckets, multiple)
            batches = ((numbers, slice(len(numbers)), batch) for numbers, batch in padded)
        with reporting.progress_bar(len(features), description, unit="example", shown=shown) as bar:
            for numbers, places, batch in batches:
                for name, values in self._predict(batch).items():
                    collected.setdefault(name, []).append(values[places])
                order.append(numbers)
                bar.update(len(numbers))
        original_order = np.argsort(np.concatenate(order), kind="stable")
        outputs = {name: feature_sets.joined(parts)[original_order] for name, parts in collected.items()}
        if features.windows is None:
            return outputs
        logits = long_documents.document_means(outputs["logits"], features.windows)
        of_documents = self.model.outputs(logits, features.document_values("label_ids"))
        return {name: np.asarray(values) for name, values in of_documents.items()}
