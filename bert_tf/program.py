"""How every program starts and stops: quiet libraries, checked arguments, and input errors as one line.

Import this before TensorFlow is imported.
"""

import os
import sys
from collections.abc import Callable

# TensorFlow's start-up chatter hides our own messages; its warnings and errors stay.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

from absl import app, flags

from bert_tf.files import InputError


def run(main: Callable[[], None]) -> None:
    """Parses the flags and runs a program; an InputError becomes a message and exit status 1."""

    def checked(arguments: list[str]) -> None:
        if len(arguments) > 1:
            raise app.UsageError(f"unknown argument {arguments[1]!r} (flags look like --name=value)")
        try:
            main()
        except InputError as error:
            say(f"error: {error}")
            sys.exit(1)

    app.run(checked)


def say(message: str) -> None:
    """Prints a message for the user to standard error, where it doesn't mix with results."""
    print(message, file=sys.stderr, flush=True)


def flag_values() -> dict[str, object]:
    """The values of the program's own flags, by name."""
    return {flag.name: flag.value for flag in flags.FLAGS.get_key_flags_for_module(sys.argv[0])}
