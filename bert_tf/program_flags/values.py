"""Makes flags of settings, reads flags whose values have several parts, and sets the defaults of recipes."""

from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from absl import flags

from bert_tf.runtime import settings
from bert_tf.runtime.errors import InputError

flags.disclaim_key_flags()

_DEFINE = {bool: flags.DEFINE_bool, int: flags.DEFINE_integer, float: flags.DEFINE_float, str: flags.DEFINE_string}


class SettingsFlags:
    """Defines a flag for each setting that has a description.

    Args:
      kind: the settings.
      **defaults: defaults of the flags that are not those of the settings, by the names of the settings.
    """

    def __init__(self, kind: type[settings.Settings], **defaults: Any) -> None:
        self._flags = {}
        for field in filter(lambda field: field.help, settings.fields(kind)):
            base = get_args(field.type)[0]
            default = defaults.get(field.name, field.default)
            if get_origin(base) is Literal:
                flag = flags.DEFINE_enum(field.flag, default, get_args(base), field.help)
            else:
                flag = _DEFINE[base](field.flag, default, field.help)
            self._flags[field.name] = flag

    @property
    def are_present(self) -> bool:
        """Whether the command line gave one of the flags."""
        return any(flag.present for flag in self._flags.values())

    def given(self) -> dict[str, Any]:
        """The values of the flags, which must have been parsed, by the names of the settings."""
        return {name: flag.value for name, flag in self._flags.items()}


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
