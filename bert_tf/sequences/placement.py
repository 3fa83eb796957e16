"""Places the sequences of a batch in packed rows.

A batch is divided into parts, one for each replica and micro-batch. The sequences of a part are placed in rows of L
positions, longest sequence first, each in the fullest row that has room for it.

A step that is compiled for one shape has a fixed number of rows. Examples that do not fit are placed in spill
micro-batches, which have few rows. There are enough of them for all examples. A step computes only those that it needs.

Axis letters: see `packed_rows`.
"""

import bisect
import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from bert_tf.sequences.packed_rows import Layout

# A part has `_SPILL_FRACTION` times as many rows as a spill micro-batch. The fixed cost of a spill micro-batch, mainly
# the sum of gradients, is about the cost of `_SPILL_POSITIONS` positions.
_SPILL_FRACTION, _SPILL_POSITIONS = 8, 256


class Sizes(NamedTuple):
    """The sizes of examples.

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
      spills: the largest number of spill micro-batches of a replica; 0 if all examples always fit.
    """

    rows: int
    predictions: int
    spill_rows: int
    spill_predictions: int
    spills: int


class MicroBatch:
    """A micro-batch to which examples are added.

    Args:
      length: L.
      slots: S.
      rows: R; None to add rows when needed.
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
        """Adds an example if there is room for all its sequences. Returns True if the example was added."""
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
    """Places the examples of one input pipeline in packed rows, step by step.

    Attributes:
      replicas: the number of replicas of the pipeline.
      micro_batches: the number of micro-batches of a replica.
      shape: the shape of each part; None for as many rows and predictions as a micro-batch needs.
      hidden_size: if given, rows may have any length, and the length with the fewest operations is used. The number of
        operations depends on the hidden size of the encoder.
      shares: if True, examples are distributed so that replicas have about equally many tokens. If False, each replica
        gets consecutive examples.
    """

    replicas: int = 1
    micro_batches: int = 1
    shape: Shape | None = None
    hidden_size: int | None = None
    shares: bool = True

    def place(self, sizes: Sizes, length: int) -> list[list[Layout]]:
        """Places examples in rows.

        Args:
          sizes: the sizes of the examples. The number of examples is a multiple of the number of parts.
          length: L, at least the length of the longest sequence. If rows may have any length, the smallest L.

        Returns:
          For each replica, the layout of its micro-batches, followed by the layout of spill micro-batches if `shape`
          has any.
        """
        if self.hidden_size is None:
            return self._place(sizes, length)

        def cost(placed: list[list[Layout]]) -> int:
            first = placed[0][0]
            # An operation of attention takes about three times as long as one of a matrix multiplication.
            return first.rows * first.length * (2 * self.hidden_size + first.length)

        return min((self._place(sizes, row_length) for row_length in range(length, length * 3 // 2, 8)), key=cost)

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
        """Places groups of examples, the longest first, so that all micro-batches have equally many examples."""
        batches = []
        for examples in groups:
            rounds = examples.reshape(-1, replicas * self.micro_batches).copy()
            rounds[1::2] = rounds[1::2, ::-1]
            for part_examples in rounds.T.tolist():
                batches.append(MicroBatch(length, len(rounds)))
                fill(batches[-1:], sizes, part_examples)
        shape = _shape_of(batches, is_rounded=self.hidden_size is None)
        by_replica = np.array(batches, object).reshape(self.replicas, -1)
        return [[layout(own_batches, sizes, *shape)] for own_batches in by_replica]

    def _place_in_shape(self, sizes: Sizes, length: int, examples: np.ndarray, replicas: int) -> list[list[Layout]]:
        """Places examples, the longest first, in the fullest row with room in any micro-batch."""
        rows, predictions, *spill_shape, spills = self.shape
        size = len(examples) // (replicas * self.micro_batches)
        slots = size if len(examples) == size else -(-size * 3 // 2)
        replica_batches = [
            [MicroBatch(length, slots, rows, predictions) for _ in range(self.micro_batches)] for _ in range(replicas)
        ]
        spilled = [[MicroBatch(length, size, *spill_shape) for _ in range(spills)] for _ in range(replicas)]
        unplaced = fill([batch for batches in replica_batches for batch in batches], sizes, examples.tolist())
        # Replicas take turns, because all of them wait for the one with the most spill micro-batches.
        for turn in zip(*spilled, strict=True):
            unplaced = fill(turn, sizes, unplaced)
        if unplaced:
            raise AssertionError("the spill micro-batches have room for all examples")
        layouts = [[layout(batches, sizes, rows, predictions)] for batches in replica_batches]
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
        part_count, choices = self.replicas * self.micro_batches, samples[0].lengths.shape[1]
        size = len(samples[0].lengths) // part_count
        unshaped = dataclasses.replace(self, shape=None)
        layouts = [main for sizes in samples for main, *_ in unshaped.place(sizes, length)]
        predictions = min(max(placed.predictions for placed in layouts), size * most_predictions)
        fitting = predictions // most_predictions if most_predictions else size
        tokens = int(np.mean([sizes.lengths.sum() for sizes in samples]))

        def packer_of(rows: int) -> Packer:
            spill = max(choices, -(-rows // _SPILL_FRACTION))
            spilled = self.micro_batches * (size - min(rows // choices, fitting))
            spills = -(-spilled // (spill // choices)) if spilled > 0 else 0
            if rows + spill >= size * choices:
                return dataclasses.replace(self, shape=Shape(size * choices, size * most_predictions, spill, 0, 0))
            shape = Shape(rows, predictions, spill, spill * most_predictions, spills)
            return dataclasses.replace(self, shape=shape)

        def cost(packer: Packer) -> float:
            rows, _, spill_rows, _, _ = packer.shape
            placed = (packer.place(sizes, length) for sizes in samples)
            spills = [max(sum(spill.used for spill in spills) for _, *spills in replicas) for replicas in placed]
            return rows + float(np.mean(spills)) * (spill_rows + _SPILL_POSITIONS / length)

        fewest, most = max(choices, tokens // (part_count * length)), max(placed.rows for placed in layouts)
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
    """Returns the smallest R and P that fit all micro-batches.

    If `is_rounded`, both are rounded up. This limits the number of graphs, because each pair of values needs a graph.
    """
    rows, predictions = (max(getattr(batch, name) for batch in batches) for name in ("rows", "predictions"))
    if not is_rounded:
        return rows, predictions
    return min(_rounded(rows), max(rows, batches[0].slots)), _rounded(predictions)


def _rounded(count: int) -> int:
    """Rounds up to one of 8 numbers between two powers of two."""
    multiple = 1 << max(count.bit_length() - 4, 0)
    return -(-count // multiple) * multiple
