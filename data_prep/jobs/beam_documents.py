"""The first transforms of `beam_stages`: text becomes documents of tokens, which are counted and numbered."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
from apache_beam.metrics import Metrics

from data_prep.corpus.bad_lines import BadLines
from data_prep.corpus.files import FileRange
from data_prep.corpus.reader import CorpusOptions, CorpusReader
from data_prep.jobs.preparation import check_documents
from data_prep.jobs.stages import TokenizerOptions

_NAMESPACE = "data_prep"
_BAD_LINES = "bad lines: "


class Document(NamedTuple):
    """A document of the corpus.

    Attributes:
      tokens: the ids of all its sentences, as bytes.
      offsets: [sentences + 1] token offsets of its sentences and of the end.
    """

    tokens: bytes
    offsets: np.ndarray


def number_documents(counts: Sequence[tuple[int, int]]) -> dict[int | str, int]:
    """Returns the number of the first document of each split, and the number of all documents as "documents".

    Args:
      counts: the number of documents of each split.

    Raises:
      InputError: if there is no document, or only one.
    """
    counts = sorted(counts)
    firsts = np.cumsum([0, *(count for _, count in counts)]).tolist()
    check_documents(firsts[-1])
    return {split: first for (split, _), first in zip(counts, firsts, strict=False)} | {"documents": firsts[-1]}


class Tokenize(beam.DoFn):
    """Tokenizes splits of the corpus; returns documents with the number of their split and their place there.

    Args:
      corpus: how files become sentences.
      tokenizer: how sentences become tokens.
    """

    def __init__(self, corpus: CorpusOptions, tokenizer: TokenizerOptions) -> None:
        self._corpus = corpus
        self._tokenizer = tokenizer

    def setup(self) -> None:
        """Loads the vocabulary."""
        self._encode = self._tokenizer.encoder()

    def process(self, numbered: tuple[int, Sequence[FileRange]]) -> Iterator[Any]:
        """Tokenizes a split."""
        split, pieces = numbered
        bad_lines = BadLines(self._corpus.on_bad_line)
        reader = CorpusReader(self._corpus, bad_lines)
        place = 0
        sentences: list[bytes] = []
        for sentence in itertools.chain.from_iterable(map(reader.sentences, pieces)):
            if sentence is None:
                if sentences:
                    yield (split, place), self._document(sentences)
                    place += 1
                    sentences = []
                else:
                    count("empty_documents")
            elif ids := self._encode(sentence):
                sentences.append(ids)
            else:
                count("lines_without_tokens")
        for action, reason, number, _ in bad_lines.found:
            count(f"{_BAD_LINES}{action} {{}} ({reason})", number)

    def _document(self, sentences: list[bytes]) -> Document:
        lengths = np.array([len(ids) for ids in sentences]) // self._tokenizer.id_dtype.itemsize
        count("documents")
        count("sentences", len(sentences))
        count("corpus_tokens", int(lengths.sum()))
        count("documents_of_one_sentence", int(len(sentences) == 1))
        return Document(b"".join(sentences), np.concatenate([[0], np.cumsum(lengths)]))


def count(name: str, number: int = 1) -> None:
    """Adds a number to a counter of the pipeline."""
    Metrics.counter(_NAMESPACE, name).inc(number)


def counts_of(result: Any) -> dict[str, Any]:
    """Returns the counters of a finished pipeline in the form of `preparation.prepare`."""
    found = result.metrics().query(beam.metrics.MetricsFilter().with_namespace(_NAMESPACE))["counters"]
    counts = {counter.key.metric.name: counter.result for counter in found}
    kinds = sorted(name for name in counts if name.startswith(_BAD_LINES))
    messages = [name.removeprefix(_BAD_LINES).format(f"{counts.pop(name)} lines") for name in kinds]
    return counts | {"bad_lines": messages}
