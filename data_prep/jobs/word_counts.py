"""Counts the words of a corpus in parallel and in bounded memory.

A word is what `BasicTokenizer` passes to WordPiece: text between white space and punctuation. Each split of the corpus
is counted separately, and the counts are added up in the order of the corpus, so they don't depend on the number of
processes.
"""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from bert_tf.runtime import files
from bert_tf.tokenization import BasicTokenizer, split_words
from data_prep.corpus.bad_lines import BadLines
from data_prep.corpus.files import FileRange
from data_prep.corpus.reader import CorpusOptions, CorpusReader
from data_prep.jobs.corpus_stage import CorpusStage


class BoundedCounter:
    """Counts words by lossy counting (Manku and Motwani, 2002): if there are too many, the rarest are removed.

    A count is never too high, and too low by at most `error`. A missing word occurred at most `error` times.

    Args:
      capacity: largest number of words.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.counts: collections.Counter[str] = collections.Counter()
        self.error = 0

    def add(self, counts: Iterable[tuple[str, int]], error: int = 0) -> None:
        """Adds counts, which may be too low by `error`."""
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
class CountStage(CorpusStage):
    """Counts the words of a corpus; the result of a job is a file of words and counts.

    Attributes:
      folder: the folder of the results.
      splits: for each job, the pieces of files to count.
      corpus: how files become lines.
      do_lower_case: whether the tokenizer converts to lower case and removes accents.
      capacity: largest number of words in each process.
    """

    folder: str
    splits: Sequence[Sequence[FileRange]]
    corpus: CorpusOptions
    do_lower_case: bool
    capacity: int

    @functools.cached_property
    def names(self) -> list[str]:
        """The names of the jobs, one per split."""
        return [f"words-{i:05d}" for i in range(len(self.splits))]

    @functools.cached_property
    def _tokenize(self) -> Callable[[str], list[str]]:
        return BasicTokenizer(self.do_lower_case).tokenize

    def run(self, job: int, advance: Callable[[int], None]) -> dict[str, Any]:
        """Counts the words of a split."""
        counter = BoundedCounter(self.capacity)
        # Text between white space is counted first, so equal texts are tokenized once.
        raw: collections.Counter[str] = collections.Counter()
        bad_lines = BadLines(self.corpus.on_bad_line)
        reader = CorpusReader(self.corpus, bad_lines)
        for line in itertools.chain.from_iterable(reader.sentences(p, advance) for p in self.splits[job]):
            if line is not None:
                raw.update(split_words(line))
                if len(raw) > self.capacity:
                    counter.add(self._split(raw))
                    raw.clear()
        counter.add(self._split(raw))
        with files.replacing(self.path(job, ".tsv")) as writer:
            writer.writelines(f"{word}\t{count}\n" for word, count in counter.counts.items())
        return {"error": counter.error, "bad_lines": bad_lines.found}

    def _split(self, raw: collections.Counter[str]) -> Iterable[tuple[str, int]]:
        return ((word, count) for text, count in raw.items() for word in self._tokenize(text))

    def add_up(self, results: Sequence[dict[str, Any]]) -> BoundedCounter:
        """Adds up the counts of the whole corpus.

        Args:
          results: the results of `run` for all jobs, in order.
        """
        counter = BoundedCounter(self.capacity)
        for job, result in enumerate(results):
            with files.open_file(self.path(job, ".tsv")) as reader:
                pairs = (line.removesuffix("\n").split("\t") for line in reader)
                counter.add(((word, int(count)) for word, count in pairs), result["error"])
        return counter
