"""Converts keyword arguments to settings."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeVar

from bert_tf.runtime.errors import check
from bert_tf.runtime.settings import Field, Settings, fields

# Keras's names of two settings.
_NAMES_IN_KERAS = {"num_train_epochs": "epochs", "train_batch_size": "batch_size"}

Config = TypeVar("Config", bound=Settings)


def applied(config: Config, arguments: Mapping[str, Any], caller: str, refused: Collection[str] = ()) -> Config:
    """Returns settings with fields, including nested ones, replaced by the keyword arguments of the same name.

    Args:
      config: the settings.
      arguments: maps the name of a field or of its flag to its value. Values may be NumPy scalars and paths.
      caller: the function that got the arguments, for messages.
      refused: names of fields that this function does not accept.

    Raises:
      InputError: if a value has the wrong type or is out of bounds; the message names the argument.
      TypeError: if there is no such argument.
    """
    known = {name: field for field in _leaves(config) if field.name not in refused for name in _names(field)}
    for name in arguments:
        if name not in known:
            shown = dict.fromkeys(_names(field)[0] for field in known.values())
            raise TypeError(f"{caller} has no argument {name!r}. It has {', '.join(shown)}.")
    return _changed(
        config, {known[name].name: check(value, known[name].type, name) for name, value in arguments.items()}
    )


def _names(field: Field) -> list[str]:
    """Returns the argument names of a setting; the first one is shown in messages."""
    return [_NAMES_IN_KERAS.get(field.name, field.name), field.name, field.flag]


def _leaves(config: Settings) -> Iterator[Field]:
    """Yields the fields that users can set: those with a description."""
    for field in fields(type(config)):
        if field.settings:
            yield from _leaves(getattr(config, field.name))
        elif field.help:
            yield field


def _changed(config: Config, values: Mapping[str, Any]) -> Config:
    changes: dict[str, Any] = {}
    for field in fields(type(config)):
        if field.settings:
            changes[field.name] = _changed(getattr(config, field.name), values)
        elif field.help and field.name in values:
            changes[field.name] = values[field.name]
    return config.replace(**changes)
