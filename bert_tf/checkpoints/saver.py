"""Writes, lists and removes the checkpoints of a training run. A checkpoint is listed only when it is complete.

Checkpoints have the original format: a TensorFlow bundle with the released variable names, `global_step` and the
optimizer's slots. TensorFlow stores a checksum of each tensor, so damage is found when the tensor is read.
"""

import contextlib
import functools
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures

import numpy as np
import tensorflow as tf

from bert_tf.runtime import files
from bert_tf.runtime.errors import without_node
from bert_tf.runtime.files import InputError
from bert_tf.runtime.messages import say_once

# The shape of each tensor in a checkpoint by name, and a function that returns a tensor by name.
Shapes = Mapping[str, tuple[int, ...]]
ReadTensor = Callable[[str], np.ndarray]

# TensorFlow's reader raises these types of errors.
_READ_ERRORS = (tf.errors.OpError, IndexError, RuntimeError, ValueError)

# The files of a checkpoint that this project writes.
_SUFFIXES = (".index", ".data-00000-of-00001")
# All savers share one thread, because memory that a thread frees is not reused by other threads.
_THREAD = futures.ThreadPoolExecutor(1)
_CHECKPOINT = re.compile(r"model\.ckpt-(\d+)(\.index|\.data-\d{5}-of-\d{5})?")
# Files left by a killed process, which TensorFlow or `files.replacing` had not renamed yet.
_UNFINISHED = re.compile(r"model\.ckpt-\d+\..*\.tempstate\d+|.*\.tmp-[0-9a-f]+")


def write_checkpoint(
    prefix: str | os.PathLike[str], tensors: Mapping[str, tf.Variable | tf.Tensor | np.ndarray]
) -> None:
    """Writes a checkpoint in the original format. The files get their final names once they are complete."""
    prefix = os.fspath(prefix)
    files.make_directory(os.path.dirname(prefix))
    names = sorted(tensors)
    with tf.device("/cpu:0"):
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=[tf.convert_to_tensor(tensors[name]) for name in names],
        )
    for path in (*(prefix + suffix for suffix in _SUFFIXES), os.path.dirname(prefix)):
        files.sync(path)


def open_bundle(prefix: str, where: str = "") -> tuple[Shapes, ReadTensor]:
    """Opens a TensorFlow checkpoint.

    Args:
      prefix: the path without `.index`.
      where: the beginning of error messages.

    Raises:
      InputError: if the index is damaged. The returned function also raises an InputError if a tensor is damaged.
    """
    directory, name = os.path.split(prefix)
    try:
        reader = files.load_by_plain_name(tf.compat.v1.train.NewCheckpointReader, directory, name)
    except _READ_ERRORS as error:
        raise InputError(f"{where}{prefix} can't be read ({error}). Restore it from a copy.") from None

    def read(name: str) -> np.ndarray:
        try:
            return reader.get_tensor(name)
        except _READ_ERRORS as error:
            raise InputError(f"{where}{prefix}: {name} is damaged ({error}). Restore it from a copy.") from None

    shapes = {name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items()}
    types = reader.get_variable_to_dtype_map()
    sizes = {name: 1 if types[name] == tf.string else types[name].size for name in shapes}  # a text has a byte or more
    needed = sum(math.prod(shape) * sizes[name] for name, shape in shapes.items())
    names = [data for data in files.list_directory(directory or ".") if data.startswith(f"{name}.data-")]
    if needed > (size := sum(files.size(os.path.join(directory, data)) for data in names)):
        raise InputError(f"{where}{prefix}: the data has {size} bytes instead of {needed}. Restore it from a copy.")
    return shapes, read


def damage(prefix: str) -> str:
    """Returns an error message if a checkpoint is damaged, or "" if all tensors can be read.

    Unchanged files are read only once.
    """
    return _damage(prefix, tuple(files.stamp(prefix + suffix) for suffix in _SUFFIXES))


@functools.lru_cache(maxsize=64)
def _damage(prefix: str, stamps: tuple[tuple[int, int] | None, ...]) -> str:
    try:
        shapes, read = open_bundle(prefix)
        for name in shapes:
            read(name)
    except InputError as error:
        return str(error)
    return ""


def latest_checkpoint(directory: str) -> str | None:
    """Returns the prefix of the newest complete checkpoint in a run directory; None if no checkpoint is listed.

    If newer checkpoints are damaged, a warning is printed once per process.

    Raises:
      InputError: if all listed checkpoints are damaged.
    """
    recorded, problems = _recorded_checkpoints(directory), []
    for prefix in reversed(recorded):
        if not (problem := damage(prefix)):
            break
        problems.append(problem)
    if not problems:
        return recorded[-1] if recorded else None
    if recorded != _recorded_checkpoints(directory):  # another program has replaced checkpoints in the meantime
        return latest_checkpoint(directory)
    if len(problems) == len(recorded):
        raise InputError(
            f"{directory}: no complete checkpoint. {' '.join(problems)} To start without checkpoints, remove "
            f"{os.path.join(directory, 'checkpoint')}."
        )
    say_once(f"Warning: {os.path.basename(prefix)} is used, because newer ones are damaged. {' '.join(problems)}")
    return prefix


def _recorded_checkpoints(directory: str) -> list[str]:
    """Returns the checkpoint prefixes listed in the file `checkpoint` of a directory, oldest first.

    Raises:
      InputError: if the file exists but lists no checkpoint.
    """
    path = os.path.join(directory, "checkpoint")
    if not files.exists(path):
        return []
    try:
        state = tf.train.get_checkpoint_state(directory)
    except (ValueError, tf.errors.OpError):  # the file is empty or not text
        state = None
    if state is None:
        raise InputError(
            f"{path}: no checkpoint is listed; the file is empty or damaged. Write the line "
            '`model_checkpoint_path: "model.ckpt-N"` into it. To start without the checkpoints, remove the file.'
        )
    # The original program writes absolute paths, which are wrong if the directory was moved or copied.
    names = [os.path.basename(name) for name in (*state.all_model_checkpoint_paths, state.model_checkpoint_path)]
    newest = names.pop()
    return [os.path.join(directory, name) for name in [*(name for name in names if name != newest), newest]]


def remove_checkpoints(directory: str) -> None:
    """Removes all checkpoints of a training run, if there are any."""
    recorded = _recorded_checkpoints(directory)
    files.remove(os.path.join(directory, "checkpoint"))
    for prefix in recorded:
        _remove_checkpoint(prefix)


def _remove_leftovers(directory: str) -> None:
    """Removes files left by a killed process: unfinished files, and checkpoints newer than all listed checkpoints."""
    newest = max(map(_step_of, _recorded_checkpoints(directory)), default=math.inf)
    for name in files.list_directory(directory):
        path = os.path.join(directory, name)
        if (_step_of(path) > newest or _UNFINISHED.fullmatch(name)) and not files.is_directory(path):
            files.remove(path)


def _step_of(path: str) -> int:
    """Returns the step in the name of a checkpoint prefix or file; -1 for other names."""
    match = _CHECKPOINT.fullmatch(os.path.basename(path))
    return int(match.group(1)) if match else -1


def _remove_checkpoint(prefix: str) -> None:
    for suffix in _SUFFIXES:
        files.remove(prefix + suffix)


class CheckpointSaver(contextlib.AbstractContextManager["CheckpointSaver"]):
    """Saves checkpoints as model.ckpt-STEP, as in the original code, and keeps the newest ones.

    The first save removes files left by a killed process. Only one process may save in a directory. The end of a `with`
    block waits until all checkpoints are written.

    Args:
      directory: the run directory.
      keep_checkpoint_max: number of checkpoints to keep; 0 for all.
    """

    def __init__(self, directory: str, keep_checkpoint_max: int) -> None:
        self.directory = directory
        self.keep_checkpoint_max = keep_checkpoint_max
        self._writing: futures.Future | None = None
        self._saved_step: int | None = None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # An exception from the block takes precedence over an exception from saving.
        with contextlib.suppress(InputError) if kind else contextlib.nullcontext():
            self.wait()

    def save(self, step: int, tensors: Mapping[str, tf.Variable]) -> None:
        """Writes a checkpoint and lists it as the newest. Then removes the oldest checkpoints if there are too many.

        Raises:
          InputError: if the checkpoint can't be written. Earlier checkpoints are not changed.
        """
        self.begin(step, tensors)
        self.wait()

    def begin(self, step: int, tensors: Mapping[str, tf.Variable]) -> None:
        """Starts to save in the background. The tensors may be changed when this function returns.

        Waits for the previous save. A copy of the tensors is kept in host memory until the checkpoint is written. If
        the last save was for the same step, nothing is done.

        Raises:
          InputError: if the previous save failed.
        """
        self.wait()
        if step != self._saved_step:
            with tf.device("/cpu:0"):
                copies = {name: tf.raw_ops.DeepCopy(x=tf.convert_to_tensor(x)) for name, x in tensors.items()}
            self._writing = _THREAD.submit(self._write, step, copies)

    def wait(self) -> None:
        """Waits until the current save is complete.

        Raises:
          InputError: if the checkpoint can't be written.
        """
        writing, self._writing = self._writing, None
        if writing:
            writing.result()

    def check(self) -> None:
        """Raises the error of the current save if it has already failed; does not wait. See `wait`."""
        if self._writing and self._writing.done():
            self.wait()

    def _write(self, step: int, tensors: Mapping[str, tf.Tensor]) -> None:
        prefix = os.path.join(self.directory, f"model.ckpt-{step}")
        try:
            files.make_directory(self.directory)
            if self._saved_step is None:
                _remove_leftovers(self.directory)
            write_checkpoint(prefix, tensors)
            recorded = _recorded_checkpoints(self.directory)
            # Checkpoints of later steps are not listed: they are damaged, or the run has restarted at an earlier step.
            listed = [p for p in recorded if _step_of(p) < step and files.exists(f"{p}.index")] + [prefix]
            newest = listed[-self.keep_checkpoint_max :]  # with 0, this keeps all
            # Old checkpoints stay listed until they are removed, so that a kill leaves no unlisted checkpoints.
            self._list(listed)
            removed = [p for p in recorded if p not in newest]
            for old in removed:
                _remove_checkpoint(old)
            if removed:
                self._list(newest)
        except (tf.errors.ResourceExhaustedError, OSError) as error:
            raise InputError(
                f"--output_dir: the checkpoint of step {step} can't be written to {self.directory} "
                f"({without_node(error)}). Free some disk space and run the program again to resume from the last "
                "checkpoint."
            ) from None
        self._saved_step = step

    def _list(self, prefixes: Sequence[str]) -> None:
        names = [json.dumps(os.path.basename(prefix), ensure_ascii=False) for prefix in prefixes]
        with files.replacing(os.path.join(self.directory, "checkpoint")) as writer:
            writer.write(f"model_checkpoint_path: {names[-1]}\n")
            writer.writelines(f"all_model_checkpoint_paths: {name}\n" for name in names)
