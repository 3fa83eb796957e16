"""Reads JSON and TOML files, and checks their content.

The expected content is given as a type: `list[str]`, `dict[str, int] | None`, a `TypedDict` (which allows other keys)
or a `msgspec.Struct` (which may forbid them).
"""

import collections
import json
import math
import re
import tomllib
from typing import Any

from bert_tf.runtime import files, messages
from bert_tf.runtime.errors import InputError, check

_HALF_OF_PAIR = re.compile("[\ud800-\udfff]")
_ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def parse(text: str, *, only_finite: bool = True) -> Any:
    """Parses JSON.

    Args:
      text: the JSON.
      only_finite: if True, refuse NaN and Infinity, which Python writes but JSON does not allow.

    Raises:
      InputError: if the text is not valid JSON or an object has a key twice. The message begins with the location, if
        known.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse if only_finite else None)
    except InputError:
        raise
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if "\n" in text else ""
        raise InputError(f"not valid JSON ({error.msg}). Correct it.", f"{line}column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"not readable as JSON ({error}). Correct the JSON.") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        name, _ = collections.Counter(name for name, _ in pairs).most_common(1)[0]
        raise InputError(f"the key {name!r} occurs twice in an object. Remove one of them.")
    return values


def _refuse(constant: str) -> Any:
    raise InputError(f"{constant} is not valid JSON. Use a number or null.")


def check_surrogates(text: str, value: Any) -> None:
    """Raises an InputError if a parsed value contains half of a surrogate pair, which is not a valid character.

    Args:
      text: the JSON.
      value: the parsed JSON.
    """
    if _ESCAPED_HALF.search(text) and _HALF_OF_PAIR.search(json.dumps(value, ensure_ascii=False)):
        raise InputError(r"a text has half of a surrogate pair (\ud800 to \udfff), an invalid character. Remove it.")


def is_number(value: Any) -> bool:
    """Returns whether a parsed value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def read(path: str, flag_name: str, kind: Any = Any, *, only_finite: bool = True) -> Any:
    """Reads a JSON file.

    Args:
      path: the file.
      flag_name: the flag that gave the path, for messages.
      kind: the type of the content.
      only_finite: see `parse`.

    Raises:
      InputError: if the file can't be read, is not valid JSON, or has another type; the message names the location.
    """
    return checked(files.read_text(path, flag_name), f"{flag_name}: {path}", kind, only_finite=only_finite)


def checked(text: str, where: str, kind: Any = Any, *, only_finite: bool = True) -> Any:
    """Parses the text of a JSON file.

    Args:
      text: the JSON.
      where: the flag and the file, for messages.
      kind: see `read`.
      only_finite: see `parse`.

    Raises:
      InputError: if the text is not valid JSON, or has another type.
    """
    try:
        value = parse(text, only_finite=only_finite)
        check_surrogates(text, value)
    except InputError as error:
        raise InputError(str(error), where) from None
    check(value, kind, where)
    return value  # the result of `check` lacks keys that `kind` does not declare


def read_toml(path: str, flag_name: str) -> dict[str, Any]:
    """Reads a TOML file.

    Args:
      path: the file.
      flag_name: the flag that gave the path, for messages.

    Raises:
      InputError: if the file can't be read or is not valid TOML; the message names the location.
    """
    try:
        return tomllib.loads(files.read_text(path, flag_name))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"not valid TOML: {error}. Correct the file.", f"{flag_name}: {path}") from None


def read_lines(path: str, flag_name: str, kind: Any = Any) -> list[Any]:
    """Reads a file to which a program appends lines of JSON, and returns a value for each line.

    If the last line is incomplete, as after a kill or on a full disk, it is skipped with a warning. For a missing file,
    the result is empty.

    Raises:
      InputError: if an earlier line is damaged; the message names the line.
    """
    if not files.exists(path) or files.size(path) == 0:
        return []
    values = []
    lines = files.lines_of(files.read_text(path, flag_name))
    for number, line in enumerate(lines, start=1):
        try:
            value = parse(line, only_finite=False)
            check(value, kind, "the line")
            values.append(value)
        except InputError as error:
            if number < len(lines):
                advice = "Restore a copy of the file, or remove this line."
                raise InputError(f"{error} {advice}", f"{flag_name}: {path}, line {number}") from None
            messages.say_once(f"Warning: {path}, line {number} (the last) is incomplete. It is ignored.")
    return values
