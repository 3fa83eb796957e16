"""Registers tasks that other programs add to `run_classifier.py`. Importing this module does not import TensorFlow."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from bert_tf.runtime.errors import InputError
from bert_tf.tasks.task_names import ALL, SQUAD, TASK_NAMES


class OwnTask(NamedTuple):
    """A registered task.

    Attributes:
      build: takes the `DataConfig` with the values of the flags, and returns the task, a
        `bert_tf.finetuning.task.Task`.
      export: takes a `bert_tf.graphs.exportable.FinishedRun`, and returns a
        `bert_tf.graphs.exportable.Exportable`; None for `bert_tf.graphs.heads.exportable`.
    """

    build: Callable[[Any], Any]
    export: Callable[[Any], Any] | None


_tasks: dict[str, OwnTask] = {}


def register(name: str, build: Callable[[Any], Any], export: Callable[[Any], Any] | None = None) -> None:
    """Registers a task. Call this function before `run_classifier.cli`; see docs/howto/new-task.md.

    Args:
      name: the value of --task_name, in lower case.
      build: see `OwnTask`.
      export: see `OwnTask`.

    Raises:
      InputError: if the name has invalid characters or is taken.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        raise InputError(f"register: {name!r} is not a name. Use lower-case letters, digits, '_' and '-'.")
    if name in (*_tasks, *TASK_NAMES, ALL, SQUAD):
        raise InputError(f"register: there is already a task {name!r}. Choose another name.")
    _tasks[name] = OwnTask(build, export)


def names() -> list[str]:
    """Returns the names of the registered tasks."""
    return list(_tasks)


def find(name: str) -> OwnTask | None:
    """Returns a registered task; None if there is no task with this name."""
    return _tasks.get(name)
