"""Prevents two processes from doing the same work in a directory.

The operating system releases the lock of a killed process. Remote directories, and file systems without locks, are not
locked.
"""

import contextlib
import os
import socket
from collections.abc import Iterator

from bert_tf.runtime import files
from bert_tf.runtime.errors import InputError, named
from bert_tf.runtime.storage.output_checks import lock


@contextlib.contextmanager
def claimed(
    directory: str,
    flag_name: str,
    work: str = "run",
    *,
    doing: str = "is training",
    advice: str = "; or use another directory",
) -> Iterator[None]:
    """Creates a directory, and locks one type of work in it until the `with` block or the process ends.

    With several workers, only one of them may call this function.

    Args:
      directory: the directory.
      flag_name: the flag that gave the directory, for the message.
      work: the name of the work; several types of work may share the directory.
      doing: description of the other process's work, for the message.
      advice: another solution for the user, for the message.

    Raises:
      InputError: if another process does this work in the directory; the message names the host and the process id.
    """
    if not files.exists(directory):
        files.make_directory(directory)
    if files.is_remote(directory):
        yield
        return
    path = files.target_of(os.path.join(directory, f"{work}.lock"))
    with open(path, "a+b", buffering=0) as file:  # "a" keeps the text that the owner has written
        if not lock(file.fileno()):
            file.seek(0)
            owner = file.read().decode().strip() or "another process"
            raise InputError(
                f"{owner} {doing} in {directory} at this moment. Wait until it finishes, or stop it{advice}.", flag_name
            )
        file.truncate(0)
        with named(path):
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        try:
            yield
        finally:
            file.truncate(0)


def require_free(directory: str, flag_name: str) -> None:
    """Raises an InputError if another process trains in a directory, which may not exist yet; see `claimed`."""
    if files.exists(os.path.join(directory, "run.lock")):
        with claimed(directory, flag_name):
            pass
