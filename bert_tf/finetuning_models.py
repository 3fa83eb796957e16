"""The encoder with one output layer, as the paper fine-tunes it (section 4, Figure 4).

Axis letters: B batch, T tokens, H hidden, C classes or choices.
"""

import abc
from collections.abc import Mapping, Sequence

import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.encoder import BertEncoder
from bert_tf.heads import ClassificationHead, SpanHead, log_likelihood_loss, span_loss
from bert_tf.layers import fold_in
from bert_tf.training_step import Batch, MetricSums

# How a classifier's logits are read: one class of several; one number; any number of classes.
PROBLEMS = ("classification", "regression", "multi_label")


class ClassifierModel:
    """Classes, or a number, from the pooled output.

    Args:
      config: of the encoder.
      outputs: C; 1 for regression.
      problem: one of `PROBLEMS`.
      class_weights: how much an example of each class counts in the training loss; all the same if None.
      choices: more than 1 for multiple choice: the sequences of an example, of which each gets one score.
      encoder_options: see `BertEncoder`.
    """

    def __init__(
        self,
        config: BertConfig,
        outputs: int,
        problem: str = "classification",
        class_weights: Sequence[float] | None = None,
        choices: int = 1,
        **encoder_options,
    ) -> None:
        self.config = config
        self.problem = problem
        self.choices = choices
        self.class_weights = None if class_weights is None else tf.constant(class_weights, tf.float32)
        self.encoder = BertEncoder(config, **encoder_options)
        self.head = ClassificationHead(config, outputs)
        self.variables = self.encoder.variables + self.head.variables
        self.trained_variables = self.variables
        self.metric_names = ("accuracy",) if problem == "classification" else ()

    def logits(self, batch: Batch, seed: tf.Tensor | None = None) -> tf.Tensor:
        """input_ids, input_mask, segment_ids [B, T] -> [B, C]; for multiple choice [B*C, T] -> [B, C]."""
        output = self.encoder(batch["input_ids"], batch["input_mask"], batch["segment_ids"], seed=fold_in(seed, 0))
        logits = self.head(output.pooled_output, seed=fold_in(seed, 1))
        return tf.reshape(logits, [-1, self.choices]) if self.choices > 1 else logits

    def flops(self, batch: Batch) -> tf.Tensor:
        """Floating-point operations of a training step's products; those of the output layer are too few to count."""
        return 3.0 * self.encoder.flops(batch["input_ids"])

    def totals(self, batch: Batch) -> dict[str, tf.Tensor]:
        """The sum of the examples' weights."""
        return {"weight": tf.reduce_sum(self._weights(batch))}

    def loss(
        self, batch: Batch, totals: Mapping[str, tf.Tensor], seed: tf.Tensor | None
    ) -> tuple[tf.Tensor, MetricSums]:
        """The mean over examples of cross entropy, squared error, or the classes' mean binary cross entropy."""
        logits, labels = self.logits(batch, seed), batch["label_ids"]
        loss = tf.reduce_sum(self._weights(batch) * self.per_example_loss(logits, labels)) / totals["weight"]
        if self.problem != "classification":
            return loss, {}
        correct = tf.cast(tf.argmax(logits, axis=-1, output_type=tf.int32) == labels, tf.float32)
        return loss, {"accuracy": (tf.reduce_sum(correct), tf.cast(tf.size(labels), tf.float32))}

    def per_example_loss(self, logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """logits [B, C], labels [B] (or [B, C] for multi-label) -> [B]."""
        if self.problem == "classification":
            return log_likelihood_loss(logits, labels)
        if self.problem == "regression":
            return tf.square(logits[:, 0] - labels)
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits), axis=-1)

    def predict(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Logits [B, C] and what they mean: probabilities [B, C], or for regression the score [B]."""
        logits = self.logits(batch)
        outputs = {"logits": logits, "per_example_loss": self.per_example_loss(logits, batch["label_ids"])}
        if self.problem == "regression":
            return outputs | {"score": logits[:, 0]}
        return outputs | {
            "probabilities": tf.nn.softmax(logits) if self.problem == "classification" else tf.sigmoid(logits)
        }

    def _weights(self, batch: Batch) -> tf.Tensor:
        labels = batch["label_ids"]
        if self.class_weights is None or self.problem != "classification":
            return tf.ones(tf.shape(labels)[:1])
        return tf.gather(self.class_weights, labels)


# tag_ids of a token without label: all but the first piece of a word, context, padding.
NO_TAG = -1


class TokenClassifier(abc.ABC):
    """A class for each token that has a label; subclasses bring the logits."""

    metric_names = ("accuracy",)

    @abc.abstractmethod
    def logits(self, batch: Batch, seed: tf.Tensor | None = None) -> tf.Tensor:
        """[B, T, C]."""

    def totals(self, batch: Batch) -> dict[str, tf.Tensor]:
        """How many tokens have a label; 1 if none has."""
        tokens = tf.reduce_sum(tf.cast(batch["tag_ids"] != NO_TAG, tf.float32))
        return {"tokens": tf.maximum(tokens, 1.0)}

    def loss(
        self, batch: Batch, totals: Mapping[str, tf.Tensor], seed: tf.Tensor | None
    ) -> tuple[tf.Tensor, MetricSums]:
        """The mean cross entropy over the tokens that have a label."""
        logits, tag_ids = self.logits(batch, seed), batch["tag_ids"]
        labelled = tf.cast(tag_ids != NO_TAG, tf.float32)
        correct = tf.cast(tf.argmax(logits, axis=-1, output_type=tf.int32) == tag_ids, tf.float32)
        loss = tf.reduce_sum(_token_losses(logits, tag_ids)) / totals["tokens"]
        return loss, {"accuracy": (tf.reduce_sum(correct * labelled), tf.reduce_sum(labelled))}

    def predict(self, batch: Batch) -> dict[str, tf.Tensor]:
        """The likeliest class of each token [B, T], and the sum of an example's losses [B]."""
        logits = self.logits(batch)
        return {
            "tags": tf.argmax(logits, axis=-1, output_type=tf.int32),
            "loss_sum": tf.reduce_sum(_token_losses(logits, batch["tag_ids"]), axis=-1),
        }


def _token_losses(logits: tf.Tensor, tag_ids: tf.Tensor) -> tf.Tensor:
    """[B, T]; 0 for tokens without a label."""
    losses = log_likelihood_loss(logits, tf.maximum(tag_ids, 0))
    return tf.where(tag_ids == NO_TAG, 0.0, losses)


class TokenModel(TokenClassifier):
    """The encoder with a class for each token (named entities; paper, section 5.3).

    Args:
      config: of the encoder.
      outputs: C.
      encoder_options: see `BertEncoder`.
    """

    def __init__(self, config: BertConfig, outputs: int, **encoder_options) -> None:
        self.config = config
        self.encoder = BertEncoder(config, **encoder_options)
        self.head = ClassificationHead(config, outputs)
        self.variables = self.encoder.variables + self.head.variables
        self.trained_variables = [v for v in self.variables if not v.path.startswith("bert/pooler/")]

    def logits(self, batch: Batch, seed: tf.Tensor | None = None) -> tf.Tensor:
        """input_ids, input_mask, segment_ids [B, T] -> [B, T, C]."""
        output = self.encoder(batch["input_ids"], batch["input_mask"], batch["segment_ids"], seed=fold_in(seed, 0))
        states = tf.reshape(output.sequence_output, [-1, self.config.hidden_size])
        logits = self.head(states, seed=fold_in(seed, 1))
        return tf.reshape(logits, tf.concat([tf.shape(batch["input_ids"]), [self.head.outputs]], axis=0))

    def flops(self, batch: Batch) -> tf.Tensor:
        """Floating-point operations of a training step's products; those of the output layer are too few to count."""
        return 3.0 * self.encoder.flops(batch["input_ids"])


class SpanModel:
    """Start and end of an answer, from the last hidden states (SQuAD; paper, section 4.2).

    Args:
      config: of the encoder.
      encoder_options: see `BertEncoder`.
    """

    metric_names = ()

    def __init__(self, config: BertConfig, **encoder_options) -> None:
        self.config = config
        self.encoder = BertEncoder(config, **encoder_options)
        self.head = SpanHead(config)
        self.variables = self.encoder.variables + self.head.variables
        # Nothing reads the pooler, so it gets no gradient: as released, it is neither decayed nor given slots.
        self.trained_variables = [v for v in self.variables if not v.path.startswith("bert/pooler/")]

    def logits(self, batch: Batch, seed: tf.Tensor | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """input_ids, input_mask, segment_ids [B, T] -> start and end logits [B, T]."""
        output = self.encoder(batch["input_ids"], batch["input_mask"], batch["segment_ids"], seed=seed)
        return self.head(output.sequence_output)

    def flops(self, batch: Batch) -> tf.Tensor:
        """Floating-point operations of a training step's products; those of the output layer are too few to count."""
        return 3.0 * self.encoder.flops(batch["input_ids"])

    def totals(self, batch: Batch) -> dict[str, tf.Tensor]:
        """The number of windows."""
        return {"examples": tf.cast(tf.shape(batch["input_ids"])[0], tf.float32)}

    def loss(
        self, batch: Batch, totals: Mapping[str, tf.Tensor], seed: tf.Tensor | None
    ) -> tuple[tf.Tensor, MetricSums]:
        """The mean over windows of the two positions' mean loss."""
        start_logits, end_logits = self.logits(batch, seed)
        per_example = span_loss(start_logits, end_logits, batch["start_positions"], batch["end_positions"])
        return tf.reduce_sum(per_example) / totals["examples"], {}

    def predict(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Start and end logits [B, T]."""
        start_logits, end_logits = self.logits(batch)
        return {"start_logits": start_logits, "end_logits": end_logits}
