"""A randomly initialised BiLSTM over an encoder's activations.

The paper uses a BiLSTM in two places. In feature-based tagging (section 5.3, Table 7), the encoder is frozen. In "LTR &
No NSP + BiLSTM" (section 5.1, Table 5), a left-to-right encoder is fine-tuned with the BiLSTM.

Axis letters: B batch, T tokens or words, U units.
"""

import keras
import tensorflow as tf

from bert_tf.config import BiLstmConfig
from bert_tf.model.gathering import last_tokens


class BiLstm:
    """Stacked bidirectional LSTMs. Padding comes last and does not affect earlier states.

    Variables: bilstm/layer_0/forward_lstm/lstm_cell/kernel and so on.

    Args:
      width: width of the input.
      config: the sizes.
    """

    def __init__(self, width: int, config: BiLstmConfig) -> None:
        self.config = config
        self.output_width: int = 2 * config.units
        self._widths = [width] + [self.output_width] * (config.layers - 1)
        self.layers: list[keras.layers.Layer] = []
        with keras.name_scope("bilstm"):
            for number, read in enumerate(self._widths):
                # Names in checkpoints must be fixed. Keras's automatic names count all LSTMs of the process.
                # XLA can't compile cuDNN's LSTM.
                options = {"use_cudnn": False, "dtype": "float32"}
                lstm = keras.layers.LSTM(config.units, return_sequences=True, name="lstm", **options)
                layer = keras.layers.Bidirectional(lstm, name=f"layer_{number}", dtype="float32")
                layer.build((None, None, read))
                self.layers.append(layer)
        self.variables: list[keras.Variable] = [
            variable for layer in self.layers for variable in layer.trainable_variables
        ]

    def __call__(self, x: tf.Tensor, input_mask: tf.Tensor) -> tf.Tensor:
        """Maps x [B, T, width] and input_mask [B, T] to [B, T, 2U]: U forward states, then U backward states."""
        for layer in self.layers:
            x = layer(x, mask=input_mask > 0)
        return tf.identity(x)  # removes the mask that Keras attaches

    def summary(self, x: tf.Tensor, input_mask: tf.Tensor) -> tf.Tensor:
        """Returns the last states of both directions [B, 2U] for x [B, T, width] and input_mask [B, T].

        The result contains the forward state of the last token and the backward state of the first token.
        """
        forward, backward = tf.split(self(x, input_mask), 2, axis=-1)
        return tf.concat([last_tokens(forward, input_mask), backward[:, 0]], axis=-1)

    def flops(self, lengths: tf.Tensor) -> tf.Tensor:
        """Returns the floating-point operations of the matrix multiplications in a forward pass.

        Args:
          lengths: the number of tokens of each sequence [B].
        """
        units = self.config.units
        per_token = sum(2 * 2 * 4 * units * (width + units) for width in self._widths)
        return float(per_token) * tf.cast(tf.reduce_sum(lengths), tf.float32)
