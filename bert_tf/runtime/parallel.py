"""Runs a function on many items in several processes, for work in pure Python such as tokenization."""

import concurrent.futures
import math
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from bert_tf.runtime import reporting
from bert_tf.runtime.errors import InputError, require_whole

Result = TypeVar("Result")

# Several chunks per process, because some chunks take longer than others.
_CHUNKS_PER_WORKER = 4


def map_chunks(
    function: Callable[[Sequence[Any]], Result],
    items: Sequence[Any],
    num_workers: int,
    description: str = "prepare",
    unit: str = "example",
    *,
    smallest_chunk: int = 500,
) -> list[Result]:
    """Splits a sequence into chunks of consecutive items, and calls a function on each chunk in several processes.

    The processes are forked: they share the items and the function with this process, and only the results are copied
    back. Call this before TensorFlow has run anything, because a forked process lacks the threads that TensorFlow
    started. The function must not use TensorFlow.

    Args:
      function: takes a chunk. Its result must be picklable; NumPy arrays are copied fastest.
      items: the sequence. A chunk is a slice of it.
      num_workers: number of processes; 0 for one per available core.
      description: name of the work, for the progress bar.
      unit: name of an item, for the progress bar.
      smallest_chunk: smallest number of items for which another process is started.

    Returns:
      The results, in the order of the chunks.

    Raises:
      InputError: if a process was killed. Errors of the function are raised unchanged.
    """
    require_whole("--num_workers", num_workers, 0)
    workers = min(num_workers or available_cores(), math.ceil(len(items) / smallest_chunk))
    if workers <= 1:
        return [function(items)]
    size = max(smallest_chunk, math.ceil(len(items) / (workers * _CHUNKS_PER_WORKER)))
    ranges = [(start, min(start + size, len(items))) for start in range(0, len(items), size)]
    results: list[Result] = []
    with (
        concurrent.futures.ProcessPoolExecutor(
            workers, multiprocessing.get_context("fork"), initializer=_set_inherited, initargs=(function, items)
        ) as pool,
        reporting.progress_bar(len(items), description, unit=unit) as bar,
    ):
        try:
            for (start, end), result in zip(ranges, pool.map(_run_chunk, ranges), strict=True):
                results.append(result)
                bar.update(end - start)
        except BrokenProcessPool:
            raise InputError(
                f"{description}: a process was killed, most likely because memory ran out. Set a smaller --num_workers."
            ) from None
    return results


# Set in each forked process: the function and all items.
_inherited: tuple[Callable[[Sequence[Any]], Any], Sequence[Any]] | None = None


def _set_inherited(function: Callable[[Sequence[Any]], Any], items: Sequence[Any]) -> None:
    global _inherited
    _inherited = function, items


def _run_chunk(bounds: tuple[int, int]) -> Any:
    function, items = _inherited
    return function(items[slice(*bounds)])


def available_cores() -> int:
    """Returns the number of CPU cores that this process may use.

    The number is limited by the process's affinity and by its control group's quota. For example, a container with a
    quota of 2 cores on a machine with 64 cores has 2.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *(math.ceil(quota) for quota in _cpu_quotas())]))


def available_memory() -> int:
    """Returns the bytes of memory that this process may use, limited by the machine and the control group."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [
        int(line)
        for directory, is_version_1 in control_groups("memory")
        for line in _lines(os.path.join(directory, "memory.limit_in_bytes" if is_version_1 else "memory.max"))
        if line.isdecimal()
    ]
    return min([machine, *limits])


def _cpu_quotas(root: str = "/") -> list[float]:
    """Returns the quotas of this process's control groups in cores."""
    quotas = []
    for directory, is_version_1 in control_groups("cpu", root):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if is_version_1 else ("cpu.max",)
        words = [word for name in names for line in _lines(os.path.join(directory, name)) for word in line.split()]
        if len(words) == 2 and words[0].isdecimal():  # a quota, unlike "max" or -1
            quotas.append(int(words[0]) / int(words[1]))
    return quotas


def control_groups(controller: str, root: str = "/") -> Iterator[tuple[str, bool]]:
    """Yields the directories of this process's control group and its ancestors, and whether they are of version 1."""
    for line in _lines(os.path.join(root, "proc/self/cgroup")):
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        # In a container, the path can be a path of the host. The container's files are then in the top directory.
        names = group.strip("/").split("/")
        for count in range(len(names) + 1):
            directory = os.path.join(root, "sys/fs/cgroup", controllers and controller, *names[:count])
            yield directory, bool(controllers)


def _lines(path: str) -> list[str]:
    try:
        with open(path) as reader:
            return reader.read().splitlines()
    except OSError:
        return []
