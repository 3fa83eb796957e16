"""Settings: immutable objects whose fields give their type, bounds and help. They are checked wherever they are made.

    class OptimizerConfig(Settings, frozen=True):
        learning_rate: Annotated[float, about("Peak learning rate.", gt=0)] = 5e-5

A field with a description is a flag of the programs, with the field's name or `about(..., flag=...)`.
"""

import functools
import sys
import typing
from typing import Annotated, Any, NamedTuple, Self

import msgspec
from msgspec import Meta

from bert_tf.runtime.errors import check

# Bounds of finite numbers.
FiniteAboveZero = Annotated[float, Meta(gt=0, le=sys.float_info.max)]
FiniteFromZero = Annotated[float, Meta(ge=0, le=sys.float_info.max)]


def about(description: str = "", *, flag: str = "", **bounds: float) -> Meta:
    """Returns what a field says of itself.

    Args:
      description: the help of its flag. Without a description there is no flag.
      flag: the flag's name, if it is not the field's.
      **bounds: `ge`, `gt`, `le` and `lt`.
    """
    return Meta(description=description, extra={"flag": flag} if flag else None, **bounds)


class Field(NamedTuple):
    """A setting.

    Attributes:
      name: the attribute.
      type: the type with its bounds.
      default: the default; `msgspec.NODEFAULT` if the setting must be given.
      help: the description; "" if there is no flag.
      flag: the name that messages and programs use.
    """

    name: str
    type: Any
    default: Any
    help: str
    flag: str


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all settings.

    Raises:
      InputError: if a value has another type or is out of its bounds; names the flag.
    """

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


@functools.cache
def fields(kind: type[Settings]) -> tuple[Field, ...]:
    """The settings of a class."""
    found = []
    for field in msgspec.structs.fields(kind):
        parts = (field.type, *typing.get_args(field.type))  # a bound of `X | None` is a bound of X
        metas = [meta for part in parts for meta in getattr(part, "__metadata__", ()) if isinstance(meta, Meta)]
        flag = next((meta.extra["flag"] for meta in metas if meta.extra), field.name)
        description = next((meta.description for meta in metas if meta.description), "")
        found.append(Field(field.name, field.type, field.default, description, flag))
    return tuple(found)
