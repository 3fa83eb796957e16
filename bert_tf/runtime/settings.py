"""Settings: immutable objects whose fields define type, bounds and help. Every new object is checked.

    class OptimizerConfig(Settings, frozen=True):
        learning_rate: Annotated[float, about("Peak learning rate.", gt=0)] = 5e-5

A field with a description becomes a flag of the programs, named after the field or `about(..., flag=...)`. A field may
be another settings object. Further facts about a field follow in `Annotated`: its roles, and conditions on other flags
under which it has an effect:

    only_with("do_export")                            --do_export is given
    only_with("bilstm_layers", "feature_layers")      one of the flags is given
    only_with("task_name", values=("text", "ner"))    --task_name has one of these values
    not_with("dev_file")                              --dev_file is not given
    only_with("sweep"), not_with("dev_file")          both
"""

import enum
import functools
import itertools
import sys
import types
import typing
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import msgspec
from msgspec import Meta

from bert_tf.runtime.errors import InputError, check

# Bounds of finite numbers.
FiniteAboveZero = Annotated[float, Meta(gt=0, le=sys.float_info.max)]
FiniteFromZero = Annotated[float, Meta(ge=0, le=sys.float_info.max)]


class Condition(NamedTuple):
    """A setting has an effect if one of several flags is given or, with `values`, has one of the values.

    Attributes:
      names: the names of the flags.
      values: the values; empty for all values except False, 0, "" and None.
      is_negated: whether the setting has an effect in all other cases instead.
      group: what to show instead of the values, such as "of GLUE".
    """

    names: tuple[str, ...]
    values: tuple[str, ...] = ()
    is_negated: bool = False
    group: str = ""

    def matches(self, flags: Mapping[str, Any]) -> tuple[str, ...]:
        """Returns the names of the flags that are given or have one of the values. `flags` maps names to values."""
        names = filter(flags.__contains__, self.names)
        return tuple(name for name in names if (str(flags[name]) in self.values if self.values else flags[name]))

    def shown_flags(self, known: Container[str]) -> str:
        """Returns those flags of the condition that are known, with the values; "" if no flag is known."""
        names = " or --".join(filter(known.__contains__, self.names))
        values = f" {self.group}" if self.group else f"={' or '.join(self.values)}" if self.values else ""
        return f"--{names}{values}" if names else ""

    def shown(self, known: Container[str]) -> str:
        """Returns the condition on known flags, for messages; "" if no flag is known."""
        shown = self.shown_flags(known)
        return f"{'not used' if self.is_negated else 'used only'} with {shown}" if shown else ""


def only_with(*names: str, values: Sequence[str] = ()) -> Condition:
    """Returns the condition that one of the flags is given or, with `values`, has one of the values."""
    return Condition(names, tuple(values))


def not_with(*names: str, values: Sequence[str] = (), group: str = "") -> Condition:
    """Returns the condition that none of the flags is given or, with `values`, has one of the values.

    Args:
      *names: the names of the flags.
      values: the values.
      group: see `Condition`.
    """
    return Condition(names, tuple(values), is_negated=True, group=group)


def help_text(conditions: Iterable[Condition], known: Container[str]) -> str:
    """Returns sentences that describe the conditions on known flags, for `--help`; "" if no flag is known."""
    sentences = []
    for start, joint, is_negated in (("Used only with", " and ", False), ("Not used with", " or ", True)):
        shown = (condition.shown_flags(known) for condition in conditions if condition.is_negated == is_negated)
        if flags := joint.join(dict.fromkeys(filter(None, shown))):
            sentences.append(f"{start} {flags}.")
    return " ".join(sentences)


class AbsentFrom(NamedTuple):
    """The module of a program that uses the class of a setting, but does not have its flag."""

    program: str


class Role(enum.Enum):
    """Where a setting is used, besides the programs. A setting may have several roles."""

    PROGRAMS = enum.auto()  # only programs have the setting; no Python function accepts it
    MODEL = enum.auto()  # in Python, only functions that make a model accept it: `from_pretrained` and `Pretrainer`
    FIT = enum.auto()  # in Python, only `fit` accepts it
    WEIGHTS = enum.auto()  # influences the weights, so a resumed run must have the same value
    WEIGHTS_IF_SET = enum.auto()  # like WEIGHTS, but older runs have no record, so the default is not recorded
    WORKERS = enum.auto()  # determines when workers synchronise, so all workers must have the same value


PROGRAMS, MODEL, FIT, WEIGHTS, WEIGHTS_IF_SET, WORKERS = Role


def about(description: str = "", *, flag: str = "", group: str = "", **bounds: Any) -> Meta:
    """Returns the description of a field.

    Args:
      description: the help of the field's flag. If empty, there is no flag.
      flag: the name of the flag, if it differs from the name of the field.
      group: the title of this flag and the following ones in `--help`.
      **bounds: `ge`, `gt`, `le`, `lt`, and for text `pattern`.
    """
    return Meta(description=description, extra={"flag": flag, "group": group}, **bounds)


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
      needs: the conditions under which the setting has an effect. Negated conditions are the last.
      roles: the roles, and the programs that do not have the flag.
    """

    name: str
    type: Any
    default: Any
    help: str
    flag: str
    group: str
    plain_type: Any
    needs: tuple[Condition, ...]
    roles: frozenset[Role | AbsentFrom]

    @property
    def settings(self) -> "type[Settings] | None":
        """The class of the field's own settings; None if it is a single value."""
        kind = self.type.__origin__ if typing.get_origin(self.type) is Annotated else self.type
        return kind if isinstance(kind, type) and issubclass(kind, Settings) else None


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all settings.

    Attributes:
      flag_prefix: the first part of the flags' names.
      needs: the conditions of all settings of the class. They do not apply to the flag in the conditions.

    Raises:
      InputError: if a value has the wrong type or is out of bounds; the message names the flag.
    """

    flag_prefix: ClassVar[str] = ""
    needs: ClassVar[tuple[Condition, ...]] = ()

    def __post_init__(self) -> None:
        for field in fields(type(self)):
            value = check(getattr(self, field.name), field.type, self.where(field))
            msgspec.structs.force_setattr(self, field.name, value)

    @staticmethod
    def where(field: Field) -> str:
        """Returns the name of a setting for messages."""
        return f"--{field.flag}"

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with changed values, which are checked."""
        return msgspec.structs.replace(self, **changes)

    def check_needs(self, given_flags: Collection[str] | None = None, **others: Any) -> None:
        """Checks that each given setting has an effect; see `require_needs`.

        Args:
          given_flags: the names of the given flags; None for the settings that differ from their defaults.
          **others: the values of other flags.
        """
        values = self.flag_values() | others
        for flag, field in flags_of(type(self)).items():
            if values[flag] != field.default if given_flags is None else flag in given_flags:
                require_needs(self.where(field), field.needs, values)

    def values_of(self, role: Role | None = None, only_changed: bool = False) -> dict[str, Any]:
        """Returns the values of the settings with a role by name, and of nested settings by their own names.

        Args:
          role: the role; None for all settings.
          only_changed: whether to omit values that are the default.
        """
        values: dict[str, Any] = {}
        for field in fields(type(self)):
            value = getattr(self, field.name)
            if (role is None or role in field.roles) and not (only_changed and value == field.default):
                plain_value = msgspec.to_builtins(value)
                values |= plain_value if field.settings else {field.name: plain_value}
        return values

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
    settings: list[Field] = []
    for field in msgspec.structs.fields(kind):
        annotated = (field.type, *typing.get_args(field.type))  # in `X | None`, the facts belong to X
        facts = [fact for annotation in annotated for fact in getattr(annotation, "__metadata__", ())]
        metas = [fact for fact in facts if isinstance(fact, Meta)]
        description = next((meta.description for meta in metas if meta.description), "")
        extra = next((meta.extra for meta in metas if meta.extra), {"flag": "", "group": ""})
        flag = extra["flag"] or kind.flag_prefix + field.name
        group = extra["group"] or (settings[-1].group if settings else "")
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        needs = [fact for fact in facts if isinstance(fact, Condition)]
        needs += [condition for condition in kind.needs if flag not in condition.names]
        conditions = tuple(sorted(needs, key=lambda condition: condition.is_negated))
        roles = frozenset(fact for fact in facts if isinstance(fact, Role | AbsentFrom))
        described = field.name, field.type, default, description, flag, group
        settings.append(Field(*described, _plain(field.type), conditions, roles))
    return tuple(settings)


def flags_of(*kinds: type[Settings], program: str = "") -> dict[str, Field]:
    """Returns the settings that are flags, including nested ones, by the names of the flags.

    Args:
      *kinds: the classes. Nested settings also have the roles of the field that contains them.
      program: the module of a program. Flags that it does not have are omitted.
    """
    flags: dict[str, Field] = {}
    for field in itertools.chain.from_iterable(map(fields, kinds)):
        if AbsentFrom(program) in field.roles:
            continue
        if field.settings:
            nested = flags_of(field.settings, program=program)
            flags |= {flag: inner._replace(roles=inner.roles | field.roles) for flag, inner in nested.items()}
        elif field.help:
            flags[field.flag] = field
    return flags


def require_needs(where: str, needs: Iterable[Condition], values: Mapping[str, Any]) -> None:
    """Checks that a given setting has an effect.

    Args:
      where: the name of the setting for messages.
      needs: the conditions of the setting. Conditions on settings that are not in `values` are ignored.
      values: maps flags to their values.

    Raises:
      InputError: if a condition is not met.
    """
    for condition in needs:
        matches = condition.matches(values)
        if not condition.shown(values) or bool(matches) != condition.is_negated:
            continue
        if condition.is_negated:
            actual = [str(values[name]) for name in matches] if condition.values else []
            condition, advice = not_with(*matches, values=actual), "Omit one of them."
        elif condition.values:
            advice = f"Omit it with --{condition.names[0]}={values[condition.names[0]]}."
        else:
            names = filter(values.__contains__, condition.names)
            advice = f"Pass --{' or --'.join(names)} too, or omit {where}."
        raise InputError(f"{where} is {condition.shown(values)}. {advice}")


def _plain(kind: Any) -> Any:
    """Returns a type without bounds and without None."""
    if typing.get_origin(kind) is Annotated:
        return _plain(kind.__origin__)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return _plain(next(member for member in typing.get_args(kind) if member is not types.NoneType))
    return kind
