"""Counts the words of a corpus in parallel and in bounded memory.

A word is the text between white space and punctuation, which `BasicTokenizer` passes to WordPiece. Each part of the
corpus is counted separately. The counts are summed in the order of the corpus, so the result does not depend on the
number of processes.
"""

import collections
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf.runtime import files
from bert_tf.text import BasicTokenizer, split_words
from data_prep.corpus.files import FileRange
from data_prep.corpus.reader import CorpusOptions, CorpusReader


class BoundedCounter:
    """Counts words by lossy counting (Manku and Motwani, 2002). If there are too many words, the rarest are removed.

    A count is never too high, and too low by at most `error`. A removed word occurred at most `error` times.

    Args:
      capacity: largest number of distinct words.
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


def count_words(
    path: str,
    ranges: Sequence[FileRange],
    corpus: CorpusOptions,
    rules: Mapping[str, Any],
    capacity: int,
    advance: Callable[[int], None],
) -> dict[str, Any]:
    """Counts the words of a part of a corpus. `Workers` runs this function as a job.

    Args:
      path: the file of words and counts to write.
      ranges: the ranges of files whose words are counted.
      corpus: how files are split into lines.
      rules: the arguments of `BasicTokenizer`, and `kept_tokens`, which are never split and not counted.
      capacity: largest number of distinct words in memory.
      advance: called with the number of bytes that were read.

    Returns:
      "error", the largest error of a count, and "bad_lines"; see `CorpusReader.bad_lines`.
    """
    counter = BoundedCounter(capacity)
    rules = dict(rules)
    tokens = re.compile("|".join(map(re.escape, sorted(rules.pop("kept_tokens", []), key=len, reverse=True))) or "(?!)")
    tokenize = BasicTokenizer(**rules).tokenize
    # Strings between white space are counted first, so that each distinct string is tokenized once.
    raw: collections.Counter[str] = collections.Counter()

    def add_raw() -> None:
        counter.add((word, count) for text, count in raw.items() for word in tokenize(text))
        raw.clear()

    reader = CorpusReader(corpus)
    for line in itertools.chain.from_iterable(reader.sentences(file_range, advance) for file_range in ranges):
        if line is not None:
            raw.update(split_words(tokens.sub(" ", line)))
            if len(raw) > capacity:
                add_raw()
    add_raw()
    with files.replacing(path) as writer:
        writer.writelines(f"{word}\t{count}\n" for word, count in counter.counts.items())
    return {"error": counter.error, "bad_lines": reader.bad_lines}


def add_up(part_results: Iterable[tuple[str, Mapping[str, Any]]], capacity: int) -> BoundedCounter:
    """Sums the counts of a corpus.

    Args:
      part_results: for each part of the corpus, the path of the counts and the result of `count_words`.
      capacity: largest number of distinct words in memory.
    """
    counter = BoundedCounter(capacity)
    for path, result in part_results:
        with files.open_file(path) as reader:
            pairs = (line.removesuffix("\n").split("\t") for line in reader)
            counter.add(((word, int(count)) for word, count in pairs), result["error"])
    return counter
