"""The stages that leave documents out of the tokenized corpus (see `corpus.cleaning`), after `stages.TokenizeStage`.

1. `DuplicatesStage`: the signatures in a range of keys tell which documents repeat earlier ones.
2. `CleanStage`: of each part of the token store, the documents that are kept are copied.
"""

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from data_prep.corpus.bad_lines import REMOVED, BadLine, BadLineFile
from data_prep.corpus.cleaning import (
    DOCUMENT,
    DUPLICATE,
    KEPT,
    OTHER_LANGUAGE,
    REASONS,
    SHORT,
    SIGNATURE,
    document_keys,
    documents_file,
    find_duplicates,
    first_of_each,
    part_of_key,
)
from data_prep.corpus.sorted_runs import RunWriter, SortedRun, cut_keys, gather, runs_of
from data_prep.corpus.token_store import PartWriter, TokenStore, copy_documents
from data_prep.jobs.merge_stage import RunStage, merge_runs
from data_prep.jobs.workers import Advance, Stage

# The number of signatures that are compared together; it decides the jobs, so it is the same for all tasks.
_SIGNATURES = 1 << 19
_KEY = np.dtype("<u8")
# The names of the numbers of documents that were removed, by the reason.
COUNTS_OF_REMOVED = {SHORT: "removed_short", OTHER_LANGUAGE: "removed_other_language", DUPLICATE: "removed_duplicates"}


@dataclasses.dataclass(frozen=True)
class DuplicatesStage(Stage):
    """Finds repeated documents; the results of a job are runs of their keys, each with that of the earliest copy.

    Attributes:
      folder: the folder of the runs.
      signatures: the runs of the signatures.
      ranges: for each job, the first key of its signatures, and the key behind its last one.
    """

    folder: str
    signatures: Sequence[SortedRun]
    ranges: Sequence[tuple[int, int]]

    @functools.cached_property
    def names(self) -> list[str]:
        """The names of the jobs."""
        return [f"duplicates-{i:05d}" for i in range(len(self.ranges))]

    def run(self, job: int, advance: Advance) -> dict[str, Any]:
        """Compares the signatures of a range."""
        keys, signatures = gather(self.signatures, *self.ranges[job], SIGNATURE)
        writer = RunWriter(self.path(job), _KEY, _SIGNATURES)
        writer.add(*find_duplicates(keys, signatures))
        writer.finish()
        advance(len(keys))
        return {"runs": writer.runs}


@dataclasses.dataclass(frozen=True)
class CleanStage(Stage):
    """Copies the documents that are kept; the result of a job is a part of the token store.

    Attributes:
      folder: the folder of the parts.
      store: all documents.
      duplicates: the runs of `DuplicatesStage`.
    """

    folder: str
    store: TokenStore
    duplicates: Sequence[SortedRun]

    @functools.cached_property
    def names(self) -> list[str]:
        """The names of the parts."""
        return [f"part-{i:05d}" for i in range(len(self.store.parts))]

    def run(self, job: int, advance: Advance) -> dict[str, Any]:
        """Copies a part."""
        documents = self._documents(job)
        reasons, earliest = self._reasons(job, documents)
        with BadLineFile(self.removed_file(job)) as removed:
            for row in np.flatnonzero(reasons != KEPT).tolist():
                piece, line, _, language = documents[row].item()
                repeats = self._place(earliest[row]) if row in earliest else None
                found = "" if repeats else language.decode()
                removed.add(BadLine(REMOVED, REASONS[reasons[row]], found, piece, line, repeats))
        with PartWriter(self.path(job), self.store.id_dtype.itemsize) as writer:
            of_one_sentence = copy_documents(self.store, job, reasons == KEPT, writer)
        advance(len(reasons))
        counts = {name: int(np.count_nonzero(reasons == reason)) for reason, name in COUNTS_OF_REMOVED.items()}
        return {**writer.sizes, **counts, "documents_of_one_sentence": of_one_sentence}

    def removed_file(self, job: int) -> str:
        """Returns the path of the `BadLineFile` of the documents of a part that are removed."""
        return self.path(job, ".removed")

    def _documents(self, part: int) -> np.ndarray:
        if not self.store.parts[part].documents:
            return np.empty(0, DOCUMENT)
        return np.memmap(documents_file(self.store.parts[part].path), DOCUMENT, "r")

    def _reasons(self, part: int, documents: np.ndarray) -> tuple[np.ndarray, dict[int, int]]:
        """Returns why each document is removed, and for those that repeat an earlier one its key."""
        first, end = document_keys(part, len(self.store.parts))
        keys, earliest = first_of_each(*gather(self.duplicates, first, end, _KEY))
        rows = (keys - np.uint64(first)).astype(np.int64)
        reasons = np.array(documents["reason"])
        reasons[rows] = DUPLICATE
        return reasons, dict(zip(rows.tolist(), earliest.tolist(), strict=True))

    def _place(self, key: int) -> tuple[int, int, int]:
        """Returns the part, the piece of a file and the line of a document."""
        part = part_of_key(key, len(self.store.parts))
        document = self._documents(part)[key - document_keys(part, len(self.store.parts))[0]]
        return part, int(document["piece"]), int(document["line"])

    def close(self) -> None:
        """Closes the store."""
        self.store.close()


def clean(
    run: RunStage, store: TokenStore, tokenized: Sequence[Mapping[str, Any]], folder: str, at_a_time: int
) -> tuple[CleanStage, list[dict[str, Any]]]:
    """Leaves documents out of a token store.

    Args:
      run: runs a stage.
      store: the store.
      tokenized: the results of the jobs of `TokenizeStage`.
      folder: where the cleaned parts and what is needed for them are kept.
      at_a_time: number of records that a process has in memory when runs are merged.

    Returns:
      The stage that wrote the cleaned parts, and the results of `TokenizeStage` for a corpus of the documents that are
      kept, with the numbers of those that are removed.
    """
    signatures = [
        each for part, counts in zip(store.parts, tokenized, strict=True) for each in runs_of(part.path, counts["runs"])
    ]
    total = sum(each.records for each in signatures)
    signatures = merge_runs(run, signatures, os.path.join(folder, "signatures"), SIGNATURE, at_a_time)
    ranges = list(cut_keys(max(1, -(-total // _SIGNATURES))))
    find = DuplicatesStage(os.path.join(folder, "duplicates"), signatures, ranges)
    found = run(find, "duplicates", total, "signature")
    duplicates = [each for job, counts in enumerate(found) for each in runs_of(find.path(job), counts["runs"])]
    duplicates = merge_runs(run, duplicates, os.path.join(folder, "merged-duplicates"), _KEY, at_a_time)
    stage = CleanStage(os.path.join(folder, "clean"), store, duplicates)
    kept = run(stage, "clean", store.documents, "document")
    store.close()
    return stage, [{**before, **after} for before, after in zip(tokenized, kept, strict=True)]
