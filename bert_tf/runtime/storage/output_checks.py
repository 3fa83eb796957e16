"""Checks output paths, for all programs.

An output is a regular file, or does not exist yet. Devices, pipes, sockets, directories and the program's inputs are
never replaced.
"""

import fcntl
import functools
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Mapping

from bert_tf.runtime.errors import InputError
from bert_tf.runtime.storage import remote
from bert_tf.runtime.storage.remote import is_remote

_TEMPORARY = re.compile(r".*\.tmp-[0-9a-f]+")


def kind_of(path: str) -> str:
    """Returns the type of a local path, for messages, if it is not a regular file ("a directory"); otherwise ""."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return ""
    return "" if stat.S_ISREG(mode) else "a directory" if stat.S_ISDIR(mode) else "a device, a pipe or a socket"


def target_of(path: str) -> str:
    """Returns the path at which an output is written: the path itself or, for a link, the file it points to.

    Raises:
      InputError: if the path exists and is not a regular file, or begins with "~".
    """
    require_expanded(path)
    if is_remote(path):
        return path
    if kind := kind_of(path):
        raise InputError(f"{path} is {kind}. Pass the name of a regular file or of a new file for the output.")
    return os.path.realpath(path) if os.path.islink(path) else path


def require_expanded(path: str) -> None:
    """Refuses an output in a directory named "~", because shells do not expand "~" after "="."""
    if path == "~" or path.startswith("~/"):
        raise InputError(f"{path}: ~ is not replaced by the home directory here. Write {os.path.expanduser(path)}.")


def check_output_files(paths: Iterable[str], flag_name: str, inputs: Mapping[str, Iterable[str]] | None = None) -> None:
    """Checks that outputs can be written and replace no input. Call it before any work is done.

    Args:
      paths: the files.
      flag_name: the flag that gave the paths, for messages; for example `--output_file`.
      inputs: maps flags to the files that the program reads.

    Raises:
      InputError: if a path is not a regular file or is one of the inputs, or if its directory can't be written to.
    """
    read = {_identity(name): f"{name} of {flag}" for flag, names in (inputs or {}).items() for name in names}
    for path in paths:
        if is_remote(path):
            if remote.call("isdir", path):
                raise InputError(f"{path} is a directory. Pass the name of a file.", flag_name)
        else:
            try:
                target = target_of(path)
            except InputError as error:
                raise InputError(str(error), flag_name) from None
            _check_directory(os.path.dirname(os.path.abspath(target)), flag_name)
        if _identity(path) in read:
            raise InputError(
                f"{path} is also the input {read[_identity(path)]}, which would be lost. Pass another name for the "
                "output.",
                flag_name,
            )


@functools.lru_cache(maxsize=1)
def _check_directory(directory: str, flag_name: str) -> None:
    while not os.path.lexists(directory):  # missing directories will be created
        directory = os.path.dirname(directory)
    if not os.path.isdir(directory):
        raise InputError(f"{directory} is not a directory. Pass another name.", flag_name)
    try:
        os.rmdir(tempfile.mkdtemp(dir=directory))
    except OSError as error:
        message = f"{directory}: no files can be created ({error.strerror}). Use another directory."
        raise InputError(message, flag_name) from None


def _identity(path: str) -> object:
    """Returns a value that is the same for all names of a file."""
    if is_remote(path) or not os.path.exists(path):
        return path
    status = os.stat(path)
    return status.st_dev, status.st_ino


def lock(descriptor: int, operation: int = fcntl.LOCK_EX) -> bool:
    """Locks an open file without waiting. Returns False if another process has locked it.

    The operating system releases the lock when all processes that inherited the file have ended. On a file system
    without locks, the result is always True.
    """
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def is_unfinished(path: str) -> bool:
    """Returns whether a name is the temporary name of an output. See `files`."""
    return _TEMPORARY.fullmatch(os.path.basename(path.rstrip("/"))) is not None
