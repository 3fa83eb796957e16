"""The model for pre-training: masked LM and next sentence prediction, and the paper's ablations."""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.encoder import BertEncoder
from bert_tf.model.gathering import encoder_inputs, ends, exists, lengths
from bert_tf.model.heads import LinearHead, MaskedLMHead, log_likelihood_loss, next_sentence_head
from bert_tf.pretraining.recipes import OBJECTIVES
from bert_tf.runtime.errors import require_choice
from bert_tf.training.interface import Batch, MetricSums, TrainableModel


class PretrainingModel(TrainableModel):
    """The encoder with the heads of an objective.

    Args:
      config: the config of the encoder.
      objective: "mlm_nsp" is BERT's; "mlm" has no next sentence prediction; "ltr" predicts each token from the previous
        ones (paper, Table 5).
      encoder_options: see `BertEncoder`.

    Raises:
      InputError: if the objective is unknown.
    """

    def __init__(self, config: BertConfig, objective: str = "mlm_nsp", **encoder_options: Any) -> None:
        require_choice("--objective", objective, OBJECTIVES)
        self.objective = objective
        self.encoder = BertEncoder(config, causal=objective == "ltr", seed=0, **encoder_options)
        self.masked_lm = MaskedLMHead(config, dtype=self.encoder.dtype_policy)
        self.next_sentence: LinearHead | None = next_sentence_head(config) if objective == "mlm_nsp" else None
        self.uses_pooler: bool = self.next_sentence is not None
        self.variables: list[keras.Variable] = self.encoder.weights + self.masked_lm.weights
        self.metric_names: tuple[str, ...] = ("masked_lm_accuracy", "masked_lm_loss")
        if self.next_sentence:
            self.variables += self.next_sentence.weights
            self.metric_names += ("next_sentence_accuracy", "next_sentence_loss")

    def flops(self, batch: Batch) -> tf.Tensor:
        """Returns the floating-point operations of a training step's matrix multiplications. Padding does not count."""
        predictions = tf.reduce_sum(tf.cast(self._predictions(batch)[2] > 0, tf.float32))
        passes = 1.0 + 2.0 * self.encoder.trained_share
        return passes * (self.encoder.flops(lengths(batch)) + self.encoder.config.flops(0.0, predictions))

    def totals(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns the number of predictions and the number of examples."""
        _, _, weights = self._predictions(batch)
        return {"predictions": tf.reduce_sum(weights), "examples": tf.reduce_sum(exists(batch))}

    def loss(
        self, batch: Batch, totals: Mapping[str, tf.Tensor], seed: tf.Tensor | None
    ) -> tuple[tf.Tensor, MetricSums]:
        """Returns the original loss: mean over predictions plus mean over examples. See `TrainableModel.loss`.

        The last block computes only the positions that the heads read.
        """
        positions, labels, weights = self._predictions(batch)
        read = tf.concat([positions, ends(batch)[0]], axis=0) if self.next_sentence else positions
        inputs = encoder_inputs(batch) | {"input_ids": self._input_ids(batch)}
        states = self.encoder(inputs, seed=seed, output_positions=read).sequence_output
        count = positions.shape[0] or tf.size(positions)
        logits = self.masked_lm(states[:count], embedding_table=self.encoder.embedding_table)  # [P, V]
        per_prediction = log_likelihood_loss(logits, labels)
        loss_sum = tf.reduce_sum(weights * per_prediction)
        correct = tf.cast(tf.argmax(logits, axis=-1, output_type=tf.int32) == labels, tf.float32)
        weight = tf.reduce_sum(weights)
        loss = loss_sum / (totals["predictions"] + 1e-5)  # as in the original; never divides by 0
        metrics = {
            "masked_lm_accuracy": (tf.reduce_sum(weights * correct), weight),
            "masked_lm_loss": (loss_sum, weight),
        }
        if self.next_sentence:
            logits = self.next_sentence(self.encoder.pooler(states[count:]))
            labels = tf.reshape(batch["next_sentence_labels"], [-1])
            weights = exists(batch)
            next_sentence_sum = tf.reduce_sum(weights * log_likelihood_loss(logits, labels))
            correct = tf.cast(tf.argmax(logits, axis=-1, output_type=tf.int32) == labels, tf.float32)
            loss += next_sentence_sum / totals["examples"]
            metrics["next_sentence_accuracy"] = (tf.reduce_sum(weights * correct), tf.reduce_sum(weights))
            metrics["next_sentence_loss"] = (next_sentence_sum, tf.reduce_sum(weights))
        return loss, metrics

    def _predictions(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the positions in the flattened batch, the labels and the weights of the predictions, each [P]."""
        if self.objective != "ltr":
            return self._masked(batch)
        # Each position predicts the next token, up to the end of its sequence.
        input_ids = self._input_ids(batch)
        has_next = batch["input_mask"][:, 1:] if "input_mask" in batch else batch["position_ids"][:, 1:]
        weights = tf.pad(tf.cast(has_next > 0, tf.float32), [[0, 0], [0, 1]])
        labels = tf.pad(input_ids[:, 1:], [[0, 0], [0, 1]])
        return tf.range(tf.size(input_ids)), tf.reshape(labels, [-1]), tf.reshape(weights, [-1])

    @staticmethod
    def _masked(batch: Batch) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the positions in the flattened batch, the original ids and the weights of masked tokens, each [P]."""
        positions = batch["masked_lm_positions"]
        if len(positions.shape) == 2:  # padded sequences: positions in each sequence
            positions += ends(batch)[0][:, tf.newaxis]
        return tuple(tf.reshape(x, [-1]) for x in (positions, batch["masked_lm_ids"], batch["masked_lm_weights"]))

    def _input_ids(self, batch: Batch) -> tf.Tensor:
        """Returns the encoder's input_ids [B, T]. For the objective "ltr", the original tokens replace the masks."""
        input_ids = batch["input_ids"]
        if self.objective != "ltr" or "masked_lm_ids" not in batch:
            return input_ids
        positions, originals, weights = self._masked(batch)
        flat = tf.pad(tf.reshape(input_ids, [-1]), [[0, 1]])  # predictions of weight 0 change the last element
        positions = tf.where(weights > 0, positions, tf.size(input_ids))
        restored = tf.tensor_scatter_nd_update(flat, positions[:, tf.newaxis], originals)
        return tf.reshape(restored[:-1], tf.shape(input_ids))
