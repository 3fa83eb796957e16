"""What every fine-tuned task shares: featurise, train, predict, evaluate.

A task brings its rows and rules (see `Task`); there is one loop for all of them.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from bert_tf import distribution, feature_sets, reporting, run_directory, training
from bert_tf.config import BertConfig
from bert_tf.distribution import DistributionConfig
from bert_tf.feature_sets import BatchPlan, FeatureSet
from bert_tf.files import InputError
from bert_tf.program import say
from bert_tf.tokenization import FullTokenizer
from bert_tf.training_step import DTYPES, TrainableModel, TrainingConfig

Outputs = Mapping[str, np.ndarray]


class FinetuningModel(TrainableModel, Protocol):
    """A model that can also predict."""

    def predict(self, batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Outputs of a batch, each with a row for each example."""


class Task(Protocol):
    """What a task brings.

    Attributes:
      name: of the task, as in its flag.
    """

    name: str

    def examples(self, split: str) -> list[Any]:
        """The rows of "train", "dev" or "test" (or of what else the task has)."""

    def featurize(self, examples: Sequence[Any], tokenizer: FullTokenizer, max_seq_length: int) -> FeatureSet:
        """Their features, in their order."""

    def build_model(self, config: BertConfig, **encoder_options) -> FinetuningModel:
        """The encoder with the task's output layer."""

    def scores(self, outputs: Outputs, features: FeatureSet) -> dict[str, float]:
        """What the task is judged by."""


def count_steps(
    num_examples: int, train_batch_size: int, num_train_epochs: float, warmup_proportion: float
) -> tuple[int, int]:
    """Training and warm-up steps, as the release counts them.

    Raises:
      InputError: if there is not one whole batch.
    """
    steps = int(num_examples / train_batch_size * num_train_epochs)
    if steps < 1:
        raise InputError(
            f"{num_examples} training examples make no step with --train_batch_size={train_batch_size} and "
            f"--num_train_epochs={num_train_epochs}. Use a smaller batch or more epochs."
        )
    return steps, int(steps * warmup_proportion)


class FinetuningRun:
    """A task, a model and a folder.

    Args:
      task: its rows and rules.
      config: of the encoder.
      tokenizer: of the model.
      max_seq_length: longer sequences are cut.
      training_config: how to train, and the folder.
      distribution_config: where to run.
      init_checkpoint: the pre-trained model, where the folder holds no checkpoint of the run.

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
    ) -> None:
        config.check_sequence_length(max_seq_length)
        config.check_vocabulary(len(tokenizer.vocab), tokenizer.vocab_file)
        self.task = task
        self.config = config
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length
        self.training_config = training_config
        self.init_checkpoint = init_checkpoint
        self.strategy = distribution.build_strategy(distribution_config)
        compiled = training_config.jit_compile or distribution.is_tpu(self.strategy)
        self.buckets = feature_sets.bucket_lengths(max_seq_length, few=compiled)

    @functools.cached_property
    def model(self) -> FinetuningModel:
        """Built in the strategy's scope when it is first needed, with initial values from the seed."""
        keras.utils.set_random_seed(self.training_config.seed)
        with self.strategy.scope():
            return self.task.build_model(
                self.config,
                use_one_hot_embeddings=distribution.is_tpu(self.strategy),
                recompute_gradients=self.training_config.recompute_gradients,
                dtype=DTYPES[self.training_config.dtype],
            )

    def featurize(self, examples: Sequence[Any]) -> FeatureSet:
        """The features of some rows."""
        return self.task.featurize(examples, self.tokenizer, self.max_seq_length)

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
            decisive={
                "task": self.task.name,
                "num_examples": num_examples,
                "max_seq_length": self.max_seq_length,
                "do_lower_case": self.tokenizer.do_lower_case,
                **how.decisive(),
            },
            allow_changes=allow_changes,
        )

    def train(self, features: FeatureSet) -> dict[str, float]:
        """Trains to the last step, from the run's newest checkpoint if there is one; see `training.train`."""
        how = self.training_config
        batch_size = how.train_batch_size
        distribution.per_replica_batch_size(batch_size, self.strategy, "--train_batch_size")
        plan = BatchPlan(features, batch_size, how.seed, self.buckets)
        say(f"***** Running training *****\n  Num examples = {len(features)}")
        say(f"  Batch size = {batch_size}\n  Num steps = {how.num_train_steps}")
        return training.train(
            self.model,
            how,
            self.strategy,
            training.TrainingData(lambda step, context: _training_dataset(plan, step, how.num_train_steps, context)),
            init_checkpoint=self.init_checkpoint,
        )

    def restore(self) -> int:
        """Gives the model the weights it is evaluated with, and returns their global step."""
        return training.restore_for_evaluation(self.model, self.training_config.output_dir, self.init_checkpoint)

    def predict(self, features: FeatureSet, batch_size: int, what: str = "predict") -> dict[str, np.ndarray]:
        """The model's outputs for all examples, in their order.

        Outputs of unequal length (a row for each token) come back padded with zeros to the longest.
        """
        predict = distribution.replicated(self.model.predict, self.strategy)
        collected: dict[str, list[np.ndarray]] = {}
        order: list[np.ndarray] = []
        size = batch_size * self.strategy.num_replicas_in_sync
        with reporting.progress_bar(len(features), what, unit="example") as bar:
            for numbers, batch in feature_sets.batches_by_length(features, size, self.buckets):
                for name, rows in predict(batch).items():
                    collected.setdefault(name, []).append(rows[: len(numbers)])
                order.append(numbers)
                bar.update(len(numbers))
        back = np.argsort(np.concatenate(order), kind="stable")
        return {name: _concatenate_padded(parts)[back] for name, parts in collected.items()}


def _training_dataset(
    plan: BatchPlan, start_step: int, end_step: int, context: tf.distribute.InputContext
) -> tf.data.Dataset:
    """The batches of the steps to come, for one input pipeline; each of its replicas takes its part in turn."""
    size = context.get_per_replica_batch_size(plan.batch_size)
    fed = context.num_replicas_in_sync // context.num_input_pipelines
    replicas = range(context.input_pipeline_id * fed, (context.input_pipeline_id + 1) * fed)

    def parts() -> Iterator[dict[str, np.ndarray]]:
        for step in range(start_step, end_step):
            examples = plan.examples(step)
            length = plan.bucket(examples)
            for replica in replicas:
                yield plan.features.batch(examples[replica * size : (replica + 1) * size], length)

    sample = plan.features.batch(np.zeros(size, np.int64), int(plan.buckets[-1]))
    signature = {
        name: tf.TensorSpec([len(x), None] if name in plan.features.token_names else x.shape, x.dtype)
        for name, x in sample.items()
    }
    return tf.data.Dataset.from_generator(parts, output_signature=signature).prefetch(2)


def _concatenate_padded(parts: Sequence[np.ndarray]) -> np.ndarray:
    if parts[0].ndim == 1:
        return np.concatenate(parts)
    width = max(part.shape[1] for part in parts)
    return np.concatenate([np.pad(p, [(0, 0), (0, width - p.shape[1])] + [(0, 0)] * (p.ndim - 2)) for p in parts])
