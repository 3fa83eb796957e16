"""The data that `fit` was given, as files that the task reads, in the folder of the run."""

import abc
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from bert_tf.checkpoints import saver
from bert_tf.estimators import rows
from bert_tf.estimators.run_folder import RunFolder
from bert_tf.runtime import files
from bert_tf.runtime.errors import InputError
from bert_tf.tasks import held_out

# The folder, in that of the run, of the data that `fit` was given.
DATA_FOLDER = "data"


class DataFolder(RunFolder, abc.ABC):
    """A run on data from Python; subclasses say what a row is, and how rows are written."""

    _SUFFIX: ClassVar[str]  # of the files
    _RANK: ClassVar[int] = 0  # of an example; see `rows.as_list`

    def _write_data(
        self, x: Any, y: Any, sample_weight: Any, share: float, validation_data: Any, needs_dev: bool
    ) -> list[str]:
        """Writes the data of `fit`, and keeps among the flags what they decide.

        Args:
          x: see `Estimator.fit`, as for the others.
          y: the labels.
          sample_weight: the weights.
          share: `validation_split`.
          validation_data: the data to evaluate on.
          needs_dev: whether training needs data to evaluate on.

        Returns:
          The path of the training data and, if there are validation data, theirs.

        Raises:
          InputError: if the data can't be used, or a run that has begun would go on with other data.
        """
        examples, labels, weights = rows.with_weights(*self._by_name(x, y, "x"), sample_weight, "x", self._RANK)
        train, dev = self._table(examples, labels), []
        if validation_data is not None:
            given = validation_data if rows.is_pair(validation_data) else (validation_data, None)
            given = self._by_name(*given, "validation_data")
            dev = self._table(*rows.with_labels(*given, "validation_data", self._RANK))
        before = dict(self._flags)
        try:
            self._weigh(train, weights)
            if share and not dev:
                train, dev = held_out.divide(train, [self._classes(row) for row in train], share)
            if needs_dev and not dev:
                raise InputError("keep_best and early_stopping_patience need validation data, but there are none.")
            self._flags |= self._learned_settings(train) | self._learned_of_labels(labels)
            return [self._write_once(split, table) for split, table in (("train", train), ("dev", dev)) if table]
        except BaseException:
            self._flags = before  # what was trained before is used as it was trained
            raise

    def _by_name(self, x: Any, y: Any, name: str) -> tuple[Any, Any]:
        """Examples and labels, after what the estimator reads of tables and dicts by the names in them."""
        return x, y

    @abc.abstractmethod
    def _table(self, examples: Sequence[Any], labels: Sequence[Any] | None) -> list[dict[str, Any]]:
        """The rows that the task reads."""

    def _weigh(self, table: Sequence[dict[str, Any]], weights: Sequence[float] | None) -> None:
        """Adds the weights of the training rows to them.

        Raises:
          InputError: if there are weights, but the task has none.
        """
        if weights is not None:
            raise InputError(
                f"{type(self).__name__}.fit(): sample_weight is given, but only Classifier and Regressor weigh "
                "examples. Omit it."
            )

    def _classes(self, row: Mapping[str, Any]) -> held_out.Labels:
        """The class of a row, or its labels or types of entities; see `held_out.divide`."""
        return None

    def _learned_settings(self, table: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What the training data decide, under the names of flags."""
        return {}

    def _learned_of_labels(self, labels: Sequence[Any]) -> dict[str, Any]:
        """What the labels decide, as they were given."""
        return {}

    @abc.abstractmethod
    def _write(self, path: str, table: Sequence[Mapping[str, Any]]) -> None:
        """Writes rows into a file, in the format that the task reads."""

    def _write_once(self, split: str, table: Sequence[Mapping[str, Any]]) -> str:
        """Writes a split and returns its path.

        Raises:
          InputError: if a run that has begun would go on with other data than it had.
        """
        path = os.path.join(self.output_dir, DATA_FOLDER, split + self._SUFFIX)
        if not (saver.latest_checkpoint(self.output_dir) and files.exists(path)):
            self._write(path, table)
            return path
        with tempfile.TemporaryDirectory() as other:
            new = os.path.join(other, split + self._SUFFIX)
            self._write(new, table)
            if files.read_text(new, "fit()") != files.read_text(path, "fit()"):
                raise InputError(
                    f"fit(): {self.output_dir} holds a run that was trained on other data ({path}). Use another "
                    "output_dir; to go on from its weights, make a new estimator with from_pretrained()."
                )
        return path
