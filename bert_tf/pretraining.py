"""Pre-training: masked language modelling, next sentence prediction, and the paper's ablations of both."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from bert_tf import distribution, input_pipeline, run_directory, training
from bert_tf.config import BertConfig
from bert_tf.distribution import DistributionConfig
from bert_tf.encoder import BertEncoder
from bert_tf.example_format import pretraining_features, vocabulary_hash
from bert_tf.files import InputError
from bert_tf.heads import MaskedLMHead, log_likelihood_loss, next_sentence_head
from bert_tf.program import say
from bert_tf.training_step import DTYPES, Batch, MetricSums, TrainingConfig
from bert_tf.vocabulary import check_vocab_file, load_vocab

OBJECTIVES = ("mlm_nsp", "mlm", "ltr")


class PretrainingModel:
    """The encoder with the heads of an objective.

    Args:
      config: of the encoder.
      objective: "mlm_nsp" is BERT; "mlm" leaves out next sentence prediction; "ltr" predicts each token from those
        before it (paper, Table 5).
      use_one_hot_embeddings: see `BertEncoder`.
      dtype: see `BertEncoder`.

    Raises:
      InputError: if there is no such objective.
    """

    def __init__(
        self,
        config: BertConfig,
        objective: str = "mlm_nsp",
        use_one_hot_embeddings: bool = False,
        dtype: str = "float32",
    ) -> None:
        if objective not in OBJECTIVES:
            raise InputError(f"--objective is {objective!r}, but one of {', '.join(OBJECTIVES)} is expected.")
        self.objective = objective
        self.encoder = BertEncoder(config, use_one_hot_embeddings, causal=objective == "ltr", dtype=dtype)
        self.masked_lm = MaskedLMHead(config, dtype=dtype)
        self.next_sentence = next_sentence_head(config) if objective == "mlm_nsp" else None
        self.variables = self.encoder.variables + self.masked_lm.variables
        self.metric_names = ("masked_lm_accuracy", "masked_lm_loss")
        if self.next_sentence:
            self.variables += self.next_sentence.variables
            self.metric_names += ("next_sentence_accuracy", "next_sentence_loss")
        # Only next sentence prediction reads the pooler.
        unused = () if self.next_sentence else ("bert/pooler/",)
        self.trained_variables = (
            [v for v in self.variables if not v.path.startswith(unused)] if unused else self.variables
        )

    def totals(self, batch: Batch) -> dict[str, tf.Tensor]:
        """The number of predictions, and of examples."""
        _, _, weights = self._predictions(batch)
        return {
            "predictions": tf.reduce_sum(weights),
            "examples": tf.cast(tf.shape(batch["input_ids"])[0], tf.float32),
        }

    def loss(
        self, batch: Batch, totals: Mapping[str, tf.Tensor], seed: tf.Tensor | None
    ) -> tuple[tf.Tensor, MetricSums]:
        """The released loss: the mean over predictions plus the mean over sentence pairs (see `TrainableModel`)."""
        output = self.encoder(batch["input_ids"], batch["input_mask"], batch["segment_ids"], seed=seed)
        positions, labels, weights = self._predictions(batch)
        logits = self.masked_lm(output.sequence_output, positions, self.encoder.embedding_table)
        labels, weights = tf.reshape(labels, [-1]), tf.reshape(weights, [-1])
        per_prediction = log_likelihood_loss(logits, labels)
        loss_sum = tf.reduce_sum(weights * per_prediction)
        correct = tf.cast(tf.argmax(logits, axis=-1, output_type=tf.int32) == labels, tf.float32)
        weight = tf.reduce_sum(weights)
        loss = loss_sum / (totals["predictions"] + 1e-5)  # the release's guard against batches without predictions
        metrics = {
            "masked_lm_accuracy": (tf.reduce_sum(weights * correct), weight),
            "masked_lm_loss": (loss_sum, weight),
        }
        if self.next_sentence:
            logits = self.next_sentence(output.pooled_output)
            labels = tf.reshape(batch["next_sentence_labels"], [-1])
            next_sentence_sum = tf.reduce_sum(log_likelihood_loss(logits, labels))
            correct = tf.cast(tf.argmax(logits, axis=-1, output_type=tf.int32) == labels, tf.float32)
            loss += next_sentence_sum / totals["examples"]
            count = tf.cast(tf.size(labels), tf.float32)
            metrics["next_sentence_accuracy"] = (tf.reduce_sum(correct), count)
            metrics["next_sentence_loss"] = (next_sentence_sum, count)
        return loss, metrics

    def _predictions(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Positions, labels and weights [B, P] of what is predicted."""
        if self.objective != "ltr":
            return batch["masked_lm_positions"], batch["masked_lm_ids"], batch["masked_lm_weights"]
        # Each position but the last predicts its right neighbour, up to the end of the text.
        input_ids, input_mask = batch["input_ids"], batch["input_mask"]
        positions = tf.zeros_like(input_ids[:, 1:]) + tf.range(tf.shape(input_ids)[1] - 1)
        return positions, input_ids[:, 1:], tf.cast(input_mask[:, 1:], tf.float32)


@dataclasses.dataclass(frozen=True)
class PretrainingData:
    """Which examples a run reads.

    Attributes:
      input_file: TFRecord files: names and globs, separated by commas.
      max_seq_length: length of their sequences.
      max_predictions_per_seq: length of their masked-LM lists.
      vocab_file: what they were made with; "" if it isn't known.
    """

    input_file: str
    max_seq_length: int
    max_predictions_per_seq: int
    vocab_file: str = ""


class PretrainingRun:
    """A pre-training run in a folder: checks everything first, then trains and evaluates.

    Args:
      config: of the encoder.
      objective: one of `OBJECTIVES`.
      data: which examples.
      training_config: how to train, and the folder.
      distribution_config: where to run.
      init_checkpoint: where to start if the folder holds no checkpoint of the run.

    Raises:
      InputError: if the data, the vocabulary, the config and the flags don't fit together.
    """

    def __init__(
        self,
        config: BertConfig,
        objective: str,
        data: PretrainingData,
        training_config: TrainingConfig,
        distribution_config: DistributionConfig,
        init_checkpoint: str | None = None,
    ) -> None:
        config.check_sequence_length(data.max_seq_length)
        vocab_sha256 = None
        if data.vocab_file:
            check_vocab_file(data.vocab_file)
            config.check_vocabulary(len(load_vocab(data.vocab_file)), data.vocab_file)
            vocab_sha256 = vocabulary_hash(data.vocab_file)
        self.config = config
        self.objective = objective
        self.data = data
        self.training_config = training_config
        self.init_checkpoint = init_checkpoint
        self.features = pretraining_features(data.max_seq_length, data.max_predictions_per_seq)
        self.shards = input_pipeline.find_shards(
            data.input_file, data.max_seq_length, data.max_predictions_per_seq, config.vocab_size, vocab_sha256
        )
        self.strategy = distribution.build_strategy(distribution_config)
        distribution.per_replica_batch_size(training_config.train_batch_size, self.strategy, "--train_batch_size")

    @functools.cached_property
    def model(self) -> PretrainingModel:
        """Built in the strategy's scope when it is first needed, with initial values from the seed."""
        keras.utils.set_random_seed(self.training_config.seed)
        with self.strategy.scope():
            return PretrainingModel(
                self.config,
                self.objective,
                use_one_hot_embeddings=distribution.is_tpu(self.strategy),
                dtype=DTYPES[self.training_config.dtype],
            )

    def record(self, flags: Mapping[str, Any], allow_changes: bool = False) -> None:
        """Writes down what the run is made of; refuses a folder whose run began with something else."""
        if not distribution.is_chief(self.strategy):
            return
        how = self.training_config
        run_directory.prepare(
            how.output_dir,
            self.config,
            self.data.vocab_file,
            flags,
            decisive={
                "objective": self.objective,
                "data": {shard.path: shard.records for shard in self.shards},
                "max_seq_length": self.data.max_seq_length,
                "max_predictions_per_seq": self.data.max_predictions_per_seq,
                **how.decisive(),
            },
            allow_changes=allow_changes,
        )

    def train(self) -> dict[str, float]:
        """Trains to the last step, from the run's newest checkpoint if there is one; see `training.train`."""
        how = self.training_config
        say(f"Training on {sum(shard.records for shard in self.shards)} examples in {len(self.shards)} files.")
        return training.train(
            self.model,
            how,
            self.strategy,
            lambda step, context: input_pipeline.training_batches(
                self.shards, self.features, how.train_batch_size, how.seed, step, context
            ),
            init_checkpoint=self.init_checkpoint,
            describe_data=lambda step: input_pipeline.describe_position(
                self.shards, how.train_batch_size, how.seed, step
            ),
        )

    def evaluate(self, batch_size: int, steps: int) -> dict[str, float]:
        """The release's evaluation: metrics over `steps` batches, going over a short file again.

        Returns:
          global_step, loss (the mean over batches), and the means of the model's metrics.
        """
        distribution.per_replica_batch_size(batch_size, self.strategy, "--eval_batch_size")
        step = training.restore_for_evaluation(self.model, self.training_config.output_dir, self.init_checkpoint)
        means = training.evaluate_batches(
            self.model,
            self.strategy,
            lambda context: input_pipeline.evaluation_batches(self.shards, self.features, batch_size, context),
            steps,
        )
        return {"global_step": step, **means}
