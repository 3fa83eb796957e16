"""Converts keyword arguments to settings."""

import contextlib
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from bert_tf.finetuning.finetuning_config import FinetuningConfig
from bert_tf.runtime.errors import InputError, check, spelled
from bert_tf.runtime.settings import FIT, MODEL, PROGRAMS, Field, Role, Settings, flags_of

PathLike = str | os.PathLike[str]
Labels = Sequence[str | int | float | bool] | None
ClassWeights = (
    str | Mapping[str, float] | Mapping[int, float] | Mapping[bool, float] | Mapping[float, float] | Sequence[float]
)

# Keras's names of two settings.
NAMES_IN_KERAS = {"num_train_epochs": "epochs", "train_batch_size": "batch_size"}
# Prefixes of flags that the arguments' names do not have.
_PREFIX = re.compile("^(random|adam|export)_")
# Maps a flag of the programs to the argument that replaces it, if their names differ.
_ARGUMENTS = NAMES_IN_KERAS | {
    "train_file": "x",
    "dev_file": "validation_data",
    "do_eval": "validation_data",
    "dev_fraction": "validation_split",
    "do_train": "fit()",
    "init_checkpoint": "path",
    "export_dir": "directory",
    "use_tpu": 'distribution_strategy="tpu"',
    "input_file": "records",
    "eval_input_file": "validation_data",
}

Config = TypeVar("Config", bound=Settings)
Options = TypeVar("Options", bound=Settings)


def accepted_flags(kind: type[Settings], function: Role) -> dict[str, Field]:
    """Returns the settings that a function accepts, by the names of their flags.

    Args:
      kind: the class of the settings.
      function: MODEL or FIT.
    """
    refused = {PROGRAMS, MODEL, FIT} - {function}
    flags = {flag: field for flag, field in flags_of(kind).items() if not refused & field.roles}
    if kind is FinetuningConfig and function is FIT:
        del flags["pad_to_max_seq_length"]  # prediction pads too
    return flags


def accepted(kind: type[Settings], function: Role) -> dict[str, Field]:
    """Returns `accepted_flags`. The keys are field names, flag names and Keras's names."""
    settings = accepted_flags(kind, function)
    known = {field.name: field for field in settings.values()} | settings
    return known | {NAMES_IN_KERAS[name]: field for name, field in known.items() if name in NAMES_IN_KERAS}


def applied(config: Config, arguments: Mapping[str, Any], caller: str, function: Role = MODEL) -> Config:
    """Returns settings with fields, including nested ones, replaced by the keyword arguments of the same name.

    Args:
      config: the settings.
      arguments: maps the name of a field or of its flag to its value. Values may be NumPy scalars and paths.
      caller: the function that got the arguments, for messages.
      function: see `accepted_flags`.

    Raises:
      InputError: if a value has the wrong type or is out of bounds, or an argument other than False and None has no
        effect; the message names the argument.
      TypeError: if there is no such argument.
    """
    known = accepted(type(config), function)
    for name in arguments:
        if name not in known:
            shown = dict.fromkeys(NAMES_IN_KERAS.get(field.name, field.name) for field in known.values())
            if name == "num_labels":
                raise TypeError(f"{caller}: omit num_labels. The classes are read from the data, or from labels=[...].")
            raise TypeError(f"{caller} has no argument {name!r}. Use one of {', '.join(shown)}.")
    by_flag: dict[str, str] = {}
    for name in arguments:
        if (other := by_flag.setdefault(known[name].flag, name)) != name:
            raise TypeError(f"{caller}: {other} and {name} are two names of the same argument. Pass one of them.")
    # The type is str, but Python users may pass a number.
    arguments = {name: str(value) if name == "evaluate_every" else value for name, value in arguments.items()}
    values = {known[name].flag: check(value, known[name].type, name) for name, value in arguments.items()}
    changed = config.from_flags(values, config)
    given_flags = [flag for flag, value in values.items() if value is not None and value is not False]
    changed.check_needs(given_flags, do_train=True)  # as in `fit`
    return changed


def applied_to_both(
    config: Config, options: Options, arguments: Mapping[str, Any], caller: str
) -> tuple[Config, Options]:
    """Applies each argument to the general settings or to the estimator's settings. See `applied`."""
    of_options = {name: value for name, value in arguments.items() if name in flags_of(type(options))}
    others = {name: value for name, value in arguments.items() if name not in of_options}
    return applied(config, others, caller), applied(options, of_options, caller)


def as_arguments(message: str) -> str:
    """Replaces flags in a message by arguments: --train_batch_size=8 becomes batch_size=8."""

    def argument(written: re.Match) -> str:
        name = written[0].removeprefix("--")
        return _ARGUMENTS.get(name) or _PREFIX.sub("", name)

    message = message.replace("run the program again", "try again")
    message = message.replace("Pass --problem=regression, or", "Use a Regressor, or pass")
    return re.sub(r"(?<![\w-])(--\w+|train_batch_size|num_train_epochs)", argument, message)


# The process that called a public method of a `NamesArguments` first.
_first_process: dict[str, int] = {}


@contextlib.contextmanager
def _in_one_process() -> Iterator[None]:
    """Refuses a process that was forked after TensorFlow was used, where TensorFlow would wait for ever."""
    if _first_process.setdefault("pid", os.getpid()) != os.getpid():
        raise InputError(
            "this process was forked after TensorFlow was used. Start processes with "
            'multiprocessing.get_context("spawn"), or load the model in each process.'
        )
    yield


class NamesArguments:
    """Base of classes whose public methods name arguments instead of flags in their messages."""

    def __init_subclass__(cls) -> None:
        """Converts the messages of the public methods that the class defines."""

        def convert(method: Callable) -> Callable:
            return spelled(as_arguments)(_in_one_process()(method))

        for name, member in list(vars(cls).items()):
            is_public = name == "__init__" or not name.startswith("_")
            if is_public and isinstance(member, classmethod):
                setattr(cls, name, classmethod(convert(member.__func__)))
            elif is_public and inspect.isfunction(member):
                setattr(cls, name, convert(member))
