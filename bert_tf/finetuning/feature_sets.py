"""Tokenized examples in memory, and the selection of each training step's batch.

Sequences are stored without padding. In training, they are packed into rows (see `sequences.packed_rows`). In
evaluation, a batch is padded to the smallest of several lengths that fits its longest sequence.

The examples are shuffled in every epoch. The epochs are concatenated and split into batches, so every epoch contains
every example once. The batch of a step depends only on (seed, step).

Axis letters: B batch, C choices (sequences of one example), T tokens.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from bert_tf.runtime.errors import InputError, require_whole
from bert_tf.sequences import packed_rows, placement
from bert_tf.sequences.packed_rows import Layout, Tokens
from bert_tf.sequences.packing import Packed
from bert_tf.sequences.placement import MicroBatch, Sizes
from bert_tf.training.settings import Shapes


def bucket_lengths(max_seq_length: int, shapes: Shapes = Shapes.ANY) -> list[int]:
    """Returns the lengths that batches are padded to, in ascending order.

    If the step is compiled for one shape, the lengths are powers of 2 from 32 on. If the step is traced for each shape,
    they are multiples of 8 up to 64, of 16 up to 128, of 32 up to 256, and so on. Otherwise they are multiples of 8.

    Args:
      max_seq_length: the largest length.
      shapes: the shapes of the batches.
    """
    lengths = range(8, max_seq_length, 8)
    if shapes is Shapes.ONE:
        lengths = [32 << i for i in range(16)]
    elif shapes is Shapes.FEW:
        lengths = [length for length in lengths if length % max(8, 1 << (length - 1).bit_length() - 3) == 0]
    return [length for length in lengths if length < max_seq_length] + [max_seq_length]


@dataclasses.dataclass(frozen=True)
class FeatureSet:
    """Tokenized examples without padding.

    Attributes:
      input_ids: the concatenated ids of all sequences, int32 [total number of tokens].
      lengths: the number of ids in each sequence.
      first_lengths: the number of ids in segment 0 of each sequence. The others belong to segment 1.
      per_example: arrays with one row per example, such as labels or positions.
      per_token: arrays with one row per element of `input_ids`, such as tags, each with its padding value.
      choices: the number of sequences in one example (C); 1 except for multiple choice.
      truncated: whether each sequence was truncated; None if all are complete.
      windows: the number of windows of each document; None if examples are not windows. With windows, a set has one
        example per window, and a document is predicted from all of its windows.
    """

    input_ids: np.ndarray
    lengths: np.ndarray
    first_lengths: np.ndarray
    per_example: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    per_token: Mapping[str, tuple[np.ndarray, int]] = dataclasses.field(default_factory=dict)
    choices: int = 1
    truncated: np.ndarray | None = None
    windows: np.ndarray | None = None

    @classmethod
    def from_sequences(
        cls,
        sequences: Sequence[tuple[Sequence[int], Sequence[int]] | Packed],
        per_example: Mapping[str, np.ndarray] | None = None,
        choices: int = 1,
    ) -> "FeatureSet":
        """Stores sequences in the format of `packing.join_segments` or `TextPacker.pack`."""
        lengths = np.array([len(ids) for ids, *_ in sequences], np.int32)
        ids = itertools.chain.from_iterable(ids for ids, *_ in sequences)
        return cls(
            input_ids=np.fromiter(ids, np.int32, count=int(lengths.sum())),
            lengths=lengths,
            first_lengths=np.array([len(segments) - sum(segments) for _, segments, *_ in sequences], np.int32),
            per_example=dict(per_example or {}),
            choices=choices,
            truncated=np.array([any(is_truncated) for _, _, *is_truncated in sequences], bool),
        )

    @classmethod
    def joined(cls, feature_sets: Sequence["FeatureSet"], choices: int = 1) -> "FeatureSet":
        """Joins the sequences of several sets, without their `per_example` arrays."""
        return cls(
            input_ids=np.concatenate([features.input_ids for features in feature_sets]),
            lengths=np.concatenate([features.lengths for features in feature_sets]),
            first_lengths=np.concatenate([features.first_lengths for features in feature_sets]),
            choices=choices,
            truncated=np.concatenate([features.truncated for features in feature_sets]),
        )

    def with_values(self, **per_example: np.ndarray) -> "FeatureSet":
        """Returns these features with additional arrays that have one row per example, or per document."""
        if self.windows is not None:
            per_example = {name: np.repeat(rows, self.windows, axis=0) for name, rows in per_example.items()}
        return dataclasses.replace(self, per_example={**self.per_example, **per_example})

    def document_values(self, name: str) -> np.ndarray:
        """Returns an array of `per_example` with one row per document, if there are windows."""
        values = self.per_example[name]
        return values if self.windows is None else values[np.cumsum(self.windows) - self.windows]

    def __len__(self) -> int:
        """Returns the number of examples."""
        return len(self.lengths) // self.choices

    @property
    def num_truncated(self) -> int:
        """The number of examples that have a truncated sequence."""
        return 0 if self.truncated is None else int(self.truncated.reshape(-1, self.choices).any(axis=1).sum())

    @property
    def token_names(self) -> set[str]:
        """The names of the batch's arrays that have one value per token."""
        return {"input_ids", "input_mask", "segment_ids", *self.per_token}

    @functools.cached_property
    def longest(self) -> np.ndarray:
        """The length of the longest sequence of each example."""
        return self.lengths.reshape(-1, self.choices).max(axis=1)

    @functools.cached_property
    def tokens(self) -> np.ndarray:
        """The number of tokens of each example."""
        return self.lengths.reshape(-1, self.choices).sum(axis=1)

    @property
    def max_length(self) -> int:
        """The length of the longest sequence."""
        return int(self.longest.max(initial=0))

    @functools.cached_property
    def _starts(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.lengths[:-1], dtype=np.int64)])

    def sizes(self, examples: np.ndarray) -> Sizes:
        """Returns the sizes of some examples."""
        return Sizes.of(self.lengths.reshape(-1, self.choices)[examples])

    def packed(self, layout: Layout) -> dict[str, np.ndarray]:
        """Returns the arrays of packed rows; see `packed_rows.pack`."""
        tokens = {"input_ids": (self.input_ids, 0), **self.per_token}
        return packed_rows.pack(
            layout, Tokens(tokens, self._starts, self.lengths, self.first_lengths), self.per_example
        )

    def batch(self, examples: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Pads some examples and stacks them into one batch.

        Args:
          examples: the indices of the examples [B].
          length: T, at least the length of the longest sequence.

        Returns:
          input_ids, input_mask, segment_ids and the arrays of `per_token` [B*C, T, ...], and the arrays of
          `per_example` [B, ...].
        """
        rows = (examples[:, None] * self.choices + np.arange(self.choices)).reshape(-1)
        positions = np.arange(length)
        mask = positions < self.lengths[rows, None]
        source = np.where(mask, self._starts[rows, None] + positions, 0)
        batch = {
            "input_ids": np.where(mask, self.input_ids[source], 0),
            "input_mask": mask.astype(np.int32),
            "segment_ids": (mask & (positions >= self.first_lengths[rows, None])).astype(np.int32),
        }
        for name, (values, padding) in self.per_token.items():
            is_token = mask.reshape(mask.shape + (1,) * (values.ndim - 1))
            batch[name] = np.where(is_token, values[source], values.dtype.type(padding))
        return batch | {name: values[examples] for name, values in self.per_example.items()}


class BatchSampler:
    """Selects the examples of each training step's batch.

    Args:
      features: the training set.
      batch_size: the number of examples in a step (B).
      seed: the seed of all shuffles.
      buckets: the lengths that batches are padded to, ascending. The last one fits every sequence.

    Raises:
      InputError: if there are no examples.
    """

    def __init__(self, features: FeatureSet, batch_size: int, seed: int, buckets: Sequence[int]) -> None:
        if not len(features):
            raise InputError("there are no training examples. Add examples.")
        self.features = features
        self.batch_size = batch_size
        self.seed = seed
        self.buckets: np.ndarray = np.asarray(buckets)
        self._epochs = functools.lru_cache(maxsize=2)(self._shuffled_epoch)

    def examples(self, step: int) -> np.ndarray:
        """Returns the indices of a step's examples [B], in the random order of their epochs."""
        positions = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        epochs, offsets = np.divmod(positions, len(self.features))
        return np.concatenate([self._epochs(int(epoch))[offsets[epochs == epoch]] for epoch in np.unique(epochs)])

    def sizes(self, step: int) -> Sizes:
        """Returns the sizes of a step's examples."""
        return self.features.sizes(self.examples(step))

    def bucket(self, examples: np.ndarray) -> int:
        """Returns the smallest length in `buckets` that fits these examples."""
        return int(self.buckets[np.searchsorted(self.buckets, self.features.longest[examples].max())])

    def _shuffled_epoch(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self.seed, 0, epoch]).permutation(len(self.features))


def batches_by_length(
    features: FeatureSet, batch_size: int, buckets: Sequence[int], multiple: int | None = 1
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Yields all examples in batches, shortest examples first, for evaluation and prediction.

    Batches of shorter examples have more examples, so all batches need about the same memory.

    Args:
      features: the examples.
      batch_size: the number of examples in a batch of the largest length (B). Batches of half the length have twice as
        many examples, and so on.
      buckets: the lengths that batches are padded to, ascending.
      multiple: the last batch of each length is filled with copies of its last example up to a multiple of this number;
        None to give it the size of the other batches of its length.

    Yields:
      The indices of the examples, without the copies, and the batch.

    Raises:
      InputError: if the batch size is not a positive integer.
    """
    require_whole("batch_size", batch_size, 1)
    order = np.argsort(features.longest, kind="stable")
    fitting = np.searchsorted(buckets, features.longest[order])
    for number in np.unique(fitting):
        length = buckets[number]
        size = batch_size * (buckets[-1] // length)
        group = order[fitting == number]
        for start in range(0, len(group), size):
            examples = group[start : start + size]
            copies = np.repeat(examples[-1:], -len(examples) % (multiple or size))
            yield examples, features.batch(np.concatenate([examples, copies]), length)


def packed_batches(
    features: FeatureSet, rows: int, replicas: int, length: int
) -> Iterator[tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]]:
    """Yields all examples in packed batches of the same shape, for evaluation and prediction on a TPU.

    Args:
      features: the examples.
      rows: the number of rows per replica in a batch.
      replicas: the number of replicas.
      length: the length of a row.

    Yields:
      The indices of the examples, the positions of their outputs, and the batch.
    """
    sizes = features.sizes(np.arange(len(features)))
    mean = max(1, int(features.tokens.mean()))
    rows, slots = max(rows, features.choices), -(-rows * length // mean)
    waiting = list(range(len(features)))
    while waiting:
        chosen = sorted(waiting[: replicas * slots], key=lambda example: -features.tokens[example])
        batches = [MicroBatch(length, slots, rows) for _ in range(replicas)]
        waiting = placement.fill(batches, sizes, chosen) + waiting[replicas * slots :]
        layout = placement.layout(batches, sizes, rows, 0)
        examples = layout.examples.reshape(-1)
        positions = np.flatnonzero(examples >= 0)
        yield examples[positions], positions, features.packed(layout)


def joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Joins the outputs of several batches. Outputs with one value per token are zero-padded to the longest batch."""
    if arrays[0].ndim == 1:
        return np.concatenate(arrays)
    width = max(array.shape[1] for array in arrays)
    return np.concatenate(
        [np.pad(array, [(0, 0), (0, width - array.shape[1])] + [(0, 0)] * (array.ndim - 2)) for array in arrays]
    )
