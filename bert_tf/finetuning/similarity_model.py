"""The encoder as a model of sentence vectors, trained with pairs of texts, scores of pairs, or triplets.

Axis letters: E examples, C texts of an example (2, or 3 with a negative), S = E * C sequences, T tokens, W values of a
vector.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.encoder import MASKED_SCORE
from bert_tf.finetuning.models import EncoderModel
from bert_tf.model.gathering import exists, unpack
from bert_tf.sentence_vectors import VectorConfig
from bert_tf.training.interface import Batch, MetricSums, WholeBatchModel

# Ids of texts are smaller, so they are exact in float32.
_MAX_ID = 2**24


class SimilarityModel(EncoderModel, WholeBatchModel):
    """Computes a vector of each text. See `batch_loss` for the loss.

    Args:
      config: the encoder's config.
      vectors: how to compute the vectors. They are not normalised in training, because the loss uses cosines.
      scale: see `batch_loss`.
      is_symmetric: see `batch_loss`.
      options: see `EncoderModel`.
    """

    def __init__(
        self, config: BertConfig, vectors: VectorConfig, scale: float, is_symmetric: bool, **options: Any
    ) -> None:
        super().__init__(config, **options)
        self._vectors, self._scale, self._is_symmetric = vectors.replace(normalize=False), scale, is_symmetric
        self.collect_variables(reads_tokens=vectors.pooling != "pooled")

    def vectors(self, batch: Batch, seed: tf.Tensor | None = None) -> tf.Tensor:
        """Returns the vectors of the texts [E, C, W], float32."""
        if self._vectors.pooling == "pooled":
            states = self.summary(batch, seed)
            mask = tf.ones_like(states[:, :1])
        else:
            states, mask = unpack(self.encode(batch, seed).sequence_output, batch)
            # An unused slot of packed rows has no token, but its mean must be a number.
            mask = tf.maximum(mask, tf.one_hot(0, tf.shape(mask)[1], dtype=mask.dtype))
        vectors = self._vectors.vectors(states, mask)
        return tf.reshape(vectors, [-1, _choices(batch), vectors.shape[-1]])

    def totals(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns the number of examples."""
        return {"examples": tf.reduce_sum(exists(batch, _choices(batch)))}

    def loss(
        self, batch: Batch, totals: Mapping[str, tf.Tensor], seed: tf.Tensor | None
    ) -> tuple[tf.Tensor, MetricSums]:
        """Returns `batch_loss` or, for a part of the batch, its share of the total loss. See `WholeBatchModel`."""
        values = self._values(batch, seed)
        if "gradients" not in totals:
            return batch_loss(values, self._scale, self._is_symmetric), {}
        gradients = tf.gather(totals["gradients"], batch["batch_positions"])
        product = tf.reduce_sum(values["vectors"] * gradients * values["exists"][:, tf.newaxis, tf.newaxis])
        share = tf.reduce_sum(values["exists"]) / totals["examples"]
        return totals["loss"] * share + product - tf.stop_gradient(product), {}

    def collect(self, batch: Batch, size: int, seed: tf.Tensor | None) -> dict[str, tf.Tensor]:
        """See `WholeBatchModel.collect`."""
        values = self._values(batch, seed)
        positions = tf.where(values["exists"] > 0, batch["batch_positions"], -1)  # rows with -1 are left out
        return {name: tf.math.unsorted_segment_sum(rows, positions, size) for name, rows in values.items()}

    def loss_of_all(self, values: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """See `WholeBatchModel.loss_of_all`."""
        with tf.GradientTape() as tape:
            tape.watch(values["vectors"])
            loss = batch_loss(values, self._scale, self._is_symmetric)
        return {"loss": loss, "gradients": tape.gradient(loss, values["vectors"])}

    def predict(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Returns the vectors of the texts [E, C, W]."""
        return {"vectors": self.vectors(batch)}

    def _values(self, batch: Batch, seed: tf.Tensor | None) -> dict[str, tf.Tensor]:
        """Returns the arguments of `batch_loss`."""
        return {
            "vectors": self.vectors(batch, seed),
            "text_ids": tf.cast(batch["text_ids"] % _MAX_ID, tf.float32),
            "exists": exists(batch, _choices(batch)),
            **({"scores": batch["scores"]} if "scores" in batch else {}),
        }


def _choices(batch: Batch) -> int | tf.Tensor:
    """Returns C."""
    return batch["text_ids"].shape[1] or tf.shape(batch["text_ids"])[1]


def batch_loss(values: Mapping[str, tf.Tensor], scale: float, is_symmetric: bool) -> tf.Tensor:
    """Returns the mean loss of a batch.

    With scores, it is the squared difference of the cosine similarity of a pair and its score (Reimers and Gurevych,
    2019). Without scores, it is the cross entropy of finding the positive among the positives and the negatives of the
    whole batch, where the logits are cosine similarities times `scale` (Henderson et al., 2017, section 4.4).

    A text is not a negative if it is equal to the anchor or to its positive, or is the positive of an equal anchor.

    Args:
      values: vectors [E, C, W] of anchors, positives and negatives; text_ids [E, C], equal for equal texts; exists [E],
        0 for examples to ignore; and, for pairs with a score, scores [E].
      scale: the factor of the cosine similarities.
      is_symmetric: if True, the loss is the mean of the cross entropies of finding the positive and the anchor.
    """
    vectors, weights = tf.math.l2_normalize(values["vectors"], axis=-1, epsilon=1e-24), values["exists"]
    anchors, positives, *negatives = tf.unstack(vectors, axis=1)
    if "scores" in values:
        losses = tf.math.squared_difference(tf.reduce_sum(anchors * positives, axis=-1), values["scores"])
        return tf.reduce_sum(losses * weights) / tf.reduce_sum(weights)
    anchor_ids, positive_ids, *negative_ids = tf.unstack(values["text_ids"], axis=1)
    numbers = tf.range(tf.shape(anchors)[0])
    is_unused = (weights == 0)[tf.newaxis]
    is_same_pair = _equal(anchor_ids, anchor_ids) | _equal(positive_ids, positive_ids) | is_unused
    is_other_row = ~_equal(numbers, numbers)

    def cross_entropy(logits: Sequence[tf.Tensor], is_no_negative: Sequence[tf.Tensor]) -> tf.Tensor:
        logits = tf.where(tf.concat(is_no_negative, axis=1), MASKED_SCORE, scale * tf.concat(logits, axis=1))
        return tf.nn.sparse_softmax_cross_entropy_with_logits(numbers, logits)

    cosines = [tf.matmul(anchors, others, transpose_b=True) for others in (positives, *negatives)]
    losses = cross_entropy(
        cosines,
        [
            (is_same_pair | _equal(anchor_ids, positive_ids)) & is_other_row,
            *(_equal(anchor_ids, ids) | _equal(positive_ids, ids) | is_unused for ids in negative_ids),
        ],
    )
    if is_symmetric:
        is_no_negative = (is_same_pair | _equal(positive_ids, anchor_ids)) & is_other_row
        losses = (losses + cross_entropy([tf.transpose(cosines[0])], [is_no_negative])) / 2.0
    return tf.reduce_sum(losses * weights) / tf.reduce_sum(weights)


def _equal(rows: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
    """Returns whether the value of each row [n] equals the value of each column [m], as [n, m]."""
    return rows[:, tf.newaxis] == columns[tf.newaxis]
