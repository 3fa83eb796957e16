"""The embeddings and the layers of a transformer block. The variables have the names of the released checkpoints.

Axis letters: B batch, T tokens, H hidden, I intermediate, N heads, D head size, V vocabulary.

Between the layers, hidden states are matrices [B*T, H], because multiplying two matrices is fastest on every device.
Only attention separates the sequences.

Variables are float32. Matrix multiplications use the compute dtype of the layer. Softmax and layer-norm statistics are
computed in float32. Dropout is active if a seed is given, and the same seed gives the same mask. `TransformerBlock` can
be used alone: with training=True and no seed, it draws a seed.
"""

import math
from typing import Any

import keras
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.distribution import hardware
from bert_tf.model import row_attention
from bert_tf.model.base_layers import BertLayer, Dense, LayerNorm, serializable, truncated_normal
from bert_tf.model.cpu_kernels import matmul
from bert_tf.model.dropout import dropout, fixed_dropout, fold_in, seed_of_call
from bert_tf.model.fusion import recomputed_by_xla
from bert_tf.model.gathering import gather_rows
from bert_tf.model.normalization import softmax, weighted_sum_on_tpu

# Added to the scores of masked positions. The original code uses this number instead of minus infinity.
MASKED_SCORE = -10000.0


@serializable
class Embeddings(BertLayer):
    """Sum of word, segment and position embeddings, normalised. Variables: three tables, LayerNorm.

    Args:
      use_one_hot_embeddings: look up words with a one-hot matrix multiplication, as the original does on TPUs. The TPU
        compiler estimates 2 ms for it, in a BERT_BASE step of 33 ms. The compiler gives no estimate for the
        alternative, a gather and the scatter in its gradient.
    """

    saved_arguments = ("use_one_hot_embeddings",)

    def __init__(
        self, config: BertConfig, use_one_hot_embeddings: bool = False, name: str = "embeddings", **kwargs: Any
    ) -> None:
        super().__init__(config, name=name, **kwargs)
        self.use_one_hot_embeddings = use_one_hot_embeddings
        self.layer_norm = LayerNorm(config, **self.shared)

    def build(self, input_shape: tuple | None = None) -> None:
        """Creates the variables."""
        width = self.config.hidden_size
        for name, rows in (
            ("word_embeddings", self.config.vocab_size),
            ("token_type_embeddings", self.config.type_vocab_size),
            ("position_embeddings", self.config.max_position_embeddings),
        ):
            table = self.add_weight(name=name, shape=(rows, width), initializer=truncated_normal(self.config))
            setattr(self, name, table)
        self.layer_norm.build((None, width))

    def call(
        self,
        input_ids: tf.Tensor,
        segment_ids: tf.Tensor,
        seed: tf.Tensor | None = None,
        position_ids: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Returns [B*T, H] for input_ids, segment_ids and position_ids [B, T].

        If a word or segment id is out of range, the embedding is NaN. Without `position_ids`, positions are counted
        from the start of each row.
        """
        length, width = input_ids.shape[1] or tf.shape(input_ids)[1], self.config.hidden_size
        words, segments = tf.reshape(input_ids, [-1]), tf.reshape(segment_ids, [-1])
        ids = ((words, self.config.vocab_size), (segments, self.config.type_vocab_size))
        is_word, is_segment = ((numbers >= 0) & (numbers < count) for numbers, count in ids)
        if self.use_one_hot_embeddings:
            one_hot = tf.one_hot(words, self.config.vocab_size, dtype=tf.float32)
            word = tf.matmul(one_hot, self.word_embeddings.value)
        else:
            word = gather_rows(tf.convert_to_tensor(self.word_embeddings.value), words)
        # There are only a few segment ids, so a one-hot matrix multiplication is faster on all devices.
        one_hot = tf.one_hot(segments, self.config.type_vocab_size, dtype=tf.float32)
        one_hot /= tf.cast(is_word & is_segment, tf.float32)[:, tf.newaxis]  # NaN if an id is out of range
        segment = tf.matmul(one_hot, self.token_type_embeddings.value)
        total, position = word + segment, tf.convert_to_tensor(self.position_embeddings.value)
        if position_ids is None:
            total = tf.reshape(tf.reshape(total, [-1, length, width]) + position[:length], [-1, width])
        elif self.use_one_hot_embeddings:
            one_hot = tf.one_hot(tf.reshape(position_ids, [-1]), position.shape[0], dtype=tf.float32)
            total += tf.matmul(one_hot, position)
        else:
            total += gather_rows(position, tf.reshape(position_ids, [-1]))
        x = self.layer_norm(total)
        return dropout(x, self.config.hidden_dropout_prob, seed)


@serializable
class SelfAttention(BertLayer):
    """Scaled dot-product attention with N heads. Variables: query, key and value, each with kernel and bias."""

    def __init__(self, config: BertConfig, name: str = "self", **kwargs: Any) -> None:
        super().__init__(config, name=name, **kwargs)
        self.query = Dense(config, config.hidden_size, name="query", **self.shared)
        self.key = Dense(config, config.hidden_size, name="key", **self.shared)
        self.value = Dense(config, config.hidden_size, name="value", **self.shared)

    def build(self, input_shape: tuple) -> None:
        """Creates the variables for inputs of shape [..., H]."""
        for projection in (self.query, self.key, self.value):
            projection.build(input_shape)

    def call(
        self,
        x: tf.Tensor,
        attention_bias: tf.Tensor,
        seed: tf.Tensor | None = None,
        queries: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the context [B*T, H] and the attention probabilities [B, N, T, T].

        Args:
          x: [B*T, H].
          attention_bias: [B, 1, 1 or T, T].
          seed: [2], integers, the seed of the dropout; None for no dropout.
          queries: [n], the rows of x to compute. If given, the context is [n, H], and the probabilities are
            [1, N, n, B*T].
        """
        heads, size = self.config.num_attention_heads, self.config.head_size
        attending = x
        if queries is not None:
            attending, attention_bias = gather_rows(x, queries), _bias_of(queries, attention_bias)
        sequences = attention_bias.shape[0] or -1
        length = -1 if attention_bias.shape[0] else attention_bias.shape[-1] or tf.shape(attention_bias)[-1]

        def split_heads(projected: tf.Tensor) -> tf.Tensor:  # [B*T, H] -> [B, N, T, D]
            return tf.transpose(tf.reshape(projected, [sequences, length, heads, size]), [0, 2, 1, 3])

        def attend(
            query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, bias: tf.Tensor, seed: tf.Tensor | None
        ) -> tuple[tf.Tensor, tf.Tensor]:
            scores = matmul(query, key, transpose_b=True)
            probabilities = softmax(scores, bias)
            drop = fixed_dropout(scores, self.config.attention_probs_dropout_prob, seed, self.compute_dtype)
            if seed is not None and hardware.compiles_for_gpu():
                # The gradient computes the probabilities from the scores again, so they are not kept.
                attended = recomputed_by_xla(lambda scores, value: matmul(drop(softmax(scores, bias)), value))
                return attended(scores, value), probabilities
            if hardware.computes_on_tpu():
                return weighted_sum_on_tpu(scores, bias, value, drop), probabilities
            return matmul(drop(probabilities), value), probabilities

        query = split_heads(self.query(attending) * (1.0 / math.sqrt(size)))
        states = query, split_heads(self.key(x)), split_heads(self.value(x)), attention_bias, seed
        context, probabilities = attend(*states)
        if hardware.computes_on_tpu() and row_attention.is_faster(query.shape):
            # TensorFlow removes the computation of all rows from the graph, unless the probabilities are read.
            context = row_attention.attend_by_rows(lambda *inputs: attend(*inputs)[0], *states)
        context = tf.transpose(context, [0, 2, 1, 3])  # [B, T, N, D]
        return tf.reshape(context, [-1, self.config.hidden_size]), self.compute(probabilities)


def _bias_of(queries: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Returns the bias [1, 1, n, B*T] of positions [n] in the flattened batch. A position attends only to its row."""
    count, _, rows, length = (known or size for known, size in zip(bias.shape, tf.unstack(tf.shape(bias)), strict=True))
    row = queries // length
    of_row = tf.gather(tf.reshape(bias, [-1, length]), row * rows + queries % length % rows)
    is_same_row = tf.one_hot(row, count, True, False)[:, :, tf.newaxis]
    of_all = tf.where(is_same_row, of_row[:, tf.newaxis], 2 * MASKED_SCORE)  # lower, because all of a row may be masked
    return tf.reshape(of_all, [1, 1, -1, count * length])


@serializable
class ResidualOutput(BertLayer):
    """Projects to the hidden size, adds the residual, normalises. Variables: dense, LayerNorm."""

    def __init__(self, config: BertConfig, name: str = "output", **kwargs: Any) -> None:
        super().__init__(config, name=name, **kwargs)
        self.dense = Dense(config, config.hidden_size, name="dense", **self.shared)
        self.layer_norm = LayerNorm(config, **self.shared)

    def build(self, input_shape: tuple) -> None:
        """Creates the variables for inputs of shape [..., H or I]."""
        self.dense.build(input_shape)
        self.layer_norm.build((None, self.config.hidden_size))

    def call(self, x: tf.Tensor, residual: tf.Tensor, seed: tf.Tensor | None = None) -> tf.Tensor:
        """Returns [B*T, H] for x [B*T, H or I] and a residual [B*T, H]."""
        return self.layer_norm(dropout(self.dense(x), self.config.hidden_dropout_prob, seed), residual)


@serializable
class Attention(BertLayer):
    """Self-attention and its output projection, with a residual connection around both."""

    def __init__(self, config: BertConfig, name: str = "attention", **kwargs: Any) -> None:
        super().__init__(config, name=name, **kwargs)
        self.self_attention = SelfAttention(config, **self.shared)
        self.output_layer = ResidualOutput(config, **self.shared)

    def build(self, input_shape: tuple) -> None:
        """Creates the variables for inputs of shape [..., H]."""
        self.self_attention.build(input_shape)
        self.output_layer.build(input_shape)

    def call(
        self,
        x: tf.Tensor,
        attention_bias: tf.Tensor,
        seed: tf.Tensor | None = None,
        output_positions: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """See `TransformerBlock`."""
        count, length = (None if output_positions is None else output_positions.shape[0]), attention_bias.shape[-1]
        # Selected queries are compared with the keys of all rows. For many queries, computing each row is faster.
        are_few = count is not None and (length is None or count <= length)
        queries = output_positions if are_few else None
        context, probabilities = self.self_attention(x, attention_bias, seed=fold_in(seed, 0), queries=queries)
        if output_positions is not None:
            x = gather_rows(x, output_positions)
            context = context if are_few else gather_rows(context, output_positions)
        return self.output_layer(context, x, seed=fold_in(seed, 1)), probabilities


@serializable
class Intermediate(BertLayer):
    """The first half of the feed-forward layer. Variables: dense."""

    def __init__(self, config: BertConfig, name: str = "intermediate", **kwargs: Any) -> None:
        super().__init__(config, name=name, **kwargs)
        self.dense = Dense(config, config.intermediate_size, config.hidden_act, name="dense", **self.shared)

    def build(self, input_shape: tuple) -> None:
        """Creates the variables for inputs of shape [..., H]."""
        self.dense.build(input_shape)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B*T, I] for x [B*T, H]."""
        return self.dense(x)


@serializable
class TransformerBlock(BertLayer):
    """One encoder layer: attention, then the feed-forward layer (paper, section 3; post-norm).

    Args:
      seed: seed of the dropout in calls with training=True; random if None.
    """

    saved_arguments = ("seed",)

    def __init__(self, config: BertConfig, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self.seed = seed
        self.attention = Attention(config, **self.shared)
        self.intermediate = Intermediate(config, **self.shared)
        self.output_layer = ResidualOutput(config, **self.shared)
        self.seed_generator = keras.random.SeedGenerator(seed)

    def build(self, input_shape: tuple) -> None:
        """Creates the variables for inputs of shape [..., H]."""
        self.attention.build(input_shape)
        self.intermediate.build(input_shape)
        self.output_layer.build((None, self.config.intermediate_size))

    def call(
        self,
        x: tf.Tensor,
        attention_bias: tf.Tensor,
        training: bool | None = None,
        seed: tf.Tensor | None = None,
        output_positions: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Transforms hidden states.

        Args:
          x: [B*T, H] or [B, T, H].
          attention_bias: [B, 1, 1 or T, T], added to the scores: 0 for visible positions, -10000 for the others.
          training: whether dropout is active.
          seed: [2], integers, the seed of the dropout. If given, dropout is active regardless of `training`.
          output_positions: [n], rows of x [B*T, H]. If given, only the new states of these rows are computed.

        Returns:
          The new hidden states and the attention probabilities before dropout. The states have the shape of x, or are
          [n, H] with output_positions. The probabilities are [B, N, T, T]; with output_positions, see `SelfAttention`.
        """
        seed = seed_of_call(self.seed_generator, training, seed)
        rows = self.compute(tf.reshape(x, [-1, self.config.hidden_size]) if len(x.shape) == 3 else x)
        options = {"seed": fold_in(seed, 0), "output_positions": output_positions}
        attended, probabilities = self.attention(rows, attention_bias, **options)
        output = self.output_layer(self.intermediate(attended), attended, seed=fold_in(seed, 1))
        return tf.reshape(output, tf.shape(x)) if len(x.shape) == 3 else output, probabilities
