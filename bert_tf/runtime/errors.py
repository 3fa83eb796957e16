"""The error for bad input, and the line that a program prints for errors that its user can solve."""

import errno
import numbers
import os
import re
import sys
from collections.abc import Iterable

_SYSTEM_WORDS = {os.strerror(number) for number in errno.errorcode}
# TensorFlow's own words, those of XLA's compiler, and those of a TPU.
_OUT_OF_MEMORY = re.compile("OOM when allocating|[Oo]ut of memory|That was not possible")


class InputError(ValueError):
    """Input that can't be used. The programs print the message without a traceback, and exit with status 1.

    Args:
      message: WHERE: WHAT IS WRONG. WHAT TO DO.
      place: the location of the problem, such as a flag or a file and its line; printed before the message.
    """

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(f"{place}: {message}" if place else message)
        self.place = place


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
    """Checks that a name can be written in UTF-8, as TensorFlow writes the names of files.

    Raises:
      InputError: if it contains other bytes.
    """
    if not name.isascii() and name != name.encode("utf-8", "ignore").decode():
        raise InputError(f"{what} {name!a} contains bytes that are not UTF-8. Rename it.")


def explanation(error: BaseException) -> str | None:
    """Returns the line to print for an error that the user can solve; None for other errors, which are bugs.

    An error of the operating system gives the path, the system's own words and the operation, which is in the error's
    notes. TensorFlow's errors contain the same words.
    """
    if isinstance(error, InputError):
        return str(error)
    tensorflow = sys.modules.get("tensorflow")
    is_tensorflow = tensorflow is not None and isinstance(error, tensorflow.errors.OpError)
    if isinstance(error, MemoryError) or (is_tensorflow and _OUT_OF_MEMORY.search(error.message)):
        return (
            "Out of memory. Use a smaller batch, a shorter --max_seq_length or a smaller model. In training, "
            "--gradient_accumulation_steps and --recompute_gradients also reduce memory."
        )
    if isinstance(error, OSError) and error.errno is not None:
        paths, words = [error.filename, error.filename2], error.strerror
    elif is_tensorflow:  # "path; words", and sometimes more lines
        path, _, words = error.message.partition("\n")[0].partition("; ")
        paths = [path]
    else:
        return None
    if words not in _SYSTEM_WORDS:
        return None
    where = " -> ".join(str(path) for path in paths if path)
    operation = f" ({'; '.join(error.__notes__)})" if hasattr(error, "__notes__") else ""
    return f"{where}{': ' if where else ''}{words}{operation}. Correct this and run the program again."
