"""Runs jobs in worker processes. The results of finished jobs survive a crash."""

import concurrent.futures
import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NoReturn

from bert_tf.runtime import files, json_files
from bert_tf.runtime.errors import InputError
from bert_tf.runtime.reporting import progress_bar

_POLL_SECONDS = 0.5
# Modules that are imported once, before the first worker process starts. They must not define flags, because a worker
# also imports the main module of its program, whose flags could have the same names.
_PRELOADED = ("data_prep.one_machine", "data_prep.corpus.word_counts")

Advance = Callable[[int], None]
Job = Callable[..., dict[str, Any]]


class Workers:
    """Context manager that runs the jobs of one pass after another. The processes start on first use.

    At the end of the block, also after an error or Ctrl-C, running jobs are cancelled.

    Args:
      num_workers: number of processes. With 1, this process does the work.
    """

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._shown = 0

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *error: object) -> None:
        if "_pool" in self.__dict__:
            self._cancelled.value = True
            self._pool.shutdown(cancel_futures=True)

    @functools.cached_property
    def _pool(self) -> concurrent.futures.ProcessPoolExecutor:
        # Workers are forked from a server process, because a fork of this process would not copy its threads.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(_PRELOADED))
        self._processes_before = set(multiprocessing.active_children())
        self._progress = context.Value("q", 0)
        self._cancelled = context.RawValue("b", False)
        shared = self._progress, self._cancelled
        return concurrent.futures.ProcessPoolExecutor(self._num_workers, context, _start_worker, shared)

    def map(
        self, label: str, function: Job, directory: str, jobs: Sequence[tuple[Any, ...]], total: int, unit: str
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Calls `function(path, *job, advance)` for each job, and yields its path and counts, in order.

        Args:
          label: the name of the pass, for the progress bar.
          function: writes the result of a job to `path` and returns its counts. It calls `advance` with its progress.
          directory: the directory of the results. A job is skipped if its counts already exist there.
          jobs: the arguments of each job.
          total: the sum of the progress of all jobs, for the progress bar.
          unit: the unit of the progress, for the progress bar.

        Raises:
          InputError: if a job raises it, or if a worker was killed, most likely because memory ran out.
        """
        files.make_directory(directory)
        there = set(os.listdir(directory))
        paths = [os.path.join(directory, f"{number:06d}") for number in range(len(jobs))]
        waiting = {path: job for path, job in zip(paths, jobs, strict=True) if f"{path[-6:]}.json" not in there}
        is_parallel = min(self._num_workers, len(waiting)) > 1
        with progress_bar(total, label, unit=unit) as bar:
            running = self._submit(function, waiting) if is_parallel else {}
            pending = set(running.values())
            for path in paths:
                while running.get(path) in pending:
                    pending = self._wait(pending, bar.update)
                if path in running:
                    counts = running.pop(path).result()
                elif path in waiting:
                    counts = _run(function, path, waiting[path], bar.update)
                else:
                    counts = json_files.read(f"{path}.json", "--work_dir")
                yield path, counts

    def _submit(self, function: Job, jobs: dict[str, tuple[Any, ...]]) -> dict[str, concurrent.futures.Future]:
        try:
            return {path: self._pool.submit(_work, function, path, job) for path, job in jobs.items()}
        except (OSError, BrokenProcessPool) as error:  # the pool broke, possibly while starting another worker
            self._broke(error)

    def _wait(self, pending: set[concurrent.futures.Future], advance: Advance) -> set[concurrent.futures.Future]:
        """Waits until a job ends or `_POLL_SECONDS` have passed. Returns the unfinished jobs.

        Raises:
          Exception: the error of a job.
        """
        done, pending = concurrent.futures.wait(pending, _POLL_SECONDS, concurrent.futures.FIRST_COMPLETED)
        now = self._progress.get_obj().value  # read without the lock, which a killed worker may hold
        advance(now - self._shown)
        self._shown = now
        for future in done:
            if isinstance(error := future.exception(), BrokenProcessPool):
                self._broke(error)
            future.result()
        return pending

    def _broke(self, error: BaseException) -> NoReturn:
        # A worker that started while the pool was ending waits for jobs, and the pool would wait for this worker.
        for process in set(multiprocessing.active_children()) - self._processes_before:
            process.terminate()
        raise InputError(
            "a worker process was killed, most likely because memory ran out. Lower --num_workers or "
            "--memory_budget_mb and run the same command again. Finished work is kept.",
            "--num_workers",
        ) from error


def _run(function: Job, path: str, job: tuple[Any, ...], advance: Advance) -> dict[str, Any]:
    counts = function(path, *job, advance)
    files.write_json(f"{path}.json", counts)
    return counts


class _Cancelled(Exception):
    """Raised in a job to end it after the main process was interrupted or failed."""


_advance: Advance


def _start_worker(progress: Any, cancelled: Any) -> None:
    def advance(amount: int) -> None:
        if cancelled.value:
            raise _Cancelled
        with progress.get_lock():
            progress.value += amount

    global _advance
    _advance = advance
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process ends its workers
    threading.Thread(target=_end_with_owner, daemon=True).start()


def _end_with_owner() -> None:
    """Ends this process when the main process has ended, even if it ended before this process started."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _work(function: Job, path: str, job: tuple[Any, ...]) -> dict[str, Any]:
    return _run(function, path, job, _advance)
