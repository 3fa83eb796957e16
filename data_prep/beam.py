"""Data preparation on many machines: the steps of `one_machine` as transforms of Apache Beam, joined by keys.

    splits of files -> documents of tokens -> numbered documents -> chunks -- B follows A --------> examples -> shards
                                                      |               |                                |
                                                      +---------------+-- B is from another -----------+

The files have the same bytes as the files of `one_machine`. Documents get the same numbers, all random draws are
computed from these numbers, and the examples of a shard are sorted by key.
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
from bert_tf.text.vocabulary import UNK, load_vocab
from data_prep.corpus.files import FileRange, cut_into_splits
from data_prep.corpus.reader import CorpusOptions
from data_prep.corpus.tokens import CorpusTokenizer, TokenizerOptions
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
from data_prep.examples.records import ExampleMaker, ExampleOptions, ShardSet, count_examples
from data_prep.one_machine import PreparationConfig, check_documents, shard_of

_BATCH = 1024
_NAMESPACE = "data_prep"
_BAD_LINES = "bad lines: "


class Document(NamedTuple):
    """A document of the corpus.

    Attributes:
      tokens: the token ids of all sentences, as bytes.
      offsets: [sentences + 1], token offsets of the sentences and of the end.
    """

    tokens: bytes
    offsets: np.ndarray


class SegmentRequest(NamedTuple):
    """An example that needs a second segment from another document.

    Attributes:
      key: key of the example.
      segment_a: the tokens of A, as bytes.
      wanted: number of tokens that B needs.
    """

    key: int
    segment_a: bytes
    wanted: int


class PlannedExample(NamedTuple):
    """An example before masking.

    Attributes:
      key: the key that determines its masks and its position in the output.
      segment_a: the tokens of A, as bytes.
      segment_b: the tokens of B, as bytes.
      is_random_next: the label.
    """

    key: int
    segment_a: bytes
    segment_b: bytes
    is_random_next: bool


class PreparePretrainingData(beam.PTransform):
    """Makes shards from text.

    Args:
      config: all settings that determine the examples.
    """

    def __init__(self, config: PreparationConfig) -> None:
        super().__init__()
        self._config = config

    def expand(self, begin: beam.Pipeline) -> beam.PCollection:
        """Builds the pipeline."""
        config = self._config
        dtype = config.tokenizer.id_dtype.str
        splits = list(enumerate(cut_into_splits(config.inputs, config.corpus.documents)))
        documents = (
            begin
            | "Splits" >> beam.Create(splits)
            | "OneByOne" >> beam.Reshuffle()
            | "Tokenize" >> beam.ParDo(Tokenize(config.corpus, config.tokenizer))
        )
        numbering = (
            documents
            | "SplitOf" >> beam.Map(lambda numbered: numbered[0][0])
            | "CountDocuments" >> beam.combiners.Count.PerElement()
            | "AllCounts" >> beam.combiners.ToList()
            | "Number" >> beam.Map(number_documents)
        )
        numbering = beam.pvalue.AsSingleton(numbering)
        numbered = documents | "NumberDocuments" >> beam.Map(
            lambda document, firsts: (firsts[document[0][0]] + document[0][1], document[1]), numbering
        )
        planned = numbered | "Plan" >> beam.ParDo(PlanExamples(config.rules, dtype), numbering).with_outputs(
            "requests", main="examples"
        )
        answered = (
            {"documents": numbered, "requests": planned.requests}
            | "Join" >> beam.CoGroupByKey()
            | "TakeSegments" >> beam.ParDo(TakeSegments(config.rules, dtype))
        )
        shards = range(len(config.shards.paths))
        all_shards = begin | "Shards" >> beam.Create([(shard, None) for shard in shards])
        examples = (
            (planned.examples, answered)
            | "AllExamples" >> beam.Flatten()
            | "ShardOf" >> beam.Map(lambda example, count: (shard_of(example.key, count), example), len(shards))
        )
        return (
            {"examples": examples, "shards": all_shards}  # shards without examples are written too
            | "Gather" >> beam.CoGroupByKey()
            | "Write" >> beam.ParDo(WriteShard(config.examples, config.tokenizer, config.shards))
            | "WaitForAll" >> beam.combiners.Count.Globally()
            | "Publish" >> beam.Map(lambda _, shards: shards.publish(), config.shards)
        )


class Tokenize(beam.DoFn):
    """Tokenizes splits of the corpus. Yields ((split index, document index in the split), document).

    Args:
      corpus: how files become sentences.
      tokenizer: how sentences become tokens.
    """

    def __init__(self, corpus: CorpusOptions, tokenizer: TokenizerOptions) -> None:
        self._corpus = corpus
        self._tokenizer = tokenizer

    def process(self, numbered: tuple[int, Sequence[FileRange]]) -> Iterator[tuple[tuple[int, int], Document]]:
        """Tokenizes a split."""
        split, pieces = numbered
        text = CorpusTokenizer(self._corpus, self._tokenizer)
        sentences: list[bytes] = []
        for ids in text.sentences(pieces):
            if ids is not None:
                sentences.append(ids)
            else:
                lengths = [len(ids) // self._tokenizer.id_dtype.itemsize for ids in sentences]
                document = Document(b"".join(sentences), np.cumsum([0, *lengths]))
                yield (split, text.counts["documents"] - 1), document
                sentences = []
        _count(text.counts | {"corpus_tokens": text.counts.pop("tokens")})
        _count({f"{_BAD_LINES}{action} {{}} ({reason})": number for action, reason, number, _ in text.bad_lines})


def number_documents(counts: Sequence[tuple[int, int]]) -> dict[int | str, int]:
    """Returns the index of the first document of each split. The key "documents" has the total number of documents.

    Args:
      counts: pairs of a split and its number of documents.

    Raises:
      InputError: if there are fewer than two documents.
    """
    counts = sorted(counts)
    firsts = np.cumsum([0, *(count for _, count in counts)]).tolist()
    check_documents(firsts[-1])
    return {split: first for (split, _), first in zip(counts, firsts, strict=False)} | {"documents": firsts[-1]}


class MakeExamples(beam.DoFn):
    """Makes examples from segments.

    Args:
      rules: how tokens become segments.
      dtype: type of the tokens.
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
    ) -> Iterator[PlannedExample]:
        """Truncates segments until they fit, and yields the examples.

        Args:
          keys: [n], keys of the examples.
          ids_a: tokens that contain the first segments.
          a: starts [n] and ends [n] of the first segments in `ids_a`.
          ids_b: tokens that contain the second segments.
          b: starts [n] and ends [n] of the second segments in `ids_b`.
          is_random_next: the label of all examples.
        """
        for key, example in zip(keys.tolist(), truncate(keys, a, b, is_random_next, self._rules), strict=True):
            yield PlannedExample(
                key,
                ids_a[example["start_a"] :][: example["length_a"]].tobytes(),
                ids_b[example["start_b"] :][: example["length_b"]].tobytes(),
                is_random_next,
            )


class PlanExamples(MakeExamples):
    """Plans the examples of documents. The output "requests" has (document, request) for each random segment."""

    def process(self, numbered: tuple[int, Document], numbering: Mapping[int | str, int]) -> Iterator[Any]:
        """Plans the examples of a document."""
        number, (tokens, offsets) = numbered
        _count({"long_sentences": int(np.count_nonzero(np.diff(offsets) > self._rules.max_num_tokens))})
        ids = np.frombuffer(tokens, self._dtype)
        chunks = chunks_of_document(offsets, number, self._rules)
        starts, cuts, ends = offsets[chunks.first], offsets[chunks.cuts], offsets[chunks.ends]
        wanted = wanted_tokens(chunks, offsets)
        others = random_documents(chunks.keys, chunks.documents, numbering["documents"])
        for row in np.flatnonzero(chunks.is_random_next):
            segment_a = ids[starts[row] : cuts[row]].tobytes()
            request = SegmentRequest(int(chunks.keys[row]), segment_a, int(wanted[row]))
            yield beam.pvalue.TaggedOutput("requests", (int(others[row]), request))
        rows = np.flatnonzero(~chunks.is_random_next)
        a, b = (starts[rows], cuts[rows]), (cuts[rows], ends[rows])
        yield from self.cut(chunks.keys[rows], ids, a, ids, b, is_random_next=False)


class TakeSegments(MakeExamples):
    """Takes the requested random segments from documents, and yields examples with these segments."""

    def process(self, joined: tuple[int, Mapping[str, Iterable]]) -> Iterator[PlannedExample]:
        """Yields the examples of all requests to one document."""
        _, grouped = joined
        ((tokens, offsets),) = grouped["documents"]
        ids = np.frombuffer(tokens, self._dtype)
        sentences = len(offsets) - 1
        width = min(self._rules.max_num_tokens, sentences)
        requests = iter(grouped["requests"])
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
    """Writes a shard and its metadata under hidden names, sorted by key. Yields the index of the shard.

    Args:
      options: the content of a record.
      tokenizer: how text is converted to tokens.
      shards: all shards.
    """

    def __init__(self, options: ExampleOptions, tokenizer: TokenizerOptions, shards: ShardSet) -> None:
        self._options = options
        self._tokenizer = tokenizer
        self._shards = shards

    @functools.cached_property
    def _maker(self) -> ExampleMaker:
        return ExampleMaker(self._options, load_vocab(self._tokenizer.vocab_file))

    def process(self, gathered: tuple[int, Mapping[str, Iterable]]) -> Iterator[int]:
        """Writes a shard."""
        shard, grouped = gathered
        examples = sorted(grouped["examples"], key=lambda example: example.key)
        counts: collections.Counter[str] = collections.Counter()
        with files.replacing(self._shards.staged(shard), "wb") as writer:
            for first in range(0, len(examples), _BATCH):
                values = self._arrays(examples[first : first + _BATCH])
                writer.writelines(self._maker.encode(values))
                counts.update(count_examples(values, self._tokenizer.vocab.get(UNK)))
        self._shards.stage(shard, self._shards.staged(shard), counts)
        _count(counts)
        yield shard

    def _arrays(self, examples: Sequence[PlannedExample]) -> dict[str, np.ndarray]:
        dtype = self._tokenizer.id_dtype
        keys, segments_a, segments_b, labels = zip(*examples, strict=True)
        planned = np.zeros(len(examples), EXAMPLE)
        planned["length_a"] = [len(segment) // dtype.itemsize for segment in segments_a]
        planned["length_b"] = [len(segment) // dtype.itemsize for segment in segments_b]
        planned["is_random_next"] = labels
        tokens = b"".join(itertools.chain.from_iterable(zip(segments_a, segments_b, strict=True)))
        return self._maker.make_from_tokens(np.array(keys, np.uint64), planned, np.frombuffer(tokens, dtype))


def _count(numbers: Mapping[str, int]) -> None:
    """Adds numbers to the pipeline's counters."""
    for name, number in numbers.items():
        Metrics.counter(_NAMESPACE, name).inc(number)


def counts_of(result: Any) -> dict[str, Any]:
    """Returns the counters of a finished pipeline in the format of `one_machine.prepare`, without line positions."""
    counters = result.metrics().query(beam.metrics.MetricsFilter().with_namespace(_NAMESPACE))["counters"]
    counts = {counter.key.metric.name: counter.result for counter in counters}
    kinds = sorted(name for name in counts if name.startswith(_BAD_LINES))
    messages = [name.removeprefix(_BAD_LINES).format(f"{counts.pop(name)} lines") for name in kinds]
    return counts | {"bad_lines": messages}
