"""Data preparation as transforms of Apache Beam: the functions of the local mode, joined by keys instead of offsets.

    pieces of files -> documents of tokens -> numbered documents -> chunks -- B follows A --------> examples -> shards
                                                      |               |                                |
                                                      +---------------+-- B is asked of another -------+

Documents get the numbers that they have in the local mode, everything is drawn for these numbers, and a shard's
examples are put in the order of their keys; so the files are those of the local mode, byte for byte.
"""

import collections
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
from apache_beam.metrics import Metrics

from bert_tf.runtime import files
from bert_tf.tokenization.vocabulary import load_vocab
from data_prep.corpus.files import FileRange, cut_into_splits
from data_prep.corpus.reader import BadLines, CorpusOptions, CorpusReader
from data_prep.examples.batches import ExampleMaker, ExampleOptions, count_examples
from data_prep.examples.instances import (
    EXAMPLE,
    SegmentRules,
    chunks_of_document,
    random_documents,
    random_sentences,
    segment_ends,
    truncate,
    wanted_tokens,
)
from data_prep.examples.outputs import OutputSet
from data_prep.jobs.preparation import Preparation, check_documents
from data_prep.jobs.stages import TokenizerOptions, shard_of

_BATCH = 1024
_NAMESPACE = "data_prep"


class Document(NamedTuple):
    """A document of the corpus.

    Attributes:
      tokens: the ids of all its sentences, as bytes.
      offsets: token offsets of its sentences, and of the end.
    """

    tokens: bytes
    offsets: np.ndarray


class Request(NamedTuple):
    """An example whose second segment another document is to give.

    Attributes:
      key: of the example.
      segment_a: A's tokens, as bytes.
      wanted: how many tokens B is to have at least.
    """

    key: int
    segment_a: bytes
    wanted: int


class Planned(NamedTuple):
    """An example that lacks nothing but its masks.

    Attributes:
      key: what masks are drawn from, and its place.
      segment_a: A's tokens, as bytes.
      segment_b: B's tokens, as bytes.
      is_random_next: the label.
    """

    key: int
    segment_a: bytes
    segment_b: bytes
    is_random_next: bool


class PreparePretrainingData(beam.PTransform):
    """Text to shards; gives the paths of the shards.

    Args:
      preparation: what is to be made of what.
    """

    def __init__(self, preparation: Preparation) -> None:
        super().__init__()
        self._preparation = preparation

    def expand(self, begin: beam.Pipeline) -> beam.PCollection:
        """Joins the steps."""
        made = self._preparation
        dtype = made.tokenizer.id_dtype.str
        splits = list(enumerate(cut_into_splits(made.inputs, made.corpus.documents)))
        documents = (
            begin
            | "Pieces" >> beam.Create(splits)
            | "OneByOne" >> beam.Reshuffle()
            | "Tokenize" >> beam.ParDo(Tokenize(made.corpus, made.tokenizer))
        )
        numbering = (
            documents
            | "PieceOf" >> beam.Map(lambda numbered: numbered[0][0])
            | "CountDocuments" >> beam.combiners.Count.PerElement()
            | "AllCounts" >> beam.combiners.ToList()
            | "Number" >> beam.Map(number_documents)
        )
        numbering = beam.pvalue.AsSingleton(numbering)
        numbered = documents | "NumberDocuments" >> beam.Map(
            lambda document, firsts: (firsts[document[0][0]] + document[0][1], document[1]), numbering
        )
        planned = numbered | "Plan" >> beam.ParDo(Plan(made.rules, dtype), numbering).with_outputs(
            "requests", main="examples"
        )
        answered = (
            {"documents": numbered, "requests": planned.requests}
            | "Join" >> beam.CoGroupByKey()
            | "TakeSegments" >> beam.ParDo(TakeSegments(made.rules, dtype))
        )
        shards = range(len(made.outputs.paths))
        places = begin | "Shards" >> beam.Create([(shard, None) for shard in shards])
        examples = (
            (planned.examples, answered)
            | "AllExamples" >> beam.Flatten()
            | "ShardOf" >> beam.Map(lambda example, count: (shard_of(example.key, count), example), len(shards))
        )
        # Shards that got no examples are written too.
        return (
            {"examples": examples, "shards": places}
            | "Gather" >> beam.CoGroupByKey()
            | "Write" >> beam.ParDo(WriteShard(made.examples, made.tokenizer, made.outputs))
        )


def number_documents(counts: Sequence[tuple[int, int]]) -> dict[int | str, int]:
    """The number of the first document of each piece, and of all under "documents".

    Args:
      counts: pieces, and how many documents each holds.

    Raises:
      InputError: if there is no document, or only one.
    """
    counts = sorted(counts)
    firsts = np.cumsum([0, *(count for _, count in counts)]).tolist()
    check_documents(firsts[-1])
    return {piece: first for (piece, _), first in zip(counts, firsts, strict=False)} | {"documents": firsts[-1]}


class Tokenize(beam.DoFn):
    """Pieces of the corpus to documents, each with its piece and its place there.

    Args:
      corpus: how files become sentences.
      tokenizer: how these become tokens.
    """

    def __init__(self, corpus: CorpusOptions, tokenizer: TokenizerOptions) -> None:
        self._corpus = corpus
        self._tokenizer = tokenizer

    def setup(self) -> None:
        """Loads the vocabulary."""
        self._encode = self._tokenizer.encoder()

    def process(self, numbered: tuple[int, Sequence[FileRange]]) -> Iterator[tuple[tuple[int, int], Document]]:
        """Tokenizes a piece."""
        piece, ranges = numbered
        bad_lines = BadLines(self._corpus.on_bad_line)
        reader = CorpusReader(self._corpus, bad_lines)
        place = 0
        sentences: list[bytes] = []
        for sentence in itertools.chain.from_iterable(map(reader.sentences, ranges)):
            if sentence is None:
                if sentences:
                    yield (piece, place), self._document(sentences)
                    place += 1
                    sentences = []
                else:
                    count("empty_documents")
            elif ids := self._encode(sentence):
                sentences.append(ids)
            else:
                count("lines_without_tokens")
        for reason, number in bad_lines.counts.items():
            count(f"left out: {reason}", number)

    def _document(self, sentences: list[bytes]) -> Document:
        lengths = np.array([len(ids) for ids in sentences]) // self._tokenizer.id_dtype.itemsize
        count("documents")
        count("sentences", len(sentences))
        count("corpus_tokens", int(lengths.sum()))
        count("documents_of_one_sentence", int(len(sentences) == 1))
        return Document(b"".join(sentences), np.concatenate([[0], np.cumsum(lengths)]))


class MakeExamples(beam.DoFn):
    """What makes examples of documents.

    Args:
      rules: of the segments.
      dtype: of the tokens.
    """

    def __init__(self, rules: SegmentRules, dtype: str) -> None:
        self._rules = rules
        self._dtype = np.dtype(dtype)

    def cut(
        self,
        keys: np.ndarray,
        ids_a: np.ndarray,
        a: tuple[np.ndarray, np.ndarray],
        ids_b: np.ndarray,
        b: tuple[np.ndarray, np.ndarray],
        is_random_next: bool,
    ) -> Iterator[Planned]:
        """Examples of segments, shortened until they fit.

        Args:
          keys: [n] of the examples.
          ids_a: tokens that hold the first segments.
          a: starts [n] and ends [n] of the first segments there.
          ids_b: tokens that hold the second segments.
          b: the same of these.
          is_random_next: the label of all.
        """
        for key, example in zip(keys.tolist(), truncate(keys, a, b, is_random_next, self._rules), strict=True):
            yield Planned(
                key,
                ids_a[example["start_a"] :][: example["length_a"]].tobytes(),
                ids_b[example["start_b"] :][: example["length_b"]].tobytes(),
                is_random_next,
            )


class Plan(MakeExamples):
    """Documents to examples; what lacks a random segment goes to "requests", by the document that is to give it."""

    def process(self, numbered: tuple[int, Document], numbering: Mapping[int | str, int]) -> Iterator[Any]:
        """Plans a document's examples."""
        number, (tokens, offsets) = numbered
        count("long_sentences", int(np.count_nonzero(np.diff(offsets) > self._rules.max_num_tokens)))
        ids = np.frombuffer(tokens, self._dtype)
        chunks = chunks_of_document(offsets, number, self._rules)
        starts, cuts, ends = offsets[chunks.first], offsets[chunks.cuts], offsets[chunks.ends]
        wanted = wanted_tokens(chunks, offsets)
        others = random_documents(chunks.keys, chunks.documents, numbering["documents"])
        for row in np.flatnonzero(chunks.is_random_next):
            segment_a = ids[starts[row] : cuts[row]].tobytes()
            request = Request(int(chunks.keys[row]), segment_a, int(wanted[row]))
            yield beam.pvalue.TaggedOutput("requests", (int(others[row]), request))
        rows = np.flatnonzero(~chunks.is_random_next)
        a, b = (starts[rows], cuts[rows]), (cuts[rows], ends[rows])
        yield from self.cut(chunks.keys[rows], ids, a, ids, b, is_random_next=False)


class TakeSegments(MakeExamples):
    """Answers requests: the random segments that a document is asked for, as examples."""

    def process(self, joined: tuple[int, Mapping[str, Iterable]]) -> Iterator[Planned]:
        """Answers what one document is asked for."""
        _, found = joined
        ((tokens, offsets),) = found["documents"]
        ids = np.frombuffer(tokens, self._dtype)
        sentences = len(offsets) - 1
        width = min(self._rules.max_num_tokens, sentences)
        requests = iter(found["requests"])
        while batch := list(itertools.islice(requests, _BATCH)):
            keys = np.array([request.key for request in batch], np.uint64)
            first = random_sentences(keys, np.full(len(keys), sentences))
            windows = offsets[np.minimum(first[:, None] + np.arange(width + 1), sentences)]
            wanted = np.array([request.wanted for request in batch])
            b = windows[:, 0], segment_ends(windows, sentences - first, wanted)
            ids_a = np.frombuffer(b"".join([request.segment_a for request in batch]), self._dtype)
            ends = np.cumsum([len(request.segment_a) // self._dtype.itemsize for request in batch])
            a = np.concatenate([[0], ends[:-1]]), ends
            yield from self.cut(keys, ids_a, a, ids, b, is_random_next=True)


class WriteShard(beam.DoFn):
    """Writes a shard's examples, in the order of their keys, and its sidecar; gives its path.

    Args:
      options: what a record holds.
      tokenizer: whose tokens they are.
      outputs: the shards.
    """

    def __init__(self, options: ExampleOptions, tokenizer: TokenizerOptions, outputs: OutputSet) -> None:
        self._options = options
        self._tokenizer = tokenizer
        self._outputs = outputs

    @functools.cached_property
    def _maker(self) -> ExampleMaker:
        return ExampleMaker(self._options, load_vocab(self._tokenizer.vocab_file))

    def process(self, gathered: tuple[int, Mapping[str, Iterable]]) -> Iterator[str]:
        """Writes a shard."""
        shard, found = gathered
        path = self._outputs.paths[shard]
        examples = sorted(found["examples"], key=lambda example: example.key)
        counts: collections.Counter[str] = collections.Counter()
        with files.replacing(path, "wb") as writer:
            for first in range(0, len(examples), _BATCH):
                values = self._arrays(examples[first : first + _BATCH])
                for record in self._maker.encode(values):
                    writer.write(record)
                counts.update(count_examples(values))
            size = writer.tell()
        self._outputs.sidecar(shard, size, counts).write(path)
        for name, number in counts.items():
            count(name, number)
        yield path

    def _arrays(self, examples: Sequence[Planned]) -> dict[str, np.ndarray]:
        dtype = self._tokenizer.id_dtype
        keys, segments_a, segments_b, labels = zip(*examples, strict=True)
        planned = np.zeros(len(examples), EXAMPLE)
        planned["length_a"] = [len(segment) // dtype.itemsize for segment in segments_a]
        planned["length_b"] = [len(segment) // dtype.itemsize for segment in segments_b]
        planned["is_random_next"] = labels
        tokens = b"".join(itertools.chain.from_iterable(zip(segments_a, segments_b, strict=True)))
        return self._maker.make_of(np.array(keys, np.uint64), planned, np.frombuffer(tokens, dtype))


def count(name: str, number: int = 1) -> None:
    """Adds to a counter of the pipeline."""
    Metrics.counter(_NAMESPACE, name).inc(number)


def counts_of(result: Any) -> dict[str, Any]:
    """The counters of a pipeline that has run, as `preparation.prepare` returns them."""
    found = result.metrics().query(beam.metrics.MetricsFilter().with_namespace(_NAMESPACE))["counters"]
    counts = {counter.key.metric.name: counter.result for counter in found}
    left_out = [f"{number} lines {name}" for name, number in sorted(counts.items()) if name.startswith("left out")]
    return counts | {"left_out": left_out}
