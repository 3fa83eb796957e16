"""The model of feature-based tagging: a BiLSTM on the activations of a frozen encoder (paper, section 5.3, Table 7).

Axis letters: B batch, T words, F layers of the encoder, H hidden, C classes.
"""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from bert_tf.config import BertConfig, BiLstmConfig
from bert_tf.finetuning.models import TokenClassificationModel
from bert_tf.model.bilstm import BiLstm
from bert_tf.model.gathering import lengths
from bert_tf.model.heads import ClassificationHead
from bert_tf.training.interface import Batch


class FeatureTagger(TokenClassificationModel):
    """Predicts a class for each word, from the activations of the word's first token.

    Args:
      config: the encoder's config.
      num_layers: F.
      outputs: C.
      bilstm: the sizes of the BiLSTM.
      combination: "concat" or "weighted_sum", which learns one weight for each layer.
      training_loss: options of `class_losses` in training.
    """

    def __init__(
        self,
        config: BertConfig,
        num_layers: int,
        outputs: int,
        bilstm: BiLstmConfig,
        combination: str = "concat",
        training_loss: Mapping[str, Any] = {},
    ) -> None:
        self.training_loss = training_loss
        self.width: int = config.hidden_size * (num_layers if combination == "concat" else 1)
        self.bilstm: BiLstm = BiLstm(self.width, bilstm)
        self.head = ClassificationHead(config, outputs, seed=0, width=self.bilstm.output_width)
        self.variables: list[keras.Variable] = self.bilstm.variables + self.head.weights
        self.layer_scores: keras.Variable | None = None
        if combination == "weighted_sum":
            self.layer_scores = keras.Variable("zeros", shape=(num_layers,), dtype="float32", name="layer_scores")
            self.variables.append(self.layer_scores)

    def logits(self, batch: Batch, seed: tf.Tensor | None = None) -> tf.Tensor:
        """Returns the logits [B, T, C] for activations [B, T, F, H] and input_mask [B, T]."""
        x = batch["activations"]
        if self.layer_scores is not None:
            x = tf.einsum("btfh,f->bth", x, tf.nn.softmax(self.layer_scores.value))
        sizes = tf.shape(batch["input_mask"])
        states = self.bilstm(tf.reshape(x, [sizes[0], sizes[1], self.width]), batch["input_mask"])
        logits = self.head(tf.reshape(states, [-1, self.bilstm.output_width]), seed=seed)
        return tf.reshape(logits, [sizes[0], sizes[1], self.head.outputs])

    def flops(self, batch: Batch) -> tf.Tensor:
        """Returns the floating-point operations of a step's matrix multiplications, without the output layer."""
        return 3.0 * self.bilstm.flops(lengths(batch))
