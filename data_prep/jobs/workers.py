"""Runs the jobs of a stage in worker processes.

Each job runs once: after a crash, finished jobs are not repeated. The results of a job are files named after it; the
last one is a JSON file with its counts, so the results are complete if it exists. They don't depend on the process or
the time in which the job runs.
"""

import abc
import concurrent.futures
import contextlib
import functools
import itertools
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NoReturn

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

    def given(self, job: int) -> Any:
        """Returns what a worker process is given for a job, if it isn't pickled with the stage."""
        return None

    def accept(self, job: int, given: Any) -> None:  # noqa: B027 (most stages are pickled as a whole)
        """Takes, in a worker process, what `given` returned."""

    def close(self) -> None:  # noqa: B027 (most stages open no files)
        """Closes the files that `run` has opened."""

    def path(self, job: int, suffix: str = "") -> str:
        """Returns the path of a job's result."""
        return os.path.join(self.folder, self.names[job] + suffix)


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

    def run(self, stage: Stage, advance: Advance) -> Iterator[tuple[int, dict[str, Any]]]:
        """Runs the unfinished jobs of a stage.

        Args:
          stage: the stage.
          advance: is called with the progress, for the progress bar.

        Yields:
          Numbers and counts of all jobs as they finish; jobs that were finished before come first.

        Raises:
          InputError: if a job raises it, or if a worker was killed, most likely because memory ran out.
        """
        files.make_folder(stage.folder)
        there = set(files.list_folder(stage.folder))
        waiting = []
        for job in range(len(stage.names)):
            if os.path.basename(result_file(stage, job)) in there:
                yield job, json_files.read(result_file(stage, job), "--work_dir")
            else:
                waiting.append(job)
        runner = _Processes(self, stage, advance) if min(self._num_workers, len(waiting)) > 1 else _Here(stage, advance)
        with contextlib.closing(runner):
            yield from _run_all(waiting, runner)


def _run_all(waiting: list[int], runner: "_Here | _Processes") -> Iterator[tuple[int, dict[str, Any]]]:
    running: dict[concurrent.futures.Future, int] = {}
    next_jobs = iter(waiting)
    while True:
        for job in itertools.islice(next_jobs, runner.capacity - len(running)):
            running[runner.submit(job)] = job
        if not running:
            return
        for future in runner.wait(running):
            yield running.pop(future), future.result()


class _Here:
    """Runs jobs in this process.

    Args:
      stage: their stage.
      advance: is told the progress.
    """

    def __init__(self, stage: Stage, advance: Advance) -> None:
        self._stage = stage
        self._advance = advance

    # The number of jobs to submit before one is finished.
    capacity = 1

    def submit(self, job: int) -> concurrent.futures.Future:
        """Runs a job."""
        future = concurrent.futures.Future()
        try:
            future.set_result(_run_job(self._stage, job, self._advance))
        except Exception as error:
            future.set_exception(error)
        return future

    def wait(self, running: Iterable[concurrent.futures.Future]) -> list[concurrent.futures.Future]:
        """Returns finished jobs."""
        return list(running)

    def close(self) -> None:
        """Closes the files of the stage."""
        self._stage.close()


class _Processes:
    """Runs jobs in worker processes.

    Args:
      workers: the processes.
      stage: the jobs' stage. The processes read it from a file when they begin with it.
      advance: is told the progress.
    """

    def __init__(self, workers: Workers, stage: Stage, advance: Advance) -> None:
        workers._stages += 1
        self._workers = workers
        self._stage = stage
        self._number = workers._stages
        self._advance = advance
        self._file = tempfile.NamedTemporaryFile(prefix="stage-")  # noqa: SIM115 (open as long as the stage runs)
        pickle.dump(stage, self._file)
        self._file.flush()
        self._pool = workers._pool
        self._progress = workers._progress.get_obj()  # without the lock, which a killed worker may still hold
        self._shown = self._progress.value

    @property
    def capacity(self) -> int:
        """The number of jobs to submit before one is finished."""
        return self._workers._num_workers * _JOBS_AHEAD

    def submit(self, job: int) -> concurrent.futures.Future:
        """Runs a job."""
        try:
            return self._pool.submit(_work, self._number, self._file.name, job, self._stage.given(job))
        except (OSError, BrokenProcessPool) as error:  # the pool broke, maybe while it started another worker
            self._broke(error)

    def wait(self, running: Mapping[concurrent.futures.Future, int]) -> list[concurrent.futures.Future]:
        """Waits for a moment, and returns finished jobs."""
        done, _ = concurrent.futures.wait(running, _POLL_SECONDS, concurrent.futures.FIRST_COMPLETED)
        now = self._progress.value
        self._advance(now - self._shown)
        self._shown = now
        for future in done:
            if isinstance(future.exception(), BrokenProcessPool):
                self._broke(future.exception())
        return list(done)

    def _broke(self, error: BaseException) -> NoReturn:
        # A worker that started just when the pool ended the others still waits for jobs, and the pool for it.
        for process in set(multiprocessing.active_children()) - self._workers._processes_before:
            process.terminate()
        raise InputError(
            "--num_workers: a worker process was killed, most likely because memory ran out. Lower --num_workers "
            "or --memory_budget_mb and run the same command again; finished work is kept."
        ) from error

    def close(self) -> None:
        """Removes the file of the stage."""
        self._file.close()


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


def _work(stage_number: int, stage_file: str, job: int, given: Any) -> dict[str, Any]:
    global _stage, _stage_number
    if stage_number != _stage_number:
        if _stage_number:
            _stage.close()
        with open(stage_file, "rb") as reader:
            _stage, _stage_number = pickle.load(reader), stage_number
    _stage.accept(job, given)
    return _run_job(_stage, job, _advance)
