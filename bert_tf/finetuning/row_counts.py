"""The rows of batches without padding: how many there are, and which positions of the padded batch they hold.

Axis letters: B batch, C choices (sequences of one example), T tokens.
"""

import numpy as np

from bert_tf.finetuning.feature_sets import BatchSampler, LazyFeatures

# The numbers of rows for batches without padding are chosen from the batches of this many steps.
_STEPS_TO_COUNT = 256


class RowCounts:
    """Chooses the number of rows for the tokens of a batch without padding; see `BertEncoder.call`.

    A batch is computed in parts, one for each replica and micro-batch. All parts have the same number of rows. In
    graphs of fixed shape, the number is one of a few. They depend on the training set and on settings only, so a
    resumed run has the same shapes.

    Args:
      sampler: Chooses the examples of each step.
      parts: The number of parts.
      is_fixed: Whether the graphs have fixed shapes. Otherwise a batch gets the rows that it needs.
    """

    def __init__(self, sampler: BatchSampler, parts: int, is_fixed: bool) -> None:
        self.parts = parts
        self._features = sampler.features
        self.counts = self._choose(sampler) if is_fixed else []

    def _choose(self, sampler: BatchSampler) -> list[int]:
        """Half of the first steps fit into the first number, all of them into the second.

        Later steps may need the third or, without padding, the last one.
        """
        padded = sampler.batch(0)["input_ids"].shape[0] // self.parts * int(sampler.buckets[-1])
        if isinstance(sampler.features, LazyFeatures):
            return [padded * eighths // 8 for eighths in (2, 3, 4, 6, 8)]
        needed = sorted(self._tokens(sampler.examples(step)) for step in range(_STEPS_TO_COUNT))
        half, most = needed[len(needed) // 2], needed[-1]
        return [*(_rounded(n) for n in (half, most, 2 * most - half) if _rounded(n) < padded), padded]

    def _tokens(self, examples: np.ndarray) -> int:
        return int(self._features.tokens_of(examples).reshape(self.parts, -1).sum(axis=1).max())

    def of(self, examples: np.ndarray) -> int:
        """Returns the number of rows for each part of a step's batch."""
        needed = self._tokens(examples)
        return next(count for count in self.counts or [_rounded(needed)] if count >= needed)


def _rounded(tokens: int) -> int:
    return -(-tokens // 16) * 16


def token_positions(input_mask: np.ndarray, parts: int, rows: int) -> np.ndarray:
    """Returns the positions of the tokens in each part of a batch, see `BertEncoder.call`.

    Args:
      input_mask: [B*C, T], of a batch whose sequences have no masked tokens, only padding at the end.
      parts: The number of parts with the same number of sequences.
      rows: The number of positions of each part, at least its number of tokens.

    Returns:
      [parts * rows], int32; the positions are counted from the start of their part.
    """
    masks = input_mask.reshape(parts, -1)
    positions = np.full((parts, rows), masks.shape[1], np.int32)
    for part, mask in enumerate(masks):
        found = np.flatnonzero(mask)
        positions[part, : len(found)] = found
    return positions.reshape(-1)
