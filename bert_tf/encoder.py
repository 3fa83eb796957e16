"""The BERT encoder: embeddings, the stack of blocks, and the pooler.

Axis letters: B batch, T tokens, H hidden, N heads.
"""

import functools
from typing import NamedTuple

import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.model.dropout import fold_in
from bert_tf.model.gathering import last_tokens
from bert_tf.model.layers import BertLayer, Dense, Embeddings, TransformerBlock

# What is added to the score of a position that may not be seen: as released, not minus infinity.
MASKED_SCORE = -10000.0


class EncoderOutput(NamedTuple):
    """What the encoder computes; float32 or the compute dtype.

    Attributes:
      embedding_output: [B, T, H], what the first block reads.
      all_encoder_layers: L tensors [B, T, H], first block first.
      sequence_output: [B, T, H], the last block's.
      pooled_output: [B, H], a tanh layer over the last hidden state of the first token, [CLS]; in a causal encoder of
        the last one, [SEP].
      attention_probs: L tensors [B, N, T, T], before dropout; none where gradients are recomputed.
    """

    embedding_output: tf.Tensor
    all_encoder_layers: tuple[tf.Tensor, ...]
    sequence_output: tf.Tensor
    pooled_output: tf.Tensor
    attention_probs: tuple[tf.Tensor, ...]


class BlockStack(BertLayer):
    """The blocks, named layer_0, layer_1...

    Args:
      recompute_gradients: see `BertEncoder`.
    """

    def __init__(self, config: BertConfig, recompute_gradients: bool = False, **kwargs) -> None:
        super().__init__(config, name="encoder", **kwargs)
        self.recompute_gradients = recompute_gradients
        self.blocks = [
            TransformerBlock(config, name=f"layer_{i}", dtype=self.dtype_policy)
            for i in range(config.num_hidden_layers)
        ]

    def build(self, input_shape: tuple) -> None:
        for block in self.blocks:
            block.build(input_shape)

    def call(
        self, x: tf.Tensor, attention_bias: tf.Tensor, seed: tf.Tensor | None = None
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """x [B*T, H] -> for each block its output [B*T, H], and its attention probabilities [B, N, T, T].

        There are no probabilities where gradients are recomputed.
        """
        outputs, probabilities = [], []
        for i, block in enumerate(self.blocks):
            run = functools.partial(block, attention_bias=attention_bias, seed=fold_in(seed, i))
            if self.recompute_gradients and seed is not None:
                x = tf.recompute_grad(lambda x, run=run: run(x)[0])(x)
            else:
                x, probs = run(x)
                probabilities.append(probs)
            outputs.append(x)
        return outputs, probabilities


class Pooler(BertLayer):
    """A tanh layer over the token that stands for the sequence. Variables: dense."""

    def __init__(self, config: BertConfig, **kwargs) -> None:
        super().__init__(config, name="pooler", **kwargs)
        self.dense = Dense(config, config.hidden_size, "tanh", name="dense", dtype=self.dtype_policy)

    def build(self, input_shape: tuple) -> None:
        self.dense.build(input_shape)

    def call(self, token: tf.Tensor) -> tf.Tensor:  # [B, H] -> [B, H]
        return self.dense(token)


class BertEncoder(BertLayer):
    """The released `BertModel` as a Keras layer; its variables exist once it is constructed.

    Args:
      config: sizes, activation, dropout.
      use_one_hot_embeddings: look words up by a product with one-hot rows (faster on TPU).
      recompute_gradients: in training, keep each block's input only, and compute the block again when its gradient is
        due (Chen et al., 2016): the same gradients with a fraction of the memory, for about a third more work.
      causal: each position sees only itself and what is before it (the left-to-right ablation of Table 5).
      dtype: a Keras dtype or policy: "float32", "mixed_bfloat16" or "mixed_float16".
    """

    def __init__(
        self,
        config: BertConfig,
        use_one_hot_embeddings: bool = False,
        recompute_gradients: bool = False,
        causal: bool = False,
        **kwargs,
    ) -> None:
        super().__init__(config, name="bert", **kwargs)
        self.causal = causal
        self.embeddings = Embeddings(config, use_one_hot_embeddings, dtype=self.dtype_policy)
        self.encoder = BlockStack(config, recompute_gradients, dtype=self.dtype_policy)
        self.pooler = Pooler(config, dtype=self.dtype_policy)
        self.build()

    def build(self, input_shape: tuple | None = None) -> None:
        self.embeddings.build()
        self.encoder.build((None, self.config.hidden_size))
        self.pooler.build((None, self.config.hidden_size))

    @property
    def embedding_table(self) -> tf.Tensor:
        """The word embeddings [V, H], float32."""
        return self.embeddings.word_embeddings.value

    def call(
        self,
        input_ids: tf.Tensor,
        input_mask: tf.Tensor | None = None,
        segment_ids: tf.Tensor | None = None,
        seed: tf.Tensor | None = None,
    ) -> EncoderOutput:
        """Encodes a batch of sequences.

        Args:
          input_ids: [B, T], integers.
          input_mask: [B, T], 1 for tokens and 0 for what may not be attended to; all ones if None.
          segment_ids: [B, T], all zeros if None.
          seed: [2], integers; dropout is active, with the masks of this seed. None for inference.
        """
        input_mask = tf.ones_like(input_ids) if input_mask is None else input_mask
        segment_ids = tf.zeros_like(input_ids) if segment_ids is None else segment_ids
        length = input_ids.shape[1] or tf.shape(input_ids)[1]

        x = self.embeddings(input_ids, segment_ids, seed=fold_in(seed, 0))
        outputs, probabilities = self.encoder(x, self._attention_bias(input_mask), seed=fold_in(seed, 1))

        def sequences(states: tf.Tensor) -> tf.Tensor:  # [B*T, H] -> [B, T, H]
            return tf.reshape(states, [-1, length, self.config.hidden_size])

        layers = tuple(map(sequences, outputs))
        return EncoderOutput(
            embedding_output=sequences(x),
            all_encoder_layers=layers,
            sequence_output=layers[-1],
            pooled_output=self.pooler(self._summary(layers[-1], input_mask)),
            attention_probs=tuple(probabilities),
        )

    def flops(self, input_ids: tf.Tensor) -> tf.Tensor:
        """Floating-point operations of the products in a forward pass over input_ids [B, T]; a product of sums is two.

        Training takes three times as many (forward, and backward to inputs and to weights).
        """
        batch, length = (tf.cast(size, tf.float32) for size in tf.unstack(tf.shape(input_ids)))
        width, inner = self.config.hidden_size, self.config.intermediate_size
        per_token = 4 * width * width + 2 * width * inner + 2 * width * length
        return 2.0 * batch * length * per_token * self.config.num_hidden_layers

    def _summary(self, states: tf.Tensor, input_mask: tf.Tensor) -> tf.Tensor:
        """The states of the token that has seen its whole sequence: [B, T, H], [B, T] -> [B, H]."""
        if not self.causal:
            return states[:, 0]
        # The paper doesn't say what its left-to-right models classify by; [CLS] comes first, and sees only itself.
        return last_tokens(states, input_mask)

    def _attention_bias(self, input_mask: tf.Tensor) -> tf.Tensor:
        """[B, T] -> [B, 1, 1 or T, T], added to the scores."""
        # One axis at a time, because that's how LiteRT's converter knows it.
        visible = tf.expand_dims(tf.expand_dims(tf.cast(input_mask, tf.float32), 1), 1)
        if self.causal:
            length = input_mask.shape[1] or tf.shape(input_mask)[1]
            visible *= tf.linalg.band_part(tf.ones([length, length]), -1, 0)
        return (1.0 - visible) * MASKED_SCORE
