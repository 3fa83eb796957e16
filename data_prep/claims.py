"""Keeps two processes from doing the same task's work in one folder at a time."""

import contextlib
import os
import sys
from collections.abc import Iterator

from bert_tf import files
from bert_tf.files import InputError


@contextlib.contextmanager
def claimed(folder: str, task_index: int) -> Iterator[None]:
    """Makes a folder and claims a task's work in it until the block, or this process, ends.

    The operating system gives up the claim of a process that was killed. Where a file system has no locks, nothing is
    claimed.

    Args:
      folder: where the work lies.
      task_index: which of the tasks that share the folder.

    Raises:
      InputError: if another process is at that task.
    """
    files.make_folder(folder)
    with open(os.path.join(folder, f"task-{task_index}.lock"), "wb") as lock:
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(
                    f"--work_dir: another process does the same work in {folder} at this moment. Wait until it ends, "
                    "or end it; and if several machines are to share the work, give each its own --task_index."
                ) from None
            except OSError:  # no locks here
                pass
        yield
