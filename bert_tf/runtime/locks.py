"""Prevents two processes from doing the same work in a folder.

The operating system releases the lock of a killed process. Remote folders, and file systems without locks, are not
locked.
"""

import contextlib
import os
import socket
from collections.abc import Iterator

from bert_tf.runtime import files
from bert_tf.runtime.errors import InputError, named
from bert_tf.runtime.outputs import lock


@contextlib.contextmanager
def claimed(
    folder: str,
    flag_name: str,
    work: str = "run",
    *,
    doing: str = "is training",
    advice: str = "; or use another folder",
) -> Iterator[None]:
    """Creates a folder and claims some work in it until the block or this process ends.

    With several workers, only one of them may call this.

    Args:
      folder: the folder.
      flag_name: the flag that gave it, for the message.
      work: the name of the work; several types of work may share the folder.
      doing: description of the other process's work, for the message.
      advice: another solution for the user, for the message.

    Raises:
      InputError: if another process has claimed it; the message names its host and process id.
    """
    files.make_folder(folder)
    if files.is_remote(folder):
        yield
        return
    path = files.target_of(os.path.join(folder, f"{work}.lock"))
    with open(path, "a+b", buffering=0) as file:  # "a" keeps the text of the owner
        if not lock(file.fileno()):
            file.seek(0)
            owner = file.read().decode().strip() or "another process"
            raise InputError(
                f"{owner} {doing} in {folder} at this moment. Wait until it finishes, or stop it{advice}.", flag_name
            )
        file.truncate(0)
        with named(path):
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        try:
            yield
        finally:
            file.truncate(0)


def require_free(folder: str, flag_name: str) -> None:
    """Creates a folder, and raises an InputError if another process has claimed it; see `claimed`."""
    with claimed(folder, flag_name):
        pass
