"""Packed rows: several sequences share a row, so hardly any padding is computed, on every device.

A batch is divided into parts, one for each replica and micro-batch. The sequences of a part are placed in rows of L
positions, longest sequence first, each in the fullest row that has room for it. The examples of a step do not change,
and neither do its loss and its gradients.

A step that is compiled for one shape has a fixed number of rows. Examples that do not fit are placed in spill
micro-batches, which have few rows. A step computes as many of them as it needs, so no example is lost.

Axis letters: E examples, C sequences of an example (choices), S examples of a micro-batch, R rows, L positions of a
row, P predictions, M micro-batches.
"""

import bisect
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np

# A part has this number of times the rows of a spill micro-batch. The fixed cost of a spill micro-batch is mainly the
# sum of gradients. It is about the cost of 256 positions.
_SPILL_FRACTION, _SPILL_POSITIONS = 8, 256


class Sizes(NamedTuple):
    """The sizes of some examples.

    Attributes:
      lengths: the number of tokens of each sequence [E, C]; 0 for a sequence that does not exist.
      predictions: the number of masked-LM predictions of each example [E].
    """

    lengths: np.ndarray
    predictions: np.ndarray

    @classmethod
    def of(cls, lengths: np.ndarray) -> "Sizes":
        """Returns the sizes of examples without predictions, for lengths [E, C]."""
        return cls(lengths, np.zeros(len(lengths), int))


class Shape(NamedTuple):
    """The shape of a part and of its spill micro-batches.

    Attributes:
      rows: R.
      predictions: P.
      spill_rows: R of a spill micro-batch.
      spill_predictions: P of a spill micro-batch.
      spills: the largest number of spill micro-batches of a replica; 0 if everything always fits.
    """

    rows: int
    predictions: int
    spill_rows: int
    spill_predictions: int
    spills: int


class Layout(NamedTuple):
    """The places of examples in M micro-batches of the same shape.

    Attributes:
      examples: the index of each example [M, S]; -1 where there is none.
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
        """Returns the layout for indices in another set, in which the placed examples have the indices `examples`."""
        return self._replace(examples=np.where(self.examples >= 0, examples[self.examples], -1))


class MicroBatch:
    """A micro-batch to which examples are added.

    Args:
      length: L.
      slots: S.
      rows: R; None to add rows as they are needed.
      predictions: P.
    """

    def __init__(self, length: int, slots: int, rows: int | None = None, predictions: float = math.inf) -> None:
        self.length, self.slots, self.grows = length, slots, rows is None
        self.rows = rows or 0
        self.most_predictions, self.predictions = predictions, 0
        self.examples: list[int] = []
        self.starts: list[list[int]] = []
        self._room = [(length, row) for row in range(self.rows)]  # ascending

    def room_for(self, length: int) -> float:
        """Returns the free positions of the fullest row that has room for a sequence; infinity if there is none."""
        index = bisect.bisect_left(self._room, (length, 0))
        return self._room[index][0] if index < len(self._room) else math.inf

    def add(self, example: int, lengths: Sequence[int], predictions: int) -> bool:
        """Adds an example if there is room for all its sequences. Returns whether there was."""
        if len(self.examples) == self.slots or self.predictions + predictions > self.most_predictions:
            return False
        room, rows, starts = self._room.copy(), self.rows, []
        for length in lengths:
            start = 0
            if length:
                index = bisect.bisect_left(room, (length, 0))
                if index < len(room):
                    free, row = room.pop(index)
                elif self.grows:
                    free, row, rows = self.length, rows, rows + 1
                else:
                    return False
                start = row * self.length + self.length - free
                if free > length:
                    bisect.insort(room, (free - length, row))
            starts.append(start)
        self._room, self.rows = room, rows
        self.predictions += predictions
        self.examples.append(example)
        self.starts.append(starts)
        return True


@dataclasses.dataclass(frozen=True)
class Packer:
    """Places the examples of each step that one input pipeline provides.

    Attributes:
      replicas: the number of replicas of the pipeline.
      micro_batches: the number of micro-batches of a replica.
      shape: the shape of each part; None to give each micro-batch the rows and predictions that it needs.
      hidden_size: the encoder's hidden size, if rows may have any length. The one with the fewest operations is used.
      shares: whether all replicas share all examples, so that they have about equally many tokens. Otherwise, each
        replica has its own consecutive examples.
    """

    replicas: int = 1
    micro_batches: int = 1
    shape: Shape | None = None
    hidden_size: int | None = None
    shares: bool = True

    def place(self, sizes: Sizes, length: int) -> list[list[Layout]]:
        """Places examples in rows.

        Args:
          sizes: the sizes of the examples. Their number is a multiple of the number of parts.
          length: L, at least the length of each sequence; the smallest L, if rows may have any length.

        Returns:
          For each replica, the layout of its micro-batches and, if there is a shape with spills, the layout of these.
        """
        if self.hidden_size is None:
            return self._place(sizes, length)

        def cost(placed: list[list[Layout]]) -> int:
            first = placed[0][0]
            # An operation of attention takes about three times as long as one of a matrix multiplication.
            return first.rows * first.length * (2 * self.hidden_size + first.length)

        return min((self._place(sizes, each) for each in range(length, length * 3 // 2, 8)), key=cost)

    def _place(self, sizes: Sizes, length: int) -> list[list[Layout]]:
        # Replicas that share examples are one group, which is packed together.
        replicas = self.replicas if self.shares else 1
        groups = np.arange(len(sizes.lengths)).reshape(self.replicas // replicas, -1)
        by_tokens = [group[np.argsort(-sizes.lengths[group].sum(axis=1), kind="stable")] for group in groups]
        if not self.shape:
            return self._place_in_needed_rows(sizes, length, by_tokens, replicas)
        return [x for examples in by_tokens for x in self._place_in_shape(sizes, length, examples, replicas)]

    def _place_in_needed_rows(
        self, sizes: Sizes, length: int, groups: Sequence[np.ndarray], replicas: int
    ) -> list[list[Layout]]:
        """Places groups of examples, most tokens first, so that all parts have equally many examples."""
        batches = []
        for examples in groups:
            rounds = examples.reshape(-1, replicas * self.micro_batches).copy()
            rounds[1::2] = rounds[1::2, ::-1]
            for part in rounds.T.tolist():
                batches.append(MicroBatch(length, len(rounds)))
                fill(batches[-1:], sizes, part)
        shape = _shape_of(batches, is_rounded=self.hidden_size is None)
        return [[layout(own, sizes, *shape)] for own in np.array(batches, object).reshape(self.replicas, -1)]

    def _place_in_shape(self, sizes: Sizes, length: int, examples: np.ndarray, replicas: int) -> list[list[Layout]]:
        """Places examples, most tokens first, in the fullest rows of any part."""
        rows, predictions, *spill_shape, spills = self.shape
        size = len(examples) // (replicas * self.micro_batches)
        slots = size if len(examples) == size else -(-size * 3 // 2)
        own = [
            [MicroBatch(length, slots, rows, predictions) for _ in range(self.micro_batches)] for _ in range(replicas)
        ]
        spilled = [[MicroBatch(length, size, *spill_shape) for _ in range(spills)] for _ in range(replicas)]
        left = fill([batch for batches in own for batch in batches], sizes, examples.tolist())
        # Replicas take turns, because all of them wait for the one with the most spill micro-batches.
        for turn in zip(*spilled, strict=True):
            left = fill(turn, sizes, left)
        if left:
            raise AssertionError("the spill micro-batches have room for all examples")
        layouts = [[layout(batches, sizes, rows, predictions)] for batches in own]
        if spills:
            for of_replica, batches in zip(layouts, spilled, strict=True):
                of_replica.append(layout(batches, sizes, *spill_shape))
        return layouts

    def with_shape(self, samples: Iterable[Sizes], length: int, most_predictions: int = 0) -> "Packer":
        """Returns a packer with the shape that is cheapest for a sample of steps.

        Args:
          samples: the examples of some steps.
          length: L.
          most_predictions: the largest number of predictions of an example.
        """
        samples = list(samples)
        parts, choices = self.replicas * self.micro_batches, samples[0].lengths.shape[1]
        size = len(samples[0].lengths) // parts
        layouts = [own[0] for sizes in samples for own in dataclasses.replace(self, shape=None).place(sizes, length)]
        predictions = min(max(placed.predictions for placed in layouts), size * most_predictions)
        fitting = predictions // most_predictions if most_predictions else size
        tokens = int(np.mean([sizes.lengths.sum() for sizes in samples]))

        def packer_of(rows: int) -> Packer:
            spill = max(choices, -(-rows // _SPILL_FRACTION))
            left = self.micro_batches * (size - min(rows // choices, fitting))
            spills = -(-left // (spill // choices)) if left > 0 else 0
            if rows + spill >= size * choices:
                return dataclasses.replace(self, shape=Shape(size * choices, size * most_predictions, spill, 0, 0))
            shape = Shape(rows, predictions, spill, spill * most_predictions, spills)
            return dataclasses.replace(self, shape=shape)

        def cost(packer: Packer) -> float:
            rows, _, spill_rows, _, _ = packer.shape
            placed = (packer.place(sizes, length) for sizes in samples)
            spills = [max(own[1].used if own[1:] else 0 for own in replicas) for replicas in placed]
            return rows + float(np.mean(spills)) * (spill_rows + _SPILL_POSITIONS / length)

        fewest, most = max(choices, tokens // (parts * length)), max(placed.rows for placed in layouts)
        return min(map(packer_of, range(fewest, max(fewest, most) + 1)), key=cost)


def fill(batches: Sequence[MicroBatch], sizes: Sizes, examples: Iterable[int]) -> list[int]:
    """Adds each example to the micro-batch with the fullest row that has room for its longest sequence.

    If rows are equally full, micro-batches with fewer examples come first.

    Returns:
      The examples for which no micro-batch has room.
    """

    def add(example: int) -> bool:
        lengths, predictions = sizes.lengths[example].tolist(), int(sizes.predictions[example])
        longest = max(lengths)
        fullest = sorted(batches, key=lambda batch: (batch.room_for(longest), len(batch.examples)))
        return any(batch.add(example, lengths, predictions) for batch in fullest)

    return [example for example in examples if not add(example)]


def layout(batches: Sequence[MicroBatch], sizes: Sizes, rows: int, predictions: int) -> Layout:
    """Returns the layout of micro-batches of R rows and P predictions."""
    shape = len(batches), batches[0].slots
    examples, starts = np.full(shape, -1), np.zeros((*shape, sizes.lengths.shape[1]), int)
    for number, batch in enumerate(batches):
        examples[number, : len(batch.examples)] = batch.examples
        starts[number, : len(batch.examples)] = batch.starts or 0
    used = sum(bool(batch.examples) for batch in batches)
    return Layout(examples, starts, rows, batches[0].length, predictions, used)


def _shape_of(batches: Sequence[MicroBatch], is_rounded: bool) -> tuple[int, int]:
    """Returns the smallest R and P that fit all micro-batches. If rounded, they have few values, with a graph each."""
    rows, predictions = (max(getattr(batch, name) for batch in batches) for name in ("rows", "predictions"))
    if not is_rounded:
        return rows, predictions
    return min(_rounded(rows), max(rows, batches[0].slots)), _rounded(predictions)


def _rounded(count: int) -> int:
    """Rounds up to one of 8 numbers between two powers of two."""
    multiple = 1 << max(count.bit_length() - 4, 0)
    return -(-count // multiple) * multiple


class Tokens(NamedTuple):
    """Sequences that are stored one after another, with or without padding between them.

    Attributes:
      values: arrays with one row per stored token [n, ...], each with its padding value.
      firsts: the index of the first token of each sequence [E * C].
      lengths: the number of tokens of each sequence [E * C].
      first_lengths: the number of tokens in segment 0 of each sequence [E * C], from which segment_ids are made.
    """

    values: Mapping[str, tuple[np.ndarray, int]]
    firsts: np.ndarray
    lengths: np.ndarray
    first_lengths: np.ndarray | None = None


def pack(placed: Layout, tokens: Tokens, per_example: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the arrays of packed micro-batches, which are concatenated.

    Args:
      placed: the places of the examples.
      tokens: the sequences.
      per_example: arrays with one row per example [E, ...].

    Returns:
      Arrays of int32, or of the type of their source:

      - the values of `tokens`, and segment_ids if there are `first_lengths`, [M * R, L, ...];
      - sequence_ids [M * R, L], the number of the sequence at each position, from 1; 0 for padding;
      - position_ids [M * R, L], counted from the start of each sequence;
      - sequence_starts and sequence_lengths [M * S * C], the position of the first token of each sequence in its
        flattened micro-batch, and the number of its tokens; 0 if there is no such sequence;
      - the values of `per_example`, [M * S, ...], of the first example if there is none.
    """
    count, slots, choices = placed.starts.shape
    sequences = placed.examples[..., np.newaxis] * choices + np.arange(choices)
    lengths = np.where(placed.examples[..., np.newaxis] >= 0, tokens.lengths[sequences], 0).reshape(-1)
    size = placed.rows * placed.length
    numbers = np.arange(slots * choices) + 1
    places = (np.arange(count)[:, np.newaxis, np.newaxis] * size + placed.starts).reshape(-1)
    offsets = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    targets = np.repeat(places, lengths) + offsets
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
    """Returns the masked-LM predictions of packed micro-batches, which are concatenated.

    Args:
      placed: the places of the examples, which have one sequence each.
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
        found = np.zeros(count * placed.predictions, array.dtype)
        found[targets] = array
        return found

    return {
        "masked_lm_positions": packed((placed.starts[numbers, examples, 0] + positions[sources]).astype(np.int32)),
        "masked_lm_weights": packed(weights[sources]),
        **{name: packed(array[sources]) for name, array in values.items()},
    }
