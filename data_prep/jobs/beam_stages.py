"""Data preparation as transforms of Apache Beam: the functions of the local mode, joined by keys instead of offsets.

    splits of files -> documents of tokens -> numbered documents -> chunks -- B follows A --------> examples -> shards
                                                      |               |                                |
                                                      +---------------+-- B is from another -----------+

Documents get the same numbers as in the local mode, all draws are made from these numbers, and the examples of a shard
are sorted by key. So the files are the same as in the local mode, byte for byte.
"""

import collections
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np

from bert_tf.runtime import files
from bert_tf.tokenization.vocabulary import load_vocab
from data_prep.corpus.files import cut_into_splits
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
from data_prep.examples.records import ExampleMaker, ExampleOptions, count_examples
from data_prep.examples.shards import ShardSet
from data_prep.jobs.beam_documents import Document, Tokenize, count, number_documents
from data_prep.jobs.preparation import PreparationConfig
from data_prep.jobs.stages import TokenizerOptions, shard_of

_BATCH = 1024


class SegmentRequest(NamedTuple):
    """An example that needs a second segment from another document.

    Attributes:
      key: key of the example.
      segment_a: the tokens of A, as bytes.
      wanted: number of tokens that are enough for B.
    """

    key: int
    segment_a: bytes
    wanted: int


class PlannedExample(NamedTuple):
    """An example before masking.

    Attributes:
      key: the key that decides its masks and its place.
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
      config: everything that decides the examples.
    """

    def __init__(self, config: PreparationConfig) -> None:
        super().__init__()
        self._config = config

    def expand(self, begin: beam.Pipeline) -> beam.PCollection:
        """Joins the transforms."""
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
        places = begin | "Shards" >> beam.Create([(shard, None) for shard in shards])
        examples = (
            (planned.examples, answered)
            | "AllExamples" >> beam.Flatten()
            | "ShardOf" >> beam.Map(lambda example, count: (shard_of(example.key, count), example), len(shards))
        )
        # Shards without examples are written too.
        written = (
            {"examples": examples, "shards": places}
            | "Gather" >> beam.CoGroupByKey()
            | "Write" >> beam.ParDo(WriteShard(config.examples, config.tokenizer, config.shards))
        )
        return written | "Count" >> beam.combiners.Count.Globally() | "Publish" >> beam.Map(publish, config.shards)


def publish(_: int, shards: ShardSet) -> None:
    """Moves the shards to their paths; what it gets depends on all of them, so it is called when they are complete."""
    shards.publish()


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
        """Shortens segments until they fit, and yields the examples.

        Args:
          keys: [n] of the examples.
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
    """Plans the examples of documents. Requests for random segments go to "requests", keyed by the other document."""

    def process(self, numbered: tuple[int, Document], numbering: Mapping[int | str, int]) -> Iterator[Any]:
        """Plans the examples of a document."""
        number, (tokens, offsets) = numbered
        count("long_sentences", int(np.count_nonzero(np.diff(offsets) > self._rules.max_num_tokens)))
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
    """Takes the requested random segments from documents, and yields the examples."""

    def process(self, joined: tuple[int, Mapping[str, Iterable]]) -> Iterator[PlannedExample]:
        """Answers the requests to one document."""
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
    """Writes a shard, with its examples sorted by key, and its sidecar, under hidden names; returns its path.

    Args:
      options: the content of a record.
      tokenizer: how text became tokens.
      shards: all shards.
    """

    def __init__(self, options: ExampleOptions, tokenizer: TokenizerOptions, shards: ShardSet) -> None:
        self._options = options
        self._tokenizer = tokenizer
        self._shards = shards

    @functools.cached_property
    def _maker(self) -> ExampleMaker:
        return ExampleMaker(self._options, load_vocab(self._tokenizer.vocab_file))

    def process(self, gathered: tuple[int, Mapping[str, Iterable]]) -> Iterator[str]:
        """Writes a shard."""
        shard, found = gathered
        path = self._shards.paths[shard]
        examples = sorted(found["examples"], key=lambda example: example.key)
        counts: collections.Counter[str] = collections.Counter()
        staged = self._shards.staged(path)
        with files.replacing(staged, "wb") as writer:
            for first in range(0, len(examples), _BATCH):
                values = self._arrays(examples[first : first + _BATCH])
                writer.writelines(self._maker.encode(values))
                counts.update(count_examples(values))
        self._shards.stage(shard, staged, counts)
        for name, number in counts.items():
            count(name, number)
        yield path

    def _arrays(self, examples: Sequence[PlannedExample]) -> dict[str, np.ndarray]:
        dtype = self._tokenizer.id_dtype
        keys, segments_a, segments_b, labels = zip(*examples, strict=True)
        planned = np.zeros(len(examples), EXAMPLE)
        planned["length_a"] = [len(segment) // dtype.itemsize for segment in segments_a]
        planned["length_b"] = [len(segment) // dtype.itemsize for segment in segments_b]
        planned["is_random_next"] = labels
        tokens = b"".join(itertools.chain.from_iterable(zip(segments_a, segments_b, strict=True)))
        return self._maker.make_from_tokens(np.array(keys, np.uint64), planned, np.frombuffer(tokens, dtype))
