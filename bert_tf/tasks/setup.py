"""The settings, the data and the trained model from which `registry` builds a task."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bert_tf.checkpoints import run_directory, run_record
from bert_tf.runtime import files
from bert_tf.runtime.errors import InputError, first_of
from bert_tf.tasks.data_config import DataConfig
from bert_tf.tasks.example_rows import Source


class Setup(NamedTuple):
    """The settings, the data and the model of a task.

    Attributes:
      config: the task and its data. The name of the task is in lower case.
      model_dir: the directory of the model. Without training, classes and thresholds are read from it.
      does_train: whether the model is trained.
      feature_based: the settings of feature-based tagging; None to fine-tune.
      examples: maps splits to examples in memory, which replace the files; None to read files.
    """

    config: DataConfig
    model_dir: str
    does_train: bool
    feature_based: Any = None
    examples: Mapping[str, Sequence[Any]] | None = None

    @property
    def trained_in(self) -> str | None:
        """The run directory of the model; None if a model is trained."""
        return None if self.does_train else run_directory.directory_of_model(self.model_dir)

    @property
    def recorded(self) -> Mapping[str, Any]:
        """The settings of the run that trained the model; empty if a model is trained, or without a run."""
        directory = self.trained_in
        return run_record.recorded(directory) if directory and files.exists(directory) else {}

    def labels(self) -> Sequence[str] | None:
        """Returns the classes in the settings or, without training, of the model; None if they are not known.

        Raises:
          InputError: if the classes are not distinct, or differ from the classes of the model.
        """
        labels, directory = self.config.labels, self.model_dir
        recorded = None if self.does_train else run_directory.recorded_labels(directory)
        if labels and recorded and list(labels) != recorded:
            raise InputError(f"--labels: the run in {directory} was trained with {first_of(recorded)}. Omit the flag.")
        if labels and len(set(labels)) < len(labels):
            raise InputError(f"--labels: {first_of(labels)} has duplicates. Remove them.")
        return labels or recorded

    def sources(self, names: Mapping[str, Sequence[str]]) -> Mapping[str, Source]:
        """Returns the examples in memory, or the file of each split: the given file, or else a file in the directory.

        Args:
          names: maps splits to possible names of files in the directory. Splits without a file are omitted.

        Raises:
          InputError: if neither a directory nor a file is given, a given file is missing or empty, or the directory has
            several files for a split.
        """
        if self.examples:
            return self.examples
        config = self.config
        flags = {"train": config.train_file, "dev": config.dev_file, "test": config.test_file}
        if not config.data_dir and not any(flags.values()):
            raise InputError("--data_dir is required. Pass it, or --train_file, --dev_file and --test_file.")
        paths: dict[str, str] = {}
        for split, candidates in names.items():
            if path := flags[split]:
                paths[split] = files.require_file(path, f"--{split}_file")
            elif config.data_dir:
                existing = list(filter(files.exists, (os.path.join(config.data_dir, name) for name in candidates)))
                if len(existing) > 1:
                    paths_shown = " and ".join(existing)
                    raise InputError(f"{paths_shown} both exist. Name one with --{split}_file, or remove one.")
                if existing:
                    paths[split] = existing[0]
        return paths
