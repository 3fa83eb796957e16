"""Settings: immutable objects whose fields give their type, bounds and help. They are checked wherever they are made.

    class OptimizerConfig(Settings, frozen=True):
        learning_rate: Annotated[float, about("Peak learning rate.", gt=0)] = 5e-5

A field with a description is a flag of the programs, with the field's name or `about(..., flag=...)`. A field may also
be settings with fields of their own.
"""

import functools
import sys
import types
import typing
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import msgspec
from msgspec import Meta

from bert_tf.runtime.errors import check

# Bounds of finite numbers.
FiniteAboveZero = Annotated[float, Meta(gt=0, le=sys.float_info.max)]
FiniteFromZero = Annotated[float, Meta(ge=0, le=sys.float_info.max)]


def about(description: str = "", *, flag: str = "", group: str = "", **bounds: Any) -> Meta:
    """Returns the description of a field.

    Args:
      description: the help of its flag. Without a description there is no flag.
      flag: the flag's name, if it is not the field's.
      group: the title of this flag and of the following ones in `--help`.
      **bounds: `ge`, `gt`, `le`, `lt`, and `pattern` of a text.
    """
    return Meta(description=description, extra={"flag": flag, "group": group}, **bounds)


class Field(NamedTuple):
    """A setting.

    Attributes:
      name: the attribute.
      type: the type with its bounds.
      default: the default; `msgspec.NODEFAULT` if the setting must be given.
      help: the description; "" if there is no flag.
      flag: the name that messages and programs use.
      group: the title of the flag in `--help`.
      plain_type: the type without bounds and without None.
    """

    name: str
    type: Any
    default: Any
    help: str
    flag: str
    group: str
    plain_type: Any

    @property
    def settings(self) -> "type[Settings] | None":
        """The class of the field's own settings; None if it is a single value."""
        is_settings = isinstance(self.type, type) and issubclass(self.type, Settings)
        return self.type if is_settings else None


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all settings.

    Attributes:
      flag_prefix: the beginning of the names of the flags.

    Raises:
      InputError: if a value has another type or is out of its bounds; names the flag.
    """

    flag_prefix: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for field in fields(type(self)):
            value = check(getattr(self, field.name), field.type, self.place(field))
            msgspec.structs.force_setattr(self, field.name, value)

    @staticmethod
    def place(field: Field) -> str:
        """The name of a setting in messages."""
        return f"--{field.flag}"

    def replace(self, **changes: Any) -> Self:
        """Returns the settings with other values, which are checked."""
        return msgspec.structs.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Returns the values by name, with those of settings within as dictionaries."""
        return msgspec.to_builtins(self)

    def flag_values(self) -> dict[str, Any]:
        """Returns the values of all settings that are flags, and of the settings within, by the names of the flags."""
        values: dict[str, Any] = {}
        for field in fields(type(self)):
            value = getattr(self, field.name)
            values |= value.flag_values() if field.settings else {field.flag: value} if field.help else {}
        return values


@functools.cache
def fields(kind: type[Settings]) -> tuple[Field, ...]:
    """The settings of a class."""
    found: list[Field] = []
    for field in msgspec.structs.fields(kind):
        parts = (field.type, *typing.get_args(field.type))  # a bound of `X | None` is a bound of X
        metas = [meta for part in parts for meta in getattr(part, "__metadata__", ()) if isinstance(meta, Meta)]
        extra = {name: value for meta in metas for name, value in (meta.extra or {}).items() if value}
        description = next((meta.description for meta in metas if meta.description), "")
        group = extra.get("group", found[-1].group if found else "")
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        name, plain = extra.get("flag", kind.flag_prefix + field.name), _plain(field.type)
        found.append(Field(field.name, field.type, default, description, name, group, plain))
    return tuple(found)


def _plain(kind: Any) -> Any:
    """Returns a type without bounds and without None."""
    if typing.get_origin(kind) is Annotated:
        return _plain(kind.__origin__)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return _plain(next(part for part in typing.get_args(kind) if part is not types.NoneType))
    return kind
