"""The encoder with several output layers, each with its own classes.

Axis letters: B batch, C classes.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.finetuning.models import EncoderModel
from bert_tf.model.dropout import fold_in
from bert_tf.model.gathering import exists
from bert_tf.model.heads import ClassificationHead, LinearHead, log_likelihood_loss
from bert_tf.runtime.errors import InputError, first_of
from bert_tf.training.interface import Batch, MetricSums

# With "_ids", the names of inputs of the encoder.
_INPUTS = ("input", "segment", "sequence", "position")


class MultiHeadModel(EncoderModel):
    """Predicts several labels of each sequence from the pooled output. The losses of all output layers are added.

    For the output layer NAME, the batch contains the class indices `NAME_ids` [B], and the variables are
    `heads/NAME/output_weights` and `heads/NAME/output_bias`.

    Args:
      config: the encoder's config.
      heads: maps the name of each output layer to its classes.
      options: see `EncoderModel`.

    Raises:
      InputError: if there is no output layer, a name can't be used, or classes are missing or not distinct.
    """

    def __init__(self, config: BertConfig, heads: Mapping[str, Sequence[str]], **options: Any) -> None:
        super().__init__(config, **options)
        if not heads:
            raise InputError("heads is empty. Name at least one output layer and its classes.")
        for name, classes in heads.items():
            if not re.fullmatch(r"[A-Za-z]\w*", name) or name in _INPUTS:
                other = ", ".join(_INPUTS)
                raise InputError(f"heads: {name!r} is not a valid name. Use letters, digits and '_', except {other}.")
            if len(classes) < 2 or len(set(classes)) < len(classes):
                raise InputError(f"heads: {name} has the classes {first_of(classes)}. Use two or more distinct names.")
        self.heads: dict[str, LinearHead] = {
            name: ClassificationHead(config, len(classes), seed=0, scope=f"heads/{name}", width=self.width)
            for name, classes in heads.items()
        }
        self.collect_variables(*self.heads.values(), reads_tokens=False)
        self.metric_names: tuple[str, ...] = tuple(f"{name}_accuracy" for name in heads)

    def logits(self, batch: Batch, seed: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """Returns the logits [B, C] of each output layer, as `NAME_logits`."""
        summary = self.summary(batch, fold_in(seed, 0))
        return {
            f"{name}_logits": head(summary, seed=fold_in(seed, number))
            for number, (name, head) in enumerate(self.heads.items(), start=1)
        }

    def totals(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns the number of examples."""
        return {"examples": tf.reduce_sum(exists(batch))}

    def loss(
        self, batch: Batch, totals: Mapping[str, tf.Tensor], seed: tf.Tensor | None
    ) -> tuple[tf.Tensor, MetricSums]:
        """Returns the sum over the output layers of the mean cross entropy, and the accuracy of each layer."""
        logits, counted = self.logits(batch, seed), exists(batch)
        loss, metrics = tf.constant(0.0), {}
        for name in self.heads:
            head_logits, labels = logits[f"{name}_logits"], batch[f"{name}_ids"]
            loss += tf.reduce_sum(log_likelihood_loss(head_logits, labels) * counted) / totals["examples"]
            correct = tf.cast(tf.argmax(head_logits, axis=-1, output_type=tf.int32) == labels, tf.float32)
            metrics[f"{name}_accuracy"] = tf.reduce_sum(correct * counted), tf.reduce_sum(counted)
        return loss, metrics

    def predict(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns for each output layer `NAME_probabilities` [B, C], and the sum of the losses, `loss` [B]."""
        logits = self.logits(batch)
        losses = [log_likelihood_loss(logits[f"{name}_logits"], batch[f"{name}_ids"]) for name in self.heads]
        probabilities = {f"{name}_probabilities": tf.nn.softmax(logits[f"{name}_logits"]) for name in self.heads}
        return {**probabilities, "loss": tf.add_n(losses)}
