"""Reading and writing files so that bad input is named and outputs are whole or absent.

Every path may be local or a URL such as `gs://bucket/name`. URLs go through `tf.io.gfile`, which is
imported only when one is met, so that the text-only modules stay free of TensorFlow.
"""

import contextlib
import errno
import glob
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from typing import IO, Any


class InputError(ValueError):
    """Something the user gave (a file, a line, a flag) can't be used.

    The message names it, says what was found and what was expected, and what to do. The programs print it
    as one line and exit with status 1.
    """


def is_remote(path: str) -> bool:
    """True for URLs (`gs://...`), which only `tf.io.gfile` can open."""
    return "://" in path


def _gfile() -> Any:
    import tensorflow as tf

    return tf.io.gfile


def open_file(path: str, mode: str = "r") -> IO:
    """Opens a local or remote file. Text is UTF-8, and its line ends are left as they are."""
    if is_remote(path):
        return _gfile().GFile(path, mode)
    if "b" in mode:
        return open(path, mode)
    return open(path, mode, encoding="utf-8", newline="")


def exists(path: str) -> bool:
    """True if the path is a file or a folder."""
    return _gfile().exists(path) if is_remote(path) else os.path.exists(path)


def is_folder(path: str) -> bool:
    """True if the path is a folder."""
    return _gfile().isdir(path) if is_remote(path) else os.path.isdir(path)


def size(path: str) -> int:
    """A file's bytes."""
    return _gfile().stat(path).length if is_remote(path) else os.stat(path).st_size


def list_folder(path: str) -> list[str]:
    """The names in a folder, sorted."""
    return sorted(_gfile().listdir(path) if is_remote(path) else os.listdir(path))


def make_folder(path: str) -> None:
    """Makes a folder and its parents; fine if it exists."""
    if is_remote(path):
        _gfile().makedirs(path)
    elif path:
        os.makedirs(path, exist_ok=True)


def remove(path: str) -> None:
    """Removes a file, if it is there."""
    if is_remote(path):
        if _gfile().exists(path):
            _gfile().remove(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


def rename(source: str, target: str) -> None:
    """Moves a file over another one; atomic on a local disk."""
    if is_remote(target):
        _gfile().rename(source, target, overwrite=True)
    else:
        os.replace(source, target)


def copy(source: str, target: str) -> None:
    """Copies a file, whole or not at all."""
    with open_file(source, "rb") as reader, replacing(target, "wb") as writer:
        shutil.copyfileobj(reader, writer)


def move(source: str, target: str) -> None:
    """Moves a local file, to another disk or a URL if need be; `target` is whole at any time."""
    make_folder(os.path.dirname(target))
    if not is_remote(target):
        try:
            rename(source, target)
            return
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
    copy(source, target)
    remove(source)


def require_file(path: str, flag_name: str, may_be_empty: bool = False) -> str:
    """Returns `path` if it is a file that can be read, and has bytes in it.

    Args:
      path: the file.
      flag_name: how the user knows it, for example `--vocab_file`.
      may_be_empty: whether it may have none.

    Raises:
      InputError: if it is missing, a folder, or empty.
    """
    if not path:
        raise InputError(f"{flag_name} is needed, but it is not given.")
    if not exists(path):
        raise InputError(f"{flag_name}: there is no file {path!r}. Check the path for a typing error.")
    if is_folder(path):
        raise InputError(f"{flag_name}: {path!r} is a folder, but a file is expected.")
    if size(path) == 0 and not may_be_empty:
        raise InputError(f"{flag_name}: the file {path!r} is empty.")
    return path


def check_output_file(path: str, flag_name: str) -> None:
    """Raises an InputError if a file can't be written because a folder has its name; best called before any work.

    Args:
      path: the file.
      flag_name: how the user knows it, for example `--output_file`.
    """
    if is_folder(path):
        raise InputError(f"{flag_name}: {path} is a folder, but the name of a file is expected.")


def expand_patterns(patterns: str | list[str], flag_name: str) -> list[str]:
    """The files that a comma-separated list of names and globs stands for.

    As the release does, each pattern's matches are listed in turn; a pattern's matches are sorted here, so
    that the result does not depend on the file system.

    Args:
      patterns: the flag's value, or its parts.
      flag_name: how the user knows it, for example `--input_file`.

    Raises:
      InputError: if nothing is given, or a pattern matches no file.
    """
    parts = patterns.split(",") if isinstance(patterns, str) else list(patterns)
    parts = [part.strip() for part in parts if part.strip()]
    if not parts:
        raise InputError(f"{flag_name} is needed, but it is not given.")
    found: list[str] = []
    for part in parts:
        if is_remote(part):
            matches = sorted(_gfile().glob(part))
        elif os.path.exists(part):  # a name that holds glob characters is still a name
            matches = [part]
        else:
            matches = sorted(glob.glob(part, recursive=True))
        if not matches:
            raise InputError(f"{flag_name}: {part!r} matches no file. Check the path, and quote globs in the shell.")
        found.extend(matches)
    return found


def read_text(path: str, flag_name: str) -> str:
    """A whole UTF-8 text file.

    Raises:
      InputError: if the file is missing or empty, or holds bytes that are not UTF-8 (names the line).
    """
    with open_file(require_file(path, flag_name), "rb") as reader:
        data = reader.read()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{flag_name}: {path}, line {line}: byte 0x{data[error.start]:02x} is not UTF-8. "
            "Convert the file (for example with `iconv -t UTF-8`)."
        ) from None


def read_json(path: str, flag_name: str) -> Any:
    """A whole JSON file.

    Raises:
      InputError: if it can't be read, or is not JSON (names line and column).
    """
    text = read_text(path, flag_name)
    try:
        return json.loads(text.removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        raise InputError(
            f"{flag_name}: {path}, line {error.lineno}, column {error.colno}: not valid JSON ({error.msg})."
        ) from None
    except RecursionError:
        raise InputError(f"{flag_name}: {path}: nested thousands deep, which no file that is read here is.") from None


@contextlib.contextmanager
def replacing(path: str, mode: str = "w") -> Iterator[IO]:
    """Opens a temporary file that takes the place of `path` when the block ends without an error.

    Until then, and after an error or a kill, `path` is as it was.
    """
    make_folder(os.path.dirname(path))
    temporary = temporary_name(path)
    try:
        with open_file(temporary, mode) as writer:
            yield writer
            if not is_remote(path):
                writer.flush()
                os.fsync(writer.fileno())
        rename(temporary, path)
    except BaseException:
        remove(temporary)
        raise


@contextlib.contextmanager
def replacing_folder(path: str) -> Iterator[str]:
    """Gives the name of a temporary folder that becomes `path` when the block ends without an error.

    Until then, and after an error or a kill, there is no such folder (or an empty one, as it was).
    """
    path = path.rstrip("/")
    make_folder(os.path.dirname(path))
    temporary = temporary_name(path)
    try:
        yield temporary
        rename(temporary, path)
    except BaseException:
        remove_folder(temporary)
        raise


def remove_folder(path: str) -> None:
    """Removes a folder with all that is in it; fine if it isn't there."""
    if is_remote(path):
        if _gfile().exists(path):
            _gfile().rmtree(path)
    else:
        shutil.rmtree(path, ignore_errors=True)


def temporary_name(path: str) -> str:
    """A name beside `path` that no reader takes for a finished file."""
    return f"{path}.tmp-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def write_json(path: str, value: Mapping | list) -> None:
    """Writes a JSON file, whole or not at all."""
    with replacing(path) as writer:
        writer.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
