"""Reads JSON and TOML for all programs: with limits, and with a check of what they must hold.

What a value must hold is written as a type hint: `list[str]`, `dict[str, int] | None`, a `TypedDict`, whose values
may have other keys too, or a dataclass, whose values may not. Nothing that is read here can be nested so deep, or hold
such numbers, that writing or comparing it would fail later.
"""

import dataclasses
import json
import math
import tomllib
import types
import typing
from collections.abc import Collection
from typing import Any

from bert_tf.runtime import files, program
from bert_tf.runtime.errors import InputError

MAX_DEPTH = 100
_MAX_DIGITS = 1000
# Of files with settings. Data may be of any size.
_MAX_BYTES = 256 << 20

_NAMES = {
    str: "text",
    int: "a whole number",
    float: "a finite number",
    bool: "true or false",
    types.NoneType: "null",
    dict: "an object",
    list: "a list",
}


def parse(text: str, *, only_finite: bool = True) -> Any:
    """Parses JSON.

    Args:
      text: the JSON.
      only_finite: whether NaN and Infinity are refused, which JSON does not have, but Python writes.

    Raises:
      InputError: if it is not valid, has a key twice in an object, or is over a limit; begins with the place if known.
    """
    try:
        value = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_int=_integer,
            parse_float=_number,
            parse_constant=_refuse_constant if only_finite else None,
        )
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if "\n" in text else ""
        raise InputError(f"{line}column {error.colno}: not valid JSON ({error.msg}).") from None
    except RecursionError:
        raise _too_deep() from None
    # Counting is quick, and most texts have fewer brackets than are allowed inside each other.
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise _too_deep()
    return value


def _too_deep() -> InputError:
    return InputError(f"nested more than {MAX_DEPTH} deep, which is not read. Check that it is the right data.")


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level := [x for x in level if isinstance(x, dict | list)]:
        depth += 1
        level = [part for x in level for part in (x.values() if isinstance(x, dict) else x)]
    return depth


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        name = next(name for name in values if names.count(name) > 1)
        raise InputError(f"the key {_shown(name)} occurs twice in an object. Remove one of them.")
    return values


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise InputError(f"a number has {len(digits)} digits, but at most {_MAX_DIGITS} are read.")
    return int(digits)


def _number(digits: str) -> float:
    if len(digits) > _MAX_DIGITS or math.isinf(float(digits)):
        raise InputError(f"the number {digits[:40]} is too large or too long to be read.")
    return float(digits)


def _refuse_constant(name: str) -> Any:
    raise InputError(f"{name} is not valid JSON; a number, text, true, false or null is expected.")


def read(path: str, flag_name: str, kind: Any = Any, *, is_data: bool = False) -> Any:
    """Reads a JSON file.

    Args:
      path: the file.
      flag_name: the flag that gave the path, for messages.
      kind: what the file must hold, see `problem`.
      is_data: whether the file may be of any size.

    Raises:
      InputError: if the file can't be read, is not valid JSON, or holds something else; names the place.
    """
    if not is_data and files.size(files.require_file(path, flag_name)) > _MAX_BYTES:
        raise InputError(
            f"{flag_name}: {path} has {files.size(path)} bytes, but settings of at most {_MAX_BYTES} are expected. "
            "Check that it is the right file."
        )
    text = files.read_text(path, flag_name)
    try:
        value = parse(text)
    except InputError as error:
        raise InputError(f"{flag_name}: {path}, {error}") from None
    return checked(value, kind, f"{flag_name}: {path}")


def read_toml(path: str, flag_name: str) -> dict[str, Any]:
    """Reads a TOML file.

    Args:
      path: the file.
      flag_name: the flag that gave the path, for messages.

    Raises:
      InputError: if the file can't be read or is not valid TOML; names the place.
    """
    try:
        return tomllib.loads(files.read_text(path, flag_name))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{flag_name}: {path}: not valid TOML: {error}. Correct the file.") from None


def variant(values: Any, name: str, names: Collection[str], where: str) -> Any:
    """The values of one variant, from a file that holds several.

    In any of its objects, `at` may hold objects, by the name of a variant, with the keys that are others in it.

    Args:
      values: what the file holds.
      name: the variant.
      names: all variants.
      where: the file, for messages.

    Raises:
      InputError: if an `at` holds something else; names the place.
    """
    if isinstance(values, list):
        return [variant(value, name, names, f"{where}[{i}]") for i, value in enumerate(values)]
    if not isinstance(values, dict):
        return values
    changes = checked(values.get("at", {}), dict[str, dict[str, Any]], f"{where}: at")
    if unknown := sorted(changes.keys() - set(names)):
        raise InputError(f"{where}: at: unknown key {unknown[0]!r}; there are {', '.join(names)}.")
    kept = {key: value for key, value in values.items() if key != "at"} | changes.get(name, {})
    return {key: variant(value, name, names, f"{where}: {key}") for key, value in kept.items()}


def checked(value: Any, kind: Any, where: str) -> Any:
    """Returns a value if it is as a type hint says (see `problem`).

    Raises:
      InputError: if it is not; begins with `where`, and says what is expected.
    """
    found = problem(value, kind)
    if found:
        raise InputError(f"{where}: {found}. Mend the file, or put back a copy of it.")
    return value


def build(value: Any, kind: Any, where: str) -> Any:
    """Returns a value as dataclasses, lists and dicts of them, if it is as a type hint says (see `problem`).

    Raises:
      InputError: as `checked` does.
    """
    return _built(checked(value, kind, where), kind)


def _built(value: Any, kind: Any) -> Any:
    base, parts = _base(kind), typing.get_args(kind)
    if base is list and parts:
        return [_built(part, parts[0]) for part in value]
    if base is dict and parts:
        return {key: _built(part, parts[1]) for key, part in value.items()}
    if not dataclasses.is_dataclass(kind):
        return value
    hints = typing.get_type_hints(kind)
    return kind(**{key: _built(part, hints[key]) for key, part in value.items()})


def read_lines(path: str, flag_name: str, kind: Any = Any) -> list[Any]:
    """Reads a file to which a program adds lines of JSON, one value each.

    A last line that is incomplete, as a kill or a full disk leaves it, is left out, with a warning. There are no lines
    if there is no file.

    Raises:
      InputError: if an earlier line is damaged; names it.
    """
    if not files.exists(path) or files.size(path) == 0:
        return []
    values = []
    lines = files.read_text(path, flag_name).split("\n")
    if not lines[-1]:  # the end of a file behind its last line is no line
        lines.pop()
    for number, line in enumerate(lines, start=1):
        try:
            value = parse(line, only_finite=False)
            found = problem(value, kind)
            if not found:
                values.append(value)
        except InputError as error:
            found = str(error)
        if found and number == len(lines):
            program.say_once(f"Warning: {path}, line {number}, the last, is incomplete, and is left out.")
        elif found:
            raise InputError(
                f"{flag_name}: {path}, line {number}: {found} The file is damaged there; put back a copy of it, or "
                "remove this line to go on without it."
            )
    return values


def problem(value: Any, kind: Any, place: str = "") -> str:
    """What is wrong with a value, with its place in the whole; "" if it is as a type hint says.

    Args:
      value: the value.
      kind: `Any`, one of `str`, `int`, `float`, `bool` and `None`, a list, a dict, a `TypedDict` or a dataclass of
        these, or several with `|` between them.
      place: the name of the place, for messages.
    """
    kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    found = [_problem(value, types.NoneType if each is None else each, place) for each in kinds]
    if not all(found):
        return ""
    here = f"{_place(place)}{_shown(value)} was found"
    within = next((text for text in found if not text.startswith(here)), "")
    return within or f"{here}, but {' or '.join(map(_name, kinds))} is expected"


def _problem(value: Any, kind: Any, place: str) -> str:
    base = _base(kind)
    if base is Any:
        return ""
    if base is float:
        fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    else:
        fits = isinstance(value, base) and (base is bool or not isinstance(value, bool))
    if not fits:
        return f"{_place(place)}{_shown(value)} was found"
    if base is dict and base is not kind and not typing.get_args(kind):
        hints = typing.get_type_hints(kind)
        if missing := sorted(_required_keys(kind) - value.keys()):
            return f"{_place(place)}the key {missing[0]!r} is missing"
        if dataclasses.is_dataclass(kind) and (unknown := sorted(value.keys() - hints.keys())):
            return f"{_place(place)}the key {unknown[0]!r} is unknown; the keys are {', '.join(hints)}"
        parts = [(name, value[name], hint) for name, hint in hints.items() if name in value]
    elif base is dict and typing.get_args(kind):
        parts = [(name, part, typing.get_args(kind)[1]) for name, part in value.items()]
    elif base is list and typing.get_args(kind):
        parts = [(str(number), part, typing.get_args(kind)[0]) for number, part in enumerate(value)]
    else:
        parts = []
    found = (problem(part, hint, f"{place}.{name}" if place else name) for name, part, hint in parts)
    return next((text for text in found if text), "")


def _base(kind: Any) -> Any:
    has_keys = typing.is_typeddict(kind) or dataclasses.is_dataclass(kind)
    return typing.get_origin(kind) or (dict if has_keys else kind)


def _required_keys(kind: Any) -> set[str]:
    if typing.is_typeddict(kind):
        return kind.__required_keys__
    fields = dataclasses.fields(kind)
    return {field.name for field in fields if field.default is field.default_factory is dataclasses.MISSING}


def _place(place: str) -> str:
    return f"at {place}, " if place else ""


def _name(kind: Any) -> str:
    return _NAMES[_base(kind)]


def _shown(value: Any) -> str:
    text = json.dumps(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
