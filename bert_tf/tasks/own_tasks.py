"""Tasks that a program adds to `run_classifier.py`. Importing this module does not import TensorFlow."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from bert_tf.runtime.errors import InputError


class OwnTask(NamedTuple):
    """A task that was added.

    Attributes:
      build: takes the `DataConfig` with the flags of the data, and returns the task, a
        `bert_tf.finetuning.task.ReportingTask`.
      export: takes a `bert_tf.serving.exportable.FinishedRun`, and returns its
        `bert_tf.serving.exportable.Exportable`; None for `bert_tf.tasks.graph_heads.exportable`.
    """

    build: Callable[[Any], Any]
    export: Callable[[Any], Any] | None


_tasks: dict[str, OwnTask] = {}


def register(name: str, build: Callable[[Any], Any], export: Callable[[Any], Any] | None = None) -> None:
    """Adds a task. Call it before `run_classifier.cli`; see docs/howto/new-task.md.

    Args:
      name: the value of --task_name, in lower case.
      build: see `OwnTask`.
      export: see `OwnTask`.

    Raises:
      InputError: if the name has other characters, or another task has it.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        raise InputError(f"register: {name!r} is not a name. Use lower-case letters, digits, '_' and '-'.")
    if name in _tasks:
        raise InputError(f"register: there is already a task {name!r}. Choose another name.")
    _tasks[name] = OwnTask(build, export)


def names() -> list[str]:
    """Returns the names of the tasks that were added."""
    return list(_tasks)


def find(name: str) -> OwnTask | None:
    """Returns a task that was added; None if there is no such task."""
    return _tasks.get(name)
