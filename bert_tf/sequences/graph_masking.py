"""Masking in the input pipeline: sequences that were written unmasked get other masks each time they are read.

The rules are those of `data_prep`'s masking, in the tf.data graph and for whole batches. All draws come from (seed,
step) and the place in the global batch, so a resumed run repeats the masks of the uninterrupted one, however many
pipelines feed it.

Axis letters: G global batch, B the part of it that one replica gets, T tokens, P predictions.
"""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.sequences.masking_policy import MaskingPolicy, MaskingVocabulary


@dataclasses.dataclass(frozen=True)
class BatchMasker:
    """Masks batches of unmasked sequences (see `example_format.unmasked_features`).

    Attributes:
      policy: which pieces are chosen, and what replaces them.
      vocabulary: the ids it needs.
      max_predictions_per_seq: P.
      seed: of all draws.
    """

    policy: MaskingPolicy
    vocabulary: MaskingVocabulary
    max_predictions_per_seq: int
    seed: int

    def settings(self) -> dict[str, Any]:
        """What decides the masks beside the step, for a run's record."""
        return {**dataclasses.asdict(self.policy), "max_predictions_per_seq": self.max_predictions_per_seq}

    def __call__(
        self, batch: dict[str, tf.Tensor], step: tf.Tensor, first_row: tf.Tensor, global_batch_size: int
    ) -> dict[str, tf.Tensor]:
        """The batch as if it had been masked when it was written.

        Args:
          batch: features [B, T].
          step: which global batch this is a part of.
          first_row: where in the global batch it begins.
          global_batch_size: G.
        """
        input_ids = batch["input_ids"]
        rows, length = input_ids.shape
        seeds = tf.random.split(tf.stack([tf.cast(self.seed, tf.int64), tf.cast(step, tf.int64)]), 3, alg="philox")

        def uniform(number: int, width: int) -> tf.Tensor:  # [B, width], of this part of the global batch
            drawn = tf.random.stateless_uniform([global_batch_size, width], seeds[number], alg="philox")
            return tf.ensure_shape(tf.slice(drawn, [tf.cast(first_row, tf.int32), 0], [rows, width]), [rows, width])

        is_text = _is_text(input_ids, batch["input_mask"], self.vocabulary)
        all_limits = self.policy.prediction_counts(np.arange(length + 1), self.max_predictions_per_seq)
        limits = tf.gather(tf.constant(all_limits, tf.int32), tf.reduce_sum(batch["input_mask"], axis=1))
        order = uniform(0, length)
        share = uniform(1, length)
        if self.policy.whole_word:
            words = _word_numbers(is_text, batch["word_starts"])
            is_chosen = _choose_words(is_text, words, order, limits)
            share = tf.gather(share, words, batch_dims=1) if self.policy.draw_per_word else share
        else:
            is_chosen = _choose_pieces(is_text, order, limits, self.max_predictions_per_seq)

        replacements = tf.constant(self.vocabulary.replacements, tf.int32)
        random_pieces = tf.gather(replacements, tf.cast(uniform(2, length) * float(len(replacements)), tf.int32))
        replaced = tf.where(share < self.policy.mask + self.policy.same, input_ids, random_pieces)
        replaced = tf.where(share < self.policy.mask, self.vocabulary.mask_id, replaced)

        positions, weights = _first_true(is_chosen, self.max_predictions_per_seq)
        kept = {name: value for name, value in batch.items() if name != "word_starts"}
        return kept | {
            "input_ids": tf.where(is_chosen, replaced, input_ids),
            "masked_lm_positions": positions,
            "masked_lm_ids": tf.gather(input_ids, positions, batch_dims=1) * tf.cast(weights, tf.int32),
            "masked_lm_weights": weights,
        }


def _is_text(input_ids: tf.Tensor, input_mask: tf.Tensor, vocabulary: MaskingVocabulary) -> tf.Tensor:
    """The tokens [B, T] that may be chosen: no padding, no [CLS] or [SEP]."""
    return (input_mask > 0) & (input_ids != vocabulary.cls_id) & (input_ids != vocabulary.sep_id)


def _choose_pieces(is_text: tf.Tensor, order: tf.Tensor, limits: tf.Tensor, most: int) -> tf.Tensor:
    """[B, T]: for each row the `limits` [B] tokens (`most` at the most) that come first in a random order [B, T]."""
    rows, length = is_text.shape
    values, positions = tf.math.top_k(tf.where(is_text, order, -1.0), min(most, length))
    is_chosen = (tf.range(positions.shape[1]) < limits[:, None]) & (values >= 0)
    # What isn't chosen goes to one place behind the end.
    flat = tf.where(is_chosen, positions + tf.range(rows)[:, None] * length, rows * length)
    chosen = tf.scatter_nd(tf.reshape(flat, [-1, 1]), tf.ones([tf.size(flat)]), [rows * length + 1])
    return tf.reshape(chosen[:-1], [rows, length]) > 0


def _word_numbers(is_text: tf.Tensor, word_starts: tf.Tensor) -> tf.Tensor:
    """Which word of its sequence each token [B, T] belongs to; only those of tokens of the text count.

    A rest of a word that truncation left at the front of a segment is a word of its own.
    """
    is_behind_text = tf.pad(is_text[:, :-1], [[0, 0], [1, 0]])
    starts = is_text & ((word_starts > 0) | ~is_behind_text)
    return tf.maximum(tf.cumsum(tf.cast(starts, tf.int32), axis=1) - 1, 0)


def _choose_words(is_text: tf.Tensor, words: tf.Tensor, order: tf.Tensor, limits: tf.Tensor) -> tf.Tensor:
    """The pieces [B, T] of words taken in a random order [B, T]; a word that would exceed the limit is passed over."""
    rows, length = is_text.shape
    flat = words + tf.range(rows)[:, None] * length
    sizes = tf.math.unsorted_segment_sum(tf.cast(is_text, tf.int32), flat, rows * length)
    sizes = tf.reshape(sizes, [rows, length])
    in_order = tf.argsort(tf.where(sizes > 0, order, 2.0), axis=1)
    sizes_in_order = tf.transpose(tf.gather(sizes, in_order, batch_dims=1))  # [T, B]

    def take(taken: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
        return taken + tf.where(taken + size <= limits, size, 0)

    taken = tf.scan(take, sizes_in_order, tf.zeros_like(limits))  # [T, B], with the words up to each one
    is_taken = tf.transpose(taken > tf.pad(taken[:-1], [[1, 0], [0, 0]]))
    is_taken = tf.gather(is_taken, tf.argsort(in_order, axis=1), batch_dims=1)  # by the words' own numbers
    return is_text & tf.gather(is_taken, words, batch_dims=1)


def _first_true(is_chosen: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The chosen positions [B, count] of rows [B, T] in their order, filled up with 0, and their weights."""
    length = is_chosen.shape[1]
    places = tf.where(is_chosen, tf.range(length), length)
    first = -tf.math.top_k(-places, min(count, length))[0]
    first = tf.pad(first, [[0, 0], [0, max(0, count - length)]], constant_values=length)
    weights = tf.cast(first < length, tf.float32)
    return tf.where(first < length, first, 0), weights
