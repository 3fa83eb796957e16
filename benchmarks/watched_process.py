"""Runs a command, measures its resources, and can limit its memory."""

import contextlib
import dataclasses
import os
import subprocess
import tempfile
import time

import psutil

from bert_tf.runtime import parallel

_POLL_SECONDS = 0.2


@dataclasses.dataclass
class Needs:
    """The resources that a command used, with all its descendants.

    Attributes:
      seconds: elapsed time.
      memory: the largest number of bytes. Memory that several processes share is counted once.
      processes: the largest number of processes.
      calls: the number of reads and writes.
      disk_read: the number of bytes that were read from a disk; reads from the page cache are not counted.
      directory: the largest number of bytes in the directory.
    """

    seconds: float = 0.0
    memory: int = 0
    processes: int = 0
    calls: int = 0
    disk_read: int = 0
    directory: int = 0


def run_watched(command, directory=None, group=None):
    """Runs a command and returns its `Needs`.

    Args:
      command: a list of arguments.
      directory: a directory whose size is measured.
      group: the directory of a control group in which to run the command, see `limited_memory`.
    """
    if group is not None:
        command = ["sh", "-c", f'echo $$ > "{group}/cgroup.procs" && exec "$@"', "sh", *command]
    needs, calls, start = Needs(), {}, time.perf_counter()
    with tempfile.TemporaryFile() as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        while process.poll() is None:
            _look(psutil.Process(process.pid), needs, calls)
            needs.directory = max(needs.directory, _directory_size(directory) if directory else 0)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_SECONDS)
        needs.seconds = time.perf_counter() - start
        if process.returncode:
            log.seek(0)
            raise RuntimeError(log.read().decode()[-2000:])
    needs.calls = sum(count for count, _ in calls.values())
    needs.disk_read = sum(size for _, size in calls.values())
    return needs


def _look(process, needs, calls):
    memory = processes = 0
    with contextlib.suppress(psutil.Error):
        for each in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):  # the process has ended in the meantime
                memory += each.memory_full_info().pss
                processes += 1
                io = each.io_counters()
                calls[each.pid] = io.read_count + io.write_count, io.read_bytes
    needs.memory, needs.processes = max(needs.memory, memory), max(needs.processes, processes)


def _directory_size(directory):
    size = 0
    for path, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                size += os.path.getsize(os.path.join(path, name))
    return size


@contextlib.contextmanager
def limited_memory(size):
    """Yields the directory of a control group that can use `size` bytes of memory, page cache included.

    Raises:
      SystemExit: if this process has no permission to make such a group.
    """
    group = next(filter(None, (_limited_group(*parent, size) for parent in parallel.control_groups("memory"))), None)
    if group is None:
        raise SystemExit(
            "A control group with limited memory is needed, but this process can't make one below /sys/fs/cgroup. Run "
            "it as root, on a system or in a container where that directory is writable."
        )
    try:
        yield group
    finally:
        os.rmdir(group)


def _limited_group(parent, is_version_1, size):
    group = os.path.join(parent, f"limited-{os.getpid()}")
    try:
        os.mkdir(group)
    except OSError:
        return None
    try:
        # The file exists if the memory of groups in this directory can be limited.
        with open(os.path.join(group, "memory.limit_in_bytes" if is_version_1 else "memory.max"), "r+") as limit:
            limit.write(str(size))
    except OSError:
        os.rmdir(group)
        return None
    return group
