"""A layer under everything that writes files: it counts the operations, and at the k-th something happens."""

import builtins
import contextlib
import os
from collections.abc import Callable, Iterator

KILLED = 137
_FUNCTIONS = ("replace", "rename", "remove", "unlink", "rmdir", "mkdir", "makedirs", "fsync", "truncate", "symlink")


class Operations:
    """Counts operations, and calls `happen` at the one with the number `at`, from 1; 0 for none.

    Args:
      at: the number of the operation.
      happen: is called in its place; if it returns, the operation is carried out. It gets a function that carries out
        a part of it, as a disk or a kill may do.
    """

    def __init__(self, at: int = 0, happen: Callable[[Callable[[], object]], None] = lambda part: None) -> None:
        self.count = 0
        self._at = at
        self._happen = happen

    def reach(self, part: Callable[[], object]) -> None:
        self.count += 1
        if self.count == self._at:
            self._happen(part)


class _Writer:
    """A file whose writes are operations."""

    def __init__(self, file, operations: Operations) -> None:
        self._file, self._operations = file, operations

    def write(self, data):
        def write_half() -> None:
            self._file.write(data[: len(data) // 2])
            self._file.flush()

        self._operations.reach(write_half)
        return self._file.write(data)

    def writelines(self, lines) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        self._file.close()

    def __iter__(self):
        return iter(self._file)


@contextlib.contextmanager
def under(operations: Operations) -> Iterator[None]:
    """Counts the operations of the block. TensorFlow's writer of checkpoints is one operation."""
    import tensorflow as tf

    def counted(function):
        def call(*arguments, **options):
            operations.reach(lambda: None)
            return function(*arguments, **options)

        return call

    def open_counted(path, mode="r", *arguments, **options):
        if not set(mode) & set("wax+"):
            return opened(path, mode, *arguments, **options)
        operations.reach(lambda: None)
        return _Writer(opened(path, mode, *arguments, **options), operations)

    opened, saved = builtins.open, tf.raw_ops.SaveV2
    before = {name: getattr(os, name) for name in _FUNCTIONS}
    builtins.open, tf.raw_ops.SaveV2 = open_counted, counted(saved)
    for name, function in before.items():
        setattr(os, name, counted(function))
    try:
        yield
    finally:
        builtins.open, tf.raw_ops.SaveV2 = opened, saved
        for name, function in before.items():
            setattr(os, name, function)


def kill(part: Callable[[], object]) -> None:
    """Ends this process as SIGKILL does: nothing is cleaned up, and what is in buffers is lost."""
    part()
    os._exit(KILLED)


def failing(number: int) -> Callable[[Callable[[], object]], None]:
    """Lets an operation fail with an error of the system."""

    def fail(part: Callable[[], object]) -> None:
        part()
        raise OSError(number, os.strerror(number), "the disk")

    return fail
