"""Runs the jobs of a stage in worker processes, each job once: what a crash left finished is not done again.

A job's results are whole or not there: files under the job's name, and last of all a JSON file with its counts. Nothing
a job does depends on which process does it, or when.
"""

import concurrent.futures
import functools
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol

from bert_tf.runtime import files
from bert_tf.runtime.files import InputError

_POLL_SECONDS = 0.5
_JOBS_AHEAD = 4
# What the programs that use workers import: multiprocessing runs a program's module anew in each worker, and these are
# there by then. None of them defines flags, which would be in the way of another program's.
_PRELOADED = ("data_prep.jobs.preparation", "data_prep.examples.reference_order", "data_prep.corpus.word_counts")


class Stage(Protocol):
    """A step of the work, made of jobs that don't depend on one another. Sent to the workers, so it can be pickled.

    Attributes:
      folder: where the jobs' results lie.
      names: one a job.
    """

    folder: str
    names: Sequence[str]

    def run(self, job: int, advance: Callable[[int], None]) -> dict[str, Any]:
        """Does a job; returns its counts, and tells `advance` how much was done of what the progress bar shows."""

    def close(self) -> None:
        """Closes what `run` has opened."""


def available_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def result_file(stage: Stage, job: int) -> str:
    """The file that says that a job is done."""
    return os.path.join(stage.folder, f"{stage.names[job]}.json")


class Workers:
    """Does the jobs of one stage after another, in processes that start when they are first needed and stay.

    When the block ends, by an error or Ctrl-C too, jobs that still run are given up.

    Args:
      num_workers: how many processes; with 1, this one does the work.
    """

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._stages = 0

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *error: object) -> None:
        if "_pool" in self.__dict__:
            self._is_over.value = True
            self._pool.shutdown(cancel_futures=True)

    @functools.cached_property
    def _pool(self) -> concurrent.futures.ProcessPoolExecutor:
        # Workers come from a server process that holds neither TensorFlow nor threads, which a fork of this one might.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(_PRELOADED))
        self._progress = context.Value("q", 0)
        self._is_over = context.RawValue("b", False)
        shared = self._progress, self._is_over
        return concurrent.futures.ProcessPoolExecutor(self._num_workers, context, _start_worker, shared)

    def run(
        self, stage: Stage, advance: Callable[[int], None], jobs: Sequence[int] | None = None
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Does what isn't done of a stage.

        Args:
          stage: the stage.
          advance: told how much was done, for the progress bar.
          jobs: which of the jobs; all of them if None.

        Yields:
          Jobs and their counts, as they are finished; those that were finished before come first.

        Raises:
          InputError: that of a job; or if a worker was killed, most likely by a lack of memory.
        """
        files.make_folder(stage.folder)
        waiting = []
        for job in range(len(stage.names)) if jobs is None else jobs:
            path = result_file(stage, job)
            if files.exists(path):
                yield job, files.read_json(path, "--work_dir")
            else:
                waiting.append(job)
        if min(self._num_workers, len(waiting)) > 1:
            yield from self._run_in_processes(stage, waiting, advance)
            return
        try:
            for job in waiting:
                yield job, _run_job(stage, job, advance)
        finally:
            stage.close()

    def _run_in_processes(
        self, stage: Stage, jobs: list[int], advance: Callable[[int], None]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        self._stages += 1
        pickled = pickle.dumps(stage)
        running: dict[concurrent.futures.Future, int] = {}
        try:
            pool = self._pool
            progress = self._progress.get_obj()  # read without the lock, which a worker that was killed may still hold
            shown = progress.value
            while jobs or running:
                while jobs and len(running) < self._num_workers * _JOBS_AHEAD:
                    job = jobs.pop(0)
                    running[pool.submit(_work, self._stages, pickled, job)] = job
                done, _ = concurrent.futures.wait(running, _POLL_SECONDS, concurrent.futures.FIRST_COMPLETED)
                now = progress.value
                advance(now - shown)
                shown = now
                for future in done:
                    yield running.pop(future), future.result()
        except BrokenProcessPool:
            raise InputError(
                "--num_workers: a worker process was killed, most likely because memory ran out. Lower --num_workers "
                "or --memory_budget_mb and run the same command again; finished work is kept."
            ) from None


def _run_job(stage: Stage, job: int, advance: Callable[[int], None]) -> dict[str, Any]:
    counts = stage.run(job, advance)
    files.write_json(result_file(stage, job), counts)
    return counts


# What a worker process works on, and which of its owner's stages that is.
_stage: Stage
_stage_number = 0
_advance: Callable[[int], None]


class _IsOver(Exception):
    """What ends a job whose results nobody waits for any more, for the owner was interrupted or met an error."""


def _start_worker(progress: Any, is_over: Any) -> None:
    def advance(amount: int) -> None:
        if is_over.value:
            raise _IsOver
        with progress.get_lock():
            progress.value += amount

    global _advance
    _advance = advance
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner ends its workers
    threading.Thread(target=_end_with_owner, daemon=True).start()


def _end_with_owner() -> None:
    """Ends this process when its owner is gone, even if it went before this process had started."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _work(stage_number: int, pickled_stage: bytes, job: int) -> dict[str, Any]:
    global _stage, _stage_number
    if stage_number != _stage_number:
        if _stage_number:
            _stage.close()
        _stage, _stage_number = pickle.loads(pickled_stage), stage_number
    return _run_job(_stage, job, _advance)


def wait_for_jobs(stage: Stage, report: Callable[[list[str]], None]) -> list[dict[str, Any]]:
    """Waits until all jobs of a stage are done, by whichever machine.

    Args:
      stage: the stage, in a folder that all machines share.
      report: told, about every minute, which jobs are still missing.

    Returns:
      The jobs' counts.
    """
    last_report = time.monotonic()
    while missing := [n for job, n in enumerate(stage.names) if not files.exists(result_file(stage, job))]:
        if time.monotonic() - last_report > 60:
            report(missing)
            last_report = time.monotonic()
        time.sleep(_POLL_SECONDS)
    return [files.read_json(result_file(stage, job), "--work_dir") for job in range(len(stage.names))]
