"""Baseline for the training benchmarks: a pre-training step with the same operations as the original graph.

As in the original, no operations are fused or combined. Query, key and value have separate matrix multiplications.
Layer normalisation computes moments, and GELU's tanh form computes a cube. Dropout is TensorFlow's. Losses are computed
from one-hot labels and log-softmax. The gradients of embeddings are slices, and Adam is a sequence of element-wise
operations on every variable.
"""

import math
import re

import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.pretraining.model import PretrainingModel

LEARNING_RATE = 1e-4

# A separate name, so that `without_products` can replace it.
matmul = tf.matmul


class ReleasedGraph:
    """One training step on the variables of a `PretrainingModel`."""

    def __init__(self, config: BertConfig) -> None:
        self.config = config
        self.variables = {v.path: v.value for v in PretrainingModel(config).variables}
        self.slots = {
            n: [tf.Variable(tf.zeros_like(v), trainable=False) for _ in "mv"] for n, v in self.variables.items()
        }

    def _dense(self, x, name):
        return tf.nn.bias_add(matmul(x, self.variables[f"{name}/kernel"]), self.variables[f"{name}/bias"])

    def _layer_norm(self, x, name):
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        gamma, beta = self.variables[f"{name}/LayerNorm/gamma"], self.variables[f"{name}/LayerNorm/beta"]
        return tf.nn.batch_normalization(x, mean, variance, offset=beta, scale=gamma, variance_epsilon=1e-12)

    def _gelu(self, x):
        return x * (0.5 * (1.0 + tf.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * tf.pow(x, 3)))))

    def _dropout(self, x):
        return tf.nn.dropout(x, rate=0.1)

    def _block(self, x, adder, name, batch, length):
        heads, size = self.config.num_attention_heads, self.config.head_size

        def split(y):
            return tf.transpose(tf.reshape(y, [batch, length, heads, size]), [0, 2, 1, 3])

        query, key, value = (split(self._dense(x, f"{name}/attention/self/{p}")) for p in ("query", "key", "value"))
        scores = tf.multiply(matmul(query, key, transpose_b=True), 1.0 / math.sqrt(size)) + adder
        context = matmul(self._dropout(tf.nn.softmax(scores)), value)
        context = tf.reshape(tf.transpose(context, [0, 2, 1, 3]), [batch * length, heads * size])
        attended = self._dropout(self._dense(context, f"{name}/attention/output/dense"))
        attended = self._layer_norm(attended + x, f"{name}/attention/output")
        inner = self._gelu(self._dense(attended, f"{name}/intermediate/dense"))
        return self._layer_norm(self._dropout(self._dense(inner, f"{name}/output/dense")) + attended, f"{name}/output")

    def loss(self, batch):
        """Returns the original loss of a batch."""
        ids = batch["input_ids"]
        count, length = ids.shape
        table = self.variables["bert/embeddings/word_embeddings"]
        segments = tf.one_hot(tf.reshape(batch["segment_ids"], [-1]), 2)
        x = tf.gather(table, ids)
        x += tf.reshape(matmul(segments, self.variables["bert/embeddings/token_type_embeddings"]), x.shape)
        x += self.variables["bert/embeddings/position_embeddings"][:length]
        x = self._dropout(self._layer_norm(x, "bert/embeddings"))
        adder = (1.0 - tf.cast(batch["input_mask"], tf.float32)[:, None, None, :]) * -10000.0
        adder *= tf.ones([count, 1, length, 1])
        x = tf.reshape(x, [count * length, -1])
        for i in range(self.config.num_hidden_layers):
            x = self._block(x, adder, f"bert/encoder/layer_{i}", count, length)
        sequence = tf.reshape(x, [count, length, -1])
        pooled = tf.tanh(self._dense(sequence[:, 0], "bert/pooler/dense"))

        offsets = tf.reshape(tf.range(count) * length, [-1, 1])
        places = tf.reshape(batch["masked_lm_positions"] + offsets, [-1])
        y = self._gelu(self._dense(tf.gather(x, places), "cls/predictions/transform/dense"))
        y = self._layer_norm(y, "cls/predictions/transform")
        logits = tf.nn.bias_add(matmul(y, table, transpose_b=True), self.variables["cls/predictions/output_bias"])
        one_hot = tf.one_hot(tf.reshape(batch["masked_lm_ids"], [-1]), self.config.vocab_size)
        per_example = -tf.reduce_sum(tf.nn.log_softmax(logits) * one_hot, axis=-1)
        weights = tf.reshape(batch["masked_lm_weights"], [-1])
        loss = tf.reduce_sum(weights * per_example) / (tf.reduce_sum(weights) + 1e-5)
        next_weights = self.variables["cls/seq_relationship/output_weights"]
        next_logits = (
            matmul(pooled, next_weights, transpose_b=True) + self.variables["cls/seq_relationship/output_bias"]
        )
        next_one_hot = tf.one_hot(batch["next_sentence_labels"], 2)
        return loss + tf.reduce_mean(-tf.reduce_sum(tf.nn.log_softmax(next_logits) * next_one_hot, axis=-1))

    @tf.function(autograph=False)
    def step(self, batch) -> tf.Tensor:
        """Updates the variables with the clipped gradients of a batch, and returns the loss."""
        with tf.GradientTape() as tape:
            loss = self.loss(batch)
        gradients = tape.gradient(loss, list(self.variables.values()))
        gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
        for (name, variable), gradient in zip(self.variables.items(), gradients, strict=True):
            m, v = self.slots[name]
            next_m = 0.9 * m + tf.multiply(0.1, gradient)
            next_v = 0.999 * v + tf.multiply(0.001, tf.square(gradient))
            update = next_m / (tf.sqrt(next_v) + 1e-6)
            if not re.search("LayerNorm|layer_norm|bias", name):
                update += 0.01 * variable
            variable.assign(variable - LEARNING_RATE * update)
            m.assign(next_m)
            v.assign(next_v)
        return loss
