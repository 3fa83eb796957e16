"""What an output may be, for all programs: a regular file, or nothing yet.

A symbolic link is followed, and the file that it points to is replaced, in that file's folder. Devices, pipes, sockets
and folders are never replaced, and neither is a file that the program reads. Unfinished outputs have names of their
own, by which the next program finds and removes what a killed one has left.
"""

import contextlib
import functools
import os
import re
import secrets
import shutil
import socket
import stat
import time
import zlib
from collections.abc import Iterable, Mapping

from bert_tf.runtime.errors import InputError

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe (FIFO)",
    stat.S_IFSOCK: "a socket",
}
_TEMPORARY = re.compile(r".*\.tmp-(\d+)-([0-9a-f]{4})[0-9a-f]{4}")
# Leftovers of other machines, whose processes can't be looked up, are removed when they are older.
_SECONDS_OF_FOREIGN_LEFTOVERS = 7 * 24 * 3600.0
# The unfinished outputs of this process.
_unfinished: set[str] = set()


def is_remote(path: str | os.PathLike[str]) -> bool:
    """True for URLs (`gs://...`), which only `tf.io.gfile` can open."""
    return "://" in os.fspath(path)


def kind_of(path: str) -> str:
    """What a local path is, for messages, if it is neither a regular file nor nothing: "a folder"; otherwise ""."""
    try:
        kind = stat.S_IFMT(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    return "" if kind == stat.S_IFREG else _KINDS.get(kind, "no regular file")


def target_of(path: str) -> str:
    """The path at which an output is replaced or made: the path itself or, if it is a link, what the link points to.

    Raises:
      InputError: if there is something else than a regular file.
    """
    if is_remote(path):
        return path
    kind = kind_of(path)
    if kind:
        raise InputError(
            f"{path} is {kind}, but the name of a regular file, or of a file that doesn't exist yet, is expected. "
            "Use another name for the output."
        )
    return os.path.realpath(path) if os.path.islink(path) else path


def check_output_files(paths: Iterable[str], flag_name: str, inputs: Mapping[str, Iterable[str]] | None = None) -> None:
    """Checks that outputs can be written, and would not destroy anything. Call it before any work is done.

    Args:
      paths: the files.
      flag_name: the flag that gave the paths, for messages; for example `--output_file`.
      inputs: the files that the program reads, by the flags that gave them.

    Raises:
      InputError: if one is a folder, a device or a pipe, or one of the inputs; or if its folder can't be written to, or
        is on a full disk.
    """
    read = {_identity(name): f"{name} of {flag}" for flag, names in (inputs or {}).items() for name in names}
    for path in paths:
        if is_remote(path):
            import tensorflow as tf

            if tf.io.gfile.isdir(path):
                raise InputError(f"{flag_name}: {path} is a folder, but the name of a file is expected.")
        else:
            try:
                target = target_of(path)
            except InputError as error:
                raise InputError(f"{flag_name}: {error}") from None
            _check_folder(os.path.dirname(os.path.abspath(target)), f"{flag_name}: {path} can't be written")
        if _identity(path) in read:
            raise InputError(
                f"{flag_name}: {path} is also the input {read[_identity(path)]}, which would be lost. Use another name "
                "for the output."
            )


@functools.lru_cache(maxsize=1)
def _check_folder(folder: str, problem: str) -> None:
    while not os.path.lexists(folder):  # it will be made
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        raise InputError(f"{problem}: {folder} is a file, but a folder is expected. Use another name.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{problem}: no permission to make files in {folder}. Change it, or use another folder.")
    if shutil.disk_usage(folder).free == 0:
        raise InputError(f"{problem}: the disk of {folder} is full. Free some space, or use another disk.")


def bytes_in(folder: str) -> int:
    """The size of all files in a local folder and those inside it; 0 if there is none."""
    found = 0
    for inside, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # a program that writes there has removed it
                found += os.lstat(os.path.join(inside, name)).st_size
    return found


def check_room(folder: str, needed: float, purpose: str) -> None:
    """Checks that the disk of a local folder has room.

    Args:
      folder: the folder.
      needed: the bytes that will be written there.
      purpose: the flag that gave the folder, and what will be written, for messages.

    Raises:
      InputError: if there is less; says how much is needed, and how much is free.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise InputError(
            f"{purpose}: the disk of {folder} is full: {needed / 1e9:.2f} GB are needed, but {free / 1e9:.2f} GB are "
            "free. Make room, and run it again."
        )


def _identity(path: str) -> object:
    """The same for all names of a file."""
    if is_remote(path) or not os.path.exists(path):
        return path
    found = os.stat(path)
    return found.st_dev, found.st_ino


def temporary_name(path: str) -> str:
    """A name in the same folder as `path`, which no reader mistakes for a finished file.

    The first call for a folder removes what killed processes have left in it.
    """
    name = f"{path}.tmp-{os.getpid()}-{_machine()}{secrets.token_hex(2)}"
    if not is_remote(path):
        _unfinished.add(os.path.abspath(name))
        _remove_leftovers(os.path.dirname(os.path.abspath(path)), os.getpid())
    return name


def is_unfinished(path: str) -> bool:
    """Whether a name is that of an output that a killed program has left; see `temporary_name`."""
    return _TEMPORARY.fullmatch(os.path.basename(path.rstrip("/"))) is not None


@functools.cache
def _machine() -> str:
    """Four hexadecimal digits that differ between machines, and between containers, which number their processes."""
    namespace = os.readlink("/proc/self/ns/pid") if os.path.islink("/proc/self/ns/pid") else ""
    return f"{zlib.crc32(f'{socket.gethostname()} {namespace}'.encode()) & 0xFFFF:04x}"


@functools.cache
def _remove_leftovers(folder: str, process: int) -> None:
    """Removes the unfinished outputs of processes that don't live any more, once in a process."""
    if not os.path.isdir(folder):
        return
    for name in os.listdir(folder):
        found, path = _TEMPORARY.fullmatch(name), os.path.join(folder, name)
        if found and path not in _unfinished and _is_abandoned(path, int(found.group(1)), found.group(2) == _machine()):
            if os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
            elif os.path.lexists(path):
                os.remove(path)


def _is_abandoned(path: str, process: int, is_ours: bool) -> bool:
    if is_ours:
        return process == os.getpid() or not is_alive(process)
    return os.path.lexists(path) and time.time() - os.lstat(path).st_mtime > _SECONDS_OF_FOREIGN_LEFTOVERS


def is_alive(process: int) -> bool:
    """Whether a process of this machine, by its number, has not ended."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it belongs to another user
        return True
    return True
