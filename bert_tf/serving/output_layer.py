"""The output layer of a fine-tuned model, for serving."""

import tensorflow as tf

from bert_tf.model.heads import LinearHead


class OutputLayer(tf.Module):
    """A `LinearHead` for serving.

    Args:
      head: the trained layer; its weights are copied.
    """

    def __init__(self, head: LinearHead) -> None:
        super().__init__(name="output")
        self.width = head.output_weights.shape[0]
        self._weights = tf.Variable(head.output_weights.numpy(), trainable=False, name="output_weights")
        self._bias = tf.Variable(head.output_bias.numpy(), trainable=False, name="output_bias")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:  # [N, H] -> [N, C], float32
        return tf.matmul(tf.cast(x, tf.float32), self._weights, transpose_b=True) + self._bias
