"""Writes the checkpoints of a training run completely or not at all, lists them in order, and removes the oldest.

They have the release's format: a TensorFlow bundle with the released variable names, `global_step` and the optimizer's
slots.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from bert_tf.runtime import files
from bert_tf.runtime.files import InputError


def write_checkpoint(prefix: str, tensors: Mapping[str, tf.Variable | tf.Tensor | np.ndarray]) -> None:
    """Writes a checkpoint in the release's format. The files get their final names when they are complete."""
    files.make_folder(os.path.dirname(prefix))
    names = sorted(tensors)
    with tf.device("/cpu:0"):
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=[tf.convert_to_tensor(tensors[name]) for name in names],
        )


def latest_checkpoint(folder: str) -> str | None:
    """The prefix of the newest checkpoint of a training run that has an index file; None if there is none."""
    recorded = [prefix for prefix in _recorded_checkpoints(folder) if files.exists(f"{prefix}.index")]
    return recorded[-1] if recorded else None


def _recorded_checkpoints(folder: str) -> list[str]:
    """The prefixes that the folder's `checkpoint` file lists, oldest first."""
    state_file = os.path.join(folder, "checkpoint")
    if not files.exists(state_file):
        return []
    with files.open_file(state_file) as reader:
        listed = re.findall(r'^all_model_checkpoint_paths: (".*")$', reader.read(), re.MULTILINE)
    return [os.path.join(folder, json.loads(name)) for name in listed]


def remove_checkpoints(folder: str) -> None:
    """Removes all checkpoints of a training run, if there are any."""
    recorded = _recorded_checkpoints(folder)
    files.remove(os.path.join(folder, "checkpoint"))
    for prefix in recorded:
        _remove_checkpoint(prefix)


def _remove_checkpoint(prefix: str) -> None:
    files.remove(f"{prefix}.index")
    files.remove(f"{prefix}.data-00000-of-00001")


class CheckpointSaver:
    """Saves checkpoints as model.ckpt-STEP, as the release names them, and keeps the newest ones.

    Args:
      folder: the run's folder.
      keep_checkpoint_max: how many checkpoints are kept; 0 for all.
    """

    def __init__(self, folder: str, keep_checkpoint_max: int) -> None:
        self.folder = folder
        self.keep_checkpoint_max = keep_checkpoint_max

    def save(self, step: int, tensors: Mapping[str, tf.Variable]) -> str:
        """Writes a checkpoint, lists it as the newest, and then removes the oldest ones if there are too many.

        Raises:
          InputError: if the disk is full. Earlier checkpoints are not changed.
        """
        prefix = os.path.join(self.folder, f"model.ckpt-{step}")
        try:
            write_checkpoint(prefix, tensors)
            kept = [p for p in _recorded_checkpoints(self.folder) if p != prefix and files.exists(f"{p}.index")]
            kept.append(prefix)
            surplus = kept[: -self.keep_checkpoint_max] if self.keep_checkpoint_max else []
            self._record(kept[len(surplus) :])
        except (tf.errors.ResourceExhaustedError, OSError) as error:
            raise InputError(
                f"--output_dir: the checkpoint of step {step} can't be written to {self.folder} ({error}). "
                "The earlier checkpoints are intact. Free some disk space and start again; the run then resumes from "
                "the last one."
            ) from None
        for old in surplus:
            _remove_checkpoint(old)
        return prefix

    def _record(self, prefixes: Sequence[str]) -> None:
        names = [json.dumps(os.path.basename(prefix)) for prefix in prefixes]
        with files.replacing(os.path.join(self.folder, "checkpoint")) as writer:
            writer.write(f"model_checkpoint_path: {names[-1]}\n")
            writer.writelines(f"all_model_checkpoint_paths: {name}\n" for name in names)
