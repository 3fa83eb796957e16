"""What everything that trains from Python has: the folder of a run, and what can be done with a trained model in it."""

import os
import re
import tempfile
import weakref
from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn

from bert_tf import checkpoints
from bert_tf.api.in_python import errors_in_python
from bert_tf.checkpoints import run_directory, saver
from bert_tf.distribution.devices import DistributionConfig
from bert_tf.export import export_run
from bert_tf.optimization import TRAINING_STATE, OptimizerConfig
from bert_tf.runtime import files
from bert_tf.runtime.errors import InputError, require_path
from bert_tf.serving.export_config import ExportConfig
from bert_tf.tokenization.tokenizer_config import TOKENIZER_CONFIG_FILE
from bert_tf.training import log
from bert_tf.training.settings import TrainingConfig


class RunFolder:
    """A run from Python.

    Args:
      output_dir: the folder of the run; None for a temporary one, which is removed with this object.
      init_checkpoint: the model to start from.
      flags: the settings, under the names of the flags that they have in the programs; among them `dtype`.
      distribution: the devices.
    """

    _SAVED_FILES: ClassVar[tuple[str, ...]] = (
        *(run_directory.CONFIG_FILE, run_directory.VOCAB_FILE, run_directory.RUN_FILE, run_directory.LABELS_FILE),
        run_directory.TUNED_FILE,
        TOKENIZER_CONFIG_FILE,
    )

    def __init__(
        self,
        output_dir: str | os.PathLike[str] | None,
        init_checkpoint: str | os.PathLike[str] | None,
        flags: Mapping[str, Any],
        distribution: DistributionConfig,
    ) -> None:
        self.output_dir = os.fspath(output_dir or self._temporary_folder())
        self._init_checkpoint = init_checkpoint and os.fspath(init_checkpoint)
        self._flags = dict(flags)
        self._distribution = distribution

    def _temporary_folder(self) -> str:
        folder = tempfile.TemporaryDirectory(prefix="bert_tf-")
        weakref.finalize(self, folder.cleanup)
        return folder.name

    def __getstate__(self) -> NoReturn:
        """Refuses to be pickled or copied."""
        raise TypeError(f"{type(self).__name__} can't be pickled or copied. Use save() and load().")

    def history(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl: what was measured during training, and when."""
        return log.read_metrics(self.output_dir)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes the trained model into a new folder, whole or not at all; `load` and all programs read it.

        Raises:
          InputError: if nothing was trained yet, or the folder isn't new.
        """
        trained, folder = self._check_trained(), require_path("save()", folder)
        files.check_new_folder(folder, "save()")
        source = checkpoints.open_checkpoint(trained, "save()")
        weights = [name for name in source.shapes if not re.fullmatch(TRAINING_STATE, name)]
        with files.replacing_folder(folder) as new:
            for name in filter(lambda name: files.exists(os.path.join(self.output_dir, name)), self._SAVED_FILES):
                files.copy(os.path.join(self.output_dir, name), os.path.join(new, name))
            tensors = {name: source.read(name) for name in (*weights, "global_step")}
            saver.CheckpointSaver(new, keep_checkpoint_max=1).save(int(tensors["global_step"]), tensors)

    @errors_in_python()
    def export(self, folder: str | os.PathLike[str], **options: Any) -> None:
        """Exports the trained model as a SavedModel that takes raw texts; see `bert_tf.export.export_run`.

        Args:
          folder: a new one.
          options: fields of `bert_tf.export.ExportConfig`.
        """
        self._check_trained()
        export_run(self.output_dir, require_path("export()", folder), ExportConfig(**options))

    def _training_config(
        self, optimizer: OptimizerConfig, batch_size: int, seed: int, others: Mapping[str, Any]
    ) -> TrainingConfig:
        """The settings of `fit`; `others` are fields of `TrainingConfig` that have no argument of their own.

        Raises:
          InputError: if the folder can't be written to.
          TypeError: if there is no such field.
        """
        files.check_output_files([os.path.join(self.output_dir, run_directory.RUN_FILE)], "output_dir")
        given = {"output_dir": self.output_dir, "optimizer": optimizer, "train_batch_size": batch_size}
        given |= {"seed": seed, "dtype": self._flags["dtype"]}
        known = [name for name in TrainingConfig.__struct_fields__ if name not in given]
        for name in others:
            if name not in known:
                raise TypeError(
                    f"{type(self).__name__}.fit() has no argument {name!r}; it also takes {', '.join(known)}."
                )
        return TrainingConfig(**given, **others)

    @property
    def _trained_checkpoint(self) -> str | None:
        """The checkpoint that the run is judged with; None if there is none yet."""
        return saver.latest_checkpoint(run_directory.evaluated_folder(self.output_dir))

    def _check_trained(self) -> str:
        """Returns `_trained_checkpoint`.

        Raises:
          InputError: if there is none yet.
        """
        checkpoint = self._trained_checkpoint
        if checkpoint is None:
            raise InputError(f"{type(self).__name__}: there is no trained model yet. Call fit() or load() first.")
        return checkpoint
