"""The stages of streaming data preparation: tokenize, plan, write.

1. `TokenizeStage`: each split of the corpus becomes a part of the token store.
2. `PlanStage`: the documents of each part become planned examples: a random key, and the places of the tokens in the
   store. The examples of a part are sorted by key and written as sorted runs, which are merged if they are many.
3. `WriteStage`: the output consists of all examples, sorted by key. It is divided into shards, and these into buckets.
   For each bucket, the examples are collected from all runs, their tokens are read and masked, and the records are
   written. Finished buckets are joined to shards at the same time (see `examples.shards`).

Keys are hashes, so the order of the examples is random over the whole corpus and all shards.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf.runtime import files
from bert_tf.tokenization import FullTokenizer
from bert_tf.tokenization.vocabulary import load_vocab
from data_prep.corpus.bad_lines import BadLines
from data_prep.corpus.files import FileRange
from data_prep.corpus.reader import CorpusOptions, CorpusReader
from data_prep.corpus.sorted_runs import RunWriter, SortedRun, cut_keys, gather, runs_of
from data_prep.corpus.token_store import PartWriter, TokenStore
from data_prep.corpus.word_segmentation import SegmentedTokenizer
from data_prep.examples.instances import EXAMPLE, SegmentRules, plan_examples
from data_prep.examples.records import ExampleMaker, ExampleOptions, count_examples
from data_prep.jobs.corpus_stage import CorpusStage
from data_prep.jobs.workers import Advance, Stage

# Number of examples that are made together.
_BATCH = 1024
# Number of examples whose tokens are read together.
_READ_TOGETHER = 1 << 14


@dataclasses.dataclass(frozen=True)
class TokenizerOptions:
    """How text becomes tokens.

    Attributes:
      vocab_file: a file with one piece per line.
      do_lower_case: whether to convert to lower case and remove accents.
      word_segmenter: "module:function" that splits a text into words; "" for the words that "##" pieces make.
    """

    vocab_file: str
    do_lower_case: bool
    word_segmenter: str = ""

    @functools.cached_property
    def vocab(self) -> Mapping[str, int]:
        """Piece -> id."""
        return load_vocab(self.vocab_file)

    @property
    def rules(self) -> tuple[bool, str]:
        """What decides the tokens beside the vocabulary."""
        return self.do_lower_case, self.word_segmenter

    @property
    def id_dtype(self) -> np.dtype:
        """The type of the tokens in the store."""
        if self.word_segmenter or max(self.vocab.values()) >= 1 << 16:
            return np.dtype(np.uint32)
        return np.dtype(np.uint16)

    def encoder(self) -> Callable[[str], bytes]:
        """Returns a function from a text to the bytes of its tokens."""
        tokenizer = FullTokenizer(self.vocab_file, self.do_lower_case)
        if self.word_segmenter:
            return SegmentedTokenizer(tokenizer, self.word_segmenter).encode_to_bytes
        return tokenizer.encode_to_bytes


@dataclasses.dataclass(frozen=True)
class TokenizeStage(CorpusStage):
    """Tokenizes the corpus; the result of a job is a part of the token store.

    Attributes:
      folder: the folder of the token store.
      splits: for each part, the pieces of files that it consists of.
      corpus: how files become sentences.
      tokenizer: how sentences become tokens.
    """

    folder: str
    splits: Sequence[Sequence[FileRange]]
    corpus: CorpusOptions
    tokenizer: TokenizerOptions

    @functools.cached_property
    def names(self) -> list[str]:
        """The names of the parts."""
        return [f"part-{i:05d}" for i in range(len(self.splits))]

    @functools.cached_property
    def _encode(self) -> Callable[[str], bytes]:
        return self.tokenizer.encoder()

    def run(self, job: int, advance: Advance) -> dict[str, Any]:
        """Tokenizes a part."""
        encode = self._encode
        counts: collections.Counter[str] = collections.Counter()
        bad_lines = BadLines(self.corpus.on_bad_line)
        reader = CorpusReader(self.corpus, bad_lines)
        with PartWriter(self.path(job), self.tokenizer.id_dtype.itemsize) as writer:
            for piece in self.splits[job]:
                for sentence in reader.sentences(piece, advance):
                    if sentence is None:
                        sentences = writer.end_document()
                        counts["documents_of_one_sentence"] += sentences == 1
                        counts["empty_documents"] += sentences == 0
                    elif ids := encode(sentence):
                        writer.add_sentence(ids)
                    else:
                        counts["lines_without_tokens"] += 1
        return writer.sizes | counts | {"bad_lines": bad_lines.found}


@dataclasses.dataclass(frozen=True)
class PlanStage(Stage):
    """Plans the examples; the results of a job are sorted runs of a part's examples.

    Attributes:
      folder: the folder of the runs.
      store: the tokens.
      rules: how documents become segments.
      run_examples: number of examples that are sorted in memory.
    """

    folder: str
    store: TokenStore
    rules: SegmentRules
    run_examples: int

    @functools.cached_property
    def names(self) -> list[str]:
        """The names of the jobs, one per part."""
        return [f"plan-{i:05d}" for i in range(len(self.store.parts))]

    def run(self, job: int, advance: Advance) -> dict[str, Any]:
        """Plans the examples of a part."""
        long_sentences = 0
        writer = RunWriter(self.path(job), EXAMPLE, self.run_examples)
        for planned in plan_examples(self.store, job, self.rules):
            long_sentences += planned.long_sentences
            writer.add(planned.keys, planned.examples)
            advance(planned.sentences)
        writer.finish()
        return {"runs": writer.runs, "long_sentences": long_sentences}

    def runs(self, planned: Sequence[Mapping[str, Any]]) -> list[SortedRun]:
        """Returns the runs; `planned` are the results of all jobs."""
        return [run for job, counts in enumerate(planned) for run in runs_of(self.path(job), counts["runs"])]

    def close(self) -> None:
        """Closes the store."""
        self.store.close()


def shard_of(key: int, num_shards: int) -> int:
    """Returns the number of the shard that contains an example; agrees with `cut_into_buckets`."""
    return ((key + 1) * num_shards - 1) >> 64


def cut_into_buckets(examples: int, num_shards: int, bucket_examples: int) -> list[tuple[int, int]]:
    """Divides the keys into shards, and each shard into equally many buckets of about `bucket_examples`.

    Returns:
      For each bucket its first key, and the key behind its last one.
    """
    count = num_shards * max(1, round(examples / num_shards / bucket_examples))
    return list(cut_keys(count))


@dataclasses.dataclass(frozen=True)
class WriteStage(Stage):
    """Writes the records; the result of a job is a bucket, as TFRecords.

    Attributes:
      folder: the folder of the buckets.
      store: the tokens.
      runs: the planned examples.
      buckets: see `cut_into_buckets`.
      options: the content of a record.
      vocab: piece -> id.
    """

    folder: str
    store: TokenStore
    runs: Sequence[SortedRun]
    buckets: Sequence[tuple[int, int]]
    options: ExampleOptions
    vocab: Mapping[str, int]

    @functools.cached_property
    def names(self) -> list[str]:
        """The names of the buckets."""
        return [f"bucket-{i:06d}" for i in range(len(self.buckets))]

    def run(self, job: int, advance: Advance) -> dict[str, Any]:
        """Writes a bucket."""
        keys, examples = gather(self.runs, *self.buckets[job], EXAMPLE)
        counts: collections.Counter[str] = collections.Counter()
        with files.replacing(self.path(job), "wb") as writer:
            for first in range(0, len(keys), _READ_TOGETHER):
                some = slice(first, first + _READ_TOGETHER)
                for values in self._make(keys[some], examples[some]):
                    writer.writelines(self._maker.encode(values))
                    counts.update(count_examples(values))
                    advance(len(values["input_ids"]))
            size = writer.tell()
        return {"file_size": size, **counts}

    def _make(self, keys: np.ndarray, examples: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
        tokens, lengths = self._maker.read_tokens(examples)
        ends = np.concatenate([[0], np.cumsum(lengths)])
        for first in range(0, len(keys), _BATCH):
            end = min(first + _BATCH, len(keys))
            rows = slice(first, end)
            yield self._maker.make_from_tokens(keys[rows], examples[rows], tokens[ends[first] : ends[end]])

    @functools.cached_property
    def _maker(self) -> ExampleMaker:
        return ExampleMaker(self.options, self.vocab, self.store)

    def close(self) -> None:
        """Closes the store."""
        self.store.close()
