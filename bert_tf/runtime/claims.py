"""Claims files and folders for a process, so that no other one does the same work at the same time.

The operating system releases the claim of a killed process. Remote folders, and file systems without locks, are not
claimed.
"""

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from typing import IO

from bert_tf.runtime import files
from bert_tf.runtime.errors import InputError


@contextlib.contextmanager
def locked(path: str, is_shared: bool = False) -> Iterator[IO[str] | None]:
    """Locks a file until the block, this process and those that inherit the file have ended.

    Args:
      path: the file, which is made if it isn't there.
      is_shared: whether other processes may lock it in the same way.

    Yields:
      The open file; None if another process has locked it.
    """
    with open(files.target_of(path), "a+", encoding="utf-8") as lock:  # without emptying what the owner has written
        yield lock if _lock(lock, is_shared) else None


def is_locked(path: str) -> bool:
    """Whether another process has locked a file as its only owner. The file need not be there, and is only read."""
    if not os.path.exists(path):
        return False
    with open(path, encoding="utf-8") as lock:
        return not _lock(lock, is_shared=True)


def _lock(file: IO, is_shared: bool) -> bool:
    """Locks an open file; false if another process has locked it."""
    if sys.platform != "win32":
        import fcntl

        try:
            fcntl.flock(file, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            pass
    return True


@contextlib.contextmanager
def claimed(
    folder: str,
    flag_name: str,
    work: str = "run",
    *,
    doing: str = "is training",
    advice: str = "; or use another folder",
    is_shared: bool = False,
) -> Iterator[None]:
    """Makes a folder, and claims some work in it until the block or this process ends.

    Only one worker of several may call this.

    Args:
      folder: the folder.
      flag_name: the flag that gave it, for the message.
      work: the name of the work; several kinds may share the folder.
      doing: what the other process does, for the message.
      advice: what else the user can do, for the message.
      is_shared: whether other processes that claim it so may do the same work.

    Raises:
      InputError: if another process has claimed it; names its host and its number.
    """
    files.make_folder(folder)
    if files.is_remote(folder):
        yield
        return
    path = os.path.join(folder, f"{work}.lock")
    with locked(path, is_shared) as lock:
        if lock is None:
            with open(path, encoding="utf-8") as reader:
                owner = reader.read().strip() or "another process"
            raise InputError(
                f"{flag_name}: {owner} {doing} in {folder} at this moment. Wait until it ends, or end it{advice}."
            )
        lock.truncate(0)
        if not is_shared:
            lock.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            lock.flush()
        try:
            yield
        finally:
            lock.truncate(0)


def require_free(folder: str, flag_name: str) -> None:
    """Makes a folder, and raises an InputError if another process has claimed it; see `claimed`."""
    with claimed(folder, flag_name):
        pass
