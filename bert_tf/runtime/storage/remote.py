"""TensorFlow's file systems: URLs such as `gs://bucket/name`.

TensorFlow is imported only when a URL is used, because text processing must work without it.
"""

import io
import os
import secrets
from typing import IO, Any

from bert_tf.runtime.errors import InputError


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Returns True for URLs, which only `tf.io.gfile` can open."""
    return "://" in os.fspath(path)


def call(function: str, path: str, *arguments: str, **options: Any) -> Any:
    """Calls a function of `tf.io.gfile` on a URL and returns its result.

    Raises:
      InputError: if TensorFlow has no file system for the URL, or the server can't be reached.
    """
    import tensorflow as tf

    try:
        return getattr(tf.io.gfile, function)(path, *arguments, **options)
    except (tf.errors.UnimplementedError, tf.errors.FailedPreconditionError) as error:
        reason = error.message.splitlines()[0].rstrip(".")
        raise InputError(f"{reason}. Check the URL, the network and the login.", path) from None


def open_file(path: str, mode: str) -> IO:
    """Opens the file at a URL, with all methods of a local file."""
    raw = _RawFile(path, mode)
    binary = io.BufferedReader(raw) if raw.readable() else io.BufferedWriter(raw)
    return binary if "b" in mode else io.TextIOWrapper(binary, encoding="utf-8", newline="")


def check_directory(directory: str, flag_name: str) -> None:
    """Checks that files can be created in a directory, or in its nearest existing parent. Leaves no files.

    Raises:
      InputError: if a test file can't be written.
    """
    import tensorflow as tf

    directory = directory.rstrip("/")
    name, parent = f"{directory}/.tmp-{secrets.token_hex(4)}", directory.rpartition("/")[0]
    try:
        with tf.io.gfile.GFile(name, "wb") as writer:
            writer.write(b"x")
        tf.io.gfile.remove(name)
    except tf.errors.OpError as error:
        if not isinstance(error, tf.errors.NotFoundError) or not is_remote(parent):
            reason = error.message.splitlines()[0].rstrip(".").replace(name, directory)
            message = f"{directory}: {reason}. Check the URL, the network and the login."
            raise InputError(message, flag_name) from None
        check_directory(parent, flag_name)


def move_directory(source: str, target: str) -> None:
    """Moves the files of a directory one by one, inner directories first."""
    for directory, _, names in call("walk", source, topdown=False):
        inside = target + directory.rstrip("/").removeprefix(source)
        call("makedirs", inside)
        for name in names:
            call("rename", f"{directory.rstrip('/')}/{name}", f"{inside}/{name}", overwrite=True)
    call("rmtree", source)


class _RawFile(io.RawIOBase):
    """A `tf.io.gfile.GFile` with the methods of Python's raw files."""

    def __init__(self, path: str, mode: str) -> None:
        super().__init__()
        self._is_read = "r" in mode
        self._file = call("GFile", path, mode[0] + "b")

    def readable(self) -> bool:
        return self._is_read

    def writable(self) -> bool:
        return not self._is_read

    def seekable(self) -> bool:
        return self._is_read

    def readinto(self, buffer: memoryview) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def write(self, data: memoryview) -> int:
        self._file.write(bytes(data))
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._file.seek(offset, whence)
        return self._file.tell()

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._file.close()
