"""Streaming data preparation from text to shards: which stages run, where their results lie, and what is counted.

The work folder holds the token store, under a name made of what decides it (text, vocabulary, casing), so that other
settings can use it again; and the rest of each set of examples under a name made of all that decides these. What a
crash left there is taken up by the next run. The shards move to their places when all of them are there.
"""

import collections
import dataclasses
import functools
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf.runtime.files import InputError
from bert_tf.runtime.program import say
from bert_tf.runtime.reporting import progress_bar
from data_prep.corpus.files import InputFile, corpus_bytes, cut_into_splits
from data_prep.corpus.reader import CorpusOptions, describe_bad_lines
from data_prep.corpus.token_store import Part, TokenStore
from data_prep.examples.batches import ExampleOptions
from data_prep.examples.instances import EXAMPLE, SegmentRules
from data_prep.examples.outputs import OutputSet, name_of
from data_prep.jobs.claims import claimed
from data_prep.jobs.shards import OwnShards, add_up
from data_prep.jobs.stages import (
    PlanStage,
    Run,
    TokenizerOptions,
    TokenizeStage,
    WriteStage,
    cut_into_buckets,
    run_file,
)
from data_prep.jobs.workers import Stage, Workers, wait_for_jobs

# How many buckets there are depends on the examples only, so that a run can be taken up with other resources.
_BUCKETS, _BUCKET_EXAMPLES = 256, (8192, 1 << 18)
# What a process needs in any case (interpreter, vocabulary, remembered words), and an example while it is sorted.
_PROCESS_MB = 200
_SORTED_EXAMPLE_BYTES = 3 * (EXAMPLE.itemsize + 8)
_RUN_EXAMPLES = (1 << 14, 1 << 22)


@dataclasses.dataclass(frozen=True)
class Preparation:
    """What is to be made of what.

    Attributes:
      inputs: the text.
      corpus: how it becomes sentences.
      tokenizer: how these become tokens.
      rules: how these become segments.
      examples: what a record holds.
      outputs: the shards.
    """

    inputs: Sequence[InputFile]
    corpus: CorpusOptions
    tokenizer: TokenizerOptions
    rules: SegmentRules
    examples: ExampleOptions
    outputs: OutputSet


@dataclasses.dataclass(frozen=True)
class Resources:
    """Who does the work; nothing in the output depends on it.

    Attributes:
      work_dir: a local folder (or one that all tasks share) for what lies between text and shards.
      num_workers: processes of this task.
      memory_budget_mb: memory of all of them together.
      task_index: which of several machines this is.
      num_tasks: how many they are.

    Raises:
      InputError: if a number is out of range, or the memory is too little.
    """

    work_dir: str
    num_workers: int
    memory_budget_mb: int
    task_index: int = 0
    num_tasks: int = 1

    def __post_init__(self) -> None:
        if self.num_workers < 1:
            raise InputError(f"--num_workers is {self.num_workers}, but at least 1 is needed.")
        if not 0 <= self.task_index < self.num_tasks:
            raise InputError(
                f"--task_index is {self.task_index}, but a number from 0 to {self.num_tasks - 1} is expected "
                f"(--num_tasks is {self.num_tasks})."
            )
        if self.memory_budget_mb < _PROCESS_MB * self.num_workers:
            raise InputError(
                f"--memory_budget_mb is {self.memory_budget_mb}, but each of --num_workers={self.num_workers} "
                f"processes needs {_PROCESS_MB} MB. Raise the one or lower the other."
            )

    @property
    def run_examples(self) -> int:
        """How many examples a process sorts in memory."""
        to_spare = (self.memory_budget_mb / self.num_workers - _PROCESS_MB) * 1e6
        return int(np.clip(to_spare // _SORTED_EXAMPLE_BYTES, *_RUN_EXAMPLES))

    def own(self, count: int) -> range:
        """Which of `count` jobs this task does."""
        return range(self.task_index, count, self.num_tasks)


def prepare(preparation: Preparation, resources: Resources) -> dict[str, Any]:
    """Makes the shards.

    Returns:
      Counts: documents, sentences, tokens of the corpus, lines that were left out, examples, predictions...

    Raises:
      InputError: if the text can't be used, a worker ran out of memory, or another process does the same work.
    """
    outputs = preparation.outputs
    splits = cut_into_splits(preparation.inputs, preparation.corpus.documents)
    tokens_name = name_of(splits, preparation.corpus, preparation.tokenizer, outputs.vocab_sha256)
    examples_name = name_of(tokens_name, preparation.rules, preparation.examples, len(outputs.paths))
    folder = os.path.join(resources.work_dir, f"examples-{examples_name}")
    tokenize = TokenizeStage(
        os.path.join(resources.work_dir, f"tokens-{tokens_name}"), splits, preparation.corpus, preparation.tokenizer
    )
    advice = "; and if several machines are to share the work, give each its own --task_index"
    claim = claimed(folder, f"task-{resources.task_index}", "--work_dir", advice)
    with claim, Workers(resources.num_workers) as workers:
        run = functools.partial(_run, resources, workers)
        return _prepare(preparation, resources, folder, tokenize, run)


def _prepare(
    preparation: Preparation,
    resources: Resources,
    folder: str,
    tokenize: TokenizeStage,
    run: Callable[..., list[dict[str, Any]]],
) -> dict[str, Any]:
    outputs = preparation.outputs
    tokenized = run(tokenize, "tokens", corpus_bytes(preparation.inputs), "B")
    store = _token_store(tokenize, tokenized)
    plan = PlanStage(os.path.join(folder, "plan"), store, preparation.rules, resources.run_examples)
    planned = run(plan, "plan", store.sentences, "sentence")
    runs = [
        Run(run_file(plan.folder, job, number), examples)
        for job, counts in enumerate(planned)
        for number, examples in enumerate(counts["runs"])
    ]
    examples = sum(run.examples for run in runs)
    bucket_examples = int(np.clip(examples // _BUCKETS, *_BUCKET_EXAMPLES))
    buckets = cut_into_buckets(examples, len(outputs.paths), bucket_examples)
    write = WriteStage(
        os.path.join(folder, "buckets"), store, runs, buckets, preparation.examples, preparation.tokenizer.vocab
    )
    shards = OwnShards(folder, write, outputs, resources.own(len(outputs.paths)))
    written = run(write, "examples", examples, "example", shards.add)
    shards.finish(written)
    store.close()
    if resources.num_tasks == 1:
        shutil.rmtree(folder)
    return _summary(tokenized, planned, written)


def _run(
    resources: Resources,
    workers: Workers,
    stage: Stage,
    what: str,
    total: int,
    unit: str,
    take: Callable[[int, dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """Does this task's jobs of a stage, waits for the other tasks, and returns the counts of all jobs.

    `take` is given each of this task's jobs and its counts, as soon as it is finished.
    """
    jobs = resources.own(len(stage.names))
    seen: collections.Counter[str] = collections.Counter()
    with progress_bar(round(total * len(jobs) / len(stage.names)), what, unit=unit) as bar:
        for job, counts in workers.run(stage, bar.update, jobs):
            if take:
                take(job, counts)
            seen.update({name: counts[name] for name in ("documents", "records") if name in counts})
            bar.set_postfix(seen, refresh=False)
    return wait_for_jobs(stage, lambda missing: say(f"{what}: waiting for other tasks ({len(missing)} jobs)."))


def _token_store(stage: TokenizeStage, counts: Sequence[Mapping[str, Any]]) -> TokenStore:
    """The finished token store.

    Raises:
      InputError: if it holds no text, or a single document.
    """
    parts = [
        Part(os.path.join(stage.folder, name), c["documents"], c["sentences"], c["tokens"])
        for name, c in zip(stage.names, counts, strict=True)
    ]
    store = TokenStore(parts, stage.tokenizer.id_dtype)
    check_documents(store.documents)
    return store


def check_documents(documents: int) -> None:
    """Raises an InputError if random segments can't be taken from other documents, for there are none."""
    if documents == 0:
        raise InputError("--input_file: there is no text in the files.")
    if documents == 1:
        raise InputError(
            "--input_file: the text is one single document, so no next sentence could be taken from another one, and "
            'every "random" label would be wrong. Separate documents by blank lines, or set --documents.'
        )


def _summary(
    tokenized: Sequence[Mapping[str, Any]], planned: Sequence[Mapping[str, Any]], written: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    counts: collections.Counter[str] = collections.Counter()
    for part in tokenized:
        names = ("documents", "sentences", "documents_of_one_sentence", "empty_documents", "lines_without_tokens")
        counts.update({name: part.get(name, 0) for name in names})
        counts["corpus_tokens"] += part["tokens"]
    counts["long_sentences"] = sum(part["long_sentences"] for part in planned)
    counts.update(add_up(written))
    return dict(counts) | {"left_out": describe_bad_lines(tokenized)}
