"""Data preparation on one machine: three passes over the text, each in several processes.

1. Tokenize: each split of the corpus becomes a part of the token store.
2. Plan: the examples of each part are planned. A planned example has a random key and the positions of its tokens.
3. Write: the output has all examples, sorted by key. It is divided into shards, and each shard into ranges of keys. For
   each range, the program collects the examples from all plans, reads and masks the tokens, and appends the records to
   the shard.

Keys are hashes, so the examples of the complete corpus are in random order over all shards.

In the work directory, the token store has a directory named after the fingerprint of its settings (text, vocabulary,
casing), so a preparation with other settings can reuse it. The results of the later passes are in a directory named
after the fingerprint of all settings. After a crash, the next run reuses the finished jobs.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_tf.runtime import files
from bert_tf.runtime.errors import InputError
from bert_tf.runtime.storage.locks import claimed
from bert_tf.text.vocabulary import UNK
from data_prep.corpus.files import FileRange, InputFile, corpus_bytes, cut_into_splits
from data_prep.corpus.reader import CorpusOptions, bad_line_messages
from data_prep.corpus.tokens import CorpusTokenizer, Part, TokenizerOptions, TokenStore, write_part
from data_prep.examples.instances import EXAMPLE, SegmentRules, plan_examples
from data_prep.examples.records import ExampleMaker, ExampleOptions, ShardSet, count_examples, digest_of_values
from data_prep.workers import Advance, Workers

# The number of ranges depends only on the examples, so a run can be resumed with another number of processes.
_RANGES, _RANGE_EXAMPLES = 256, (8192, 1 << 18)
# Memory of a process without examples (interpreter, vocabulary, cached words), in MB, and of an example while sorting.
_PROCESS_MB = 200
_SORTED_EXAMPLE_BYTES = 3 * (EXAMPLE.itemsize + 8)
_SORTED_EXAMPLES = (1 << 14, 1 << 22)
# Number of examples per batch, and number of examples whose tokens are read together.
_BATCH, _READ_TOGETHER = 1024, 1 << 14
_COPY_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class PreparationConfig:
    """All settings that determine the examples.

    Attributes:
      inputs: the text files.
      corpus: how text is split into sentences.
      tokenizer: how sentences are converted to tokens.
      rules: how tokens are combined into segments.
      examples: the content of a record.
      shards: the output.
    """

    inputs: Sequence[InputFile]
    corpus: CorpusOptions
    tokenizer: TokenizerOptions
    rules: SegmentRules
    examples: ExampleOptions
    shards: ShardSet


def check_documents(documents: int, bad_lines: Sequence[str] = ()) -> None:
    """Raises an InputError if there are fewer than two documents, because random segments need another document.

    Args:
      documents: the number of documents.
      bad_lines: messages about skipped lines.
    """
    left_out = "".join(f" {message[0].upper()}{message[1:]}." for message in bad_lines)
    if documents == 0:
        raise InputError(f"--input_file: the files contain no text. Add text.{left_out}")
    if documents == 1:
        raise InputError(
            "--input_file: the text is a single document, so there are no random next sentences from other documents. "
            f"Separate documents by blank lines, or set --documents.{left_out}"
        )


def prepare(
    config: PreparationConfig, work_dir: str, num_workers: int, memory_budget_mb: int, keeps_tokens: bool = False
) -> dict[str, Any]:
    """Makes the shards.

    Args:
      config: all settings that determine the examples.
      work_dir: a local directory for intermediate results.
      num_workers: the number of processes.
      memory_budget_mb: the memory of all processes together, in MB.
      keeps_tokens: whether to keep the tokenized text in `work_dir`; otherwise `work_dir` is removed at the end.

    Returns:
      The numbers of documents, sentences, tokens of the corpus, examples, predictions and so on; and "bad_lines", the
      messages about bad lines.

    Raises:
      InputError: if the text can't be used, there is too little memory, or another process does the same work.
    """
    if memory_budget_mb < _PROCESS_MB * num_workers:
        raise InputError(
            f"--memory_budget_mb is {memory_budget_mb}, but {num_workers} processes need {_PROCESS_MB} MB each. Raise "
            "--memory_budget_mb or lower --num_workers."
        )
    to_spare = (memory_budget_mb / num_workers - _PROCESS_MB) * 1e6
    sorted_examples = int(np.clip(to_spare // _SORTED_EXAMPLE_BYTES, *_SORTED_EXAMPLES))
    splits = cut_into_splits(config.inputs, config.corpus.documents)
    contents = [[piece.content for piece in split] for split in splits]
    tokens_name = digest_of_values(contents, config.corpus, config.tokenizer.rules, config.shards.vocab_sha256)
    examples_name = digest_of_values(tokens_name, config.rules, config.examples, len(config.shards.paths))
    tokens_directory = os.path.join(work_dir, f"tokens-{tokens_name}")
    directory = os.path.join(work_dir, f"examples-{examples_name}")
    with (
        claimed(work_dir, "--work_dir", "work", doing="prepares data", advice="; or set another --work_dir"),
        Workers(num_workers) as workers,
    ):
        size = corpus_bytes(config.inputs)
        jobs = [(split, config.corpus, config.tokenizer) for split in splits]
        tokenized = list(workers.map("tokens", _tokenize, tokens_directory, jobs, size, "B"))
        bad_lines = bad_line_messages(counts["bad_lines"] for _, counts in tokenized)
        parts = [Part(path, c["documents"], c["sentences"], c["tokens"]) for path, c in tokenized]
        check_documents(sum(part.documents for part in parts), bad_lines)

        id_dtype = config.tokenizer.id_dtype
        jobs = [(number, parts, id_dtype, config.rules, sorted_examples) for number in range(len(parts))]
        sentences = sum(part.sentences for part in parts)
        planned = list(workers.map("plan", _plan, os.path.join(directory, "plan"), jobs, sentences, "sentence"))
        plans = [Plan(path, counts["runs"]) for path, counts in planned]

        examples = sum(map(sum, (plan.runs for plan in plans)))
        num_shards = len(config.shards.paths)
        range_examples = int(np.clip(examples // _RANGES, *_RANGE_EXAMPLES))
        ranges_per_shard = max(1, round(examples / num_shards / range_examples))
        ranges = key_ranges(num_shards * ranges_per_shard)
        jobs = [(keys, plans, parts, config.examples, config.tokenizer) for keys in ranges]
        ranges_directory = os.path.join(directory, f"ranges-{len(ranges)}")
        written = workers.map("examples", _write, ranges_directory, jobs, examples, "example")
        totals = _totals([*tokenized, *planned])
        with contextlib.closing(written):
            for shard in range(num_shards):
                growing = os.path.join(directory, f"shard-{shard:05d}")
                counts = _join(itertools.islice(written, ranges_per_shard), growing)
                totals.update(counts)
                size = counts.pop("file_size")
                if files.exists(growing) or not config.shards.is_staged(shard):
                    if not files.exists(growing) or files.size(growing) != size:
                        raise InputError(
                            f"{growing} is incomplete, because files were lost. Remove {directory} and run the same "
                            "command again.",
                            "--work_dir",
                        )
                    config.shards.stage(shard, growing, counts)
        config.shards.publish()
        shutil.rmtree(directory if keeps_tokens else work_dir)
    del totals["file_size"]
    return {**totals, "bad_lines": bad_lines}


def _tokenize(
    path: str, pieces: Sequence[FileRange], corpus: CorpusOptions, tokenizer: TokenizerOptions, advance: Advance
) -> dict[str, Any]:
    """Tokenizes a split of the corpus to a part of the token store."""
    text = CorpusTokenizer(corpus, tokenizer)
    write_part(path, text, pieces, advance)
    return {**text.counts, "bad_lines": text.bad_lines}


class Plan(NamedTuple):
    """The planned examples of a part, in runs sorted by key. Each run is as large as fits into memory.

    A run consists of keys [n], 64 bits each, and examples [n] of type `EXAMPLE`, padded to a multiple of 8 bytes.

    Attributes:
      path: the file.
      runs: the number of examples of each run.
    """

    path: str
    runs: Sequence[int]

    def between(self, first_key: int, end_key: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields for each run the keys in [first_key, end_key) and their examples."""
        start = 0
        for count in self.runs:
            keys = np.memmap(self.path, np.uint64, "r", start, (count,))
            examples = np.memmap(self.path, EXAMPLE, "r", start + keys.nbytes, (count,))
            rows = slice(np.searchsorted(keys, np.uint64(first_key)), None)
            if end_key < 1 << 64:
                rows = slice(rows.start, np.searchsorted(keys, np.uint64(end_key)))
            yield np.array(keys[rows]), np.array(examples[rows])
            start += keys.nbytes + examples.nbytes + -examples.nbytes % 8


def _plan(
    path: str,
    part: int,
    parts: Sequence[Part],
    id_dtype: np.dtype,
    rules: SegmentRules,
    sorted_examples: int,
    advance: Advance,
) -> dict[str, Any]:
    """Plans the examples of a part and writes a `Plan`."""
    runs: list[int] = []
    waiting: list[tuple[np.ndarray, np.ndarray]] = []
    long_sentences = 0
    with TokenStore(parts, id_dtype) as store, files.replacing(path, "wb") as writer:

        def write_run() -> None:
            keys, examples = (np.concatenate(column) for column in zip(*waiting, strict=True))
            order = np.argsort(keys, kind="stable")
            writer.write(keys[order].tobytes())
            writer.write(examples[order].tobytes() + bytes(-examples.nbytes % 8))
            runs.append(len(keys))
            waiting.clear()

        for planned in plan_examples(store, part, rules):
            long_sentences += planned.long_sentences
            if len(planned.keys):
                waiting.append((planned.keys, planned.examples))
            if sum(len(keys) for keys, _ in waiting) >= sorted_examples:
                write_run()
            advance(planned.sentences)
        if waiting:
            write_run()
    return {"runs": runs, "long_sentences": long_sentences}


@functools.lru_cache(maxsize=1)
def _maker(options: ExampleOptions, tokenizer: TokenizerOptions) -> ExampleMaker:
    return ExampleMaker(options, tokenizer.vocab)


def _write(
    path: str,
    keys_between: tuple[int, int],
    plans: Sequence[Plan],
    parts: Sequence[Part],
    options: ExampleOptions,
    tokenizer: TokenizerOptions,
    advance: Advance,
) -> dict[str, Any]:
    """Writes the records of a range of keys."""
    stored = [(np.empty(0, np.uint64), np.empty(0, EXAMPLE))]
    stored += itertools.chain.from_iterable(plan.between(*keys_between) for plan in plans)
    keys, examples = (np.concatenate(column) for column in zip(*stored, strict=True))
    order = np.argsort(keys, kind="stable")
    maker = _maker(options, tokenizer)
    counts: collections.Counter[str] = collections.Counter()
    with TokenStore(parts, tokenizer.id_dtype) as store, files.replacing(path, "wb") as writer:
        for first in range(0, len(order), _READ_TOGETHER):
            rows = order[first : first + _READ_TOGETHER]
            tokens, ends = read_tokens(store, examples[rows])
            for begin in range(0, len(rows), _BATCH):
                batch = rows[begin : begin + _BATCH]
                batch_tokens = tokens[ends[begin] : ends[begin + len(batch)]]
                values = maker.make_from_tokens(keys[batch], examples[batch], batch_tokens)
                writer.writelines(maker.encode(values))
                counts.update(count_examples(values, tokenizer.vocab.get(UNK)))
                advance(len(batch))
        counts["file_size"] = writer.tell()
    return dict(counts)


def read_tokens(store: TokenStore, examples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tokens of examples [n], and the bounds [n + 1] of each example in them."""
    starts = np.stack([examples["start_a"], examples["start_b"]], axis=1).ravel()
    lengths = np.stack([examples["length_a"], examples["length_b"]], axis=1).ravel().astype(np.int64)
    return store.read_tokens(starts, lengths), np.concatenate([[0], np.cumsum(lengths)[1::2]])


def _join(written: Iterable[tuple[str, Mapping[str, int]]], growing: str) -> collections.Counter[str]:
    """Appends each file of a range to a shard once the file is complete, and removes it. Returns the summed counts.

    If a file does not exist after a crash, it has already been appended.
    """
    counts: collections.Counter[str] = collections.Counter(file_size=0)
    for path, of_range in written:
        if files.exists(path):
            with open(path, "rb") as reader, open(growing, "r+b" if counts["file_size"] else "wb") as writer:
                writer.seek(counts["file_size"])
                shutil.copyfileobj(reader, writer, _COPY_BYTES)
            files.remove(path)
        counts.update(of_range)
    return counts


def shard_of(key: int, num_shards: int) -> int:
    """Returns the index of the shard that contains an example; consistent with `key_ranges`."""
    return ((key + 1) * num_shards - 1) >> 64


def key_ranges(count: int) -> list[tuple[int, int]]:
    """Divides all keys into equal ranges. Returns the first key of each range, and its last key plus 1."""
    return [(i * (1 << 64) // count, (i + 1) * (1 << 64) // count) for i in range(count)]


def _totals(results: Iterable[tuple[str, Mapping[str, Any]]]) -> collections.Counter[str]:
    """Returns the summed counts of the first two passes."""
    totals: collections.Counter[str] = collections.Counter()
    for _, counts in results:
        totals.update({name: number for name, number in counts.items() if isinstance(number, int)})
    totals["corpus_tokens"] = totals.pop("tokens")
    return totals
