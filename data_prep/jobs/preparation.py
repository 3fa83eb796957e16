"""Streaming data preparation: runs the stages from text to shards, and adds up their counts.

The work folder holds the token store in a folder named after the fingerprint of the settings that decide it (text,
vocabulary, casing), so a preparation with other settings can use it again. The results of the later stages are in a
folder named after the fingerprint of all settings. After a crash, the next run continues with what is there. The shards
are moved to their paths when all of them are complete.
"""

import collections
import dataclasses
import functools
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf.runtime.claims import claimed
from bert_tf.runtime.errors import InputError, require_whole
from bert_tf.runtime.reporting import progress_bar
from data_prep.corpus.bad_lines import bad_line_messages
from data_prep.corpus.files import InputFile, corpus_bytes, cut_into_splits
from data_prep.corpus.reader import CorpusOptions
from data_prep.corpus.token_store import Part, TokenStore
from data_prep.examples.instances import EXAMPLE, SegmentRules
from data_prep.examples.records import ExampleOptions
from data_prep.examples.shards import ShardAssembler, ShardSet, add_up, fingerprint
from data_prep.jobs.merge_stage import merge_runs
from data_prep.jobs.stages import (
    PlanStage,
    TokenizerOptions,
    TokenizeStage,
    WriteStage,
    cut_into_buckets,
)
from data_prep.jobs.workers import Stage, Workers

# The number of buckets depends on the examples only, so a run can be continued with other resources.
_BUCKETS, _BUCKET_EXAMPLES = 256, (8192, 1 << 18)
# The memory that a process always needs (interpreter, vocabulary, remembered words), and that of an example in a sort.
_PROCESS_MB = 200
_SORTED_EXAMPLE_BYTES = 3 * (EXAMPLE.itemsize + 8)
_RUN_EXAMPLES = (1 << 14, 1 << 22)


@dataclasses.dataclass(frozen=True)
class PreparationConfig:
    """Everything that decides the examples.

    Attributes:
      inputs: the files of text.
      corpus: how text becomes sentences.
      tokenizer: how sentences become tokens.
      rules: how tokens become segments.
      examples: the content of a record.
      shards: the output.
    """

    inputs: Sequence[InputFile]
    corpus: CorpusOptions
    tokenizer: TokenizerOptions
    rules: SegmentRules
    examples: ExampleOptions
    shards: ShardSet


@dataclasses.dataclass(frozen=True)
class Resources:
    """The processes and memory that do the work; the output doesn't depend on them.

    Attributes:
      work_dir: a local folder for intermediate results.
      num_workers: number of processes.
      memory_budget_mb: memory of all these processes together.

    Raises:
      InputError: if a number is out of range, or there is too little memory.
    """

    work_dir: str
    num_workers: int
    memory_budget_mb: int

    def __post_init__(self) -> None:
        require_whole("--num_workers", self.num_workers, 1)
        if self.memory_budget_mb < _PROCESS_MB * self.num_workers:
            raise InputError(
                f"--memory_budget_mb is {self.memory_budget_mb}, but each of --num_workers={self.num_workers} "
                f"processes needs {_PROCESS_MB} MB. Raise the one or lower the other."
            )

    @property
    def run_examples(self) -> int:
        """The number of examples that a process sorts in memory."""
        to_spare = (self.memory_budget_mb / self.num_workers - _PROCESS_MB) * 1e6
        return int(np.clip(to_spare // _SORTED_EXAMPLE_BYTES, *_RUN_EXAMPLES))


def prepare(config: PreparationConfig, resources: Resources) -> dict[str, Any]:
    """Makes the shards.

    Returns:
      Counts of documents, sentences, tokens of the corpus, lines that were left out, examples, predictions and so on.

    Raises:
      InputError: if the text can't be used, a worker ran out of memory, or another process does the same work.
    """
    splits = cut_into_splits(config.inputs, config.corpus.documents)
    contents = [[piece.content for piece in split] for split in splits]
    decisive = [contents, config.corpus, config.tokenizer.rules, config.shards.vocab_sha256]
    tokens_name = fingerprint(*decisive)
    examples_name = fingerprint(tokens_name, config.rules, config.examples, len(config.shards.paths))
    folder = os.path.join(resources.work_dir, f"examples-{examples_name}")
    tokens_folder = os.path.join(resources.work_dir, f"tokens-{tokens_name}")
    tokenize = TokenizeStage(tokens_folder, splits, config.corpus, config.tokenizer)
    with claimed(folder, "--work_dir", "work", doing="does the same work", advice=""):
        counts = _make(config, resources, tokenize, folder)
        shutil.rmtree(folder)
    return counts


def _make(config: PreparationConfig, resources: Resources, tokenize: TokenizeStage, folder: str) -> dict[str, Any]:
    """Runs the stages; returns the counts of `prepare`."""
    num_shards = len(config.shards.paths)
    with Workers(resources.num_workers) as workers:
        run = functools.partial(_run, workers)
        tokenized = run(tokenize, "tokens", corpus_bytes(config.inputs), "B")
        store = _token_store(tokenize, tokenized, tokenize.tokenizer.id_dtype)
        bad_lines = bad_line_messages(part["bad_lines"] for part in tokenized)
        check_documents(store.documents, bad_lines)

        plan = PlanStage(os.path.join(folder, "plan"), store, config.rules, resources.run_examples)
        planned = run(plan, "plan", store.sentences, "sentence")
        merged = os.path.join(folder, "merged")
        runs = merge_runs(run, plan.runs(planned), merged, EXAMPLE, resources.run_examples)

        examples = sum(run.records for run in runs)
        bucket_examples = int(np.clip(examples // _BUCKETS, *_BUCKET_EXAMPLES))
        buckets = cut_into_buckets(examples, num_shards, bucket_examples)
        buckets_folder = os.path.join(folder, "buckets")
        write = WriteStage(buckets_folder, store, runs, buckets, options=config.examples, vocab=config.tokenizer.vocab)
        paths = [write.path(job) for job in range(len(buckets))]
        assembler = ShardAssembler(folder, config.shards, range(num_shards), paths)
        written = run(write, "examples", examples, "example", assembler.add)
        store.close()

        for shard in range(num_shards):
            assembler.finish(shard, written)
        config.shards.publish()
        return {**_summary(tokenized, planned, written), "bad_lines": bad_lines}


def _run(
    workers: Workers,
    stage: Stage,
    label: str,
    total: int,
    unit: str,
    take: Callable[[int, dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """Runs a stage, and returns the counts of all jobs.

    `take` is called with each job and its counts as soon as it is finished.
    """
    results: dict[int, dict[str, Any]] = {}
    seen: collections.Counter[str] = collections.Counter()

    with progress_bar(total, label, unit=unit) as bar:
        for job, counts in workers.run(stage, bar.update):
            if take:
                take(job, counts)
            results[job] = counts
            seen.update({name: counts[name] for name in ("documents", "records") if name in counts})
            bar.set_postfix(seen, refresh=False)
    return [results[job] for job in range(len(stage.names))]


def _token_store(stage: Stage, counts: Sequence[Mapping[str, Any]], id_dtype: np.dtype) -> TokenStore:
    """Returns the store of the parts that the jobs of a stage wrote."""
    parts = [Part(stage.path(job), c["documents"], c["sentences"], c["tokens"]) for job, c in enumerate(counts)]
    return TokenStore(parts, id_dtype)


def check_documents(documents: int, bad_lines: Sequence[str] = ()) -> None:
    """Raises an InputError if there are no other documents from which to take random segments.

    Args:
      documents: the number of documents.
      bad_lines: messages about the lines that were left out.
    """
    left_out = "".join(f" {message[0].upper()}{message[1:]}." for message in bad_lines)
    if documents == 0:
        raise InputError(f"--input_file: there is no text in the files.{left_out}")
    if documents == 1:
        raise InputError(
            "--input_file: the text is one single document, so no next sentence could be taken from another "
            'one, and every "random" label would be wrong. Separate documents by blank lines, or set --documents.'
            f"{left_out}"
        )


def _summary(
    tokenized: Sequence[Mapping[str, Any]], planned: Sequence[Mapping[str, Any]], written: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    names = ("documents", "sentences", "documents_of_one_sentence", "empty_documents", "lines_without_tokens")
    counts = collections.Counter(_add_up(tokenized, (*names, "tokens")))
    counts["corpus_tokens"] = counts.pop("tokens")
    counts["long_sentences"] = sum(part["long_sentences"] for part in planned)
    counts.update(add_up(written))
    return dict(counts)


def _add_up(results: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, int]:
    return {name: sum(result.get(name, 0) for result in results) for name in names}
