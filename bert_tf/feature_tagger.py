"""Tagging by features: a BiLSTM over activations of an encoder that stays as it is (paper, section 5.3, Table 7).

Axis letters: B batch, T words, F layers whose activations are read, H hidden, U units, C classes.
"""

from collections.abc import Mapping

import keras
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.finetuning_models import token_loss, token_predictions, token_totals
from bert_tf.heads import ClassificationHead
from bert_tf.training_step import Batch, MetricSums

# How the layers' activations are put together.
COMBINATIONS = ("concat", "weighted_sum")
# The paper's; it doesn't say whether its 768 dimensions are those of a direction or of both.
BILSTM_LAYERS, BILSTM_UNITS = 2, 768


class BiLstm:
    """LSTMs in both directions, one layer on the other, from fresh initial values.

    Variables: bilstm/layer_0/forward_lstm/lstm_cell/kernel and so on.

    Args:
      width: of what it reads.
      layers: how many.
      units: U, of each direction.
    """

    def __init__(self, width: int, layers: int = BILSTM_LAYERS, units: int = BILSTM_UNITS) -> None:
        with keras.name_scope("bilstm"):
            self.layers = []
            for number in range(layers):
                lstm = keras.layers.LSTM(units, return_sequences=True, dtype="float32")
                layer = keras.layers.Bidirectional(lstm, name=f"layer_{number}", dtype="float32")
                layer.build((None, None, 2 * units if number else width))
                self.layers.append(layer)
        self.variables = [variable for layer in self.layers for variable in layer.trainable_variables]

    def __call__(self, x: tf.Tensor, input_mask: tf.Tensor) -> tf.Tensor:
        """x [B, T, width], input_mask [B, T] -> [B, T, 2U]."""
        for layer in self.layers:
            x = layer(x, mask=input_mask > 0)
        return x


class FeatureTagger:
    """A class for each word, from activations of the word's first piece.

    Args:
      config: of the encoder that they come from.
      num_layers: F.
      outputs: C.
      combination: one of `COMBINATIONS`; the weights of a sum are learned, a number for each layer.
      units: U, of each direction of the BiLSTM.
    """

    metric_names = ("accuracy",)

    def __init__(
        self,
        config: BertConfig,
        num_layers: int,
        outputs: int,
        combination: str = "concat",
        units: int = BILSTM_UNITS,
    ) -> None:
        self.units = units
        self.width = config.hidden_size * (num_layers if combination == "concat" else 1)
        self.bilstm = BiLstm(self.width, units=units)
        self.head = ClassificationHead(config, outputs, width=2 * units)
        self.variables = self.bilstm.variables + self.head.variables
        self.layer_scores = None
        if combination == "weighted_sum":
            self.layer_scores = keras.Variable("zeros", shape=(num_layers,), dtype="float32", name="layer_scores")
            self.variables.append(self.layer_scores)
        self.trained_variables = self.variables

    def logits(self, batch: Batch, seed: tf.Tensor | None = None) -> tf.Tensor:
        """activations [B, T, F, H], input_mask [B, T] -> [B, T, C]."""
        x = batch["activations"]
        if self.layer_scores is not None:
            x = tf.einsum("btfh,f->bth", x, tf.nn.softmax(self.layer_scores.value))
        sizes = tf.shape(batch["input_mask"])
        states = self.bilstm(tf.reshape(x, [sizes[0], sizes[1], self.width]), batch["input_mask"])
        logits = self.head(tf.reshape(states, [-1, 2 * self.units]), seed=seed)
        return tf.reshape(logits, [sizes[0], sizes[1], self.head.outputs])

    def flops(self, batch: Batch) -> tf.Tensor:
        """Floating-point operations of a training step's products, those of the output layer left out."""
        widths = [self.width, *[2 * self.units] * (len(self.bilstm.layers) - 1)]
        per_word = sum(2 * 2 * 4 * self.units * (width + self.units) for width in widths)
        return 3.0 * per_word * tf.cast(tf.size(batch["input_mask"]), tf.float32)

    def totals(self, batch: Batch) -> dict[str, tf.Tensor]:
        """How many words have a label."""
        return token_totals(batch)

    def loss(
        self, batch: Batch, totals: Mapping[str, tf.Tensor], seed: tf.Tensor | None
    ) -> tuple[tf.Tensor, MetricSums]:
        """The mean cross entropy over the words."""
        return token_loss(self.logits(batch, seed), batch, totals)

    def predict(self, batch: Batch) -> dict[str, tf.Tensor]:
        """The likeliest class of each word [B, T], and the sum of a sentence's losses [B]."""
        return token_predictions(self.logits(batch), batch)
