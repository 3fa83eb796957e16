"""Starts and ends the programs: reads the flags, and prints input errors without a traceback."""

import atexit
import gc
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType

from absl import app, flags, logging

from bert_tf.runtime import dry_run, errors, files, lazy_imports, settings
from bert_tf.runtime.messages import say

# The exit status that shells expect after Ctrl-C: 128 plus the number of the signal.
_INTERRUPTED_STATUS = 130

_OUTPUT = "standard output"

# Called during the import, because users' programs import `run_classifier` before they import TensorFlow.
os.environ["KERAS_BACKEND"] = "tensorflow"
lazy_imports.prepare_tensorflow()

# See `section`: titles, and the number of flags defined before each.
_sections: list[tuple[str, int]] = []

# Maps the names of flags to their conditions; see `needs`.
needs_of_flags: dict[str, list[settings.Condition]] = {}

# See `on_failure`.
_listeners: list[Callable[[BaseException], str | None]] = []


def on_failure(listener: Callable[[BaseException], str | None]) -> None:
    """Registers a function that gets the error that ends the program. It may return a message to print instead."""
    _listeners.append(listener)


def section(title: str) -> None:
    """Puts the flags that are defined until the next section under a title in the text of `--help`.

    Sections with the same title are merged.
    """
    _sections.append((title, len(list(flags.FLAGS))))


def needs(name: str, *conditions: settings.Condition) -> None:
    """Sets the conditions under which a flag has an effect; see `settings`. `--help` shows them."""
    needs_of_flags.setdefault(name, []).extend(conditions)


def check_needs() -> None:
    """Refuses flags on the command line that have no effect, because of other flags.

    Raises:
      InputError: if there is such a flag; the message names the flag and the condition.
    """
    values = flag_values()
    for name, conditions in needs_of_flags.items():
        if flags.FLAGS[name].present and flags.FLAGS[name].value is not False:
            settings.require_needs(f"--{name}", conditions, values)


class _Help(app.HelpFlag):
    """`--help` with flags grouped in sections; absl sorts them alphabetically."""

    def parse(self, argument: str) -> None:
        """Prints the help text and exits, as absl's class does."""
        if self._parse(argument) and _sections:
            print(f"{sys.modules['__main__'].__doc__.strip()}\n\nflags:")
            for title, names in flags_by_section().items():
                for name in names:
                    flags.FLAGS.register_key_flag_for_module(title, flags.FLAGS[name])
                print(flags.FLAGS.module_help(title))
            sys.exit(1)
        super().parse(argument)


def flags_by_section() -> dict[str, list[str]]:
    """Returns the names of the program's flags, grouped by the title of their section."""
    names, program_flags = list(flags.FLAGS), flag_values().keys()
    by_section: dict[str, list[str]] = {}
    for (title, first), (_, end) in itertools.pairwise([*_sections, ("", len(names))]):
        by_section.setdefault(title, []).extend(name for name in names[first:end] if name in program_flags)
    return by_section


def run(main: Callable[..., None], required: Sequence[str] = (), takes_names: bool = False) -> None:
    """Parses the flags and runs a program. Ctrl-C and errors that the user can fix end it with a short message.

    The exit status is 1 after an InputError, an error of the operating system or lack of memory, and 130 after Ctrl-C.

    Args:
      main: the function that does the program's work. The flags of its module are the program's own.
      required: names of flags that must be given.
      takes_names: whether the program accepts arguments that are not flags, such as file names. They are passed to
        `main`.
    """

    def run_main(arguments: list[str]) -> None:
        if not flags.FLAGS["verbosity"].present:
            logging.set_verbosity(logging.WARNING)  # our own messages go through `say`
        status = 0
        for name in ("write", "flush"):
            setattr(sys.stdout, name, errors.named(_OUTPUT)(getattr(sys.stdout, name)))
        try:
            for argument in sys.argv[1:]:
                errors.require_utf8(argument, "the argument")
            if len(arguments) > 1 and not takes_names:
                raise errors.InputError(f"unknown argument {arguments[1]!r}. Write --name=value, --name or --noname.")
            for name in required:
                if flags.FLAGS[name].value is None:
                    raise errors.InputError(f"--{name} is required. Pass it.")
            with dry_run.guard(bool(flag_values().get("dry_run"))):
                main(*arguments[1:])
            sys.stdout.flush()
        except (Exception, KeyboardInterrupt) as error:
            explained = [message for listener in _listeners if (message := listener(error))]
            by_listeners = None if isinstance(error, errors.InputError) else next(iter(explained), None)
            if isinstance(error, KeyboardInterrupt):
                status, message = _INTERRUPTED_STATUS, "\nInterrupted."
            elif message := by_listeners or errors.explanation(error):
                status, message = 1, f"error: {message}"
            else:
                raise
            if getattr(error, "filename", None) == _OUTPUT:  # otherwise Python would write the rest at exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            say(message)
        if status:
            # The error's traceback may refer to data iterators. Delete them now: at exit, no other thread can run, and
            # an iterator would wait for its Python function for ever.
            gc.collect()
            sys.exit(status)

    # Python collects garbage at exit, which takes more than a second with TensorFlow's objects.
    atexit.register(gc.freeze)
    _present_as_main(sys.modules[main.__module__])
    app.define_help_flags()
    for name, conditions in needs_of_flags.items():
        flags.FLAGS[name].help = f"{flags.FLAGS[name].help} {settings.help_text(conditions, flags.FLAGS)}".rstrip()
    help_by_section = _Help()
    help_by_section.allow_override = True
    flags.FLAGS["help"] = help_by_section
    app.run(run_main, flags_parser=_parsed)


def _parsed(arguments: list[str]) -> list[str]:
    """Reads the command line, and returns the arguments that are not flags. Ends the program if a flag is wrong."""
    try:
        return flags.FLAGS(arguments)
    except flags.Error as error:
        for listener in _listeners:
            listener(error)
        say(f"error: {str(error).rstrip('.')}. See --help.")
        sys.exit(1)


def require_files(*names: str) -> None:
    """Checks the input files that flags name, if they are given. See `files.require_file`."""
    for name in names:
        value = flags.FLAGS[name].value
        for path in value if isinstance(value, list) else filter(None, [value]):
            files.require_file(path, f"--{name}")


def require_one(*names: str) -> None:
    """Refuses a command line without any of the flags that select a step.

    Raises:
      InputError: if none of the flags is given.
    """
    if not any(flags.FLAGS[name].value for name in names):
        others = ", ".join(f"--{name}" for name in names[:-1])
        raise errors.InputError(f"No step is selected. Pass {others} or --{names[-1]}.")


def _present_as_main(module: ModuleType) -> None:
    """Makes the module's docstring and flags available to `--help` and `flag_values`, also for installed commands."""
    sys.modules["__main__"].__doc__ = module.__doc__
    for flag in flags.FLAGS.get_key_flags_for_module(module):
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flag)


def typed_lines() -> Iterator[str]:
    """Yields the lines of standard input without line ends, read as UTF-8 in any locale; invalid bytes are replaced."""
    dry_run.end()
    return (line.decode("utf-8", errors="replace").rstrip("\r\n") for line in sys.stdin.buffer)


def flag_values() -> dict[str, object]:
    """Returns the values of the program's own flags, by name."""
    return {flag.name: flag.value for flag in flags.FLAGS.get_key_flags_for_module(sys.argv[0])}


def set_defaults(values: Mapping[str, object]) -> None:
    """Sets the defaults of flags, for example to the settings of a recipe. Given flags keep their values."""
    for flag, value in values.items():
        flags.FLAGS.set_default(flag, value)
