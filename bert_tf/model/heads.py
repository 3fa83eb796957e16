"""Output layers, each with its loss beside it; variables bear the released names.

Axis letters: B batch, T tokens, P predictions, H hidden, V vocabulary, C classes.

A head's logits are float32. Its loss function gives one number per example (or prediction), so that the caller
decides over what they are averaged: over the whole global batch, wherever its parts are computed.
"""

import contextlib

import keras
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.model import cpu_kernels
from bert_tf.model.cpu_kernels import cast, matmul
from bert_tf.model.dropout import dropout
from bert_tf.model.gathering import gather_positions
from bert_tf.model.layers import BertLayer, Dense, LayerNorm

# Dropout before the classifier and the initializer of the heads of fine-tuning are fixed in the release, whatever the
# config says.
CLASSIFIER_DROPOUT = 0.1
FINETUNING_INITIALIZER_RANGE = 0.02


def log_likelihood_loss(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Minus the log-probability of each label: logits [..., C], labels [...] -> [...]."""
    if cpu_kernels.apply_to(logits):
        return cpu_kernels.log_likelihood_loss(logits, labels)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


class Transform(BertLayer):
    """The masked-LM head's hidden layer. Variables: dense, LayerNorm."""

    def __init__(self, config: BertConfig, **kwargs) -> None:
        super().__init__(config, name="transform", **kwargs)
        self.dense = Dense(config, config.hidden_size, config.hidden_act, name="dense", dtype=self.dtype_policy)
        self.layer_norm = LayerNorm(config, dtype=self.dtype_policy)

    def build(self, input_shape: tuple) -> None:
        self.dense.build(input_shape)
        self.layer_norm.build((None, self.config.hidden_size))

    def call(self, x: tf.Tensor) -> tf.Tensor:  # [..., H] -> [..., H]
        return self.layer_norm(self.dense(x))


class MaskedLMHead(BertLayer):
    """Predicts the vocabulary entry at given positions, with the word embeddings as output weights.

    Variables: cls/predictions/transform/..., cls/predictions/output_bias.
    """

    def __init__(self, config: BertConfig, **kwargs) -> None:
        super().__init__(config, name="predictions", **kwargs)
        self.transform = Transform(config, dtype=self.dtype_policy)
        with keras.name_scope("cls"):
            self.build()

    def build(self, input_shape: tuple | None = None) -> None:
        self.transform.build((None, self.config.hidden_size))
        self.output_bias = self.add_weight(name="output_bias", shape=(self.config.vocab_size,), initializer="zeros")

    def call(self, sequence_output: tf.Tensor, positions: tf.Tensor, embedding_table: tf.Tensor) -> tf.Tensor:
        """sequence_output [B, T, H], positions [B, P], embedding_table [V, H] -> logits [B*P, V]."""
        x = self.transform(gather_positions(sequence_output, positions))
        table = cast(embedding_table, self.compute_dtype)
        return tf.cast(matmul(x, table, transpose_b=True), tf.float32) + self.output_bias.value


class LinearHead(BertLayer):
    """x output_weights^T + output_bias, in float32; the weights are [C, H], as in the release.

    Args:
      outputs: C.
      scope: what the release puts before the variables' names: "cls/seq_relationship" for next sentence,
        "cls/squad" for answer spans, nothing for classifiers.
      width: H, where it isn't the config's.
      initializer_range: standard deviation of the weights' truncated normal initializer.
    """

    def __init__(
        self,
        config: BertConfig,
        outputs: int,
        scope: str = "",
        width: int | None = None,
        initializer_range: float = FINETUNING_INITIALIZER_RANGE,
        **kwargs,
    ) -> None:
        super().__init__(config, **kwargs)
        self.outputs = outputs
        with contextlib.ExitStack() as scopes:
            for name in filter(None, scope.split("/")):
                scopes.enter_context(keras.name_scope(name))
            # Not add_weight, which would put the layer's own name into the path.
            options = {"dtype": "float32", "autocast": False}
            self.output_weights = keras.Variable(
                keras.initializers.TruncatedNormal(stddev=initializer_range),
                shape=(outputs, width or config.hidden_size),
                name="output_weights",
                **options,
            )
            self.output_bias = keras.Variable("zeros", shape=(outputs,), name="output_bias", **options)
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:  # [N, H] -> [N, C]
        x = tf.cast(x, tf.float32)
        return tf.matmul(x, self.output_weights.value, transpose_b=True) + self.output_bias.value


def next_sentence_head(config: BertConfig, **kwargs) -> LinearHead:
    """Is B the sentence after A? pooled_output [B, H] -> logits [B, 2]; label 0 is "next", 1 is "random"."""
    return LinearHead(config, 2, "cls/seq_relationship", initializer_range=config.initializer_range, **kwargs)


class ClassificationHead(LinearHead):
    """One logit a class over the pooled output; one output for regression and for multiple choice."""

    def call(self, pooled_output: tf.Tensor, seed: tf.Tensor | None = None) -> tf.Tensor:
        """pooled_output [B, H] -> logits [B, C]."""
        return super().call(dropout(pooled_output, CLASSIFIER_DROPOUT, seed))


class SpanHead(LinearHead):
    """Scores of each token as the start and as the end of the answer (paper, section 4.2)."""

    def __init__(self, config: BertConfig, **kwargs) -> None:
        super().__init__(config, 2, scope="cls/squad", **kwargs)

    def call(self, sequence_output: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """sequence_output [B, T, H] -> start logits [B, T], end logits [B, T]."""
        length = sequence_output.shape[1] or tf.shape(sequence_output)[1]
        logits = super().call(tf.reshape(sequence_output, [-1, sequence_output.shape[-1]]))
        start_logits, end_logits = tf.unstack(tf.reshape(logits, [-1, length, 2]), axis=-1)
        return start_logits, end_logits


def span_loss(
    start_logits: tf.Tensor, end_logits: tf.Tensor, start_positions: tf.Tensor, end_positions: tf.Tensor
) -> tf.Tensor:
    """Mean of the two positions' losses: logits [B, T], positions [B] -> [B].

    A position outside the sequence costs nothing, as in the release, where its one-hot row is zero.
    """

    def position_loss(logits: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        one_hot = tf.one_hot(positions, tf.shape(logits)[-1], dtype=tf.float32)
        return -tf.reduce_sum(one_hot * tf.nn.log_softmax(logits), axis=-1)

    return 0.5 * (position_loss(start_logits, start_positions) + position_loss(end_logits, end_positions))
