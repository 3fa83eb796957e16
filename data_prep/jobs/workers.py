"""Runs the jobs of a stage in worker processes, and keeps other processes from doing the same work.

Each job runs once: after a crash, finished jobs are not repeated. The results of a job are files named after it; the
last one is a JSON file with its counts, so the results are complete if it exists. They don't depend on the process or
the time in which the job runs.
"""

import abc
import concurrent.futures
import contextlib
import functools
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from bert_tf.runtime import files, json_files
from bert_tf.runtime.files import InputError

_POLL_SECONDS = 0.5
_JOBS_AHEAD = 4
# The modules that worker processes need are imported once, before the first one starts. None of them may define flags:
# a worker also imports the main module of its program, and its flags could have the same names.
_PRELOADED = ("data_prep.jobs.preparation", "data_prep.examples.reference_order", "data_prep.jobs.word_counts")

Advance = Callable[[int], None]


class Stage(abc.ABC):
    """A step of the work: jobs that don't depend on one another. A stage is sent to the workers, so it can be pickled.

    Attributes:
      folder: the folder of the jobs' results.
      names: the names of the jobs.
    """

    folder: str
    names: Sequence[str]

    @abc.abstractmethod
    def run(self, job: int, advance: Advance) -> dict[str, Any]:
        """Runs a job and returns its counts; `advance` is told the progress, in the units of the progress bar."""

    def close(self) -> None:  # noqa: B027 (most stages open no files)
        """Closes the files that `run` has opened."""

    def path(self, job: int, suffix: str = "") -> str:
        """Returns the path of a job's result."""
        return os.path.join(self.folder, self.names[job] + suffix)


def available_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def result_file(stage: Stage, job: int) -> str:
    """Returns the path of the file that marks a job as done."""
    return stage.path(job, ".json")


class Workers:
    """Runs the jobs of one stage after another, in processes that start when they are first needed.

    When the block ends, also by an error or Ctrl-C, running jobs are cancelled.

    Args:
      num_workers: number of processes; with 1, this process does the work.
    """

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._stages = 0

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *error: object) -> None:
        if "_pool" in self.__dict__:
            self._cancelled.value = True
            self._pool.shutdown(cancel_futures=True)

    @functools.cached_property
    def _pool(self) -> concurrent.futures.ProcessPoolExecutor:
        # Workers are forked from a server process, because this one may have threads, which a fork doesn't survive.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(_PRELOADED))
        self._processes_before = set(multiprocessing.active_children())
        self._progress = context.Value("q", 0)
        self._cancelled = context.RawValue("b", False)
        shared = self._progress, self._cancelled
        return concurrent.futures.ProcessPoolExecutor(self._num_workers, context, _start_worker, shared)

    def run(
        self, stage: Stage, advance: Advance, jobs: Sequence[int] | None = None
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Runs the unfinished jobs of a stage.

        Args:
          stage: the stage.
          advance: is told the progress, for the progress bar.
          jobs: the numbers of the jobs; None for all.

        Yields:
          Numbers and counts of jobs as they finish; jobs that were finished before come first.

        Raises:
          InputError: if a job raises it, or if a worker was killed, most likely because memory ran out.
        """
        files.make_folder(stage.folder)
        waiting = []
        for job in range(len(stage.names)) if jobs is None else jobs:
            path = result_file(stage, job)
            if files.exists(path):
                yield job, json_files.read(path, "--work_dir")
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
        self, stage: Stage, jobs: list[int], advance: Advance
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        self._stages += 1
        pickled = pickle.dumps(stage)
        running: dict[concurrent.futures.Future, int] = {}
        try:
            pool = self._pool
            progress = self._progress.get_obj()  # without the lock, which a killed worker may still hold
            shown = progress.value
            while jobs or running:
                while jobs and len(running) < self._num_workers * _JOBS_AHEAD:
                    job = jobs.pop(0)
                    try:
                        running[pool.submit(_work, self._stages, pickled, job)] = job
                    except OSError as error:  # the pool broke while it started another worker
                        raise BrokenProcessPool from error
                done, _ = concurrent.futures.wait(running, _POLL_SECONDS, concurrent.futures.FIRST_COMPLETED)
                now = progress.value
                advance(now - shown)
                shown = now
                for future in done:
                    yield running.pop(future), future.result()
        except BrokenProcessPool:
            # A worker that started just when the pool ended the others still waits for jobs, and the pool for it.
            for process in set(multiprocessing.active_children()) - self._processes_before:
                process.terminate()
            raise InputError(
                "--num_workers: a worker process was killed, most likely because memory ran out. Lower --num_workers "
                "or --memory_budget_mb and run the same command again; finished work is kept."
            ) from None


def _run_job(stage: Stage, job: int, advance: Advance) -> dict[str, Any]:
    counts = stage.run(job, advance)
    files.write_json(result_file(stage, job), counts)
    return counts


# The current stage of this worker process and its number.
_stage: Stage
_stage_number = 0
_advance: Advance


class _Cancelled(Exception):
    """Ends a job after its owner was interrupted or failed."""


def _start_worker(progress: Any, cancelled: Any) -> None:
    def advance(amount: int) -> None:
        if cancelled.value:
            raise _Cancelled
        with progress.get_lock():
            progress.value += amount

    global _advance
    _advance = advance
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner ends its workers
    threading.Thread(target=_end_with_owner, daemon=True).start()


def _end_with_owner() -> None:
    """Ends this process when its owner has ended, even if that was before this process started."""
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
    """Waits until all jobs of a stage are done by this or another machine.

    Args:
      stage: the stage, in a folder that all machines share.
      report: is told the unfinished jobs about once per minute.

    Returns:
      The counts of the jobs.
    """
    last_report = time.monotonic()
    while missing := [n for job, n in enumerate(stage.names) if not files.exists(result_file(stage, job))]:
        if time.monotonic() - last_report > 60:
            report(missing)
            last_report = time.monotonic()
        time.sleep(_POLL_SECONDS)
    return [json_files.read(result_file(stage, job), "--work_dir") for job in range(len(stage.names))]


@contextlib.contextmanager
def claimed(folder: str, work: str, flag_name: str, advice: str = "") -> Iterator[None]:
    """Creates a folder and claims some work in it until the block or this process ends.

    The operating system releases the claim of a killed process. On a file system without locks, nothing is claimed.

    Args:
      folder: the folder of the work.
      work: the name of the work; several kinds may share the folder.
      flag_name: the flag that sets the folder, for the message.
      advice: another way out for the user, for the message.

    Raises:
      InputError: if another process has claimed this work.
    """
    files.make_folder(folder)
    with open(os.path.join(folder, f"{work}.lock"), "wb") as lock:
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(
                    f"{flag_name}: another process does the same work in {folder} at this moment. Wait until it ends, "
                    f"or end it{advice}."
                ) from None
            except OSError:  # a file system without locks
                pass
        yield
