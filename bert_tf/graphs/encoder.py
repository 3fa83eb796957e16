"""The encoder for serving: computes the same as `BertEncoder`, in the form that TensorFlow runs fastest on a CPU.

- TensorFlow fuses each matrix multiplication with the bias, activation or residual, and each layer normalisation into
  one operation. This requires that biases, scales and offsets are constants. Matrices are variables: as constants, they
  were not faster, needed ten times the memory, and made the first call take many seconds.
- Padding is not computed: the tokens of all sequences are concatenated. Only attention pads them.
- One multiplication computes query, key and value. The scale of the scores is included in the weights.
- If only the pooled output is needed, the last block computes only the states that the pooler reads.

Axis letters: B batch, T tokens of the longest sequence, n tokens of all sequences, H hidden, N heads, D head size, C
logits.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.encoder import MASKED_SCORE, BertEncoder
from bert_tf.graphs.packing import TokenBatch
from bert_tf.model.activations import ACTIVATIONS
from bert_tf.model.heads import LinearHead, MaskedLMHead
from bert_tf.serving.export_config import SEQUENCES_PER_PART

# TensorFlow can fuse these forms of gelu with a matrix multiplication, but not the forms in `model.activations`.
_FUSED_ACTIVATIONS = {
    "gelu": lambda x: tf.nn.gelu(x, approximate=True),
    "gelu_erf": lambda x: tf.nn.gelu(x, approximate=False),
}


class _PaddedLayout(NamedTuple):
    """The positions of tokens in the padded arrays of attention, and the attention masks.

    Attributes:
      sources: [B*T] the index of the token at each padded position; 0 for padding, whose results are not used.
      positions: [n] the padded position of each token.
      bias: [B, 1, 1 or T, T], added to the scores.
      pooled_tokens: [B] the token of each sequence that the pooler reads.
      pooled_bias: [B, 1, 1, T], added to the scores of these tokens.
      is_full: whether there is no padding.
    """

    sources: tf.Tensor
    positions: tf.Tensor
    bias: tf.Tensor
    pooled_tokens: tf.Tensor
    pooled_bias: tf.Tensor
    is_full: tf.Tensor

    @property
    def length(self) -> tf.Tensor:
        """T, a scalar."""
        return tf.shape(self.bias)[-1]

    def pad(self, x: tf.Tensor) -> tf.Tensor:  # [n, ...] -> [B*T, ...]
        return tf.cond(self.is_full, lambda: x, lambda: tf.gather(x, self.sources))

    def unpad(self, x: tf.Tensor) -> tf.Tensor:  # [B*T, ...] -> [n, ...]
        return tf.cond(self.is_full, lambda: x, lambda: tf.gather(x, self.positions))


class InferenceEncoder(tf.Module):
    """A trained encoder for serving.

    Args:
      encoder: the encoder. All weights are copied.
      dtype: "float32" or "bfloat16", the dtype of stored weights and of matrix multiplications. Layer normalisation and
        softmax are computed in float32.
      masked_lm: the masked-LM head of the encoder, or None.
      head: the output layer of a fine-tuned model, or None.
    """

    def __init__(
        self,
        encoder: BertEncoder,
        dtype: str = "float32",
        masked_lm: MaskedLMHead | None = None,
        head: LinearHead | None = None,
    ) -> None:
        super().__init__(name="encoder")
        self.config: BertConfig = encoder.config
        self.causal: bool = encoder.causal
        self.dtype: tf.DType = tf.as_dtype(dtype)
        self.has_masked_lm: bool = masked_lm is not None
        self.has_pooler: bool = encoder.pooler is not None
        activations = ACTIVATIONS | _FUSED_ACTIVATIONS
        self._activation = activations[self.config.hidden_act]
        self._mlm_activation = activations[self.config.mlm_hidden_act or self.config.hidden_act]
        weights = {v.path.removeprefix("bert/"): v.numpy() for v in encoder.weights}
        if masked_lm is not None:
            weights |= {variable.path: variable.numpy() for variable in masked_lm.weights}
        for i in range(self.config.num_hidden_layers):
            _join_projections(weights, f"encoder/layer_{i}/attention/self", self.config.head_size)
        vectors = {name: w for name, w in weights.items() if w.ndim == 1}
        matrices = {name: tf.cast(w, self.dtype) for name, w in weights.items() if w.ndim == 2}
        self._matrices = {name: tf.Variable(w, trainable=False, name=name) for name, w in matrices.items()}
        self._vector = vectors.__getitem__  # a function, because tf.Module would track the arrays of a dict
        output = {variable.path: variable.numpy() for variable in (head.weights if head else ())}
        self._output = [tf.Variable(w, trainable=False, name=name) for name, w in output.items()]

    def layers(self, batch: TokenBatch, only_pooled: bool = False) -> list[tf.Tensor]:
        """Returns the hidden states [n, H] of each block, first block first, in the compute dtype.

        If `only_pooled` is True, the last block computes only the states that the pooler reads, [B, H].
        """
        layout, states, last = self._layout(batch), [self._embed(batch)], self.config.num_hidden_layers - 1
        for i in range(last + 1):
            states.append(self._block(i, states[-1], layout, only_pooled and i == last))
        return states[1:]

    def token_states(self, batch: TokenBatch) -> tf.Tensor:
        """Returns the last hidden states [n, H], in the compute dtype."""
        return self.layers(batch)[-1]

    def pooled_output(self, batch: TokenBatch) -> tf.Tensor:
        """Returns the pooled output [B, H], float32."""
        return self._pool(self.layers(batch, only_pooled=True)[-1])

    def token_logits(self, batch: TokenBatch) -> tf.Tensor:
        """Returns the logits [n, C] of the output layer for all tokens, float32."""
        return self._logits(self.token_states(batch))

    def pooled_logits(self, batch: TokenBatch) -> tf.Tensor:
        """Returns the logits [B, C] of the output layer for all sequences, float32."""
        return self._logits(self.pooled_output(batch))

    @property
    def outputs(self) -> int:
        """C, the number of outputs of the output layer."""
        return self._output[0].shape[0]

    def _logits(self, states: tf.Tensor) -> tf.Tensor:
        weights, bias = self._output
        return tf.matmul(tf.cast(states, tf.float32), weights, transpose_b=True) + bias

    def pool(self, batch: TokenBatch, states: tf.Tensor) -> tf.Tensor:
        """Returns the pooled output [B, H], float32, for last hidden states [n, H] of any type."""
        return self._pool(tf.cast(tf.gather(states, self._layout(batch).pooled_tokens), self.dtype))

    def _pool(self, states: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.tanh(self._dense("pooler/dense", states)), tf.float32)

    def masked_lm_logits(self, states: tf.Tensor) -> tf.Tensor:
        """Returns the logits [n, V] of the masked-LM head, float32, for last hidden states [n, H] of any type."""
        head = "cls/predictions"
        hidden = self._mlm_activation(self._dense(f"{head}/transform/dense", tf.cast(states, self.dtype)))
        hidden = self._layer_norm(f"{head}/transform/LayerNorm", hidden, self.config.mlm_layer_norm_eps)
        logits = tf.matmul(hidden, self._matrices["embeddings/word_embeddings"], transpose_b=True)
        return tf.cast(logits, tf.float32) + self._vector(f"{head}/output_bias")

    def _layout(self, batch: TokenBatch) -> _PaddedLayout:
        lengths = batch.lengths
        starts = tf.cumsum(lengths, exclusive=True)
        length = tf.reduce_max(tf.concat([lengths, [1]], axis=0))
        positions = tf.range(length)
        inside = positions < lengths[:, tf.newaxis]  # [B, T]
        sources = tf.reshape(tf.where(inside, starts[:, tf.newaxis] + positions, 0), [-1])
        visible = inside & (tf.reshape(tf.gather(batch.visible, sources), tf.shape(inside)) > 0)
        pooled_position = tf.zeros_like(lengths)
        bias = pooled_bias = _bias(visible[:, tf.newaxis])
        if self.causal:  # the pooler reads the last token, which attends to all tokens
            pooled_position = tf.reduce_max(tf.where(visible, positions, 0), axis=1)
            bias = _bias(visible[:, tf.newaxis] & (positions[:, tf.newaxis] >= positions))
            pooled_bias = _bias((visible & (positions <= pooled_position[:, tf.newaxis]))[:, tf.newaxis])
        return _PaddedLayout(
            sources=sources,
            positions=tf.where(tf.reshape(inside, [-1]))[:, 0],
            bias=bias,
            pooled_tokens=starts + pooled_position,
            pooled_bias=pooled_bias,
            is_full=tf.reduce_all(inside),
        )

    def _embed(self, batch: TokenBatch) -> tf.Tensor:
        ids = {
            "word_embeddings": batch.ids,
            "token_type_embeddings": batch.segments,
            "position_embeddings": tf.ragged.range(batch.lengths).flat_values,
        }
        rows = [tf.gather(self._matrices[f"embeddings/{table}"], indices) for table, indices in ids.items()]
        return self._layer_norm("embeddings/LayerNorm", tf.add_n([tf.cast(row, tf.float32) for row in rows]))

    def _block(self, number: int, x: tf.Tensor, layout: _PaddedLayout, only_pooled: bool = False) -> tf.Tensor:
        """Maps states [n, H] to [n, H], or to [B, H] if only the states that the pooler reads are needed."""
        name = f"encoder/layer_{number}"
        context = self._attend(f"{name}/attention/self", x, layout, only_pooled)
        residual = tf.gather(x, layout.pooled_tokens) if only_pooled else x
        dense = self._dense(f"{name}/attention/output/dense", context) + residual
        attended = self._layer_norm(f"{name}/attention/output/LayerNorm", dense)
        inner = self._activation(self._dense(f"{name}/intermediate/dense", attended))
        return self._layer_norm(f"{name}/output/LayerNorm", self._dense(f"{name}/output/dense", inner) + attended)

    def _attend(self, name: str, x: tf.Tensor, layout: _PaddedLayout, only_pooled: bool) -> tf.Tensor:
        """Maps states [n, H] to the context [n, H], or [B, H]."""
        width, heads, size = self.config.hidden_size, self.config.num_attention_heads, self.config.head_size
        kernel, bias = self._matrices[f"{name}/kernel"].read_value(), self._constant(f"{name}/bias")

        def split_heads(projected: tf.Tensor, count: int, length: tf.Tensor | int) -> list[tf.Tensor]:
            # [B*T, count * H] -> `count` tensors [B, N, T, D]
            split = tf.reshape(projected, [-1, length, count, heads, size])
            return tf.unstack(tf.transpose(split, [2, 0, 3, 1, 4]))

        if only_pooled:
            query = product(tf.gather(x, layout.pooled_tokens), kernel[:, :width], bias[:width])
            (query,) = split_heads(query, 1, 1)
            key, value = split_heads(layout.pad(product(x, kernel[:, width:], bias[width:])), 2, layout.length)
            scores_bias = layout.pooled_bias
        else:
            query, key, value = split_heads(layout.pad(product(x, kernel, bias)), 3, layout.length)
            scores_bias = layout.bias
        scores = tf.cast(tf.matmul(query, key, transpose_b=True), tf.float32) + scores_bias
        probabilities = tf.cast(tf.nn.softmax(scores), self.dtype)
        context = tf.transpose(tf.matmul(probabilities, value), [0, 2, 1, 3])  # [B, T, N, D]
        context = tf.reshape(context, [-1, width])
        return context if only_pooled else layout.unpad(context)

    def _dense(self, name: str, x: tf.Tensor) -> tf.Tensor:
        return product(x, self._matrices[f"{name}/kernel"].read_value(), self._constant(f"{name}/bias"))

    def _constant(self, name: str) -> tf.Tensor:
        return tf.cast(self._vector(name), self.dtype)

    def _layer_norm(self, name: str, x: tf.Tensor, epsilon: float | None = None) -> tf.Tensor:
        beta, gamma = self._vector(f"{name}/beta"), self._vector(f"{name}/gamma")
        epsilon = self.config.layer_norm_eps if epsilon is None else epsilon
        return tf.cast(layer_norm(x, beta, gamma, epsilon), self.dtype)


def _join_projections(weights: dict[str, np.ndarray], name: str, head_size: int) -> None:
    """Joins query, key and value into one kernel [H, 3H] and one bias [3H]. The query is scaled like the scores."""
    scales = {"query": 1.0 / math.sqrt(head_size), "key": 1.0, "value": 1.0}
    for kind in ("kernel", "bias"):
        arrays = [scale * weights.pop(f"{name}/{projection}/{kind}") for projection, scale in scales.items()]
        weights[f"{name}/{kind}"] = np.concatenate(arrays, axis=-1)


def _bias(visible: tf.Tensor) -> tf.Tensor:
    """Returns the bias of the scores [B, 1, 1 or T, T] for visible keys [B, 1 or T, T]."""
    return tf.where(visible, 0.0, MASKED_SCORE)[:, tf.newaxis]


def product(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Returns x [n, in] times kernel [in, out] plus bias [out]: [n, out]."""
    return tf.nn.bias_add(tf.matmul(x, kernel), bias)


# TensorFlow's fused layer normalisation (2.20, on CPUs) adds this to the variance. It ignores the epsilon in the graph.
_FUSED_EPSILON = 1e-3
# With a smaller epsilon, the scaled inputs could exceed the range of float32.
_SMALLEST_EPSILON = 1e-20


def layer_norm(x: tf.Tensor, beta: tf.Tensor, gamma: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Normalises [n, H] to [n, H], float32. The code has the only form that TensorFlow fuses.

    The inputs are scaled so that adding the epsilon of the fused operation is equivalent to adding `epsilon`. The
    result is the same whether TensorFlow fuses the operation or not.
    """
    x = math.sqrt(_FUSED_EPSILON / max(epsilon, _SMALLEST_EPSILON)) * tf.cast(x, tf.float32)
    # Without `ensure_shape`, TensorFlow would multiply gamma by the scale first, and could not fuse the operation.
    x = tf.ensure_shape(x, x.shape)
    mean = tf.reduce_mean(x, axis=[1], keepdims=True)
    variance = tf.reduce_mean(tf.math.squared_difference(x, mean), axis=[1], keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, offset=beta, scale=gamma, variance_epsilon=_FUSED_EPSILON)


def in_parts(
    function: Callable[[TokenBatch], tf.Tensor], batch: TokenBatch, width: int, is_needed: tf.Tensor | None = None
) -> tf.Tensor:
    """Applies a function to a limited number of sequences at a time.

    Args:
      function: maps a batch to float32 values [n, width] of tokens, or [B, width] of sequences.
      batch: the sequences.
      width: the width of the result of `function`.
      is_needed: [n], whether the result of each token is needed; None for all.

    Returns:
      The concatenated values of all parts, or only of the tokens for which `is_needed` is True.
    """
    starts = tf.concat([[0], tf.cumsum(batch.lengths)], axis=0)

    def values(begin: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
        tokens = slice(starts[begin], starts[end])
        subset = TokenBatch(batch.ids[tokens], batch.segments[tokens], batch.visible[tokens], batch.lengths[begin:end])
        return function(subset) if is_needed is None else tf.boolean_mask(function(subset), is_needed[tokens])

    return concatenated(values, tf.size(batch.lengths), SEQUENCES_PER_PART, width)


def concatenated(
    function: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], total: tf.Tensor, size: tf.Tensor | int, width: int
) -> tf.Tensor:
    """Computes `total` elements in parts of `size` elements, one part at a time.

    Args:
      function: returns float32 values [..., width] for the elements from `begin` to `end`.
      total: the number of elements.
      size: the number of elements in a part.
      width: the width of the result of `function`.

    Returns:
      The concatenated values of all parts.
    """

    def next_part(begin: tf.Tensor, results: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
        end = tf.minimum(begin + size, total)
        return end, results.write(begin // size, function(begin, end))

    results = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[None, width], infer_shape=False)
    empty = results.write(0, tf.zeros([0, width]))
    _, results = tf.while_loop(
        lambda begin, _: begin < total, next_part, (tf.constant(0), empty), parallel_iterations=1
    )
    return results.concat()
