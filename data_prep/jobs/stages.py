"""The stages of streaming data preparation: tokens, plan, records.

1. `TokenizeStage`: pieces of the corpus become parts of the token store.
2. `PlanStage`: the documents of each part become examples: where in the store their tokens lie, and a key. A part's
   examples are sorted by key and written as runs.
3. `WriteStage`: all examples in the order of their keys are the output. It is cut into shards, and these into buckets;
   a bucket gathers its keys from all runs, fetches the tokens, masks, and writes records. (Meanwhile the buckets that
   are finished are joined: see `shards`.)

Keys are hashes, so the order of the examples is a random one, over the whole corpus and all shards.
"""

import collections
import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf.runtime import files
from bert_tf.tokenization import FullTokenizer
from bert_tf.tokenization.vocabulary import load_vocab
from data_prep.corpus.files import FileRange
from data_prep.corpus.reader import BadLines, CorpusOptions, CorpusReader
from data_prep.corpus.token_store import PartWriter, TokenStore
from data_prep.corpus.word_segmentation import SegmentedTokenizer
from data_prep.examples.batches import ExampleMaker, ExampleOptions, count_examples
from data_prep.examples.instances import EXAMPLE, Plan, SegmentRules, plan_part

# Examples that are made at a time.
_BATCH = 1024


@dataclasses.dataclass(frozen=True)
class TokenizerOptions:
    """How text becomes tokens.

    Attributes:
      vocab_file: one piece a line.
      do_lower_case: whether to lower-case and to strip accents.
      word_segmenter: "module:function" that cuts a text into words; "" for the words that "##" marks.
    """

    vocab_file: str
    do_lower_case: bool
    word_segmenter: str = ""

    @functools.cached_property
    def vocab(self) -> Mapping[str, int]:
        """Piece -> id."""
        return load_vocab(self.vocab_file)

    @property
    def id_dtype(self) -> np.dtype:
        """The type of a token in the store."""
        if self.word_segmenter or max(self.vocab.values()) >= 1 << 16:
            return np.dtype(np.uint32)
        return np.dtype(np.uint16)

    def encoder(self) -> Callable[[str], bytes]:
        """What turns a text into the bytes of its tokens."""
        tokenizer = FullTokenizer(self.vocab_file, self.do_lower_case)
        if self.word_segmenter:
            return SegmentedTokenizer(tokenizer, self.word_segmenter).encode_to_bytes
        return tokenizer.encode_to_bytes


@dataclasses.dataclass(frozen=True)
class TokenizeStage:
    """Tokenizes the corpus; a job's result is a part of the token store.

    Attributes:
      folder: of the token store.
      splits: pieces of the corpus, one list a part.
      corpus: how files become sentences.
      tokenizer: how these become tokens.
    """

    folder: str
    splits: Sequence[Sequence[FileRange]]
    corpus: CorpusOptions
    tokenizer: TokenizerOptions

    @property
    def names(self) -> list[str]:
        """One a part."""
        return [f"part-{i:05d}" for i in range(len(self.splits))]

    @functools.cached_property
    def _encode(self) -> Callable[[str], bytes]:
        return self.tokenizer.encoder()

    def run(self, job: int, advance: Callable[[int], None]) -> dict[str, Any]:
        """Tokenizes a part."""
        encode = self._encode
        bad_lines = BadLines(self.corpus.on_bad_line)
        reader = CorpusReader(self.corpus, bad_lines)
        counts: collections.Counter[str] = collections.Counter()
        with PartWriter(os.path.join(self.folder, self.names[job]), self.tokenizer.id_dtype.itemsize) as writer:
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
        return {
            "documents": writer.documents,
            "sentences": writer.sentences,
            "tokens": writer.tokens,
            **counts,
            **bad_lines.result(),
        }

    def close(self) -> None:
        """Nothing is open."""


@dataclasses.dataclass(frozen=True)
class PlanStage:
    """Plans the examples; a job's results are sorted runs of a part's examples.

    Attributes:
      folder: of the runs.
      store: the tokens.
      rules: of the segments.
      run_examples: how many examples are sorted in memory.
    """

    folder: str
    store: TokenStore
    rules: SegmentRules
    run_examples: int

    @property
    def names(self) -> list[str]:
        """One a part."""
        return [f"plan-{i:05d}" for i in range(len(self.store.parts))]

    def run(self, job: int, advance: Callable[[int], None]) -> dict[str, Any]:
        """Plans a part's examples."""
        long_sentences = 0
        runs: list[int] = []
        waiting: list[Plan] = []
        for plan in plan_part(self.store, job, self.rules):
            long_sentences += plan.long_sentences
            if len(plan.keys):
                waiting.append(plan)
            if sum(len(p.keys) for p in waiting) >= self.run_examples:
                runs.append(self._write_run(job, len(runs), waiting))
            advance(plan.sentences)
        if waiting:
            runs.append(self._write_run(job, len(runs), waiting))
        return {"runs": runs, "long_sentences": long_sentences}

    def _write_run(self, job: int, number: int, waiting: list[Plan]) -> int:
        keys = np.concatenate([plan.keys for plan in waiting])
        examples = np.concatenate([plan.examples for plan in waiting])
        waiting.clear()
        order = np.argsort(keys, kind="stable")
        with files.replacing(run_file(self.folder, job, number), "wb") as writer:
            writer.write(keys[order].tobytes())
            writer.write(examples[order].tobytes())
        return len(keys)

    def close(self) -> None:
        """Closes the store."""
        self.store.close()


def run_file(folder: str, job: int, number: int) -> str:
    """Where a run lies: its keys in ascending order, and its examples behind them."""
    return os.path.join(folder, f"plan-{job:05d}-run-{number:03d}")


@dataclasses.dataclass(frozen=True)
class Run:
    """A sorted run of examples.

    Attributes:
      path: its file.
      examples: how many it holds.
    """

    path: str
    examples: int

    def between(self, first_key: int, end_key: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and examples whose keys are in [first_key, end_key)."""
        keys = np.memmap(self.path, np.uint64, "r", shape=(self.examples,))
        start, end = (
            self.examples if key >= 1 << 64 else int(np.searchsorted(keys, np.uint64(key)))
            for key in (first_key, end_key)
        )
        with open(self.path, "rb") as reader:
            reader.seek(self.examples * keys.itemsize + start * EXAMPLE.itemsize)
            return np.array(keys[start:end]), np.fromfile(reader, EXAMPLE, end - start)


@dataclasses.dataclass(frozen=True)
class Bucket:
    """A stretch of a shard.

    Attributes:
      shard: which.
      first_key: of its examples.
      end_key: behind their last.
    """

    shard: int
    first_key: int
    end_key: int


def shard_of(key: int, num_shards: int) -> int:
    """Which shard an example belongs to; as `cut_into_buckets` has it."""
    return ((key + 1) * num_shards - 1) >> 64


def cut_into_buckets(examples: int, num_shards: int, bucket_examples: int) -> list[Bucket]:
    """Cuts all keys into shards, and these into buckets of about `bucket_examples` each."""
    buckets_per_shard = max(1, round(examples / num_shards / bucket_examples))
    count = num_shards * buckets_per_shard
    cuts = [(i << 64) // count for i in range(count + 1)]
    return [Bucket(i // buckets_per_shard, cuts[i], cuts[i + 1]) for i in range(count)]


@dataclasses.dataclass(frozen=True)
class WriteStage:
    """Writes the records; a job's result is a bucket, as TFRecords.

    Attributes:
      folder: of the buckets.
      store: the tokens.
      runs: the planned examples.
      buckets: what is to be written.
      options: what a record holds.
      vocab: piece -> id.
    """

    folder: str
    store: TokenStore
    runs: Sequence[Run]
    buckets: Sequence[Bucket]
    options: ExampleOptions
    vocab: Mapping[str, int]

    @property
    def names(self) -> list[str]:
        """One a bucket."""
        return [f"bucket-{i:06d}" for i in range(len(self.buckets))]

    def path(self, job: int) -> str:
        """Where a bucket lies."""
        return os.path.join(self.folder, self.names[job])

    def run(self, job: int, advance: Callable[[int], None]) -> dict[str, Any]:
        """Writes a bucket."""
        bucket = self.buckets[job]
        found = [run.between(bucket.first_key, bucket.end_key) for run in self.runs]
        keys, examples = (np.concatenate(column) for column in zip(*found, strict=True))
        # Keys that are equal, which is next to impossible, stay in the order of the corpus.
        order = np.argsort(keys, kind="stable")
        counts: collections.Counter[str] = collections.Counter()
        with files.replacing(self.path(job), "wb") as writer:
            for rows in np.split(order, range(_BATCH, len(order), _BATCH)):
                if len(rows):
                    values = self._maker.make(keys[rows], examples[rows])
                    writer.writelines(self._maker.encode(values))
                    counts.update(count_examples(values))
                    advance(len(rows))
            size = writer.tell()
        return {"file_size": size, **counts}

    @functools.cached_property
    def _maker(self) -> ExampleMaker:
        return ExampleMaker(self.options, self.vocab, self.store)

    def close(self) -> None:
        """Closes the store."""
        self.store.close()
