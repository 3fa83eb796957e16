"""Counts the words of a corpus in parallel and in bounded memory, as the tokenizer splits them.

A word here is what WordPiece is given: what `BasicTokenizer` leaves between white space and punctuation. Each piece of
the corpus is counted by itself, and the counts are added up in the order of the corpus, so they don't depend on the
number of processes.
"""

import collections
import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from bert_tf.runtime import files
from bert_tf.tokenization import BasicTokenizer, split_words
from data_prep.corpus.files import FileRange
from data_prep.corpus.reader import BadLines, CorpusOptions, CorpusReader


class BoundedCounter:
    """Counts words; when there are too many, the rarest are forgotten, and how much that may matter is known.

    This is lossy counting (Manku and Motwani, 2002): a count is never too high, and too low by at most `error`; a word
    that is missing occurred at most `error` times.

    Args:
      capacity: how many words are kept.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.counts: collections.Counter[str] = collections.Counter()
        self.error = 0

    def add(self, counts: Iterable[tuple[str, int]], error: int = 0) -> None:
        """Adds counts, which may themselves be too low by `error`."""
        self.error += error
        for word, count in counts:
            self.counts[word] += count
            if len(self.counts) > self._capacity:
                self._forget_rarest()

    def _forget_rarest(self) -> None:
        values = np.fromiter(self.counts.values(), np.int64, len(self.counts))
        bound = int(np.partition(values, len(values) // 2)[len(values) // 2])
        self.error += bound
        self.counts = collections.Counter({word: count for word, count in self.counts.items() if count > bound})


@dataclasses.dataclass(frozen=True)
class CountStage:
    """Counts the words of a corpus; a job's result is a file of words and counts.

    Attributes:
      folder: of the results.
      splits: pieces of the corpus, one list a job.
      corpus: how files become lines.
      do_lower_case: whether the tokenizer lower-cases and strips accents.
      capacity: how many words each process keeps.
    """

    folder: str
    splits: Sequence[Sequence[FileRange]]
    corpus: CorpusOptions
    do_lower_case: bool
    capacity: int

    @property
    def names(self) -> list[str]:
        """One a piece."""
        return [f"words-{i:05d}" for i in range(len(self.splits))]

    @functools.cached_property
    def _tokenize(self) -> Callable[[str], list[str]]:
        return BasicTokenizer(self.do_lower_case).tokenize

    def run(self, job: int, advance: Callable[[int], None]) -> dict[str, Any]:
        """Counts a piece."""
        bad_lines = BadLines(self.corpus.on_bad_line)
        reader = CorpusReader(self.corpus, bad_lines)
        counter = BoundedCounter(self.capacity)
        # What stands between white space is counted first, and split once for all times that it occurs.
        raw: collections.Counter[str] = collections.Counter()
        for piece in self.splits[job]:
            for line in reader.sentences(piece, advance):
                if line is not None:
                    raw.update(split_words(line))
                    if len(raw) > self.capacity:
                        counter.add(self._split(raw))
                        raw.clear()
        counter.add(self._split(raw))
        with files.replacing(self._path(job)) as writer:
            writer.writelines(f"{word}\t{count}\n" for word, count in counter.counts.items())
        return {"error": counter.error, **bad_lines.result()}

    def _split(self, raw: collections.Counter[str]) -> Iterable[tuple[str, int]]:
        return ((word, count) for text, count in raw.items() for word in self._tokenize(text))

    def _path(self, job: int) -> str:
        return os.path.join(self.folder, f"{self.names[job]}.tsv")

    def add_up(self, results: Sequence[dict[str, Any]]) -> BoundedCounter:
        """The counts of the whole corpus.

        Args:
          results: what `run` returned for each of the jobs.
        """
        counter = BoundedCounter(self.capacity)
        for job, result in enumerate(results):
            with files.open_file(self._path(job)) as reader:
                pairs = (line.removesuffix("\n").split("\t") for line in reader)
                counter.add(((word, int(count)) for word, count in pairs), result["error"])
        return counter

    def close(self) -> None:
        """Nothing is open."""
