"""Settings: immutable objects whose fields define type, bounds and help. Every new object is checked.

    class OptimizerConfig(Settings, frozen=True):
        learning_rate: Annotated[float, about("Peak learning rate.", gt=0)] = 5e-5

A field with a description becomes a flag of the programs, named after the field or `about(..., flag=...)`. A field may
be another settings object. If a field has an effect only with other flags, list them in `about(..., needs=...)`:

    needs="do_export"                  --do_export is given
    needs="bilstm_layers|use_bilstm"   one of the flags is given
    needs="task_name=text|ner"         --task_name has one of these values
    needs="!dev_file"                  --dev_file is not given
    needs="sweep !dev_file"            both
"""

import functools
import itertools
import sys
import types
import typing
from collections.abc import Collection, Container, Mapping
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import msgspec
from msgspec import Meta

from bert_tf.runtime.errors import InputError, check

# Bounds of finite numbers.
FiniteAboveZero = Annotated[float, Meta(gt=0, le=sys.float_info.max)]
FiniteFromZero = Annotated[float, Meta(ge=0, le=sys.float_info.max)]


def about(description: str = "", *, flag: str = "", group: str = "", needs: str = "", **bounds: Any) -> Meta:
    """Returns the description of a field.

    Args:
      description: the help of the field's flag. If empty, there is no flag.
      flag: the name of the flag, if it differs from the name of the field.
      group: the title of this flag and the following ones in `--help`.
      needs: the conditions under which the setting has an effect, separated by spaces; see the module.
      **bounds: `ge`, `gt`, `le`, `lt`, and for text `pattern`.
    """
    return Meta(description=description, extra={"flag": flag, "group": group, "needs": needs}, **bounds)


class Field(NamedTuple):
    """A setting.

    Attributes:
      name: the name of the attribute.
      type: the type with its bounds.
      default: the default; `msgspec.NODEFAULT` if the setting must be given.
      help: the description; "" if there is no flag.
      flag: the name that messages and programs use.
      group: the title of the flag in `--help`.
      plain_type: the type without bounds and without None.
      needs: the conditions under which the setting has an effect; see `about`.
    """

    name: str
    type: Any
    default: Any
    help: str
    flag: str
    group: str
    plain_type: Any
    needs: str

    @property
    def settings(self) -> "type[Settings] | None":
        """The class of the field's own settings; None if it is a single value."""
        is_settings = isinstance(self.type, type) and issubclass(self.type, Settings)
        return self.type if is_settings else None


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all settings.

    Attributes:
      flag_prefix: the first part of the flags' names.
      needs: the conditions of all settings of the class; see `about`. They do not apply to the flag in the conditions.

    Raises:
      InputError: if a value has the wrong type or is out of bounds; the message names the flag.
    """

    flag_prefix: ClassVar[str] = ""
    needs: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for field in fields(type(self)):
            value = check(getattr(self, field.name), field.type, self.place(field))
            msgspec.structs.force_setattr(self, field.name, value)

    @staticmethod
    def place(field: Field) -> str:
        """Returns the name of a setting for messages."""
        return f"--{field.flag}"

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with changed values, which are checked."""
        return msgspec.structs.replace(self, **changes)

    def check_needs(self) -> None:
        """Checks that each setting that differs from its default has an effect; see `require_needs`."""
        values = self.flag_values()
        for flag, field in flags_of(type(self)).items():
            if values[flag] != field.default:
                require_needs(self.place(field), field.needs, values)

    def to_dict(self) -> dict[str, Any]:
        """Returns the values by name, with nested settings as dictionaries."""
        return msgspec.to_builtins(self)

    def flag_values(self) -> dict[str, Any]:
        """Returns the values of all settings that are flags, including nested settings, by flag name."""
        values: dict[str, Any] = {}
        for field in fields(type(self)):
            value = getattr(self, field.name)
            values |= value.flag_values() if field.settings else {field.flag: value} if field.help else {}
        return values

    @classmethod
    def from_flags(cls, values: Mapping[str, Any], base: Self | None = None) -> Self:
        """Returns settings, including nested ones, with the values of flags.

        Args:
          values: maps the name of a flag to its value. Names of other settings are ignored.
          base: settings with the other values; None for the defaults.

        Raises:
          InputError: if a value has the wrong type or is out of bounds, or values contradict each other.
        """
        changes: dict[str, Any] = {}
        for field in fields(cls):
            if field.settings:
                within = field.default if base is None else getattr(base, field.name)
                within = within if isinstance(within, Settings) else None
                changes[field.name] = field.settings.from_flags(values, within)
            elif field.help and field.flag in values:
                changes[field.name] = values[field.flag]
        return cls(**changes) if base is None else base.replace(**changes)


@functools.cache
def fields(kind: type[Settings]) -> tuple[Field, ...]:
    """Returns the settings of a class."""
    found: list[Field] = []
    for field in msgspec.structs.fields(kind):
        parts = (field.type, *typing.get_args(field.type))  # in `X | None`, the bounds belong to X
        metas = [meta for part in parts for meta in getattr(part, "__metadata__", ()) if isinstance(meta, Meta)]
        extra = {name: value for meta in metas for name, value in (meta.extra or {}).items() if value}
        description = next((meta.description for meta in metas if meta.description), "")
        group = extra.get("group", found[-1].group if found else "")
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        name, plain = extra.get("flag", kind.flag_prefix + field.name), _plain(field.type)
        needs = " ".join(filter(None, [extra.get("needs"), "" if kind.needs == name else kind.needs]))
        found.append(Field(field.name, field.type, default, description, name, group, plain, needs))
    return tuple(found)


def flags_of(*kinds: type[Settings], omit: Collection[str] = ()) -> dict[str, Field]:
    """Returns the settings that are flags, including nested ones, by the names of the flags.

    Args:
      *kinds: the classes.
      omit: names of settings that are not flags.
    """
    found: dict[str, Field] = {}
    for field in itertools.chain.from_iterable(map(fields, kinds)):
        if field.name in omit:
            continue
        if field.settings:
            found |= flags_of(field.settings, omit=omit)
        elif field.help:
            found[field.flag] = field
    return found


def require_needs(place: str, needs: str, values: Mapping[str, Any]) -> None:
    """Checks that a given setting has an effect.

    Args:
      place: the name of the setting for messages.
      needs: the conditions of the setting; see `about`. Conditions on settings that are not in `values` are ignored.
      values: maps flags to their values.

    Raises:
      InputError: if a condition is not met.
    """
    for condition in needs.split():
        name, _, expected = condition.removeprefix("!").partition("=")
        names = [other for other in name.split("|") if other in values]
        is_met = str(values.get(name)) in expected.split("|") if expected else any(map(values.get, names))
        if not names or is_met != condition.startswith("!"):
            continue
        if condition.startswith("!"):
            given = f"{name}={values[name]}" if expected else "|".join(filter(values.get, names))
            condition, advice = f"!{given}", "Omit one of them."
        elif expected:
            advice = f"Omit it with --{name}={values[name]}."
        else:
            advice = f"Pass --{' or --'.join(names)} too, or omit {place}."
        raise InputError(f"{place} is {shown_needs(condition, values)}. {advice}")


def shown_needs(needs: str, known: Container[str]) -> str:
    """Returns the conditions on known flags, for messages and for `--help`."""
    shown = []
    for condition in needs.split():
        name, equals, expected = condition.removeprefix("!").partition("=")
        if names := [other for other in name.split("|") if other in known]:
            verb = "not used" if condition.startswith("!") else "used only"
            shown.append(f"{verb} with --{' or --'.join(names)}{equals}{expected.replace('|', ' or ')}")
    return ", and ".join(shown)


def _plain(kind: Any) -> Any:
    """Returns a type without bounds and without None."""
    if typing.get_origin(kind) is Annotated:
        return _plain(kind.__origin__)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return _plain(next(part for part in typing.get_args(kind) if part is not types.NoneType))
    return kind
