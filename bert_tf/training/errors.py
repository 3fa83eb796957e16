"""How training ends before its last step, and what the user is told then."""

import contextlib
import errno
import os
import re
from collections.abc import Callable, Iterator

import tensorflow as tf

from bert_tf.runtime.files import InputError
from bert_tf.training.contract import TrainingData


class Preempted(SystemExit):
    """The run was asked to stop (SIGTERM, Ctrl-C) and saved its state first."""


class NonFiniteError(InputError):
    """The loss or the gradient of a step was not finite."""

    def __init__(self, step: int) -> None:
        super().__init__(
            f"the loss or the gradient of step {step} is not finite. The weights were not updated with it; the last "
            "checkpoint is intact. A smaller --learning_rate, more --num_warmup_steps or float32 may help."
        )
        self.step = step


@contextlib.contextmanager
def explained(data: TrainingData, output_dir: str, current_step: Callable[[], int]) -> Iterator[None]:
    """Adds to errors of the block what the user needs to find their cause.

    Args:
      data: what is trained on.
      output_dir: where the run writes.
      current_step: how many steps were finished.
    """
    try:
        yield
    except NonFiniteError as error:
        raise InputError(f"{error} Data of that step: {data.describe(error.step)}.") from None
    except (tf.errors.ResourceExhaustedError, OSError) as error:
        if os.strerror(errno.ENOSPC) not in str(error):
            raise
        raise InputError(
            f"--output_dir: {output_dir} can't be written to ({error}). The last checkpoint is intact; make room and "
            "start again to go on from it."
        ) from None
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
        outside = re.search(r"= (-?\d+) is not in \[0, \d+\)", error.message)
        if outside:
            found = f"holds the id {outside.group(1)}, which the model doesn't have"
        elif "record" in error.message or "Example" in error.message:
            found = f"is damaged: {error.message}"
        else:
            raise
        step = current_step()
        raise InputError(
            f"--input_file: the data after step {step} ({(data.describe_reading or data.describe)(step)}) {found}. "
            "Make the file anew; the last checkpoint is intact."
        ) from None
