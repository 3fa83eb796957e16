"""Packed rows: several sequences share a row, so hardly any padding is computed.

`placement` chooses the positions of the sequences. This module fills the arrays. Packing does not change the examples,
the loss or the gradients of a step.

Axis letters: E examples, C sequences of an example (choices), S examples of a micro-batch, R rows, L positions of a
row, P predictions, M micro-batches.
"""

from collections.abc import Mapping
from typing import NamedTuple, Self

import numpy as np


class Layout(NamedTuple):
    """The positions of examples in M micro-batches of the same shape.

    Attributes:
      examples: the index of each example [M, S]; -1 for an unused slot.
      starts: the position of the first token of each sequence [M, S, C], in the flattened rows of its micro-batch.
      rows: R.
      length: L.
      predictions: P.
      used: the number of micro-batches that have examples.
    """

    examples: np.ndarray
    starts: np.ndarray
    rows: int
    length: int
    predictions: int
    used: int

    def of(self, examples: np.ndarray) -> Self:
        """Returns a layout with other indices: index i becomes `examples[i]`."""
        return self._replace(examples=np.where(self.examples >= 0, examples[self.examples], -1))


class Tokens(NamedTuple):
    """Concatenated sequences, with or without padding between them.

    Attributes:
      values: arrays with one row per stored token [n, ...], each with its padding value.
      firsts: the index of the first token of each sequence [E * C].
      lengths: the number of tokens of each sequence [E * C].
      first_lengths: the number of tokens in segment 0 of each sequence [E * C], to compute segment_ids; or None.
    """

    values: Mapping[str, tuple[np.ndarray, int]]
    firsts: np.ndarray
    lengths: np.ndarray
    first_lengths: np.ndarray | None = None


def pack(placed: Layout, tokens: Tokens, per_example: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the arrays of packed micro-batches, concatenated over the micro-batches.

    Args:
      placed: the positions of the examples.
      tokens: the sequences.
      per_example: arrays with one row per example [E, ...].

    Returns:
      Arrays by name. Values of the arguments keep their type; other arrays are int32:

      - the values of `tokens`, [M * R, L, ...];
      - segment_ids [M * R, L], if `first_lengths` is given;
      - sequence_ids [M * R, L], the number of the sequence at each position, from 1; 0 for padding;
      - position_ids [M * R, L], counted from the start of each sequence;
      - sequence_starts [M * S * C], the position of the first token of each sequence in the flattened micro-batch; 0
        for an unused slot;
      - sequence_lengths [M * S * C], the number of tokens of each sequence; 0 for an unused slot;
      - the values of `per_example`, [M * S, ...]; an unused slot has the values of the first example.
    """
    count, slots, choices = placed.starts.shape
    sequences = placed.examples[..., np.newaxis] * choices + np.arange(choices)
    lengths = np.where(placed.examples[..., np.newaxis] >= 0, tokens.lengths[sequences], 0).reshape(-1)
    size = placed.rows * placed.length
    numbers = np.arange(slots * choices) + 1
    first_targets = (np.arange(count)[:, np.newaxis, np.newaxis] * size + placed.starts).reshape(-1)
    offsets = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    targets = np.repeat(first_targets, lengths) + offsets
    sources = np.repeat(tokens.firsts[sequences].reshape(-1), lengths) + offsets

    def rows(values: np.ndarray, padding: int = 0) -> np.ndarray:
        packed = np.full((count * size, *values.shape[1:]), padding, values.dtype)
        packed[targets] = values
        return packed.reshape(count * placed.rows, placed.length, *values.shape[1:])

    packed = {name: rows(values[sources], padding) for name, (values, padding) in tokens.values.items()}
    if tokens.first_lengths is not None:
        first_lengths = np.repeat(tokens.first_lengths[sequences].reshape(-1), lengths)
        packed["segment_ids"] = rows((offsets >= first_lengths).astype(np.int32))
    return {
        **packed,
        "sequence_ids": rows(np.repeat(np.tile(numbers, count), lengths).astype(np.int32)),
        "position_ids": rows(offsets.astype(np.int32)),
        "sequence_starts": placed.starts.reshape(-1).astype(np.int32),
        "sequence_lengths": lengths.astype(np.int32),
        **{name: values[np.maximum(placed.examples, 0).reshape(-1)] for name, values in per_example.items()},
    }


def pack_predictions(
    placed: Layout, positions: np.ndarray, weights: np.ndarray, values: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns the masked-LM predictions of packed micro-batches, concatenated over the micro-batches.

    Args:
      placed: the positions of the examples. Each example has one sequence.
      positions: the positions of the predictions in their sequences [E, P'].
      weights: the weight of each prediction [E, P']; predictions of weight 0 are left out.
      values: other arrays [E, P'].

    Returns:
      masked_lm_positions in the flattened micro-batch, masked_lm_weights, and `values`, each [M * P].
    """
    count = len(placed.examples)
    used = np.where(placed.examples[..., np.newaxis] >= 0, weights[placed.examples] > 0, False)  # [M, S, P']
    numbers, examples, columns = np.nonzero(used)
    of_batch = used.reshape(count, -1).sum(axis=1)
    targets = numbers * placed.predictions + np.arange(len(numbers)) - (np.cumsum(of_batch) - of_batch)[numbers]
    sources = placed.examples[numbers, examples], columns

    def packed(array: np.ndarray) -> np.ndarray:
        predictions = np.zeros(count * placed.predictions, array.dtype)
        predictions[targets] = array
        return predictions

    return {
        "masked_lm_positions": packed((placed.starts[numbers, examples, 0] + positions[sources]).astype(np.int32)),
        "masked_lm_weights": packed(weights[sources]),
        **{name: packed(array[sources]) for name, array in values.items()},
    }
