"""The error for bad input, and the line that a program prints for errors that its user can solve."""

import errno
import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

_SYSTEM_WORDS = {os.strerror(number) for number in errno.errorcode}
# TensorFlow's own words, those of XLA's compiler, and those of a TPU.
_OUT_OF_MEMORY = re.compile("OOM when allocating|[Oo]ut of memory|That was not possible")


class InputError(ValueError):
    """Input that can't be used. The programs print the message without a traceback, and exit with status 1.

    Args:
      message: WHERE: WHAT IS WRONG. WHAT TO DO.
      place: the location of the problem, such as a flag or a file and its line. If the message does not begin with it,
        it is printed before the message.
    """

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(message if message.startswith(place) else f"{place}: {message}")
        self.place = place


def check(value: Any, kind: Any, place: str, strict: bool = True) -> Any:
    """Returns a value as a type. NumPy's numbers and paths become Python's.

    Args:
      value: the value.
      kind: a type hint, with bounds as `Annotated[int, msgspec.Meta(ge=1)]`.
      place: the flag, argument or file, for messages.
      strict: if False, texts become numbers.

    Raises:
      InputError: if the value has another type or is out of its bounds; names the location in it.
    """
    is_numpy = hasattr(value, "item") and getattr(value, "ndim", None) == 0
    plain = value.item() if is_numpy else os.fspath(value) if isinstance(value, os.PathLike) else value
    try:
        return msgspec.convert(plain, kind, strict=strict)
    except (msgspec.ValidationError, RecursionError) as error:
        problem, _, inside = str(error).partition(" - at `")
        inside = re.sub(r"^(key` in `)?\$\.?", "", inside.removesuffix("`"))
        is_inside = inside or isinstance(value, dict | list)
        choices = [get_args(part) for part in (kind, *get_args(kind)) if get_origin(part) is Literal]
        if choices and problem.startswith("Invalid enum value"):
            expected = f"Expected one of {', '.join(choices[0])}"
            problem = f"{problem}. {expected}" if is_inside else expected
        if is_inside:
            raise InputError(f"{problem}.", f"{place}, at {inside}" if inside else place) from None
        raise InputError(f"{place} is {value!r:.60}. {problem}.", place) from None


def require_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Checks an argument that has a fixed set of values; see `check`."""
    check(value, Literal[tuple(choices)], name)


def require_whole(name: str, value: object, minimum: int) -> None:
    """Checks an argument that is a whole number; see `check`."""
    check(value, Annotated[int, msgspec.Meta(ge=minimum)], name)


def require_path(name: str, value: object) -> str:
    """Returns the text of an argument that is a path.

    Raises:
      InputError: if the value is something else, or empty.
    """
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else value
    if not isinstance(path, str) or not path:
        raise InputError(f"a path is expected, but {value!r} is given.", name)
    return path


def is_no_list(values: object) -> bool:
    """Returns whether a loop over values would yield other things than examples.

    A text yields its characters, a dictionary its keys, and a table (of pandas, polars or pyarrow) its columns.
    """
    return isinstance(values, str | bytes | Mapping) or hasattr(values, "columns")


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
            "--gradient_accumulation_steps and --gradient_checkpointing also reduce memory."
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
