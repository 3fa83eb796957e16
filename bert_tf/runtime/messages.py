"""Messages for the user, which programs and the Python API print to standard error."""

import contextlib
import contextvars
import functools
import sys
from collections.abc import Iterator

from bert_tf.runtime import errors

# See `verbosity`.
_verbosity = contextvars.ContextVar("verbosity", default=1)


@contextlib.contextmanager
def verbosity(level: int) -> Iterator[None]:
    """Sets the output of a `with` block: 0 for warnings, 1 for messages and progress bars, 2 for messages only."""
    token = _verbosity.set(level)
    try:
        yield
    finally:
        _verbosity.reset(token)


def shows_progress() -> bool:
    """Returns whether progress bars are shown. See `verbosity`."""
    return _verbosity.get() == 1


def say(message: str) -> None:
    """Prints a message for the user to standard error, if there is one. Standard output is reserved for results."""
    if sys.stderr and (_verbosity.get() or message.startswith("Warning: ")):
        print(errors.spelling.get()(message), file=sys.stderr, flush=True)


@functools.cache
def say_once(message: str) -> None:
    """Prints a message for the user, unless this process has printed it before."""
    say(message)
