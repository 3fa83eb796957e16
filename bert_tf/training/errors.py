"""The errors that end training early, and their messages."""

import contextlib
import errno
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from bert_tf.checkpoints import saver
from bert_tf.distribution import workers
from bert_tf.distribution.workers import WorkersError
from bert_tf.runtime.files import InputError
from bert_tf.training.interface import TrainingData


class Preempted(SystemExit):
    """The run was stopped by SIGTERM or Ctrl-C, and its state has been saved.

    Attributes:
      step: the number of finished steps.
      by_keyboard: whether this process received Ctrl-C.
    """

    def __init__(self, step: int, signals: Sequence[int]) -> None:
        super().__init__(f"Stopped by a signal after step {step}, which is saved. Run the program again to resume.")
        self.step = step
        self.by_keyboard: bool = signal.SIGINT in signals


class DataError(ValueError):
    """Examples that can't be used, found in an input pipeline. The message is the problem and the solution.

    TensorFlow replaces this error by its own, with the same message. `explain_data` then adds the location.
    """


@contextlib.contextmanager
def explain_errors(data: TrainingData, output_dir: str, current_step: Callable[[], int]) -> Iterator[None]:
    """Converts errors with known causes in the `with` block to InputErrors that name the data or the directory.

    Args:
      data: the training data.
      output_dir: the run's directory.
      current_step: returns the number of finished steps.
    """

    def location() -> str:
        step = current_step()
        return f"--input_file: the data after step {step} ({(data.describe_reading or data.describe)(step)})"

    try:
        with explain_data(location, " The last checkpoint is intact."), _explain_lost_workers(output_dir):
            yield
    except (tf.errors.ResourceExhaustedError, OSError) as error:
        if os.strerror(errno.ENOSPC) not in str(error):
            raise
        raise InputError(
            f"--output_dir: {output_dir} can't be written to ({error}). The last checkpoint is intact. Free some disk "
            "space and run the program again to resume."
        ) from None


@contextlib.contextmanager
def explain_data(location: Callable[[], str], ending: str = "") -> Iterator[None]:
    """Converts errors in the `with` block that are caused by records to InputErrors.

    Args:
      location: returns the location of the data, for the message.
      ending: the end of the message.
    """
    try:
        yield
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
        problem = _words_of_reader(error)
        if not problem and (fault := _fault_of_data(error)):
            problem = f"{location()} {fault}"
        if not problem:
            raise
        raise InputError(problem + ending) from None


def _words_of_reader(error: tf.errors.OpError) -> str:
    """Returns the message of an InputError raised in the input pipeline, without the traceback; "" if there is none."""
    message = re.search(r"InputError: (.*)", error.message)
    return message.group(1) if message else ""


def _fault_of_data(error: tf.errors.OpError) -> str:
    """Returns the problem with a record, and the solution; "" if the error has another cause."""
    if unusable := re.search(r"DataError: (.*)", error.message):
        return unusable.group(1)
    unknown_id = re.search(r"= (-?\d+) is not in \[0, \d+\)", error.message)
    if unknown_id:
        return f"contains the id {unknown_id.group(1)}, which the model doesn't have. Regenerate the file."
    # "Key:" begins the name of a feature and its problem, such as another length.
    reason = re.search(r"Key: .*|^.*(?:record|Example).*$", error.message, re.MULTILINE)
    return f"is damaged: {_without_nodes(reason.group()).rstrip('.')}. Regenerate the file." if reason else ""


def _without_nodes(line: str) -> str:
    """Returns a line of a TensorFlow message without its node names."""
    return re.sub(r"\{\{.*?\}\}|\[\[.*|\[Op:.*", "", line).strip()


@contextlib.contextmanager
def _explain_lost_workers(output_dir: str) -> Iterator[None]:
    try:
        yield
    except tf.errors.OpError as error:
        reason = workers.explain(error)
        if reason is None:
            raise
        newest = saver.latest_checkpoint(output_dir)
        start = f"step {newest.rpartition('-')[2]}" if newest else "the beginning, because there is no checkpoint"
        raise WorkersError(reason, f"Start all workers again. The run in {output_dir} resumes from {start}.") from None
