"""Keeps two processes from doing the same work in one folder at a time."""

import contextlib
import os
import sys
from collections.abc import Iterator

from bert_tf.runtime import files
from bert_tf.runtime.files import InputError


@contextlib.contextmanager
def claimed(folder: str, work: str, what: str, advice: str = "") -> Iterator[None]:
    """Makes a folder and claims some work in it until the block, or this process, ends.

    The operating system gives up the claim of a process that was killed. Where a file system has no locks, nothing is
    claimed.

    Args:
      folder: where the work lies.
      work: its name, for where several kinds share the folder.
      what: the flag that says where the folder is, for the message.
      advice: what else the user may do than wait.

    Raises:
      InputError: if another process is at that work.
    """
    files.make_folder(folder)
    with open(os.path.join(folder, f"{work}.lock"), "wb") as lock:
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(
                    f"{what}: another process does the same work in {folder} at this moment. Wait until it ends, or "
                    f"end it{advice}."
                ) from None
            except OSError:  # no locks here
                pass
        yield
