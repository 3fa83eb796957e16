"""Claims a folder for a process, so that no other one writes into it at the same time."""

import contextlib
import os
import socket
import sys
from collections.abc import Iterator

from bert_tf.runtime import files
from bert_tf.runtime.errors import InputError

_FILE = "run.lock"


@contextlib.contextmanager
def claimed(folder: str, flag_name: str) -> Iterator[None]:
    """Makes a folder, and claims it until the block or this process ends.

    The operating system releases the claim of a killed process, so that the next one takes it over. Remote folders, and
    file systems without locks, are not claimed. Only one worker of several may call this.

    Args:
      folder: the folder.
      flag_name: the flag that gave it, for the message.

    Raises:
      InputError: if another process has claimed it; names its host and its number.
    """
    files.make_folder(folder)
    if files.is_remote(folder) or sys.platform == "win32":
        yield
        return
    import fcntl

    path = files.target_of(os.path.join(folder, _FILE))
    with open(path, "a+") as lock:  # without emptying what the owner has written
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise InputError(
                f"{flag_name}: {lock.read().strip() or 'another process'} is training in {folder} at this moment. Wait "
                "until it ends, or end it; or use another folder."
            ) from None
        except OSError:  # a file system without locks
            yield
            return
        lock.truncate(0)
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
