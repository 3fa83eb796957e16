"""Runs a command and measures its resources."""

import contextlib
import dataclasses
import subprocess
import tempfile
import time

import psutil

_POLL_SECONDS = 0.2


@dataclasses.dataclass
class Needs:
    """The resources that a command and all its child processes used.

    Attributes:
      seconds: elapsed time.
      memory: the largest number of bytes. Memory that several processes share is counted once.
      processes: the largest number of processes.
    """

    seconds: float = 0.0
    memory: int = 0
    processes: int = 0


def run_watched(command):
    """Runs a command, a list of arguments, and returns its `Needs`."""
    needs, start = Needs(), time.perf_counter()
    with tempfile.TemporaryFile() as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        while process.poll() is None:
            _look(psutil.Process(process.pid), needs)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_SECONDS)
        needs.seconds = time.perf_counter() - start
        if process.returncode:
            log.seek(0)
            raise RuntimeError(log.read().decode()[-2000:])
    return needs


def _look(process, needs):
    memory = processes = 0
    with contextlib.suppress(psutil.Error):
        for each in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):  # the process has ended in the meantime
                memory += each.memory_full_info().pss
                processes += 1
    needs.memory, needs.processes = max(needs.memory, memory), max(needs.processes, processes)
