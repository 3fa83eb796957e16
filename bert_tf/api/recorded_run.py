"""The base of all Python classes that train: run directories, and operations on the trained model."""

import contextlib
import os
import re
import tempfile
import weakref
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, NoReturn, Unpack

import keras
from msgspec import Meta

from bert_tf import checkpoints, sentence_vectors
from bert_tf.api.arguments import NamesArguments
from bert_tf.api.setting_types import ExportSettings
from bert_tf.checkpoints import run_directory, run_record, saver
from bert_tf.export import export_run
from bert_tf.optimization import TRAINING_STATE
from bert_tf.runtime import files, messages, path_checks
from bert_tf.runtime.errors import InputError, check, require_path
from bert_tf.serving.export_config import ExportConfig
from bert_tf.tasks import hf_names
from bert_tf.text.vocabulary import TOKENIZER_CONFIG_FILE, VOCAB_FILE
from bert_tf.training import log
from bert_tf.training.callbacks import checked as checked_callbacks
from bert_tf.training.errors import Preempted


class RecordedRun(NamesArguments):
    """A sequence of training runs from Python.

    Each call of `fit` starts a new run from the weights of the previous one. The first run is in `output_dir`, the
    others in its subdirectories `fit_2`, `fit_3`... If another process makes the same calls, it skips completed runs
    and resumes the interrupted one.

    Args:
      output_dir: the directory of the first run; None for a temporary one, which is removed with this object.
      start: the model to start from; None for randomly initialised weights.

    Attributes:
      output_dir: the directory of the first run.
    """

    _verbosity = 1

    _SAVED_FILES: ClassVar[tuple[str, ...]] = (
        *(run_directory.CONFIG_FILE, VOCAB_FILE, run_directory.RUN_FILE, run_directory.LABELS_FILE),
        *(run_directory.TUNED_FILE, "eval_results.json", TOKENIZER_CONFIG_FILE),
    )

    def __init__(self, output_dir: str | os.PathLike[str] | None, start: str | os.PathLike[str] | None) -> None:
        self.output_dir: str = os.fspath(output_dir or self._temporary_directory())
        self._start = start and os.fspath(start)
        self._fits = 0
        # The directory of the newest run, which another process may have written.
        self._directory = run_directory.directory_of_model(self.output_dir)

    def _temporary_directory(self) -> str:
        directory = tempfile.TemporaryDirectory(prefix="bert_tf-")
        weakref.finalize(self, directory.cleanup)
        return directory.name

    def __getstate__(self) -> NoReturn:
        """Refuses pickling and copying."""
        raise TypeError(f"{type(self).__name__} can't be pickled or copied. Use save() and load().")

    @contextlib.contextmanager
    def _next_run(self, verbose: int, callbacks: Any) -> Iterator[tuple[str, list[keras.callbacks.Callback]]]:
        """Yields the directory and the callbacks of the next run, and prints as selected by `verbose`.

        Raises:
          InputError: if the directory can't be written to, or a callback can't be used.
          KeyboardInterrupt: after Ctrl-C in training, once the state has been saved.
        """
        self._verbosity: int = check(verbose, Annotated[int, Meta(ge=0, le=2)], "verbose")
        checked = checked_callbacks(callbacks, verbose)
        directory = run_directory.fit_directory(self.output_dir, self._fits + 1)
        path_checks.check_output_files([os.path.join(directory, run_directory.RUN_FILE)], "output_dir")
        try:
            with messages.verbosity(verbose):
                yield directory, checked
        except Preempted as stop:
            if stop.by_keyboard:
                message = f"Training was stopped after step {stop.step}, which is saved. Call fit() again to resume."
                raise KeyboardInterrupt(message) from None
            raise
        self._fits += 1
        self._directory = self._start = directory

    def history(self) -> list[dict[str, Any]]:
        """Returns the lines of metrics.jsonl: the metrics of the last training run, with step and time."""
        return log.read_metrics(self._directory)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes the trained model to a new directory, completely or not at all, for `load` and all programs.

        Args:
          directory: the new directory.

        Raises:
          InputError: if nothing has been trained yet, or the directory is not new.
        """
        trained, directory = self._check_trained(), require_path("save()", directory)
        path_checks.check_new_directory(directory, "save()")
        source = checkpoints.open_checkpoint(trained, "save()")
        weights = [name for name in source.shapes if not re.fullmatch(TRAINING_STATE, name)]
        with files.replacing_directory(directory) as new:
            for name in filter(lambda name: files.exists(os.path.join(self._directory, name)), self._SAVED_FILES):
                files.copy(os.path.join(self._directory, name), os.path.join(new, name))
            sentence_vectors.copy_settings(self._directory, new, "save()")
            tensors = {name: source.read(name) for name in (*weights, "global_step")}
            saver.CheckpointSaver(new, keep_checkpoint_max=1).save(int(tensors["global_step"]), tensors)

    def export(self, directory: str | os.PathLike[str], **options: Unpack[ExportSettings]) -> None:
        """Exports the trained model as a SavedModel that takes raw texts. See `bert_tf.export.export_run`.

        Args:
          directory: a new directory.
          options: fields of `bert_tf.serving.export_config.ExportConfig`.

        Raises:
          InputError: if nothing has been trained yet, the directory is not new, or an option is invalid.
        """
        self._check_trained()
        export_run(self._directory, require_path("export()", directory), ExportConfig(**options))

    @property
    def _trained_checkpoint(self) -> str | None:
        """The checkpoint to evaluate; None if there is none yet."""
        return saver.latest_checkpoint(run_directory.evaluated_directory(self._directory))

    def _check_trained(self) -> str:
        """Returns `_trained_checkpoint`.

        Raises:
          InputError: if there is no trained model yet.
        """
        checkpoint = self._trained_checkpoint
        if checkpoint is None:
            raise InputError(f"{type(self).__name__}: there is no trained model yet. Call fit() or load() first.")
        return checkpoint


def finished_run(
    directory: str | os.PathLike[str], name: str, architecture: str, is_regression: bool
) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Returns the directory of a finished run, its resume settings and its flags.

    Args:
      directory: the directory that was passed to `load`.
      name: the name of the estimator's class.
      architecture: the estimator's architecture; see `hf_names.of_task`.
      is_regression: whether the estimator predicts numbers.

    Raises:
      InputError: if the directory has no finished run for this estimator.
    """
    directory = run_directory.directory_of_model(require_path("load()", directory))
    if not files.is_directory(directory):
        raise InputError(f"load(): there is no directory {directory!r}. Check the path.")
    if not files.exists(os.path.join(directory, run_directory.RUN_FILE)):
        raise InputError(f"load(): {directory} has no {run_directory.RUN_FILE}. Use {name}.from_pretrained().")
    recorded = run_record.read(directory)
    run = recorded["resume_settings"]
    recorded_architecture, problem = hf_names.of_task(run.get("task", ""), run.get("problem"))
    if run.get("task") is None or recorded_architecture != architecture or (problem == "regression") != is_regression:
        other = "Regressor" if problem == "regression" else hf_names.CLASSES[recorded_architecture]
        has_load = run.get("task") and recorded_architecture != hf_names.ENCODER
        use = f"{other if run.get('task') else name}.{'load' if has_load else 'from_pretrained'}()"
        raise InputError(f"load(): {directory} has a run of {run.get('task')!r}. Use {use}.")
    if "feature_layers" in run:
        raise InputError(f"load(): {directory} has a run with feature_layers. Use run_classifier.py.")
    return directory, run, recorded.get("flags", {})
