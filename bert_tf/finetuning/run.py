"""What every fine-tuned task shares: featurise, train, predict, evaluate.

A task brings its rows and rules (see `finetuning_task`); there is one loop for all of them.
"""

import copy
import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf.checkpoints import run_directory, saver
from bert_tf.config import BertConfig
from bert_tf.finetuning import feature_sets
from bert_tf.finetuning.feature_sets import BatchSampler, FeatureSet, LazyFeatures
from bert_tf.finetuning.task import FinetuningModel, Task
from bert_tf.model.bilstm import BiLstmConfig
from bert_tf.pretraining.input_pipeline import replicas_per_pipeline
from bert_tf.runtime import distribution, reporting
from bert_tf.runtime.distribution import DistributionConfig
from bert_tf.runtime.files import InputError
from bert_tf.runtime.program import say
from bert_tf.sequences import packing
from bert_tf.tokenization import FullTokenizer
from bert_tf.training import loop, resume
from bert_tf.training.contract import DTYPES, PeriodicEvaluation, TrainingConfig, TrainingData

# A larger training set is tokenised while it is first gone through, if its examples are independent.
MOST_TOKENIZED_BEFORE = 20_000


class FinetuningRun:
    """A task, a model and a folder.

    Nothing runs on a device before it is needed, so that `prepare` can fork processes first.

    Args:
      task: its rows and rules.
      config: of the encoder.
      tokenizer: of the model.
      max_seq_length: longer sequences are cut.
      training_config: how to train, and the folder.
      distribution_config: where to run.
      init_checkpoint: the pre-trained model, where the folder holds no checkpoint of the run.
      num_workers: processes that tokenize; see `parallel.map_chunks`.
      fresh_variables: pattern of what is not taken from `init_checkpoint`; see `hyperparameters.fresh_top_layers`.
      pad_to_max_seq_length: pad every batch to `max_seq_length`, as the release does, and not to its longest sequence.
      bilstm: sizes of a BiLSTM between the encoder and the output layer; None for that of the run that the weights come
        from, if it has one.
      group_by_length: put training examples of similar length into the same batch; None to do so where that saves
        padding and the training set is large enough (see `feature_sets.GROUPED_FROM_BATCHES`).

    Raises:
      InputError: if the config, the vocabulary and the flags don't fit together.
    """

    def __init__(
        self,
        task: Task,
        config: BertConfig,
        tokenizer: FullTokenizer,
        max_seq_length: int,
        training_config: TrainingConfig,
        distribution_config: DistributionConfig,
        init_checkpoint: str | None = None,
        num_workers: int = 1,
        fresh_variables: str = "",
        pad_to_max_seq_length: bool = False,
        bilstm: BiLstmConfig | None = None,
        group_by_length: bool | None = None,
    ) -> None:
        packing.check_max_seq_length(max_seq_length)
        self.task = task
        self.config = config
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length
        self.training_config = training_config
        self._build_strategy = functools.cache(lambda: distribution.build_strategy(distribution_config))
        self.init_checkpoint = init_checkpoint
        self.num_workers = num_workers
        self.fresh_variables = fresh_variables
        self.pad_to_max_seq_length = pad_to_max_seq_length
        self.asked_bilstm = bilstm
        self.group_by_length = group_by_length
        self._data: dict[str, tuple[list[Any], FeatureSet]] = {}
        self._check(config)
        resume.require_starting_point(training_config.output_dir, init_checkpoint)

    def _check(self, config: BertConfig) -> None:
        config.check_sequence_length(self.max_seq_length)
        config.check_vocabulary(len(self.tokenizer.vocab), self.tokenizer.vocab_file)

    def with_training(self, training_config: TrainingConfig) -> "FinetuningRun":
        """A run of the same task with a model of its own, that shares the features and the devices."""
        return self._copy(training_config=training_config)

    def with_model(
        self,
        config: BertConfig,
        training_config: TrainingConfig,
        init_checkpoint: str | None,
        bilstm: BiLstmConfig | None,
    ) -> "FinetuningRun":
        """A run of the same task with another model, that shares the features and the devices.

        Raises:
          InputError: if the config doesn't fit the vocabulary and the length of the sequences.
        """
        self._check(config)
        changes = {"training_config": training_config, "init_checkpoint": init_checkpoint, "asked_bilstm": bilstm}
        return self._copy(config=config, **changes)

    def with_task(self, task: Task, output_dir: str) -> "FinetuningRun":
        """A run of another task in another folder, on the same devices."""
        return self._copy(
            task=task, training_config=dataclasses.replace(self.training_config, output_dir=output_dir), _data={}
        )

    def _copy(self, **changes: Any) -> "FinetuningRun":
        other = copy.copy(self)
        for of_this_model in ("model", "_predict"):
            vars(other).pop(of_this_model, None)
        vars(other).update(changes)
        return other

    @property
    def strategy(self) -> tf.distribute.Strategy:
        """Where the work runs."""
        return self._build_strategy()

    @functools.cached_property
    def model(self) -> FinetuningModel:
        """Built in the strategy's scope when it is first needed, with initial values from the seed."""
        keras.utils.set_random_seed(self.training_config.seed)
        with self.strategy.scope():
            return self.task.build_model(
                self.config,
                use_one_hot_embeddings=distribution.is_tpu(self.strategy),
                recompute_gradients=self.training_config.recompute_gradients,
                causal=self.causal,
                bilstm=self.bilstm,
                dtype=DTYPES[self.training_config.dtype],
            )

    @property
    def causal(self) -> bool:
        """Whether each position sees only what is before it, as in the run that the weights come from."""
        return run_directory.is_causal(self._starting_point)

    @property
    def bilstm(self) -> BiLstmConfig | None:
        """The BiLSTM that was asked for, or else that of the run that the weights come from."""
        return self.asked_bilstm or run_directory.recorded_bilstm(self._starting_point)

    @property
    def _starting_point(self) -> str | None:
        return saver.latest_checkpoint(self.training_config.output_dir) or self.init_checkpoint

    def prepare(self, splits: Iterable[str]) -> None:
        """Reads and tokenizes splits, which are kept in memory. Best done before TensorFlow has run anything."""
        for split in splits:
            if split not in self._data:
                examples = self.task.examples(split)
                lazy = split == "train" and self.task.independent and len(examples) > MOST_TOKENIZED_BEFORE
                self._data[split] = examples, self._lazy_features(examples) if lazy else self.featurize(examples)

    def _lazy_features(self, examples: Sequence[Any]) -> LazyFeatures:
        task, tokenizer, longest = self.task, self.tokenizer, self.max_seq_length
        return LazyFeatures(examples, lambda some: task.featurize(some, tokenizer, longest), longest)

    def examples(self, split: str) -> list[Any]:
        """The rows of a split."""
        self.prepare([split])
        return self._data[split][0]

    def features(self, split: str) -> FeatureSet | LazyFeatures:
        """The features of a split; lazy ones for a large training set."""
        self.prepare([split])
        return self._data[split][1]

    def featurize(self, examples: Sequence[Any]) -> FeatureSet:
        """The features of some rows."""
        return self.task.featurize(examples, self.tokenizer, self.max_seq_length, self.num_workers)

    def buckets(self, features: FeatureSet | LazyFeatures) -> list[int]:
        """The lengths that batches are padded to."""
        if self.pad_to_max_seq_length:
            return [self.max_seq_length]
        compiled = self.training_config.jit_compile or distribution.is_tpu(self.strategy)
        return feature_sets.bucket_lengths(max(self.max_seq_length, features.max_length), few=compiled)

    def resume_settings(self, num_examples: int) -> dict[str, Any]:
        """The settings that change the weights, without the hyperparameters."""
        return {
            "task": self.task.name,
            **self.task.resume_settings(),
            "init_checkpoint": self.init_checkpoint,
            "num_examples": num_examples,
            "max_seq_length": self.max_seq_length,
            "do_lower_case": self.tokenizer.do_lower_case,
            "fresh_variables": self.fresh_variables,
            "causal": self.causal,
            "group_by_length": "auto" if self.group_by_length is None else self.group_by_length,
            **(self.bilstm.resume_settings() if self.bilstm else {}),
        }

    def record(self, flags: Mapping[str, Any], num_examples: int, allow_changes: bool = False) -> None:
        """Writes down what the run is made of; refuses a folder whose run began with something else."""
        if not distribution.is_chief(self.strategy):
            return
        how = self.training_config
        run_directory.prepare(
            how.output_dir,
            self.config,
            self.tokenizer.vocab_file,
            flags,
            resume_settings={**self.resume_settings(num_examples), **how.resume_settings()},
            allow_changes=allow_changes,
        )

    def train(
        self, features: FeatureSet | LazyFeatures, evaluation: PeriodicEvaluation | None = None
    ) -> dict[str, float]:
        """Trains to the last step, from the run's newest checkpoint if there is one; see `training.train`."""
        how = self.training_config
        data = self.training_data(features)
        say(f"***** Running training *****\n  Num examples = {len(features)}")
        say(f"  Batch size = {how.train_batch_size}\n  Num steps = {how.num_train_steps}")
        if not saver.latest_checkpoint(how.output_dir):
            saver.remove_checkpoints(self.best_folder)  # of a run that began before this one
        return loop.train(self.model, how, self.strategy, data, self.init_checkpoint, evaluation, self.fresh_variables)

    def batch_sampler(self, features: FeatureSet | LazyFeatures) -> BatchSampler:
        """Which examples make the batch of each step."""
        how, buckets, group_by_length = self.training_config, self.buckets(features), self.group_by_length
        if group_by_length is None:
            is_large = len(features) >= feature_sets.GROUPED_FROM_BATCHES * how.train_batch_size
            group_by_length = is_large and len(buckets) > 1
        return BatchSampler(features, how.train_batch_size, how.seed, buckets, group_by_length)

    def training_data(self, features: FeatureSet | LazyFeatures) -> TrainingData:
        """What the training loop reads."""
        how, sampler = self.training_config, self.batch_sampler(features)
        how.check_batch(self.strategy)
        return TrainingData(
            lambda step, context: _training_dataset(sampler, step, how.num_train_steps, context),
            describe=lambda step: "examples " + ", ".join(map(str, sampler.examples(step))),
        )

    @property
    def best_folder(self) -> str:
        """Where the weights that did best on the dev set are kept, if they are."""
        return os.path.join(self.training_config.output_dir, run_directory.BEST_FOLDER)

    def restore(self) -> int:
        """Gives the model the weights it is judged with, and returns their global step.

        1. Those that did best on the dev set, if they were kept.
        2. Otherwise those of the run's newest checkpoint.
        3. Otherwise those of `init_checkpoint`.
        """
        folder = run_directory.evaluated_folder(self.training_config.output_dir)
        return resume.restore_for_evaluation(self.model, folder, self.init_checkpoint)

    @functools.cached_property
    def _predict(self) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
        return distribution.replicated(self.model.predict, self.strategy)

    def predict(
        self, features: FeatureSet, batch_size: int, description: str = "predict", shown: bool = True
    ) -> dict[str, np.ndarray]:
        """The model's outputs for all examples, in their order.

        Outputs of unequal length (a row for each token) come back padded with zeros to the longest. The progress bar
        is called `description`, and may be left out.
        """
        if isinstance(self.strategy, tf.distribute.MultiWorkerMirroredStrategy):
            raise InputError(
                f"{description}: several workers train, but don't evaluate or predict. Do that on one machine later."
            )
        collected: dict[str, list[np.ndarray]] = {}
        order: list[np.ndarray] = []
        size = batch_size * self.strategy.num_replicas_in_sync
        buckets = self.buckets(features)
        with reporting.progress_bar(len(features), description, unit="example", shown=shown) as bar:
            for numbers, batch in feature_sets.batches_by_length(features, size, buckets):
                for name, rows in self._predict(batch).items():
                    collected.setdefault(name, []).append(rows[: len(numbers)])
                order.append(numbers)
                bar.update(len(numbers))
        back = np.argsort(np.concatenate(order), kind="stable")
        return {name: _concatenate_padded(parts)[back] for name, parts in collected.items()}


def _training_dataset(
    sampler: BatchSampler, start_step: int, end_step: int, context: tf.distribute.InputContext
) -> tf.data.Dataset:
    """The batches of the steps to come, for one input pipeline; each of its replicas takes its part in turn."""
    size = context.get_per_replica_batch_size(sampler.batch_size)
    fed = replicas_per_pipeline(context)
    replicas = range(context.input_pipeline_id * fed, (context.input_pipeline_id + 1) * fed)

    def parts() -> Iterator[dict[str, np.ndarray]]:
        for step in range(start_step, end_step):
            examples = sampler.examples(step)
            length = sampler.bucket(examples)
            for replica in replicas:
                yield sampler.features.batch(examples[replica * size : (replica + 1) * size], length)

    sample = sampler.features.batch(np.zeros(size, np.int64), int(sampler.buckets[-1]))
    signature = {
        name: tf.TensorSpec([len(x), None, *x.shape[2:]] if name in sampler.features.token_names else x.shape, x.dtype)
        for name, x in sample.items()
    }
    return tf.data.Dataset.from_generator(parts, output_signature=signature).prefetch(2)


def _concatenate_padded(parts: Sequence[np.ndarray]) -> np.ndarray:
    if parts[0].ndim == 1:
        return np.concatenate(parts)
    width = max(part.shape[1] for part in parts)
    return np.concatenate([np.pad(p, [(0, 0), (0, width - p.shape[1])] + [(0, 0)] * (p.ndim - 2)) for p in parts])
