"""The error for bad input, and the messages for errors that the user can fix."""

import contextlib
import contextvars
import errno
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

_SYSTEM_WORDS = {os.strerror(number) for number in errno.errorcode}
_TENSORFLOW_NODE = re.compile(r"^\{\{.*?\}\} | \[Op:\w+\].*$", re.DOTALL)
_CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Messages of TensorFlow, of XLA's compiler and of a TPU.
_OUT_OF_MEMORY = re.compile("OOM when allocating|[Oo]ut of memory|That was not possible")


class InputError(ValueError):
    """Input that can't be used. The programs print the message without a traceback and exit with status 1.

    Args:
      message: the location, the problem and the solution, in the form "LOCATION: PROBLEM. SOLUTION."
      where: the location of the problem, such as a flag or a file and its line. If the message does not begin with it,
        the location is put before the message.
    """

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(shortened(message if message.startswith(where) else f"{where}: {message}"))
        self.where = where


def shortened(text: str, limit: int = 2000) -> str:
    """Returns a text with escaped control characters, and without the middle of lines that are longer than a limit.

    Names in the files of others can have any length and any characters.
    """
    lines = (f"{x[: limit * 2 // 3]} ... {x[-limit // 3 :]}" if len(x) > limit else x for x in text.split("\n"))
    return _CONTROL_CHARACTER.sub(lambda match: repr(match[0])[1:-1], "\n".join(lines))


# Converts a message to the caller's names. See `spelled`.
spelling: contextvars.ContextVar[Callable[[str], str]] = contextvars.ContextVar("spelling", default=str)


@contextlib.contextmanager
def spelled(respell: Callable[[str], str]) -> Iterator[None]:
    """Converts the messages of a `with` block, for callers who do not use flags. Also a decorator of functions."""
    token = spelling.set(respell)
    try:
        yield
    except InputError as error:
        error.args = (respell(str(error)),)
        raise
    finally:
        spelling.reset(token)


def check(value: Any, kind: Any, where: str, strict: bool = True) -> Any:
    """Returns a value converted to a type. NumPy scalars and paths become Python values.

    Args:
      value: the value.
      kind: a type hint, with bounds as `Annotated[int, msgspec.Meta(ge=1)]`.
      where: the flag, argument or file, for messages.
      strict: if False, strings are converted to numbers.

    Raises:
      InputError: if the value has the wrong type or is out of bounds; the message names the location in the value.
    """
    try:
        return msgspec.convert(_plain(value), kind, strict=strict)
    except (msgspec.ValidationError, RecursionError) as error:
        problem, _, inside = str(error).partition(" - at `")
        inside = re.sub(r"^(key` in `)?\$\.?", "", inside.removesuffix("`"))
        is_inside = inside or isinstance(value, dict | list)
        if problem.startswith("Invalid enum value") and (choices := _choices(kind)):
            expected = f"Expected one of {', '.join(choices)}"
            problem = f"{problem}. {expected}" if is_inside else expected
        problem = problem.removesuffix(".")  # of an InputError in a constructor
        if is_inside:
            raise InputError(f"{problem}.", f"{where}, at {inside}" if inside else where) from None
        raise InputError(f"{where} is {value!r:.60}. {problem}.", where) from None


def _plain(value: Any) -> Any:
    value = value.to_dict() if hasattr(value, "iloc") else value  # a pandas.Series
    if isinstance(value, dict):
        return {_plain(key): entry if isinstance(entry, dict) else _plain(entry) for key, entry in value.items()}
    is_numpy = hasattr(value, "tolist") and hasattr(value, "ndim") and not hasattr(value, "index")  # no pandas.Series
    return value.tolist() if is_numpy else os.fspath(value) if isinstance(value, os.PathLike) else value


def _choices(kind: Any) -> tuple:
    """Returns the values of a `Literal` in a type hint; empty if there is none."""
    return get_args(kind) if get_origin(kind) is Literal else next(filter(None, map(_choices, get_args(kind))), ())


def first_of(names: Iterable[object], most: int = 8) -> str:
    """Returns the first names for a message, separated by commas, and the number of the others."""
    shown = [shortened(str(name), 300) for name in names]
    return ", ".join(shown[:most]) + f" and {len(shown) - most} more" * (len(shown) > most)


def require_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Checks an argument that has a fixed set of values. See `check`."""
    check(value, Literal[tuple(choices)], name)


def require_whole(name: str, value: object, minimum: int) -> None:
    """Checks an argument that is an integer. See `check`."""
    check(value, Annotated[int, msgspec.Meta(ge=minimum)], name)


def require_path(name: str, value: object) -> str:
    """Returns a path argument as text.

    Raises:
      InputError: if the value is not a path, or empty.
    """
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else value
    if not isinstance(path, str) or not path:
        raise InputError(f"{value!r} is not a path. Pass a str or os.PathLike.", name)
    return path


def is_no_list(values: object) -> bool:
    """Returns True if a loop over values would not yield examples.

    Strings yield characters, dictionaries keys, and tables (of pandas, polars or pyarrow) columns.
    """
    return isinstance(values, str | bytes | Mapping) or hasattr(values, "columns")


def require_utf8(name: str, what: str) -> None:
    """Checks that a name is valid UTF-8, because TensorFlow writes file names in UTF-8.

    Raises:
      InputError: if it contains other bytes.
    """
    if not name.isascii() and name != name.encode("utf-8", "ignore").decode():
        raise InputError(f"{what} {name!a} contains bytes that are not UTF-8. Rename it.")


@contextlib.contextmanager
def named(path: str) -> Iterator[None]:
    """Adds the name of a file to operating-system errors without a file name. Also a decorator of functions."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or path
        raise


def without_node(error: BaseException) -> str:
    """Returns the message of a TensorFlow error without the names of nodes and operations."""
    return _TENSORFLOW_NODE.sub("", str(error))


def explanation(error: BaseException) -> str | None:
    """Returns the message for an error that the user can fix; None for other errors, which are bugs.

    The message contains the path, the operating system's message, and the operation from the error's notes. Errors of
    TensorFlow also contain the operating system's message.
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
    elif is_tensorflow:  # the message is "path; words", sometimes with more lines
        path, _, words = without_node(error).partition("\n")[0].partition("; ")
        paths = [path]
    else:
        return None
    if words not in _SYSTEM_WORDS:
        return None
    where = " -> ".join(str(path) for path in paths if path)
    operation = f" ({'; '.join(error.__notes__)})" if hasattr(error, "__notes__") else ""
    return f"{where}{': ' if where else ''}{words}{operation}. Fix the cause and run the program again."
