"""The stage that merges sorted runs, so that few files have to be opened for each range of keys."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bert_tf.runtime import files
from data_prep.corpus import sorted_runs
from data_prep.corpus.sorted_runs import SortedRun
from data_prep.jobs.workers import Advance, Stage

# Runs a stage; takes its name, and the number and name of its units for the progress bar. Returns the jobs' results.
RunStage = Callable[[Stage, str, int, str], list[dict[str, Any]]]


@dataclasses.dataclass(frozen=True)
class MergeStage(Stage):
    """Merges runs; a job makes one of up to `sorted_runs.MOST_RUNS`, and removes these.

    Attributes:
      folder: the folder of the merged runs.
      groups: the runs that become one.
      dtype: type of their records.
      at_a_time: number of records in memory.
    """

    folder: str
    groups: Sequence[Sequence[SortedRun]]
    dtype: np.dtype
    at_a_time: int

    @functools.cached_property
    def names(self) -> list[str]:
        """The names of the merged runs."""
        return [f"merged-{i:05d}" for i in range(len(self.groups))]

    def run(self, job: int, advance: Advance) -> dict[str, Any]:
        """Merges some runs."""
        # If the merged run is there, a process was killed before it could say so, and may have removed the others.
        if not files.exists(self.path(job)):
            sorted_runs.merge(self.groups[job], self.path(job), self.dtype, self.at_a_time)
        for source in self.groups[job]:
            files.remove(source.path)
            advance(source.records)
        return {"merged": sum(source.records for source in self.groups[job])}


def merge_runs(
    run: RunStage, runs: Sequence[SortedRun], folder: str, dtype: np.dtype, at_a_time: int
) -> Sequence[SortedRun]:
    """Merges runs, if there are many, until there are at most `sorted_runs.MOST_RUNS`; their order stays.

    Args:
      run: runs a stage.
      runs: the runs.
      folder: the beginning of the names of the folders of merged runs.
      dtype: type of the records.
      at_a_time: number of records that a process has in memory.
    """
    for level in itertools.count():
        if len(runs) <= sorted_runs.MOST_RUNS:
            break
        groups = [runs[i : i + sorted_runs.MOST_RUNS] for i in range(0, len(runs), sorted_runs.MOST_RUNS)]
        stage = MergeStage(f"{folder}-{level}", groups, dtype, at_a_time)
        found = run(stage, "merge", sum(source.records for source in runs), "record")
        runs = [SortedRun(stage.path(job), counts["merged"]) for job, counts in enumerate(found)]
    return runs
