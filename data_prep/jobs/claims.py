"""Tasks on several machines share jobs through a folder, without knowing of one another.

A task claims a job with a file beside the job's result. Each task counts in a file of its own, its heartbeat; a task
whose heartbeat stands still for too long is gone, and others take its claims. Only the clock of the one who looks is
needed, so the clocks of the machines may differ. A task that was only slow does no harm: results are written whole,
and are the same bytes whoever writes them.

The first task writes down what is being made. Tasks that were given anything else are refused with the difference. A
task that fails writes why, and ends the others.
"""

import contextlib
import dataclasses
import functools
import json
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from bert_tf.runtime import files, json_files
from bert_tf.runtime.files import InputError
from data_prep.examples.shards import fingerprint

_HEARTBEAT = ".heartbeat"
_FAILURE = re.compile(r"failed-[^/]*\.json")
_BEATS_PER_TIMEOUT = 6
_CHECK_SECONDS = 0.5
_NAMED_DIFFERENCES = 5


class Claims:
    """The claims of a task that works alone: every job is its own."""

    is_shared = False
    # The place at which to begin to look for jobs, as a share of all.
    begin = 0.0

    def take(self, path: str) -> bool:
        """Claims a job; returns False if it is another task's."""
        return True

    def is_mine(self, path: str) -> bool:
        """Returns False if another task has taken a claimed job."""
        return True

    def release(self, path: str) -> None:
        """Gives back a claim."""

    def check(self) -> None:
        """Raises an error if the work was ended by another task."""


ALONE = Claims()


class FinishedByOthers(Exception):
    """Another task has finished all of the work."""


@dataclasses.dataclass(frozen=True)
class SharedWork:
    """What tasks make together.

    Attributes:
      name: the name of what is made, the same for all tasks.
      settings: everything that decides it, as for JSON; "inputs" is a list of the contents of the input files.
      inputs: the paths of these files, as this task knows them.
      work_folder: the folder of the work, for the messages of tasks that failed.
      tasks_folder: the folder of the tasks' heartbeats.
      finished_file: a file that is there when the work is finished.
    """

    name: str
    settings: Mapping[str, Any]
    inputs: Sequence[str]
    work_folder: str
    tasks_folder: str
    finished_file: str

    @functools.cached_property
    def fingerprint(self) -> str:
        """What is the same for tasks with the same settings."""
        return fingerprint(self.settings)

    def refusal(self, theirs: Mapping[str, Any], own: Mapping[str, Any]) -> str:
        """Returns the message for a task whose settings differ from those of the others."""
        found = [*_differences(theirs, own), *self._differing_inputs(theirs["inputs"], own["inputs"])]
        more = f"; and {len(found) - _NAMED_DIFFERENCES} more" * (len(found) > _NAMED_DIFFERENCES)
        return (
            f"--work_dir: other tasks make {self.name} from other text or with other flags: "
            f"{'; '.join(found[:_NAMED_DIFFERENCES])}{more}. Give all tasks the same, or this one another --work_dir."
        )

    def _differing_inputs(self, theirs: Sequence, own: Sequence) -> Iterator[str]:
        for path, their, mine in zip(self.inputs, theirs, own, strict=False):
            if their != mine:
                sizes = f"{their[0]} bytes there, {mine[0]} here"
                yield f"{path}: {sizes if their[0] != mine[0] else 'the same size, but other content or format'}"


def _differences(theirs: Mapping[str, Any], own: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name in sorted({*theirs, *own}):
        their, mine = theirs.get(name), own.get(name)
        if isinstance(their, dict) and isinstance(mine, dict):
            yield from _differences(their, mine, f"{prefix}{name}.")
        elif their != mine and name not in ("inputs", "input_sha256"):
            yield f"{prefix}{name} is {their} there, {mine} here"


class SharedClaims(Claims):
    """The claims of one task among several. As a context manager, it joins them and leaves them.

    Args:
      shared: what the tasks make and where.
      timeout: seconds after which a task without a heartbeat is gone.
      begin: a number from 0 to 1; tasks that begin at different places rarely meet.
    """

    is_shared = True

    def __init__(self, shared: SharedWork, timeout: float = 60.0, begin: float = 0.0) -> None:
        self.begin = begin
        self._shared = shared
        self._timeout = timeout
        # The heartbeats of the tasks that make a thing of this name are in one folder.
        self._folder = os.path.join(shared.tasks_folder, shared.name)
        self.name = f"{shared.name}/{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._manifest = os.path.join(self._folder, "manifest.json")
        self._held: set[str] = set()
        # For each task its heartbeat, when it was first seen, and whether another one was seen before.
        self._seen: dict[str, tuple[str | None, float, bool]] = {}
        self._ended = threading.Event()
        self._heart = threading.Thread(target=self._beat, daemon=True)
        self._checked = 0.0

    def __enter__(self) -> "SharedClaims":
        files.make_folder(self._folder)
        self._write_beat(0)
        self._heart.start()
        try:
            self._agree()
        except BaseException:
            self._leave()
            raise
        files.make_folder(self._shared.work_folder)
        self._old_failures = set(self._failures())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After Ctrl-C the others go on, as after a kill.
        if isinstance(error, Exception) and not isinstance(error, (OtherTaskFailed, FinishedByOthers)):
            with contextlib.suppress(OSError):
                name = f"failed-{os.path.basename(self.name)}.json"
                failure = {"task": os.path.basename(self.name), "message": str(error) or kind.__name__}
                files.write_json(os.path.join(self._shared.work_folder, name), failure)
        self._leave()

    def _leave(self) -> None:
        self._ended.set()
        self._heart.join()
        for path in list(self._held):
            self.release(path)
        files.remove(self._heartbeat_of(self.name))
        if files.exists(self._shared.finished_file):
            files.remove(self._manifest)
            with contextlib.suppress(OSError):  # others are still there
                os.rmdir(self._folder)

    def _heartbeat_of(self, task: str) -> str:
        return os.path.join(self._shared.tasks_folder, f"{task}{_HEARTBEAT}")

    def _beat(self) -> None:
        number = 1
        while not self._ended.wait(self._timeout / _BEATS_PER_TIMEOUT):
            with contextlib.suppress(OSError):  # a full disk, or a network that is away for a while
                self._write_beat(number)
            number += 1

    def _write_beat(self, number: int) -> None:
        path = self._heartbeat_of(self.name)
        with open(f"{path}.next", "w") as writer:
            writer.write(f"{self._shared.fingerprint} {number}")
        os.replace(f"{path}.next", path)

    def is_gone(self, task: str) -> bool:
        """Returns True if a task's heartbeat has stood still for too long."""
        return time.monotonic() - self._look_at(task)[1] > self._timeout

    def is_alive(self, task: str) -> bool:
        """Returns True if a task's heartbeat was seen to go on, and is not gone; it may be neither alive nor gone."""
        return self._look_at(task)[2] and not self.is_gone(task)

    def _look_at(self, task: str) -> tuple[str | None, float, bool]:
        beat = _content(self._heartbeat_of(task))
        seen = self._seen.get(task)
        if seen is None or seen[0] != beat:
            self._seen[task] = seen = beat, time.monotonic(), seen is not None and beat is not None
        return seen

    def take(self, path: str) -> bool:
        """Claims a job; returns False if it is another task's that is not gone."""
        try:
            with open(path, "x") as writer:
                writer.write(self.name)
        except FileExistsError:
            owner = _content(path)
            if owner != self.name:
                if owner is None or not self.is_gone(owner):
                    return False
                temporary = files.temporary_name(path)
                with open(temporary, "w") as writer:
                    writer.write(self.name)
                os.replace(temporary, path)
                if not self.is_mine(path):  # another one was quicker
                    return False
        self._held.add(path)
        return True

    def is_mine(self, path: str) -> bool:
        """Returns False if another task has taken a claimed job, because this one seemed to be gone."""
        return _content(path) == self.name

    def release(self, path: str) -> None:
        """Gives back a claim."""
        self._held.discard(path)
        if self.is_mine(path):
            files.remove(path)

    def check(self) -> None:
        """Looks what the other tasks have written.

        Raises:
          FinishedByOthers: if one of them has finished the work.
          OtherTaskFailed: if one of them has failed since this one joined.
        """
        if time.monotonic() - self._checked < _CHECK_SECONDS:
            return
        self._checked = time.monotonic()
        if files.exists(self._shared.finished_file):
            raise FinishedByOthers
        for name in set(self._failures()) - self._old_failures:
            failure = json_files.read(os.path.join(self._shared.work_folder, name), "--work_dir")
            raise OtherTaskFailed(f"another task ({failure['task']}) failed: {failure['message']}")

    def _failures(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return [name for name in os.listdir(self._shared.work_folder) if _FAILURE.fullmatch(name)]
        return []

    def _agree(self) -> None:
        """Makes sure that all tasks that are alive make the same thing.

        Raises:
          InputError: if others that are alive make a thing of this name with other settings.
        """
        manifest = self._manifest
        own = json.loads(json.dumps(self._shared.settings))
        began = time.monotonic()
        while True:
            found = _content(manifest)
            if found is None:
                with contextlib.suppress(FileExistsError), open(manifest, "x") as writer:
                    json.dump(own, writer)
                continue
            try:
                theirs = json.loads(found)
            except ValueError:  # it is just being written
                theirs = None
            if theirs == own:
                return
            others = self._tasks_that_make(theirs)
            if any(map(self.is_alive, others)):
                raise InputError(self._shared.refusal(theirs, own))
            if theirs is not None and all(map(self.is_gone, others)):  # they ended, or were killed
                files.remove(manifest)
                continue
            if time.monotonic() - began > 2 * self._timeout:
                files.remove(manifest)  # whoever began to write it was killed
            time.sleep(min(_CHECK_SECONDS, self._timeout / _BEATS_PER_TIMEOUT))

    def _tasks_that_make(self, settings: Any) -> list[str]:
        beats = [name for name in os.listdir(self._folder) if name.endswith(_HEARTBEAT)]
        tasks = [f"{self._shared.name}/{name.removesuffix(_HEARTBEAT)}" for name in beats]
        wanted = fingerprint(settings)
        return [task for task in tasks if (_content(self._heartbeat_of(task)) or "").startswith(wanted)]


class OtherTaskFailed(InputError):
    """Another task has failed."""


def _content(path: str) -> str | None:
    try:
        with open(path) as reader:
            return reader.read()
    except FileNotFoundError:
        return None
