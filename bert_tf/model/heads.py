"""Output layers and their losses. The variables have the names of the released checkpoints.

Axis letters: B batch, T tokens, P predictions, H hidden, V vocabulary, C classes; with packed rows, R rows, L positions
of a row and S sequences.

A head takes a tensor or an `EncoderOutput`, and returns float32 logits. A loss function returns one number per example
or prediction. The caller computes the mean over the global batch, which includes the examples on other devices.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import keras
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.model import cpu_kernels
from bert_tf.model.base_layers import BertLayer, Dense, LayerNorm, serializable, variable_scope
from bert_tf.model.cpu_kernels import matmul
from bert_tf.model.dropout import dropout, seed_of_call
from bert_tf.model.gathering import gather_positions
from bert_tf.model.outputs import EncoderOutput, is_encoder_output, pooled_state, sequence_states

# Dropout before the classifier, and the initializer of fine-tuning heads. The original code uses these values for all
# configs.
CLASSIFIER_DROPOUT = 0.1
FINETUNING_INITIALIZER_RANGE = 0.02


def log_likelihood_loss(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Returns the negative log-probability of each label [...] for logits [..., C] and labels [...]."""
    if cpu_kernels.apply_to(logits):
        return cpu_kernels.log_likelihood_loss(logits, labels)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def class_losses(
    logits: tf.Tensor,
    labels: tf.Tensor,
    label_smoothing: float = 0.0,
    focal_gamma: float = 0.0,
    positive_weights: Sequence[float] | None = None,
) -> tf.Tensor:
    """Returns the losses [...] of classes, or of several labels, for logits [..., C].

    A class is one decision with the outcomes 1 to C. Several labels are C decisions with two outcomes, yes and no, and
    the loss is the mean over the decisions. With the probability p_k of the outcome k, the loss of a decision is

        -sum over k of w_k q_k (1 - p_k)^focal_gamma log(p_k)

    - q is the label as a distribution over the K outcomes: (1 - label_smoothing) for the label, plus
      label_smoothing / K for each outcome (Szegedy et al., 2016, "Rethinking the Inception Architecture", section 7).
    - The factor (1 - p_k)^focal_gamma reduces the loss of probable outcomes (Lin et al., 2017, "Focal Loss for Dense
      Object Detection", equation 4).
    - w is the positive weight of the class if k is yes, and 1 otherwise (King and Zeng, 2001, "Logistic Regression in
      Rare Events Data", equation 9).

    Args:
      logits: [..., C], float32.
      labels: the ids of the classes [...], integers; or, for several labels, floats [..., C] from 0 to 1.
      label_smoothing: in [0, 1).
      focal_gamma: at least 0.
      positive_weights: the weight of each of several labels [C]; None for equal weights.
    """
    labels = tf.convert_to_tensor(labels)
    is_binary = labels.dtype.is_floating
    if not (label_smoothing or focal_gamma or positive_weights):
        if not is_binary:
            return log_likelihood_loss(logits, labels)
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits), axis=-1)
    if is_binary:
        log_p = tf.stack([tf.math.log_sigmoid(logits), tf.math.log_sigmoid(-logits)], axis=-1)
        targets, outcomes = tf.stack([labels, 1.0 - labels], axis=-1), 2
    else:
        log_p, outcomes = tf.nn.log_softmax(logits), logits.shape[-1]
        targets = tf.one_hot(labels, outcomes)
    targets = (1.0 - label_smoothing) * targets + label_smoothing / outcomes
    if focal_gamma:
        # The gradient of the power is infinite at 0 if focal_gamma is less than 1.
        targets *= tf.maximum(-tf.math.expm1(log_p), 1e-7) ** focal_gamma
    if positive_weights:
        targets *= tf.constant([[weight, 1.0] for weight in positive_weights])
    losses = -tf.reduce_sum(targets * log_p, axis=-1)
    return tf.reduce_mean(losses, axis=-1) if is_binary else losses


class Head(BertLayer):
    """Base class of the heads. The constructor of a head creates the variables."""

    def named_variable(self, name: str, shape: tuple[int, ...], initializer: Any) -> keras.Variable:
        """Returns a new variable of the layer. Unlike in `add_weight`, the path does not include the layer's name."""
        return keras.Variable(initializer, shape=shape, dtype="float32", autocast=False, name=name)

    def finish(self) -> None:
        """Marks the layer as built. Call it at the end of the constructor."""
        self.built = True
        for variable in self.weights:  # add_weight would do the same
            variable.trainable = self.trainable

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> tf.Tensor | None:
        """Returns the padding mask [B, T] if the head reads the states of all tokens [B, T, H]."""
        return None if is_encoder_output(inputs) else previous_mask


@serializable
class Transform(BertLayer):
    """The masked-LM head's hidden layer. Variables: dense, LayerNorm."""

    def __init__(self, config: BertConfig, name: str = "transform", **kwargs: Any) -> None:
        super().__init__(config, name=name, **kwargs)
        activation = config.mlm_hidden_act or config.hidden_act
        self.dense = Dense(config, config.hidden_size, activation, name="dense", **self.shared)
        changes = {} if config.mlm_layer_norm_eps is None else {"layer_norm_eps": config.mlm_layer_norm_eps}
        self.layer_norm = LayerNorm(config.replace(**changes), **self.shared)

    def build(self, input_shape: tuple) -> None:
        """Creates the variables for inputs of shape [..., H]."""
        self.dense.build(input_shape)
        self.layer_norm.build((None, self.config.hidden_size))

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Transforms states [..., H] to [..., H]."""
        return self.layer_norm(self.dense(x))


@serializable
class MaskedLMHead(Head):
    """Predicts the token at given positions, with the word embeddings as output weights.

    Variables: cls/predictions/transform/..., cls/predictions/output_bias.

    Args:
      encoder: the encoder with the word embeddings. If None, pass `embedding_table` to each call.
    """

    def __init__(self, config: BertConfig, encoder: keras.layers.Layer | None = None, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self.transform = Transform(config, **self.shared)
        with variable_scope("cls/predictions"):
            self.transform.build((None, config.hidden_size))
            self.output_bias = self.named_variable("output_bias", (config.vocab_size,), "zeros")
        self.finish()
        self.encoder = encoder  # assigned after `finish`, so that the encoder keeps its own `trainable`

    def call(
        self,
        sequence_output: tf.Tensor | EncoderOutput,
        positions: tf.Tensor | None = None,
        embedding_table: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Returns logits [B, P, V] at some positions, or [n, V] for states [n, H].

        Args:
          sequence_output: states [B, T, H], or an `EncoderOutput`; without positions, states [n, H].
          positions: [B, P], positions in the sequences; None to predict from all states.
          embedding_table: [V, H]; by default the table of the encoder passed to the constructor.

        Raises:
          ValueError: if there is no embedding table.
        """
        if embedding_table is None and self.encoder is None:
            raise ValueError(
                "MaskedLMHead: no embedding table. Pass `encoder` to the constructor or `embedding_table` to the call."
            )
        table = self.encoder.embedding_table if embedding_table is None else embedding_table
        states = sequence_states(sequence_output)
        x = self.transform(states if positions is None else gather_positions(states, positions))  # [B*P, H]
        logits = tf.cast(matmul(x, self.compute(table), transpose_b=True), tf.float32) + self.output_bias.value
        if positions is None:
            return logits
        return tf.reshape(logits, [-1, positions.shape[1] or tf.shape(positions)[1], self.config.vocab_size])

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> None:
        """Returns None, because the logits are at selected positions."""

    def get_config(self) -> dict[str, Any]:
        """See `BertLayer.get_config`. A saved model contains the encoder only once."""
        encoder = None if self.encoder is None else keras.saving.serialize_keras_object(self.encoder)
        return {**super().get_config(), "encoder": encoder}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """See `BertLayer.from_config`."""
        encoder = config["encoder"] and keras.saving.deserialize_keras_object(config["encoder"])
        return super().from_config({**config, "encoder": encoder})


@serializable
class LinearHead(Head):
    """Computes x output_weights^T + output_bias in float32. The weights are [C, H], as in the original code.

    Args:
      outputs: C.
      scope: the prefix of the variables' names in the original code: "cls/seq_relationship" for next sentence,
        "cls/squad" for answer spans, nothing for classifiers.
      width: H; by default the hidden size of the config.
      initializer_range: standard deviation of the weights' truncated normal initializer.
    """

    saved_arguments = ("outputs", "scope", "width", "initializer_range")

    def __init__(
        self,
        config: BertConfig,
        outputs: int,
        scope: str = "",
        width: int | None = None,
        initializer_range: float = FINETUNING_INITIALIZER_RANGE,
        **kwargs: Any,
    ) -> None:
        super().__init__(config, **kwargs)
        self.outputs = outputs
        self.scope = scope
        self.width = width or config.hidden_size
        self.initializer_range = initializer_range
        initializer = keras.initializers.TruncatedNormal(stddev=initializer_range)
        with variable_scope(scope):
            self.output_weights = self.named_variable("output_weights", (outputs, self.width), initializer)
            self.output_bias = self.named_variable("output_bias", (outputs,), "zeros")
        self.finish()

    def call(self, x: tf.Tensor | EncoderOutput) -> tf.Tensor:
        """Returns logits [..., C] for x [..., H], or for the pooled output [B, H] of an `EncoderOutput`."""
        x = tf.cast(pooled_state(x), tf.float32)
        return tf.matmul(x, self.output_weights.value, transpose_b=True) + self.output_bias.value


def next_sentence_head(config: BertConfig, **kwargs: Any) -> LinearHead:
    """Returns the next-sentence head: pooled output [B, H] -> logits [B, 2]; label 0 is "next", 1 is "random"."""
    return LinearHead(config, 2, "cls/seq_relationship", initializer_range=config.initializer_range, **kwargs)


@serializable
class ClassificationHead(LinearHead):
    """Computes one logit per class after dropout. Regression and multiple choice have one output.

    Args:
      outputs: number of classes.
      seed: seed of the dropout in calls with training=True; random if None.
      options: see `LinearHead`.
    """

    saved_arguments = (*LinearHead.saved_arguments, "seed")

    def __init__(self, config: BertConfig, outputs: int, seed: int | None = None, **options: Any) -> None:
        super().__init__(config, outputs, **options)
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def call(
        self, x: tf.Tensor | EncoderOutput, training: bool | None = None, seed: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Classifies sequences or tokens.

        Args:
          x: [..., H], or an `EncoderOutput`, whose pooled output [B, H] is used.
          training: whether dropout is active.
          seed: [2], integers, the seed of the dropout. If given, dropout is active regardless of `training`.

        Returns:
          Logits [..., C].
        """
        seed = seed_of_call(self.seed_generator, training, seed)
        return super().call(dropout(pooled_state(x), CLASSIFIER_DROPOUT, seed))


@serializable
class SpanHead(LinearHead):
    """Scores each token as the start and as the end of the answer (paper, section 4.2)."""

    saved_arguments = ("width", "initializer_range")

    def __init__(self, config: BertConfig, **options: Any) -> None:
        super().__init__(config, 2, scope="cls/squad", **options)

    def call(self, x: tf.Tensor | EncoderOutput) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns start and end logits [B, T] for x [B, T, H], or for an `EncoderOutput`'s sequence output."""
        x = sequence_states(x)
        length = x.shape[1] or tf.shape(x)[1]
        logits = super().call(tf.reshape(x, [-1, x.shape[-1]]))
        start_logits, end_logits = tf.unstack(tf.reshape(logits, [-1, length, 2]), axis=-1)
        return start_logits, end_logits

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> None:
        """Returns None, because the loss is computed from all positions of a sequence together."""


def span_loss(
    start_logits: tf.Tensor, end_logits: tf.Tensor, start_positions: tf.Tensor, end_positions: tf.Tensor
) -> tf.Tensor:
    """Returns the mean of the start and end losses [B] for logits [B, T] and positions [B].

    A position outside the sequence adds no loss, as in the original code, where its one-hot row is zero.
    """

    def position_loss(logits: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        one_hot = tf.one_hot(positions, tf.shape(logits)[-1], dtype=tf.float32)
        return -tf.reduce_sum(one_hot * tf.nn.log_softmax(logits), axis=-1)

    return 0.5 * (position_loss(start_logits, start_positions) + position_loss(end_logits, end_positions))


def packed_span_loss(
    start_logits: tf.Tensor,
    end_logits: tf.Tensor,
    start_positions: tf.Tensor,
    end_positions: tf.Tensor,
    batch: Mapping[str, tf.Tensor],
) -> tf.Tensor:
    """Returns the losses [S] of `span_loss` for packed rows. The softmax is over the tokens of each sequence.

    Args:
      start_logits: [R, L].
      end_logits: [R, L].
      start_positions: [S], counted from the start of each sequence.
      end_positions: [S].
      batch: the packed rows, see `sequences.packed_rows.pack`.
    """
    numbers, starts, lengths = (batch[f"sequence_{name}"] for name in ("ids", "starts", "lengths"))
    is_same = numbers[:, :, tf.newaxis] == numbers[:, tf.newaxis]

    def position_loss(logits: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        of_sequence = tf.where(is_same, logits[:, tf.newaxis], logits.dtype.min)  # [R, L, L]
        log_probabilities = tf.reshape(logits - tf.reduce_logsumexp(of_sequence, axis=-1), [-1])
        is_inside = (positions >= 0) & (positions < lengths)
        label_values = tf.gather(log_probabilities, starts + tf.where(is_inside, positions, 0))
        return -tf.where(is_inside, label_values, 0.0)

    return 0.5 * (position_loss(start_logits, start_positions) + position_loss(end_logits, end_positions))
