"""Masking in the input pipeline: unmasked records get new masks each time they are read.

The rules are the same as in `masking`. They are TensorFlow operations, because the input pipeline of a remote TPU host
can't call Python. All random draws depend only on (seed, step) and the row in the global batch. A resumed run therefore
has the same masks as an uninterrupted run, for any number of pipelines.

Axis letters: B rows of one replica, T tokens, P predictions.
"""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.sequences.masking import MaskingPolicy, MaskingVocabulary, first_pieces


@dataclasses.dataclass(frozen=True)
class BatchMasker:
    """Masks batches of unmasked sequences (see `example_format.unmasked_features`).

    Attributes:
      policy: the rules.
      vocabulary: the ids.
      max_predictions_per_seq: P.
      seed: seed of all draws.
    """

    policy: MaskingPolicy
    vocabulary: MaskingVocabulary
    max_predictions_per_seq: int
    seed: int

    def settings(self) -> dict[str, Any]:
        """Returns the settings that determine the masks, to record in the run directory."""
        return {**self.policy.to_dict(), "max_predictions_per_seq": self.max_predictions_per_seq}

    def __call__(self, batch: dict[str, tf.Tensor], step: tf.Tensor, first_row: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the batch with the features of masked records.

        Args:
          batch: features [B, T].
          step: the index of the global batch.
          first_row: the row of the global batch that is the first row of `batch`.
        """
        input_ids = batch["input_ids"]
        rows, length = input_ids.shape
        seeds = tf.random.split(tf.stack([tf.cast(self.seed, tf.int64), tf.cast(step, tf.int64)]), 3, alg="philox")

        def uniform(number: int) -> tf.Tensor:  # [B, T]
            return uniform_rows(seeds[number], first_row, rows, length)

        is_text = (batch["input_mask"] > 0) & self.vocabulary.is_text(input_ids)
        all_limits = self.policy.prediction_counts(np.arange(length + 1), self.max_predictions_per_seq)
        limits = tf.gather(tf.constant(all_limits, tf.int32), tf.reduce_sum(batch["input_mask"], axis=1))
        order, share = uniform(0), uniform(1)
        if self.policy.whole_word:
            starts = first_pieces(is_text, batch["word_starts"] > 0, ops=tf)
            words = tf.maximum(tf.cumsum(tf.cast(starts, tf.int32), axis=1) - 1, 0)
            is_chosen = _choose_words(is_text, words, order, limits)
            share = tf.gather(share, words, batch_dims=1) if self.policy.replace_words_jointly else share
        else:
            is_chosen = _choose_pieces(is_text, order, limits, self.max_predictions_per_seq)

        replacements = tf.constant(self.vocabulary.replacements, tf.int32)
        random_ids = tf.gather(replacements, tf.cast(uniform(2) * float(replacements.shape[0]), tf.int32))
        replaced = self.policy.replaced(share, input_ids, random_ids, self.vocabulary.mask_id, ops=tf)
        positions, weights = _first_true(is_chosen, self.max_predictions_per_seq)
        features = {name: value for name, value in batch.items() if name != "word_starts"}
        return features | {
            "input_ids": tf.where(is_chosen, replaced, input_ids),
            "masked_lm_positions": positions,
            "masked_lm_ids": tf.gather(input_ids, positions, batch_dims=1) * tf.cast(weights, tf.int32),
            "masked_lm_weights": weights,
        }


def uniform_rows(seed: tf.Tensor, first_row: tf.Tensor, rows: int, length: int) -> tf.Tensor:
    """Draws some rows [B, T] of the uniform numbers that `stateless_uniform` returns for a global batch.

    Philox generates four numbers from each value of its counter, so drawing can begin at any row.
    """
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
    skipped = tf.cast(first_row, tf.int64) * length
    counter += tf.cast(tf.stack([skipped // 4, 0]), tf.uint64)
    drawn = tf.raw_ops.StatelessRandomUniformV2(
        shape=[rows * length + 3], key=key, counter=counter, alg=tf.random.Algorithm.PHILOX.value
    )
    return tf.reshape(tf.slice(drawn, [skipped % 4], [rows * length]), [rows, length])


def _choose_pieces(is_text: tf.Tensor, order: tf.Tensor, limits: tf.Tensor, most: int) -> tf.Tensor:
    """Returns True for the chosen tokens [B, T]: in each row, the `limits` [B] tokens with the highest `order`."""
    rows, length = is_text.shape
    values, positions = tf.math.top_k(tf.where(is_text, order, -1.0), min(most, length))
    is_chosen = (tf.range(positions.shape[1]) < limits[:, None]) & (values >= 0)
    # Positions that are not chosen are scattered to an extra position at the end.
    flat = tf.where(is_chosen, positions + tf.range(rows)[:, None] * length, rows * length)
    chosen = tf.scatter_nd(tf.reshape(flat, [-1, 1]), tf.ones([tf.size(flat)]), [rows * length + 1])
    return tf.reshape(chosen[:-1], [rows, length]) > 0


def _choose_words(is_text: tf.Tensor, words: tf.Tensor, order: tf.Tensor, limits: tf.Tensor) -> tf.Tensor:
    """Returns True for the chosen tokens [B, T]. `words` [B, T] has the index of each token's word in its row.

    Words are chosen in random order. A word that would exceed the limit is skipped.
    """
    rows, length = is_text.shape
    flat = words + tf.range(rows)[:, None] * length
    sizes = tf.math.unsorted_segment_sum(tf.cast(is_text, tf.int32), flat, rows * length)
    sizes = tf.reshape(sizes, [rows, length])
    in_order = tf.argsort(tf.where(sizes > 0, order, 2.0), axis=1)
    sizes_in_order = tf.transpose(tf.gather(sizes, in_order, batch_dims=1))  # [T, B]

    def take(taken: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
        return taken + tf.where(taken + size <= limits, size, 0)

    taken = tf.scan(take, sizes_in_order, tf.zeros_like(limits))  # [T, B], tokens taken up to each word
    is_taken = tf.transpose(taken > tf.pad(taken[:-1], [[1, 0], [0, 0]]))
    is_taken = tf.gather(is_taken, tf.argsort(in_order, axis=1), batch_dims=1)  # in the order of the words
    return is_text & tf.gather(is_taken, words, batch_dims=1)


def _first_true(is_chosen: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the chosen positions [B, count] of rows [B, T], and their weights.

    Positions are ascending and padded with 0. Weights are 1 for positions and 0 for padding.
    """
    length = is_chosen.shape[1]
    positions = tf.where(is_chosen, tf.range(length), length)
    first = -tf.math.top_k(-positions, min(count, length))[0]
    first = tf.pad(first, [[0, 0], [0, max(0, count - length)]], constant_values=length)
    weights = tf.cast(first < length, tf.float32)
    return tf.where(first < length, first, 0), weights
