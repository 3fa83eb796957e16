"""How every program starts and stops: checked arguments, and input errors as one line."""

import contextlib
import errno
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType

from absl import app, flags, logging

from bert_tf.runtime.files import InputError

# What the machine refuses, wherever a program asks for it: room on a disk, and permission.
_REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)

# What shells expect of a program that Ctrl-C has ended: 128 and the signal's number.
_INTERRUPTED = 130


def run(main: Callable[..., None], required: Sequence[str] = (), takes_names: bool = False) -> None:
    """Parses the flags and runs a program; what the user can mend ends it with a message, and Ctrl-C too.

    The exit status is 1 after an InputError, a full disk or a lack of permission, and 130 after Ctrl-C.

    Args:
      main: what the program does. The flags of its module are the program's own.
      required: names of flags that must be given.
      takes_names: whether there are arguments beside the flags, such as names of files; `main` is called with them.
    """

    def checked(arguments: list[str]) -> None:
        if len(arguments) > 1 and not takes_names:
            raise app.UsageError(f"unknown argument {arguments[1]!r} (flags look like --name=value)")
        if not flags.FLAGS["verbosity"].present:
            logging.set_verbosity(logging.WARNING)  # what we have to say, `say` says
        try:
            main(*arguments[1:])
        except InputError as error:
            say(f"error: {error}")
            sys.exit(1)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            say(f"error: {error}. Nothing that was complete is lost; mend that and run again.")
            sys.exit(1)
        except KeyboardInterrupt:
            say("\nInterrupted.")
            sys.exit(_INTERRUPTED)

    _present_as_main(sys.modules[main.__module__])
    flags.mark_flags_as_required(required)
    app.run(checked)


def _present_as_main(module: ModuleType) -> None:
    """Lets `--help` and `flag_values` find the program's text and flags, also where an installed command imports it."""
    sys.modules["__main__"].__doc__ = module.__doc__
    for flag in flags.FLAGS.get_key_flags_for_module(module):
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flag)


def say(message: str) -> None:
    """Prints a message for the user to standard error, where it doesn't mix with results."""
    print(message, file=sys.stderr, flush=True)


def typed_lines() -> Iterator[str]:
    """The lines of the standard input, without their ends: UTF-8 whatever the locale, its errors replaced."""
    return (line.decode("utf-8", errors="replace").rstrip("\r\n") for line in sys.stdin.buffer)


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collects SIGTERMs, and the first Ctrl-C, instead of dying of them; the list is empty until one comes."""
    received: list[int] = []

    def receive(number: int, frame: object) -> None:
        received.append(number)
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, previous[signal.SIGINT])
            say("\nStopping after this step. Press Ctrl-C again to stop at once, without saving.")

    previous = {number: signal.signal(number, receive) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def flag_values() -> dict[str, object]:
    """The values of the program's own flags, by name."""
    return {flag.name: flag.value for flag in flags.FLAGS.get_key_flags_for_module(sys.argv[0])}
