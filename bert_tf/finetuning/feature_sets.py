"""Tokenized examples in memory, and which of them make the batch of each training step.

Sequences are stored as long as they are. A batch is padded to the shortest length of a fixed list that holds its
longest sequence. Training goes through shuffled epochs, laid end to end and cut into batches, so every epoch shows
every example once. Where the training set is large enough, examples of similar length are put into the same batch,
which saves padding: the batches of an epoch are cut into windows of `WINDOW_BATCHES`; the examples of a window are
sorted by length, cut into batches again, and the batches shuffled. The batch of any step is a function of (seed, step).

Axis letters: B batch, C choices (sequences of one example), T tokens.
"""

import dataclasses
import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf.runtime.files import InputError

WINDOW_BATCHES = 16
# Fewer batches an epoch make so few windows that much the same examples meet in every epoch.
GROUPED_FROM_BATCHES = 4 * WINDOW_BATCHES


def bucket_lengths(max_seq_length: int, few: bool) -> list[int]:
    """The lengths that batches are padded to.

    Args:
      max_seq_length: the longest.
      few: where each length is compiled anew (XLA), the steps double; elsewhere they are multiples of 8.
    """
    lengths = [32 << i for i in range(16)] if few else range(8, max_seq_length, 8)
    return [length for length in lengths if length < max_seq_length] + [max_seq_length]


@dataclasses.dataclass(frozen=True)
class FeatureSet:
    """Examples as the model reads them, unpadded.

    Attributes:
      input_ids: the ids of all sequences, end to end (int32).
      lengths: how many ids each sequence has.
      first_lengths: how many of them belong to segment 0; the rest are segment 1.
      per_example: arrays with a row for each example: labels, positions...
      per_token: arrays with a row for each of `input_ids`, with what their padding is: tags...
      choices: sequences of one example (C); 1 but for multiple choice.
    """

    input_ids: np.ndarray
    lengths: np.ndarray
    first_lengths: np.ndarray
    per_example: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    per_token: Mapping[str, tuple[np.ndarray, int]] = dataclasses.field(default_factory=dict)
    choices: int = 1

    @classmethod
    def from_sequences(
        cls,
        sequences: Sequence[tuple[Sequence[int], Sequence[int]]],
        per_example: Mapping[str, np.ndarray] | None = None,
        choices: int = 1,
    ) -> "FeatureSet":
        """Stores (ids, segment_ids) pairs, as `packing.join_segments` makes them."""
        lengths = np.array([len(ids) for ids, _ in sequences], np.int32)
        ids = itertools.chain.from_iterable(ids for ids, _ in sequences)
        return cls(
            input_ids=np.fromiter(ids, np.int32, count=int(lengths.sum())),
            lengths=lengths,
            first_lengths=np.array([len(segments) - sum(segments) for _, segments in sequences], np.int32),
            per_example=dict(per_example or {}),
            choices=choices,
        )

    @classmethod
    def joined(
        cls, parts: Sequence["FeatureSet"], per_example: Mapping[str, np.ndarray], choices: int = 1
    ) -> "FeatureSet":
        """The sequences of several sets as one; what is per example comes for the whole."""
        return cls(
            input_ids=np.concatenate([part.input_ids for part in parts]),
            lengths=np.concatenate([part.lengths for part in parts]),
            first_lengths=np.concatenate([part.first_lengths for part in parts]),
            per_example=dict(per_example),
            choices=choices,
        )

    def __len__(self) -> int:
        """How many examples there are."""
        return len(self.lengths) // self.choices

    @property
    def token_names(self) -> set[str]:
        """What a batch holds for each token."""
        return {"input_ids", "input_mask", "segment_ids", *self.per_token}

    @functools.cached_property
    def longest(self) -> np.ndarray:
        """Each example's longest sequence."""
        return self.lengths.reshape(-1, self.choices).max(axis=1)

    def longest_of(self, examples: np.ndarray) -> np.ndarray:
        """The longest sequence of some examples, each."""
        return self.longest[examples]

    @property
    def max_length(self) -> int:
        """The longest sequence of all."""
        return int(self.longest.max(initial=0))

    @functools.cached_property
    def _starts(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.lengths[:-1], dtype=np.int64)])

    def batch(self, examples: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Pads some examples into one batch.

        Args:
          examples: their numbers [B].
          length: T, at least that of the longest.

        Returns:
          input_ids, input_mask, segment_ids and what is per token [B*C, T, ...]; what is per example [B, ...].
        """
        rows = (examples[:, None] * self.choices + np.arange(self.choices)).reshape(-1)
        places = np.arange(length)
        mask = places < self.lengths[rows, None]
        source = np.where(mask, self._starts[rows, None] + places, 0)
        batch = {
            "input_ids": np.where(mask, self.input_ids[source], 0),
            "input_mask": mask.astype(np.int32),
            "segment_ids": (mask & (places >= self.first_lengths[rows, None])).astype(np.int32),
        }
        for name, (values, padding) in self.per_token.items():
            shown = mask.reshape(mask.shape + (1,) * (values.ndim - 1))
            batch[name] = np.where(shown, values[source], values.dtype.type(padding))
        return batch | {name: values[examples] for name, values in self.per_example.items()}


class LazyFeatures:
    """A large training set, whose examples are tokenised when a batch first needs them: training starts at once.

    To a `BatchSampler` it is the same as the `FeatureSet` of all examples.

    Args:
      examples: the rows.
      featurize: the features of some rows, in their order; a row's must not depend on the others.
      max_length: no sequence is longer.
    """

    def __init__(
        self, examples: Sequence[Any], featurize: Callable[[Sequence[Any]], FeatureSet], max_length: int
    ) -> None:
        self.max_length = max_length
        self._examples = examples
        self._featurize = featurize
        self._parts: list[FeatureSet] = []  # what was tokenised together
        self._part = np.full(len(examples), -1)  # where each example is, and at which place there
        self._place = np.zeros(len(examples), np.int64)
        self._longest = np.zeros(len(examples), np.int32)
        self._lock = threading.Lock()  # the input pipeline of a trial may still run while the next one's begins

    def __len__(self) -> int:
        """How many examples there are."""
        return len(self._examples)

    @property
    def token_names(self) -> set[str]:
        """What a batch holds for each token."""
        self._tokenize(np.zeros(1, np.int64))
        return self._parts[0].token_names

    def longest_of(self, examples: np.ndarray) -> np.ndarray:
        """The longest sequence of some examples, each."""
        self._tokenize(examples)
        return self._longest[examples]

    def batch(self, examples: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """See `FeatureSet.batch`."""
        self._tokenize(examples)
        parts = self._part[examples]
        batch: dict[str, np.ndarray] = {}
        for part in np.unique(parts):
            where = np.flatnonzero(parts == part)
            for name, rows in self._parts[part].batch(self._place[examples[where]], length).items():
                of_each = (len(rows) // len(where), *rows.shape[1:])  # C sequences, but one label
                whole = batch.setdefault(name, np.empty((len(examples), *of_each), rows.dtype))
                whole[where] = rows.reshape(len(where), *of_each)
        return {name: whole.reshape(-1, *whole.shape[2:]) for name, whole in batch.items()}

    def _tokenize(self, examples: np.ndarray) -> None:
        with self._lock:
            missing = np.unique(examples[self._part[examples] < 0])
            if missing.size:
                part = self._featurize([self._examples[i] for i in missing])
                self._parts.append(part)
                self._longest[missing] = part.longest
                self._place[missing] = np.arange(len(missing))
                self._part[missing] = len(self._parts) - 1


class BatchSampler:
    """Which examples make the batch of each training step.

    Args:
      features: the training set.
      batch_size: examples in a step (B).
      seed: of all shuffles.
      buckets: the lengths that batches are padded to, ascending; the last holds every sequence.
      group_by_length: put examples of similar length into the same batch.

    Raises:
      InputError: if there are no examples.
    """

    def __init__(
        self,
        features: FeatureSet | LazyFeatures,
        batch_size: int,
        seed: int,
        buckets: Sequence[int],
        group_by_length: bool,
    ) -> None:
        if not len(features):
            raise InputError("there are no training examples.")
        self.features = features
        self.batch_size = batch_size
        self.seed = seed
        self.buckets = np.asarray(buckets)
        self.group_by_length = group_by_length
        self._epoch = functools.lru_cache(maxsize=2)(self._epoch)
        self._window = functools.lru_cache(maxsize=2)(self._window)

    def examples(self, step: int) -> np.ndarray:
        """The numbers of the examples of a step [B]."""
        epoch = step * self.batch_size // len(self.features)
        # The steps [first, behind) whose batches lie in this epoch altogether; the others end it or begin it.
        first = -(-epoch * len(self.features) // self.batch_size)
        behind = (epoch + 1) * len(self.features) // self.batch_size
        if not self.group_by_length or not first <= step < behind:
            return self._drawn(step, 1)
        window, place = divmod(step - first, WINDOW_BATCHES)
        begin = first + window * WINDOW_BATCHES
        return self._window(begin, min(WINDOW_BATCHES, behind - begin))[place]

    def batch(self, step: int) -> dict[str, np.ndarray]:
        """The padded batch of a step."""
        examples = self.examples(step)
        return self.features.batch(examples, self.bucket(examples))

    def bucket(self, examples: np.ndarray) -> int:
        """The shortest length of the list that holds these examples."""
        return int(self.buckets[np.searchsorted(self.buckets, self.features.longest_of(examples).max())])

    def _epoch(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self.seed, 0, epoch]).permutation(len(self.features))

    def _drawn(self, step: int, steps: int) -> np.ndarray:
        """The examples of some steps, in the random order of their epochs."""
        places = np.arange(step * self.batch_size, (step + steps) * self.batch_size)
        epochs, offsets = np.divmod(places, len(self.features))
        return np.concatenate([self._epoch(int(epoch))[offsets[epochs == epoch]] for epoch in np.unique(epochs)])

    def _window(self, begin: int, steps: int) -> np.ndarray:
        """The examples of some steps of an epoch, from that of `begin` on, grouped by length [steps, B]."""
        drawn = self._drawn(begin, steps)
        by_length = drawn[np.argsort(self.features.longest_of(drawn), kind="stable")]
        batches = by_length.reshape(steps, self.batch_size)
        return batches[np.random.default_rng([self.seed, 1, begin]).permutation(steps)]


def batches_by_length(
    features: FeatureSet, batch_size: int, buckets: Sequence[int]
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """All examples, shortest first, in batches of one size: for evaluation and prediction.

    The last batch is filled up with its own last example.

    Yields:
      The numbers of the examples that the batch is for, and the batch.
    """
    order = np.argsort(features.longest, kind="stable")
    for start in range(0, len(order), batch_size):
        examples = order[start : start + batch_size]
        filled = np.concatenate([examples, np.repeat(examples[-1:], batch_size - len(examples))])
        length = int(buckets[np.searchsorted(buckets, features.longest[examples].max())])
        yield examples, features.batch(filled, length)
