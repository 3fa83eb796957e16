"""The encoder with one output layer, as the paper fine-tunes it (section 4, Figure 4).

A batch consists of padded sequences or of packed rows (see `sequences.packed_rows`).

Axis letters: B batch, T tokens, W width of the output layer's input, C classes or choices; with packed rows, R rows, L
positions of a row and S sequences.
"""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from bert_tf.config import BertConfig, BiLstmConfig
from bert_tf.encoder import MASKED_SCORE, BertEncoder, EncoderOutput
from bert_tf.model.bilstm import BiLstm
from bert_tf.model.dropout import fold_in
from bert_tf.model.gathering import encoder_inputs, ends, exists, lengths, repack, unpack
from bert_tf.model.heads import (
    ClassificationHead,
    LinearHead,
    SpanHead,
    class_losses,
    packed_span_loss,
    span_loss,
)
from bert_tf.training.interface import Batch, MetricSums, TrainableModel


class FinetuningModel(TrainableModel):
    """A model that can also predict."""

    @abc.abstractmethod
    def predict(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns the outputs for a batch, each with one row per example."""


class EncoderModel(FinetuningModel):
    """The encoder and the input of an output layer. Subclasses add the output layer.

    The paper also fine-tunes a left-to-right encoder with a BiLSTM on top (section 5.1, Table 5). The token states are
    then the BiLSTM's outputs. A sequence is represented by the last states of both directions instead of the pooled
    output (see `BiLstm.summary`). The paper does not specify this representation.

    Args:
      config: the encoder's config.
      bilstm: the sizes of the BiLSTM; None for a model without one.
      classes: the names of the classes; None if there are none.
      encoder_options: see `BertEncoder`.
    """

    variables: list[keras.Variable]

    def __init__(
        self,
        config: BertConfig,
        bilstm: BiLstmConfig | None = None,
        classes: Sequence[str] | None = None,
        **encoder_options: Any,
    ) -> None:
        self.config = config
        self.classes = classes
        self.encoder = BertEncoder(config, seed=0, **encoder_options)
        self.bilstm: BiLstm | None = None if bilstm is None else BiLstm(config.hidden_size, bilstm)
        self.width: int = config.hidden_size if self.bilstm is None else self.bilstm.output_width

    def collect_variables(self, *heads: LinearHead, reads_tokens: bool) -> None:
        """Sets `variables`. Subclasses call it after building the output layers."""
        bilstm = [] if self.bilstm is None else self.bilstm.variables
        self.variables = [*self.encoder.weights, *bilstm, *(weight for head in heads for weight in head.weights)]
        self.uses_pooler: bool = not reads_tokens and self.bilstm is None

    def encode(self, batch: Batch, seed: tf.Tensor | None, output_positions: tf.Tensor | None = None) -> EncoderOutput:
        """Encodes padded sequences [B, T] or packed rows [R, L]. See `BertEncoder.call`."""
        return self.encoder(encoder_inputs(batch), seed=seed, output_positions=output_positions)

    def token_states(self, batch: Batch, seed: tf.Tensor | None) -> tf.Tensor:
        """Returns the states [B, T, W] or [R, L, W] of all positions."""
        states = self.encode(batch, seed).sequence_output
        if self.bilstm is None:
            return states
        return repack(self.bilstm(*unpack(states, batch)), batch)

    def summary(self, batch: Batch, seed: tf.Tensor | None) -> tf.Tensor:
        """Returns the representation of each sequence [S, W]."""
        if self.bilstm is not None:
            return self.bilstm.summary(*unpack(self.encode(batch, seed).sequence_output, batch))
        first, last = ends(batch)
        return self.encode(batch, seed, last if self.encoder.causal else first).pooled_output

    def flops(self, batch: Batch) -> tf.Tensor:
        """Returns the floating-point operations of a step's matrix multiplications, excluding the output layer's.

        A backward pass has twice as many as a forward pass. Frozen blocks have no backward pass. Padding does not
        count.
        """
        tokens = lengths(batch)
        encoder = (1.0 + 2.0 * self.encoder.trained_share) * self.encoder.flops(tokens)
        return encoder if self.bilstm is None else encoder + 3.0 * self.bilstm.flops(tokens)


class ClassifierModel(EncoderModel):
    """Predicts classes, or a number, from the pooled output.

    Args:
      config: the encoder's config.
      outputs: C; 1 for regression.
      problem: "classification", "regression" or "multi_label".
      class_weights: the weight of each class in the training loss; None for equal weights. Only for classification.
      target_scale: mean and standard deviation by which the targets of a regression are standardised.
      temperature: divides the logits in the loss of soft labels.
      training_loss: options of `class_losses` in training. They have no effect on evaluation.
      choices: the number of sequences in an example; with more than 1 (multiple choice) each sequence gets one score,
        and examples can have fewer choices (see `MultipleChoiceTask`).
      options: see `EncoderModel`.
    """

    def __init__(
        self,
        config: BertConfig,
        outputs: int,
        problem: str = "classification",
        class_weights: Sequence[float] | None = None,
        target_scale: tuple[float, float] = (0.0, 1.0),
        temperature: float = 1.0,
        training_loss: Mapping[str, Any] = {},
        choices: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(config, **options)
        self.problem = problem
        self.target_scale = target_scale
        self.temperature = temperature
        self.training_loss = training_loss
        self.choices = choices
        self.class_weights: tf.Tensor | None = None if class_weights is None else tf.constant(class_weights, tf.float32)
        self.head = ClassificationHead(config, outputs, seed=0, width=self.width)
        self.collect_variables(self.head, reads_tokens=False)
        self.metric_names: tuple[str, ...] = ("accuracy",) if problem == "classification" else ()

    def logits(self, batch: Batch, seed: tf.Tensor | None = None) -> tf.Tensor:
        """Returns the logits [B, C]. For multiple choice, each example has C sequences."""
        logits = self.head(self.summary(batch, fold_in(seed, 0)), seed=fold_in(seed, 1))
        if self.choices == 1:
            return logits
        # A sequence without tokens is padding for an example with fewer choices.
        logits = tf.where(lengths(batch)[:, tf.newaxis] > 0, logits, MASKED_SCORE)
        return tf.reshape(logits, [-1, self.choices])

    def totals(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns the sum of the examples' class weights."""
        return {"weight": tf.reduce_sum(self._weights(batch))}

    def loss(
        self, batch: Batch, totals: Mapping[str, tf.Tensor], seed: tf.Tensor | None
    ) -> tuple[tf.Tensor, MetricSums]:
        """Returns the mean over the examples of the cross entropy, squared error, or mean binary cross entropy.

        If the batch has `soft_labels` [B, C], the logits are divided by the temperature T, and the loss is the cross
        entropy with the soft labels, times T² (Hinton et al., 2015, section 2).

        If the batch has `sample_weights` [B], each loss is multiplied by its weight before the mean. The divisor is
        unchanged, as in Keras's "sum_over_batch_size": an example of weight 2 counts like two copies.
        """
        logits, labels = self.logits(batch, seed), batch["label_ids"]
        if "soft_labels" in batch:
            losses = self._soft_losses(logits, batch["soft_labels"])
        else:
            losses = self.per_example_loss(logits, labels, **self.training_loss)
        losses *= self._weights(batch)
        if "sample_weights" in batch:
            losses *= batch["sample_weights"]
        loss = tf.reduce_sum(losses) / totals["weight"]
        if self.problem != "classification":
            return loss, {}
        counted = exists(batch, self.choices)
        correct = tf.cast(tf.argmax(logits, axis=-1, output_type=tf.int32) == labels, tf.float32)
        return loss, {"accuracy": (tf.reduce_sum(correct * counted), tf.reduce_sum(counted))}

    def per_example_loss(self, logits: tf.Tensor, labels: tf.Tensor, **options: Any) -> tf.Tensor:
        """Returns the losses [B] for logits [B, C] and labels [B] (multi-label: [B, C]), with `class_losses`."""
        if self.problem == "regression":
            mean, deviation = self.target_scale
            return tf.square(logits[:, 0] - (labels - mean) / deviation)
        return class_losses(logits, labels, **options)

    def _soft_losses(self, logits: tf.Tensor, soft_labels: tf.Tensor) -> tf.Tensor:
        """Returns the losses [B] for logits [B, C] and probabilities [B, C] at the same temperature."""
        logits, factor = logits / self.temperature, self.temperature**2
        if self.problem == "classification":
            return factor * tf.nn.softmax_cross_entropy_with_logits(soft_labels, logits)
        return factor * self.per_example_loss(logits, soft_labels)

    def predict(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns the outputs of the batch's examples; see `outputs`."""
        return self.outputs(self.logits(batch), batch["label_ids"])

    def outputs(self, logits: tf.Tensor, labels: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns logits [B, C], losses [B], and probabilities [B, C] or, for regression, the score [B]."""
        outputs = {"logits": logits, "per_example_loss": self.per_example_loss(logits, labels)}
        if self.problem == "regression":
            mean, deviation = self.target_scale
            return outputs | {"score": logits[:, 0] * deviation + mean}
        return outputs | {
            "probabilities": tf.nn.softmax(logits) if self.problem == "classification" else tf.sigmoid(logits)
        }

    def _weights(self, batch: Batch) -> tf.Tensor:
        weights = exists(batch, self.choices)
        if self.class_weights is None:
            return weights
        return weights * tf.gather(self.class_weights, batch["label_ids"])


# The tag_id of tokens without a label: all tokens of a word except the first one, context, and padding.
NO_TAG = -1


class TokenClassificationModel(FinetuningModel):
    """Predicts a class for each token that has a label. Subclasses compute the logits."""

    metric_names: tuple[str, ...] = ("accuracy",)
    training_loss: Mapping[str, Any] = {}  # options of `class_losses` in training

    @abc.abstractmethod
    def logits(self, batch: Batch, seed: tf.Tensor | None = None) -> tf.Tensor:
        """Returns the logits of all tokens [B, T, C] or [R, L, C]."""

    def totals(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns the number of tokens with a label, but at least 1."""
        tokens = tf.reduce_sum(tf.cast(batch["tag_ids"] != NO_TAG, tf.float32))
        return {"tokens": tf.maximum(tokens, 1.0)}

    def loss(
        self, batch: Batch, totals: Mapping[str, tf.Tensor], seed: tf.Tensor | None
    ) -> tuple[tf.Tensor, MetricSums]:
        """Returns the mean cross entropy over the tokens with a label."""
        logits, tag_ids = self.logits(batch, seed), batch["tag_ids"]
        labelled = tf.cast(tag_ids != NO_TAG, tf.float32)
        correct = tf.cast(tf.argmax(logits, axis=-1, output_type=tf.int32) == tag_ids, tf.float32)
        loss = tf.reduce_sum(_token_losses(logits, tag_ids, **self.training_loss)) / totals["tokens"]
        return loss, {"accuracy": (tf.reduce_sum(correct * labelled), tf.reduce_sum(labelled))}

    def predict(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns the best class of each token [B, T], the probabilities [B, T, C], and each example's loss sum [B]."""
        logits, mask = unpack(self.logits(batch), batch)
        tag_ids = unpack(batch["tag_ids"][..., tf.newaxis], batch)[0][..., 0]
        losses = tf.where(mask > 0, _token_losses(logits, tag_ids), 0.0)
        return {
            "tags": tf.argmax(logits, axis=-1, output_type=tf.int32),
            "tag_probabilities": tf.nn.softmax(logits),
            "loss_sum": tf.reduce_sum(losses, axis=-1),
        }


def _token_losses(logits: tf.Tensor, tag_ids: tf.Tensor, **options: Any) -> tf.Tensor:
    """Returns the losses of all tokens [B, T], with `class_losses`; 0 for tokens without a label."""
    losses = class_losses(logits, tf.maximum(tag_ids, 0), **options)
    return tf.where(tag_ids == NO_TAG, 0.0, losses)


class TokenModel(EncoderModel, TokenClassificationModel):
    """Predicts a class for each token, for example for named entities (paper, section 5.3).

    Args:
      config: the encoder's config.
      outputs: the number of classes C.
      training_loss: options of `class_losses` in training.
      options: see `EncoderModel`.
    """

    def __init__(self, config: BertConfig, outputs: int, training_loss: Mapping[str, Any] = {}, **options: Any) -> None:
        super().__init__(config, **options)
        self.training_loss = training_loss
        self.head = ClassificationHead(config, outputs, seed=0, width=self.width)
        self.collect_variables(self.head, reads_tokens=True)

    def logits(self, batch: Batch, seed: tf.Tensor | None = None) -> tf.Tensor:
        """Returns the logits [B, T, C] or [R, L, C]."""
        states = tf.reshape(self.token_states(batch, fold_in(seed, 0)), [-1, self.width])
        logits = self.head(states, seed=fold_in(seed, 1))
        return tf.reshape(logits, tf.concat([tf.shape(batch["input_ids"]), [self.head.outputs]], axis=0))


class SpanModel(EncoderModel):
    """Predicts the start and the end of an answer from the last hidden states (SQuAD; paper, section 4.2).

    Args:
      config: the encoder's config.
      options: see `EncoderModel`.
    """

    def __init__(self, config: BertConfig, **options: Any) -> None:
        super().__init__(config, **options)
        self.head = SpanHead(config, width=self.width)
        self.collect_variables(self.head, reads_tokens=True)

    def logits(self, batch: Batch, seed: tf.Tensor | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns start and end logits [B, T] or [R, L]."""
        return self.head(self.token_states(batch, seed))

    def totals(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns the number of windows."""
        return {"examples": tf.reduce_sum(exists(batch))}

    def loss(
        self, batch: Batch, totals: Mapping[str, tf.Tensor], seed: tf.Tensor | None
    ) -> tuple[tf.Tensor, MetricSums]:
        """Returns the mean over windows of the mean of the start and end losses.

        The original softmax includes padding positions. For packed rows, it is over the tokens only.
        """
        labels = batch["start_positions"], batch["end_positions"]
        if "sequence_ids" in batch:
            per_example = packed_span_loss(*self.logits(batch, seed), *labels, batch)
        else:
            per_example = span_loss(*self.logits(batch, seed), *labels)
        return tf.reduce_sum(per_example) / totals["examples"], {}

    def predict(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns start and end logits [B, T]."""
        logits, _ = unpack(tf.stack(self.logits(batch), axis=-1), batch)
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}
