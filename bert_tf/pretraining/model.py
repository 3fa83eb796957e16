"""The model for pre-training: masked LM and next sentence prediction, and the paper's ablations."""

from collections.abc import Mapping

import keras
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.encoder import BertEncoder
from bert_tf.model.heads import MaskedLMHead, log_likelihood_loss, next_sentence_head
from bert_tf.pretraining.recipes import OBJECTIVES
from bert_tf.runtime.errors import require_choice
from bert_tf.training.interface import Batch, MetricSums


class PretrainingModel:
    """The encoder with the heads of an objective. It is a `TrainableModel`.

    Args:
      config: the config of the encoder.
      objective: "mlm_nsp" is BERT's; "mlm" has no next sentence prediction; "ltr" predicts each token from the previous
        ones (paper, Table 5).
      encoder_options: see `BertEncoder`.

    Raises:
      InputError: if the objective is unknown.
    """

    classes = None

    def __init__(self, config: BertConfig, objective: str = "mlm_nsp", **encoder_options) -> None:
        require_choice("--objective", objective, OBJECTIVES)
        self.objective = objective
        self.encoder = BertEncoder(config, causal=objective == "ltr", seed=0, **encoder_options)
        self.masked_lm = MaskedLMHead(config, dtype=self.encoder.dtype_policy)
        self.next_sentence = next_sentence_head(config) if objective == "mlm_nsp" else None
        self.variables = self.encoder.weights + self.masked_lm.weights
        self.metric_names = ("masked_lm_accuracy", "masked_lm_loss")
        if self.next_sentence:
            self.variables += self.next_sentence.weights
            self.metric_names += ("next_sentence_accuracy", "next_sentence_loss")

    @property
    def uses_pooler(self) -> bool:
        """Whether the loss depends on the pooler."""
        return self.next_sentence is not None

    @property
    def trained_variables(self) -> list[keras.Variable]:
        """The variables that are not frozen and that the loss depends on.

        Only next sentence prediction uses the pooler.
        """
        unused = () if self.uses_pooler else ("bert/pooler/",)
        return [v for v in self.variables if v.trainable and not v.path.startswith(unused)]

    def flops(self, batch: Batch) -> tf.Tensor:
        """Returns the floating-point operations of a training step's matrix multiplications."""
        positions = self._predictions(batch)[0]
        sizes = tf.cast([*tf.unstack(tf.shape(batch["input_ids"])), tf.shape(positions)[1]], tf.float32)
        size, length, predictions = tf.unstack(sizes)
        return (1.0 + 2.0 * self.encoder.trained_share) * size * self.encoder.config.flops(length, predictions)

    def totals(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns the number of predictions and the number of examples."""
        _, _, weights = self._predictions(batch)
        return {
            "predictions": tf.reduce_sum(weights),
            "examples": tf.cast(tf.shape(batch["input_ids"])[0], tf.float32),
        }

    def loss(
        self, batch: Batch, totals: Mapping[str, tf.Tensor], seed: tf.Tensor | None
    ) -> tuple[tf.Tensor, MetricSums]:
        """Returns the original loss: mean over predictions plus mean over examples. See `TrainableModel.loss`."""
        output = self.encoder(self._input_ids(batch), batch["input_mask"], batch["segment_ids"], seed=seed)
        positions, labels, weights = self._predictions(batch)
        logits = self.masked_lm(output.sequence_output, positions, self.encoder.embedding_table)
        logits = tf.reshape(logits, [-1, logits.shape[-1]])  # [B*P, V]
        labels, weights = tf.reshape(labels, [-1]), tf.reshape(weights, [-1])
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
        """Returns the positions, labels and weights of the predictions, each [B, P]."""
        if self.objective != "ltr":
            return batch["masked_lm_positions"], batch["masked_lm_ids"], batch["masked_lm_weights"]
        # Each position except the last predicts the next token, up to the end of the text.
        input_ids, input_mask = self._input_ids(batch), batch["input_mask"]
        positions = tf.zeros_like(input_ids[:, 1:]) + tf.range(tf.shape(input_ids)[1] - 1)
        return positions, input_ids[:, 1:], tf.cast(input_mask[:, 1:], tf.float32)

    def _input_ids(self, batch: Batch) -> tf.Tensor:
        """Returns the encoder's input_ids [B, T]. For the objective "ltr", the original tokens replace the masks."""
        input_ids = batch["input_ids"]
        if self.objective != "ltr" or "masked_lm_ids" not in batch:
            return input_ids
        length = tf.shape(input_ids)[1]
        is_prediction = tf.one_hot(batch["masked_lm_positions"], length, dtype=tf.int32)  # [B, P, T]
        is_prediction *= tf.cast(batch["masked_lm_weights"] > 0, tf.int32)[:, :, None]
        originals = tf.reduce_sum(is_prediction * batch["masked_lm_ids"][:, :, None], axis=1)
        return tf.where(tf.reduce_sum(is_prediction, axis=1) > 0, originals, input_ids)
