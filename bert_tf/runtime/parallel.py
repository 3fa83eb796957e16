"""A function over many items in several processes, for work in pure Python such as tokenizing."""

import concurrent.futures
import math
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from bert_tf.runtime import reporting
from bert_tf.runtime.files import InputError

Result = TypeVar("Result")

# Chunks that each process gets, so that one with long texts doesn't keep the others waiting.
_CHUNKS_PER_WORKER = 4


def map_chunks(
    function: Callable[[Sequence[Any]], Result],
    items: Sequence[Any],
    num_workers: int,
    description: str = "prepare",
    unit: str = "example",
    smallest_chunk: int = 500,
) -> list[Result]:
    """Cuts a sequence into chunks of neighbours, and gives each to a function, in several processes.

    The processes are forked: they see items and function as they are, and only results are copied back. Call it before
    TensorFlow has run anything, since a fork has none of the threads that TensorFlow started. The function must not
    use TensorFlow.

    Args:
      function: of a chunk; its result must be picklable, and best be made of NumPy arrays.
      items: what is cut; slicing it gives a chunk.
      num_workers: processes; 0 for one on each core that this program may use.
      description: the work, for the progress bar.
      unit: an item, for the progress bar.
      smallest_chunk: items that are worth a process.

    Returns:
      The results, in the order of the chunks.

    Raises:
      InputError: if a process was killed; and whatever the function raises.
    """
    if num_workers < 0:
        raise InputError(f"--num_workers is {num_workers}, but 0 (one on each core) or more is expected.")
    workers = min(num_workers or len(os.sched_getaffinity(0)), math.ceil(len(items) / smallest_chunk))
    if workers <= 1:
        return [function(items)]
    size = max(smallest_chunk, math.ceil(len(items) / (workers * _CHUNKS_PER_WORKER)))
    ranges = [(start, min(start + size, len(items))) for start in range(0, len(items), size)]
    results: list[Result] = []
    with (
        concurrent.futures.ProcessPoolExecutor(
            workers, multiprocessing.get_context("fork"), initializer=_remember, initargs=(function, items)
        ) as pool,
        reporting.progress_bar(len(items), description, unit=unit) as bar,
    ):
        try:
            for (start, end), result in zip(ranges, pool.map(_run, ranges), strict=True):
                results.append(result)
                bar.update(end - start)
        except BrokenProcessPool:
            raise InputError(
                f"{description}: a process was killed, most likely for want of memory. Use fewer --num_workers."
            ) from None
    return results


# What a forked process works on.
_inherited: tuple[Callable[[Sequence[Any]], Any], Sequence[Any]] | None = None


def _remember(function: Callable[[Sequence[Any]], Any], items: Sequence[Any]) -> None:
    global _inherited
    _inherited = function, items


def _run(bounds: tuple[int, int]) -> Any:
    function, items = _inherited
    return function(items[slice(*bounds)])
