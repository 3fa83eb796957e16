"""Reads flags whose values have several parts, and sets the defaults of recipes."""

from collections.abc import Mapping
from typing import Any

from absl import flags

from bert_tf.runtime.files import InputError


def set_defaults(values: Mapping[str, Any]) -> None:
    """Sets flags, except those that were given: to the settings of a recipe, for example."""
    for flag, value in values.items():
        flags.FLAGS.set_default(flag, value)


def numbers(flag: flags.FlagHolder, kind: type[int] | type[float]) -> list:
    """Returns the values of a list flag as numbers.

    Raises:
      InputError: if there are no values, or one of them is not a number.
    """
    try:
        values = [kind(value) for value in flag.value]
    except ValueError:
        values = []
    if not values:
        raise InputError(f"--{flag.name} is {','.join(flag.value)!r}, but numbers separated by commas are expected.")
    return values


def step_range(flag: flags.FlagHolder[str | None]) -> tuple[int, int] | None:
    """Returns the two steps of a flag, such as 100:105; None if it is not given.

    Raises:
      InputError: if its value is something else.
    """
    if not flag.value:
        return None
    first, _, last = flag.value.partition(":")
    if not (first.isdecimal() and last.isdecimal()):
        raise InputError(f"--{flag.name} is {flag.value!r}, but two steps are expected, as in 100:105.")
    return int(first), int(last)
