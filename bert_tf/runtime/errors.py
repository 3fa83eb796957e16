"""Errors that the user can solve, and the line in which each of them ends."""

import errno
import numbers
import os
import re
import sys
import traceback
from collections.abc import Iterable

# What to do about an error of the operating system.
_FREE_SPACE = "Free some space there, or use another disk"
_PERMISSION = "Change the permissions there, or use another place"
_REMEDIES = {
    errno.ENOSPC: _FREE_SPACE,
    errno.EDQUOT: _FREE_SPACE,
    errno.EFBIG: "The file is larger than the file system or `ulimit -f` allows; use another place, or raise the limit",
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EROFS: "The file system can only be read; use another place",
    errno.ENOENT: "Check the path, and that nothing removes the file while the program runs",
    errno.ENOTDIR: "A part of this path is a file where a folder is expected; check the path",
    errno.EISDIR: "This is a folder where a file is expected; check the path",
    errno.EEXIST: "There is a file where a folder is expected; remove it, or use another name",
    errno.ENOTEMPTY: "The folder has content already; empty it, or use another name",
    errno.ENAMETOOLONG: "Use a shorter name",
    errno.ELOOP: "The symbolic links point to each other; use a path that ends",
    errno.EMFILE: "Too many files are open; raise the limit with `ulimit -n`",
    errno.ENFILE: "Too many files are open on this machine; end other programs",
    errno.EAGAIN: "The system allows no more processes; end other programs, or raise the limit with `ulimit -u`",
    errno.ENOMEM: "Memory ran out; end other programs, or make the work smaller",
    errno.EIO: "The device reports an error; check the disk or the connection to it",
    errno.ESTALE: "The network file system has lost the file; mount it again",
    errno.ETIMEDOUT: "The file system or server did not answer; check the connection to it",
    errno.EPIPE: "The program that reads this output has ended; keep it running to the end, or write to a file",
    errno.EBUSY: "Something else uses it; end that first",
    errno.ENXIO: "This is no regular file; use one",
    errno.ENODEV: "This is no regular file; use one",
    errno.EINVAL: "The file system can't do this; use another place",
    errno.ENOTSUP: "The file system can't do this; use another place",
}
_OURS = re.compile(rf"{re.escape(os.sep)}(bert_tf|data_prep){re.escape(os.sep)}")
_MEMORY = "memory ran out. Use a smaller batch, a shorter --max_seq_length or a smaller model, or end other programs."


class InputError(ValueError):
    """The user gave a file, a line or a flag that can't be used.

    The message names it, and says what was found, what was expected and what to do. The programs print the message
    without a traceback and exit with status 1.
    """


def require_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Checks a flag or an argument that has a fixed set of values.

    Raises:
      InputError: if the value is none of them; lists them.
    """
    if value not in choices:
        raise InputError(f"{name} is {value!r}, but one of {', '.join(choices)} is expected.")


def require_whole(name: str, value: object, minimum: int) -> None:
    """Checks a flag or an argument that is a whole number, of Python or NumPy.

    Raises:
      InputError: if the value is something else, or below the minimum.
    """
    if not isinstance(value, numbers.Integral) or value < minimum:
        raise InputError(f"{name} is {value!r}, but a whole number of at least {minimum} is expected.")


def require_path(name: str, value: object) -> str:
    """Returns the text of an argument that is a path, as text or as an object such as `pathlib.Path`.

    Raises:
      InputError: if the value is something else, or empty.
    """
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else value
    if not isinstance(path, str) or not path:
        raise InputError(f"{name}: a path is expected, but {value!r} is given.")
    return path


def require_utf8(name: str, what: str) -> None:
    """Checks that a name that the system gave can be written in UTF-8, as TensorFlow writes the names of files.

    Raises:
      InputError: if it holds other bytes.
    """
    if not name.isascii() and name != name.encode("utf-8", "ignore").decode():
        raise InputError(f"{what} {name!a} holds bytes that are not UTF-8, which names can't have. Rename it.")


def explanation(error: BaseException) -> str | None:
    """The line that a program prints for an error that the user can solve; None for others, which are bugs.

    An error of the operating system is explained by its path, what was done with it, and what to do about it;
    TensorFlow's errors of the same kinds too.
    """
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, MemoryError):
        return _MEMORY
    if isinstance(error, OSError) and error.errno in _REMEDIES:
        return _told(error.errno, " -> ".join(str(name) for name in (error.filename, error.filename2) if name), error)
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None or not isinstance(error, tensorflow.errors.OpError):
        return None
    for number in _REMEDIES:  # TensorFlow writes "path; reason"
        path, found, _ = error.message.partition(f"; {os.strerror(number)}")
        if found:
            return _told(number, path, error)
    return _MEMORY if "OOM when allocating" in error.message else None


def _told(number: int, path: str, error: BaseException) -> str:
    place = path or ("standard output" if number == errno.EPIPE else "an operation")
    return (
        f"{place}: {os.strerror(number)}{_operation(error)}. {_REMEDIES[number]}; then run the "
        "program again. Nothing that was complete is lost."
    )


def _operation(error: BaseException) -> str:
    """What was being done, by the name of our innermost function: `make_folder` becomes "(during: make folder)"."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [
        frame.name.strip("_").replace("_", " ")
        for frame in frames
        if _OURS.search(frame.filename) and frame.name.isidentifier() and frame.name != "run_main"
    ]
    return f" (during: {ours[-1]})" if ours else ""
