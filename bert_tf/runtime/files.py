"""Reads and writes files. Errors name the bad file, and an output appears only when it is complete.

Every path may be local or a URL such as `gs://bucket/name`; see `remote`.

If an output is a symbolic link, the file that it points to is replaced.

An output is first written to a temporary file, which is locked. The temporary name is the output's name plus `.tmp-`
and a number. After a kill, the next program that writes the same output reuses the temporary name. For URLs, temporary
names are random. After a kill, remove these files yourself.
"""

import bz2
import contextlib
import errno
import glob
import gzip
import itertools
import json
import lzma
import os
import re
import secrets
import shutil
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import IO, TypeVar

from bert_tf.runtime import dry_run
from bert_tf.runtime.errors import InputError as InputError, explanation
from bert_tf.runtime.storage import first_bytes, remote
from bert_tf.runtime.storage.output_checks import (
    kind_of as kind_of,
    lock,
    require_expanded,
    target_of as target_of,
)
from bert_tf.runtime.storage.remote import is_remote as is_remote

T = TypeVar("T")
_DECOMPRESS = {"gzip": gzip.decompress, "bzip2": bz2.decompress, "xz": lzma.decompress}


def resolved(path: str) -> str:
    """Returns an absolute local path without symbolic links; URLs are unchanged."""
    return path if is_remote(path) else os.path.realpath(path)


def real_path(path: str) -> str:
    """Returns the same text for all names of a local path or local file prefix; other names are unchanged."""
    return resolved(path) if is_remote(path) or glob.glob(glob.escape(path) + "*") else path


def open_file(path: str, mode: str = "r", *, buffering: int = -1) -> IO:
    """Opens a local or remote file. Text is UTF-8; line ends are not converted.

    Args:
      path: the file.
      mode: as for `open`.
      buffering: as for `open`, for local files that are not text.
    """
    if not mode.startswith("r"):
        dry_run.end()
    if is_remote(path):
        return remote.open_file(path, mode)
    if "b" in mode:
        return open(path, mode, buffering)
    return open(path, mode, encoding="utf-8", newline="")


def fills_cache() -> contextlib.AbstractContextManager[None]:
    """Returns a decorator for functions that write to a cache. A cache is not an output, so a dry run writes it too."""
    return dry_run.guard(False)


def exists(path: str) -> bool:
    """Returns True if the path is a file or a directory."""
    return remote.call("exists", path) if is_remote(path) else os.path.exists(path)


def is_directory(path: str) -> bool:
    """Returns True if the path is a directory."""
    return remote.call("isdir", path) if is_remote(path) else os.path.isdir(path)


def size(path: str) -> int:
    """Returns the size of a file in bytes."""
    return remote.call("stat", path).length if is_remote(path) else os.stat(path).st_size


def stamp(path: str) -> tuple[int, int] | None:
    """Returns the size of a file in bytes and its modification time in ns; None if the file does not exist.

    Compare two stamps to find out whether a file has changed.
    """
    if not exists(path):
        return None
    status = remote.call("stat", path) if is_remote(path) else os.stat(path)
    return (status.length, status.mtime_nsec) if is_remote(path) else (status.st_size, status.st_mtime_ns)


def sync(path: str) -> None:
    """Flushes a local file, or the list of names in a local directory, to the disk so that it survives a power loss."""
    if is_remote(path):
        return
    descriptor = os.open(path or ".", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems can't sync directories
            raise
    finally:
        os.close(descriptor)


def load_by_plain_name(load: Callable[[str], T], directory: str, name: str = "") -> T:
    r"""Returns `load(PATH)` for a directory, or for a name in it. The object may read the files as long as it exists.

    The path has no `[`, `]` or `\`, which TensorFlow's readers interpret as a pattern. A symbolic link replaces them.
    """
    if is_remote(directory) or not re.search(r"[][\\]", directory):
        return load(os.path.join(directory, name) if name else directory)
    with contextlib.ExitStack() as stack:
        link = os.path.join(stack.enter_context(tempfile.TemporaryDirectory(prefix="bert-tf-")), "directory")
        os.symlink(os.path.abspath(directory), link)
        loaded = load(os.path.join(link, name))
        weakref.finalize(loaded, stack.pop_all().close)
    return loaded


def list_directory(path: str) -> list[str]:
    """Returns the names in a directory, sorted."""
    return sorted(remote.call("listdir", path) if is_remote(path) else os.listdir(path))


def make_directory(path: str) -> None:
    """Creates a directory and its parents; does nothing if the directory exists. Ends a dry run in both cases.

    Raises:
      InputError: if the path begins with "~".
    """
    require_expanded(path)
    dry_run.end()
    if is_remote(path):
        remote.call("makedirs", path)
    elif path:
        os.makedirs(path, exist_ok=True)


def remove(path: str) -> None:
    """Removes a file, or a directory and everything in it; does nothing if it does not exist."""
    dry_run.end()
    if is_remote(path):
        if remote.call("exists", path):
            remote.call("rmtree" if is_directory(path) else "remove", path)
    elif os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


def rename(source: str, target: str) -> None:
    """Renames a file, replacing any existing target. On a local disk this is atomic."""
    if is_remote(target):
        remote.call("rename", source, target, overwrite=True)
    else:
        os.replace(source, target)


def copy(source: str, target: str) -> None:
    """Copies a file. The target appears complete or not at all."""
    with open_file(source, "rb") as reader, replacing(target, "wb") as writer:
        shutil.copyfileobj(reader, writer)


def move(source: str, target: str) -> None:
    """Moves a local file to a path on any disk, or to a URL. The target appears complete or not at all."""
    target = target_of(target)
    make_directory(os.path.dirname(target))
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
    """Returns `path` after checking that it is a non-empty file.

    Args:
      path: the file.
      flag_name: the flag that gave the path, for messages; for example `--vocab_file`.
      may_be_empty: whether an empty file is accepted.

    Raises:
      InputError: if the path is missing, a directory, or an empty file.
    """
    if not path:
        raise InputError(f"{flag_name} is required. Pass it.")
    if not exists(path):
        raise InputError(f"{flag_name}: there is no file {path!r}. Check the path for a typing error.")
    kind = ("a directory" if is_directory(path) else "") if is_remote(path) else kind_of(path)
    if kind:
        raise InputError(f"{flag_name}: {path!r} is {kind}. Pass a file.")
    if size(path) == 0 and not may_be_empty:
        raise InputError(f"{flag_name}: the file {path!r} is empty. Pass another file.")
    return path


def find(pattern: str) -> list[str]:
    """Returns the sorted files and directories that match a glob pattern."""
    if exists(pattern):  # a file name may contain glob characters
        return [pattern]
    return sorted(remote.call("glob", pattern) if is_remote(pattern) else glob.glob(pattern, recursive=True))


def read_bytes(path: str, flag_name: str) -> bytes:
    """Reads a file, and unpacks it if it is compressed.

    Raises:
      InputError: if the file is missing, empty or damaged, or is an archive.
    """
    with open_file(require_file(path, flag_name), "rb") as reader:
        data = reader.read()
    name = first_bytes.compression(data)
    try:
        if name in _DECOMPRESS:
            data = _DECOMPRESS[name](data)
            name = first_bytes.compression(data)
    except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        raise InputError(f"{flag_name}: {path} can't be unpacked ({error}). Download it again.") from None
    if name:
        raise InputError(f"{flag_name}: {path} is {name} data. Unpack it, or save it as text (a spreadsheet as CSV).")
    return data


def read_text(path: str, flag_name: str) -> str:
    """Reads a UTF-8 or UTF-16 text file, which may be compressed, without its byte-order mark.

    If all line ends are CR, they become LF.

    Raises:
      InputError: if the file is missing, empty, not text, or contains invalid bytes; the message names the line.
    """
    data = read_bytes(path, flag_name)
    if name := first_bytes.table(data):
        raise InputError(f"{flag_name}: {path} is a {name} table. Use a text file.")
    encoding = first_bytes.encoding(data)
    try:
        text = data.decode(encoding)
        return text if "\n" in text else text.replace("\r", "\n")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].decode(encoding, errors="ignore").count("\n") + 1
        name = "UTF-8" if encoding == "utf-8-sig" else "UTF-16"
        raise InputError(
            f"{path}, line {line}: byte 0x{error.object[error.start]:02x} is not {name}. "
            "Convert the file (for example with `iconv -t UTF-8`)."
        ) from None


def lines_of(text: str) -> list[str]:
    """Returns the lines of a text from `read_text`, without LF and CR LF."""
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def claims(descriptor: int, name: str) -> bool:
    """Locks an open local file. Returns False if another program has locked it, or renamed it after it was opened."""
    return lock(descriptor) and os.path.exists(name) and os.path.samestat(os.fstat(descriptor), os.stat(name))


@contextlib.contextmanager
def _temporary(path: str, is_directory: bool) -> Iterator[str]:
    """Yields the name of a temporary file, or of an empty temporary directory, that no other running program uses."""
    if is_remote(path):
        yield f"{path}.tmp-{secrets.token_hex(4)}"
        return
    for number in itertools.count():
        name = f"{path}.tmp-{number}"
        if is_directory:
            make_directory(name)
        descriptor = os.open(name, os.O_RDONLY if is_directory else os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if claims(descriptor, name):
                for leftover in os.listdir(name) if is_directory else ():
                    remove(os.path.join(name, leftover))
                yield name
                return
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _completing(path: str, is_directory: bool) -> Iterator[str]:
    """Yields a temporary name, which is renamed to `path` when the `with` block ends without an error."""
    make_directory(os.path.dirname(path))
    with _temporary(path, is_directory) as name:
        try:
            yield name
            (remote.move_directory if is_directory and is_remote(path) else rename)(name, path)
            sync(os.path.dirname(path))
        except BaseException as error:
            remove(name)
            if isinstance(error, OSError) and is_directory and error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                problem = "another program has just created this directory"
                raise InputError(f"{path}: {problem}. Use another directory.") from None
            if not isinstance(error, InputError):
                error.add_note(f"while writing {path}")
            if not isinstance(error, InputError | OSError) and (message := explanation(error)):
                raise InputError(message) from None
            raise


@contextlib.contextmanager
def replacing(path: str, mode: str = "w") -> Iterator[IO]:
    """Opens a temporary file and renames it to `path` when the `with` block ends without an error.

    Until then, and after an error or a kill, `path` keeps its old content. On return, the new content is on the disk.

    Raises:
      InputError: if `path` exists and is not a regular file.
    """
    with _completing(target_of(path), is_directory=False) as name, open_file(name, mode) as writer:
        yield writer
        if not is_remote(path):
            writer.flush()
            os.fsync(writer.fileno())


@contextlib.contextmanager
def replacing_directory(path: str) -> Iterator[str]:
    """Yields the name of a temporary directory, which is renamed to `path` when the `with` block ends without an error.

    Until then, and after an error or a kill, `path` does not exist, or is still an empty directory.
    """
    path = path.rstrip("/")
    is_link = not is_remote(path) and os.path.islink(path)
    with _completing(resolved(path) if is_link else path, is_directory=True) as name:
        yield name


def write_json(path: str, value: Mapping | list) -> None:
    """Writes a JSON file. NumPy numbers are written as Python numbers."""
    with replacing(path) as writer:
        writer.write(json.dumps(value, indent=2, ensure_ascii=False, default=lambda number: number.item()) + "\n")
