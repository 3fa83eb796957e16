"""Dry runs, which check a run up to its first output. The functions of `files` end a dry run before they write."""

import contextlib
from collections.abc import Iterator

from bert_tf.runtime.messages import say

_is_on = False  # not a context variable, because all threads of the process must see the value


class _DryRunEnds(BaseException):
    """Ends a step of a dry run. It is not an `Exception`, because readers and loggers catch these."""


def is_on() -> bool:
    """Returns True in a dry run."""
    return _is_on


@contextlib.contextmanager
def guard(is_on: bool) -> Iterator[None]:
    """Makes the `with` block a dry run, or a block that may write files even in a dry run, such as caches.

    If the dry run ends in the block, the program continues after it. Prints a message if there was no error.
    """
    global _is_on
    before, _is_on = _is_on, is_on
    try:
        with step():
            yield
        if is_on:
            say("Dry run: no errors were found. Nothing was written.")
    finally:
        _is_on = before


@contextlib.contextmanager
def step() -> Iterator[None]:
    """Makes the `with` block a step. If a dry run ends in the block, the program continues after the block."""
    with contextlib.suppress(_DryRunEnds):
        yield


def end(message: str = "") -> None:
    """Ends the current step of a dry run, and prints the message. Does nothing in other runs.

    Call this function before an output, before results are computed, and after a training whose weights are needed.
    """
    if _is_on:
        if message:
            say(message)
        raise _DryRunEnds
