"""The encoder with one output layer, as the paper fine-tunes it (section 4, Figure 4).

Axis letters: B batch, T tokens, W width of what the output layer reads, C classes or choices.
"""

import abc
from collections.abc import Mapping, Sequence

import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.encoder import BertEncoder, EncoderOutput
from bert_tf.model.bilstm import BiLstm, BiLstmConfig
from bert_tf.model.dropout import fold_in
from bert_tf.model.heads import ClassificationHead, LinearHead, SpanHead, log_likelihood_loss, span_loss
from bert_tf.training.contract import Batch, MetricSums

# How a classifier's logits are read: one class of several; one number; any number of classes.
PROBLEMS = ("classification", "regression", "multi_label")


class EncoderModel:
    """The encoder, and what an output layer reads of it; subclasses bring the output layer.

    The paper fine-tunes its left-to-right encoder with a BiLSTM on it too (section 5.1, Table 5). Tokens are then read
    from the BiLSTM, and so are sequences: not from the pooled output, but from what both directions end with (see
    `BiLstm.summary`; the paper doesn't say).

    Args:
      config: of the encoder.
      bilstm: sizes of the BiLSTM; None for none.
      encoder_options: see `BertEncoder`.
    """

    def __init__(self, config: BertConfig, bilstm: BiLstmConfig | None = None, **encoder_options) -> None:
        self.config = config
        self.encoder = BertEncoder(config, seed=0, **encoder_options)
        self.bilstm = None if bilstm is None else BiLstm(config.hidden_size, bilstm)
        self.width = config.hidden_size if self.bilstm is None else self.bilstm.output_width

    def collect_variables(self, head: LinearHead, reads_tokens: bool) -> None:
        """Sets `variables`, and `trained_variables`, once the output layer is there."""
        on_top = head.weights if self.bilstm is None else self.bilstm.variables + head.weights
        self.variables = self.encoder.weights + on_top
        self.trained_variables = self.variables
        if reads_tokens or self.bilstm is not None:
            # Nothing reads the pooler, so it gets no gradient: as released, it is neither decayed nor given slots.
            self.trained_variables = [v for v in self.variables if not v.path.startswith("bert/pooler/")]

    def encode(self, batch: Batch, seed: tf.Tensor | None) -> EncoderOutput:
        """input_ids, input_mask, segment_ids [B, T] -> what the encoder says."""
        return self.encoder(batch["input_ids"], batch["input_mask"], batch["segment_ids"], seed=seed)

    def token_states(self, batch: Batch, seed: tf.Tensor | None) -> tf.Tensor:
        """input_ids, input_mask, segment_ids [B, T] -> [B, T, W]."""
        states = self.encode(batch, seed).sequence_output
        return states if self.bilstm is None else self.bilstm(states, batch["input_mask"])

    def summary(self, batch: Batch, seed: tf.Tensor | None) -> tf.Tensor:
        """input_ids, input_mask, segment_ids [B, T] -> [B, W]."""
        output = self.encode(batch, seed)
        if self.bilstm is None:
            return output.pooled_output
        return self.bilstm.summary(output.sequence_output, batch["input_mask"])

    def flops(self, batch: Batch) -> tf.Tensor:
        """Floating-point operations of a training step's products; those of the output layer are too few to count."""
        forward = self.encoder.flops(batch["input_ids"])
        return 3.0 * (forward if self.bilstm is None else forward + self.bilstm.flops(batch["input_mask"]))


class ClassifierModel(EncoderModel):
    """Classes, or a number, from the pooled output.

    Args:
      config: of the encoder.
      outputs: C; 1 for regression.
      problem: one of `PROBLEMS`.
      class_weights: how much an example of each class counts in the training loss; all the same if None.
      choices: more than 1 for multiple choice: the sequences of an example, of which each gets one score.
      options: see `EncoderModel`.
    """

    def __init__(
        self,
        config: BertConfig,
        outputs: int,
        problem: str = "classification",
        class_weights: Sequence[float] | None = None,
        choices: int = 1,
        **options,
    ) -> None:
        super().__init__(config, **options)
        self.problem = problem
        self.choices = choices
        self.class_weights = None if class_weights is None else tf.constant(class_weights, tf.float32)
        self.head = ClassificationHead(config, outputs, seed=0, width=self.width)
        self.collect_variables(self.head, reads_tokens=False)
        self.metric_names = ("accuracy",) if problem == "classification" else ()

    def logits(self, batch: Batch, seed: tf.Tensor | None = None) -> tf.Tensor:
        """input_ids, input_mask, segment_ids [B, T] -> [B, C]; for multiple choice [B*C, T] -> [B, C]."""
        logits = self.head(self.summary(batch, fold_in(seed, 0)), seed=fold_in(seed, 1))
        return tf.reshape(logits, [-1, self.choices]) if self.choices > 1 else logits

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


class TokenModel(EncoderModel, TokenClassifier):
    """The encoder with a class for each token (named entities; paper, section 5.3).

    Args:
      config: of the encoder.
      outputs: C.
      options: see `EncoderModel`.
    """

    def __init__(self, config: BertConfig, outputs: int, **options) -> None:
        super().__init__(config, **options)
        self.head = ClassificationHead(config, outputs, seed=0, width=self.width)
        self.collect_variables(self.head, reads_tokens=True)

    def logits(self, batch: Batch, seed: tf.Tensor | None = None) -> tf.Tensor:
        """input_ids, input_mask, segment_ids [B, T] -> [B, T, C]."""
        states = tf.reshape(self.token_states(batch, fold_in(seed, 0)), [-1, self.width])
        logits = self.head(states, seed=fold_in(seed, 1))
        return tf.reshape(logits, tf.concat([tf.shape(batch["input_ids"]), [self.head.outputs]], axis=0))


class SpanModel(EncoderModel):
    """Start and end of an answer, from the last hidden states (SQuAD; paper, section 4.2).

    Args:
      config: of the encoder.
      options: see `EncoderModel`.
    """

    metric_names = ()

    def __init__(self, config: BertConfig, **options) -> None:
        super().__init__(config, **options)
        self.head = SpanHead(config, width=self.width)
        self.collect_variables(self.head, reads_tokens=True)

    def logits(self, batch: Batch, seed: tf.Tensor | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """input_ids, input_mask, segment_ids [B, T] -> start and end logits [B, T]."""
        return self.head(self.token_states(batch, seed))

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
