"""The BiLSTM for serving: computes the same as `model.bilstm.BiLstm`, without Keras and without padding.

Axis letters: B sequences, T tokens or words of the longest sequence, n tokens or words of all sequences, U units.
"""

import keras
import tensorflow as tf

from bert_tf.model.bilstm import BiLstm
from bert_tf.sequences.graph_packing import TokenBatch
from bert_tf.serving.encoder import InferenceEncoder, product


class _Lstm(tf.Module):
    """One direction of one layer, with a copy of its weights; the gates are in Keras's order i, f, g, o."""

    def __init__(self, layer: keras.layers.LSTM, backward: bool) -> None:
        super().__init__(name="backward" if backward else "forward")
        self._backward = backward
        self._units = layer.units
        cell = layer.cell
        self._kernel = tf.Variable(cell.kernel.numpy(), trainable=False, name="kernel")
        self._recurrent_kernel = tf.Variable(cell.recurrent_kernel.numpy(), trainable=False, name="recurrent_kernel")
        self._bias = tf.Variable(cell.bias.numpy(), trainable=False, name="bias")

    def __call__(self, x: tf.Tensor, visible: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        """x [n, width], visible [n] bool, lengths [B] -> [n, U]; tokens that aren't visible don't change the state."""
        # Only the recurrent part needs a loop. The product with the inputs is computed at once, without padding.
        length = tf.reduce_max(tf.concat([lengths, [1]], axis=0))

        def steps(values: tf.Tensor) -> tf.Tensor:  # [n, ...] -> [T, B, ...]
            rows = tf.RaggedTensor.from_row_lengths(values, lengths, validate=False)
            padded = rows.to_tensor(shape=tf.stack([-1, length, *values.shape[1:]]))
            return tf.transpose(padded, [1, 0, *range(2, values.shape.rank + 1)])

        inputs = product(x, self._kernel, self._bias)
        zeros = tf.zeros([tf.size(lengths), self._units])
        states, _ = tf.scan(
            self._step, (steps(inputs), steps(visible[:, tf.newaxis])), (zeros, zeros), reverse=self._backward
        )
        return tf.boolean_mask(tf.transpose(states, [1, 0, 2]), tf.sequence_mask(lengths, length))

    def _step(
        self, previous: tuple[tf.Tensor, tf.Tensor], token: tuple[tf.Tensor, tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """State and cell [B, U]; inputs [B, 4U] and whether the token is visible [B, 1] -> the next state and cell."""
        (state, cell), (inputs, visible) = previous, token
        gates = inputs + tf.matmul(state, self._recurrent_kernel)
        input_gate, forget_gate, candidate, output_gate = tf.split(gates, 4, axis=-1)
        next_cell = tf.sigmoid(forget_gate) * cell + tf.sigmoid(input_gate) * tf.tanh(candidate)
        next_state = tf.sigmoid(output_gate) * tf.tanh(next_cell)
        return tf.where(visible, next_state, state), tf.where(visible, next_cell, cell)


class InferenceBiLstm(tf.Module):
    """A `BiLstm` for serving; it computes the same in float32.

    Args:
      bilstm: the trained BiLSTM; its weights are copied.
    """

    def __init__(self, bilstm: BiLstm) -> None:
        super().__init__(name="bilstm")
        self._layers = [
            (_Lstm(layer.forward_layer, backward=False), _Lstm(layer.backward_layer, backward=True))
            for layer in bilstm.layers
        ]

    def __call__(self, x: tf.Tensor, visible: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        """Computes the state of each token.

        Args:
          x: [n, width], the sequences end to end.
          visible: [n], 0 for tokens that are ignored.
          lengths: [B] int32, the number of tokens in each sequence.

        Returns:
          [n, 2U], forward states before backward ones; zeros for tokens that are ignored.
        """
        x, is_visible = tf.cast(x, tf.float32), visible > 0
        for directions in self._layers:
            x = tf.concat([direction(x, is_visible, lengths) for direction in directions], axis=-1)
        return tf.where(is_visible[:, tf.newaxis], x, 0.0)


class RecurrentEncoder(tf.Module):
    """An encoder with a BiLSTM on top, used like an `InferenceEncoder`; see `finetuning.models.EncoderModel`.

    Args:
      encoder: the encoder.
      bilstm: the trained BiLSTM on top of it.
    """

    def __init__(self, encoder: InferenceEncoder, bilstm: BiLstm) -> None:
        super().__init__(name="recurrent_encoder")
        self.config = encoder.config
        self._encoder = encoder
        self._bilstm = InferenceBiLstm(bilstm)

    def token_states(self, batch: TokenBatch) -> tf.Tensor:
        """The BiLSTM's states [n, 2U], float32."""
        return self._bilstm(self._encoder.token_states(batch), batch.visible, batch.lengths)

    def pooled_output(self, batch: TokenBatch) -> tf.Tensor:
        """The last states of both directions [B, 2U], float32, which replace the pooler's output."""
        forward, backward = tf.split(self.token_states(batch), 2, axis=-1)
        last = tf.cumsum(batch.lengths) - 1  # the last token of a sequence is visible, if any token is
        return tf.concat([tf.gather(forward, last), batch.first(backward)], axis=-1)


# The encoders that served models can have.
TextEncoder = InferenceEncoder | RecurrentEncoder
