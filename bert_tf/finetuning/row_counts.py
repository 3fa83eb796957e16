"""The shapes of batches without padding: the number of rows, and their positions in the padded batch.

Axis letters: B batch, C choices (sequences of one example), T tokens, S short sequences, U their longest.
"""

from typing import NamedTuple

import numpy as np

from bert_tf.finetuning.feature_sets import BatchSampler

# The shapes of batches without padding are chosen from the batches of the first steps, up to this number.
_STEPS_TO_COUNT = 256


class Shape(NamedTuple):
    """The shape of each part of a batch.

    Attributes:
      rows: the number of rows for tokens.
      short: the length U that the shorter sequences are padded to in attention; see `BertEncoder.call`.
    """

    rows: int
    short: int

    def has_room_for(self, needed: "Shape") -> bool:
        """Returns True if neither number is larger in `needed`."""
        return needed.rows <= self.rows and needed.short <= self.short


class RowCounts:
    """Chooses the shape of a batch without padding. See `BertEncoder.call`.

    A batch is computed in parts, one for each replica and micro-batch. All parts have the same shape. If graphs have
    fixed shapes, there are only a few shapes, which depend on the training set and the settings only, so a resumed run
    has the same ones. In each part the examples are sorted by length, and three quarters of them are short sequences.

    Args:
      sampler: chooses the examples of each step.
      parts: the number of parts.
      is_fixed: whether the graphs have fixed shapes. Otherwise each batch gets the smallest shape that fits.
    """

    def __init__(self, sampler: BatchSampler, parts: int, is_fixed: bool) -> None:
        self.parts = parts
        self._features = sampler.features
        self._part_size = sampler.batch_size // parts
        self._short_examples = self._part_size * 3 // 4
        self.shapes = self._choose(sampler) if is_fixed else []

    def _choose(self, sampler: BatchSampler) -> list[Shape]:
        """Returns the shapes, in ascending order.

        Half of the first steps fit into the first shape and all of them into the second. Later steps may need the third
        or the last one, which is fully padded.
        """
        longest = int(sampler.buckets[-1])
        padded = sampler.batch(0)["input_ids"].shape[0] // self.parts * longest
        needed = sorted(self._needed(self.arranged(sampler.examples(step))) for step in range(_STEPS_TO_COUNT))
        middle = len(needed) // 2
        half, most = (
            Shape(part[-1].rows, max(shape.short for shape in part)) for part in (needed[: middle + 1], needed)
        )
        more = Shape(_rounded(2 * most.rows - half.rows, 16), longest)
        return [*(shape for shape in (half, most, more) if shape.rows < padded), Shape(padded, longest)]

    def arranged(self, examples: np.ndarray) -> np.ndarray:
        """Returns a step's examples [B], sorted by length within each part."""
        parts = examples.reshape(self.parts, -1)
        longest = self._features.longest[examples].reshape(parts.shape)
        return np.take_along_axis(parts, np.argsort(longest, axis=1, kind="stable"), axis=1).reshape(-1)

    def _needed(self, arranged: np.ndarray) -> Shape:
        tokens = self._features.tokens[arranged].reshape(self.parts, -1).sum(axis=1).max()
        longest = self._features.longest[arranged].reshape(self.parts, -1)
        return Shape(_rounded(tokens, 16), _rounded(longest[:, : max(self._short_examples, 1)].max(), 8))

    def of(self, arranged: np.ndarray) -> Shape:
        """Returns the shape of each part of a step's batch."""
        needed = self._needed(arranged)
        return next((shape for shape in self.shapes if shape.has_room_for(needed)), (self.shapes or [needed])[-1])

    def inputs(self, input_mask: np.ndarray, shape: Shape, examples: int) -> dict[str, np.ndarray]:
        """Returns the inputs that `BertEncoder.call` needs to skip the padding of some parts of a batch.

        Args:
          input_mask: [B*C, T].
          shape: the shape of each part.
          examples: B.
        """
        parts = examples // self._part_size
        inputs = {"token_positions": token_positions(input_mask, parts, shape.rows)}
        if self._short_examples:
            of_parts = input_mask.reshape(parts, self._part_size, -1, input_mask.shape[1])
            short = of_parts[:, : self._short_examples, :, : shape.short]
            inputs["short_mask"] = short.reshape(-1, short.shape[-1])
        return inputs


def _rounded(count: int, multiple: int) -> int:
    return int(-(-count // multiple) * multiple)


def token_positions(input_mask: np.ndarray, parts: int, rows: int) -> np.ndarray:
    """Returns the positions of the tokens in each part of a batch. See `BertEncoder.call`.

    Args:
      input_mask: [B*C, T]. Only padding at the end of the sequences is masked.
      parts: the number of parts, with the same number of sequences each.
      rows: the number of positions of each part, at least its number of tokens.

    Returns:
      int32 [parts * rows]. Positions are counted from the start of their part.
    """
    masks = input_mask.reshape(parts, -1)
    positions = np.full((parts, rows), masks.shape[1], np.int32)
    for part, mask in enumerate(masks):
        found = np.flatnonzero(mask)
        positions[part, : len(found)] = found
    return positions.reshape(-1)
