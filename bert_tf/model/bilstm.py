"""A BiLSTM from fresh initial values, over an encoder's activations.

The paper has one in two places: in tagging by features (section 5.3, Table 7), where the encoder stays as it is, and
on a left-to-right encoder that is fine-tuned with it ("LTR & No NSP + BiLSTM" in section 5.1, Table 5).

Axis letters: B batch, T tokens or words, U units.
"""

import dataclasses

import keras
import tensorflow as tf

from bert_tf.model.gathering import last_tokens


@dataclasses.dataclass(frozen=True)
class BiLstmConfig:
    """The sizes, which are the paper's for tagging by features; for fine-tuning it names none.

    Attributes:
      layers: how many.
      units: U, of each direction; the paper doesn't say whether its 768 dimensions are those of a direction or of both.
    """

    layers: int = 2
    units: int = 768

    def resume_settings(self) -> dict[str, int]:
        """What a run records of it."""
        return {"bilstm_layers": self.layers, "bilstm_units": self.units}


class BiLstm:
    """LSTMs in both directions, one layer on the other. Padding, which comes last, changes nothing before it.

    Variables: bilstm/layer_0/forward_lstm/lstm_cell/kernel and so on.

    Args:
      width: of what it reads.
      config: its sizes.
    """

    def __init__(self, width: int, config: BiLstmConfig) -> None:
        self.config = config
        self.output_width = 2 * config.units
        self._widths = [width] + [self.output_width] * (config.layers - 1)
        self.layers = []
        with keras.name_scope("bilstm"):
            for number, read in enumerate(self._widths):
                # Named, because Keras would count all LSTMs of the process, and checkpoints have these names.
                lstm = keras.layers.LSTM(config.units, return_sequences=True, name="lstm", dtype="float32")
                layer = keras.layers.Bidirectional(lstm, name=f"layer_{number}", dtype="float32")
                layer.build((None, None, read))
                self.layers.append(layer)
        self.variables = [variable for layer in self.layers for variable in layer.trainable_variables]

    def __call__(self, x: tf.Tensor, input_mask: tf.Tensor) -> tf.Tensor:
        """x [B, T, width], input_mask [B, T] -> [B, T, 2U], forward states before backward ones."""
        for layer in self.layers:
            x = layer(x, mask=input_mask > 0)
        return tf.identity(x)  # without the mask that Keras ties to it, which output layers would warn of

    def summary(self, x: tf.Tensor, input_mask: tf.Tensor) -> tf.Tensor:
        """What both directions end with: x [B, T, width], input_mask [B, T] -> [B, 2U].

        It is the forward state of the last token, and the backward state of the first.
        """
        forward, backward = tf.split(self(x, input_mask), 2, axis=-1)
        return tf.concat([last_tokens(forward, input_mask), backward[:, 0]], axis=-1)

    def flops(self, input_mask: tf.Tensor) -> tf.Tensor:
        """Floating-point operations of the products in a forward pass over [B, T] tokens."""
        units = self.config.units
        per_token = sum(2 * 2 * 4 * units * (width + units) for width in self._widths)
        return float(per_token) * tf.cast(tf.size(input_mask), tf.float32)
