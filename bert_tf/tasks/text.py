"""Classification or regression of your own data, from TSV, CSV or JSON-lines files with named columns."""

import dataclasses
import functools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf.config import BertConfig
from bert_tf.finetuning.feature_sets import FeatureSet
from bert_tf.finetuning.models import ClassifierModel
from bert_tf.finetuning.task import ModelOutputs, SplitOutputs
from bert_tf.runtime.errors import InputError
from bert_tf.tasks import metrics, sentence_features, tables
from bert_tf.tasks.data_config import Columns
from bert_tf.tasks.sentence_features import InputExample, WeightedExample
from bert_tf.tasks.sentence_task import SentenceTask
from bert_tf.tasks.tables import Cell, Row, Source
from bert_tf.text import FullTokenizer
from bert_tf.text.long_documents import TRUNCATED, LongDocuments

FILE_NAMES = {split: tuple(f"{split}{suffix}" for suffix in tables.SUFFIXES) for split in ("train", "dev", "test")}
# --class_weights: every class has the same total weight in the loss, regardless of its number of examples.
BALANCED = "balanced"
# --label_threshold: use the threshold with the best F1 on the dev set.
TUNE = "tune"
# The cells of a column of 0 and 1. pandas writes numbers and bools in several ways.
_ZERO_OR_ONE = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}
_MISSING = ("nan", "<na>", "nat")
_NAME_THE_COLUMNS = "If they are columns of 0 and 1, name these with --label_column=NAME,NAME."
_SEPARATORS = ",;|"  # common separators between the labels in a cell

_METRICS = {
    "classification": (metrics.accuracy_and_macro_f1, "accuracy"),
    "regression": (metrics.pearson_and_spearman, "pearson"),
    "multi_label": (metrics.multi_label_f1, "micro_f1"),
}


class TextTask(SentenceTask):
    """A task on your own data.

    Args:
      paths: maps splits ("train", "dev", "test") to files, or to examples in memory with their values by column.
      columns: the columns of all splits. The test set needs no label; it is scored if every row has a valid one.
      problem: "classification", "regression" or "multi_label".
      labels: the classes; None to use those in the training file.
      class_weights: the weights of the classes in the training loss of a classification: "" for equal weights,
        "balanced", or "class=weight,...", or a dictionary.
      on_bad_row: "error" stops at a row that can't be used; "skip" skips and counts it.
      delimiter: the cell delimiter of the files; see `tables.read_table`.
      label_threshold: with several labels, lowest probability of a predicted one; "tune" for the best F1 on the dev
        set.
      documents: how to read long texts.

    Raises:
      InputError: if the settings contradict each other.
    """

    file_names = FILE_NAMES

    def __init__(
        self,
        paths: Mapping[str, Source],
        columns: Columns,
        *,
        problem: str = "classification",
        labels: Sequence[str] | None = None,
        class_weights: str | Mapping[str, float] = "",
        on_bad_row: str = "error",
        delimiter: str = tables.AUTO,
        label_threshold: str = "",
        documents: LongDocuments = TRUNCATED,
    ) -> None:
        names = [name for name in (columns.text, columns.text_b, columns.label, columns.id, columns.weight) if name]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise InputError(
                f"--text_column and other flags use the column {repeated[0]!r} twice. Use different columns."
            )
        if not columns.label_separator:
            raise InputError("--label_separator is empty. Pass the text between two labels.")
        if documents.has_windows and columns.text_b:
            raise InputError("--long_documents=windows: pairs of texts can't have windows. Use head_tail or truncate.")
        metric, selection_metric = _METRICS[problem]
        super().__init__("text", labels, metric, selection_metric, problem)
        self.paths = dict(paths)
        self.columns = columns
        self.on_bad_row = on_bad_row
        self.delimiter = delimiter
        self.documents = documents
        self._class_weights = class_weights
        # The names of columns of 0 and 1.
        self._flags = columns.label.split(",") if problem == "multi_label" and "," in columns.label else []
        if self._flags and self._labels is None:
            self._labels = tuple(self._flags)
        self.tunes = label_threshold == TUNE
        if label_threshold and not self.tunes:
            if not sentence_features.is_number(label_threshold) or not 0 < float(label_threshold) < 1:
                raise InputError(f"--label_threshold is {label_threshold!r}. Use a number between 0 and 1, or {TUNE}.")
            self.label_threshold = float(label_threshold)
        self._has_lists = False  # whether some labels were lists, which need no separator
        self.examples = functools.cache(self.examples)

    @functools.cached_property
    def labels(self) -> tuple[str, ...] | None:
        """The given classes, or the sorted classes of the training file (numbers by value); None for regression.

        Raises:
          InputError: if no row has a label, or a classification has only one class.
        """
        if self.problem == "regression":
            return None
        if self._labels is not None:
            if len(self._labels) < 2 and self.problem == "classification":
                raise InputError(f"--labels has only {', '.join(self._labels)!r}. Name two classes or more.")
            return self._labels
        labels = {label for example in self.examples("train") for label in _as_tuple(example.label)}
        if not labels:
            raise InputError(f"{self._training_set}: no row has a label. Add labels.")
        if len(labels) < 2 and self.problem == "classification":
            raise InputError(f"{self._training_set}: every row has the label {min(labels)!r}. Use two classes or more.")
        return tuple(sorted(labels, key=sentence_features.by_value))

    @property
    def _training_set(self) -> str:
        """The name of the training set for messages."""
        return tables.name_of(self.paths["train"])

    @property
    def _learns_labels(self) -> bool:
        return self.problem != "regression" and self._labels is None

    def input_settings(self) -> dict[str, Any]:
        """Returns the problem, the classes, how texts are read, and the columns by the names of their flags."""
        columns = {f"{name}_column": getattr(self.columns, name) for name in ("text", "text_b", "label")}
        separator = {"label_separator": self.columns.label_separator} if self.problem == "multi_label" else {}
        return super().input_settings() | {"problem": self.problem} | columns | separator | self.documents.record

    def resume_settings(self) -> dict[str, Any]:
        """Also returns the class weights, the column of the row weights, and the scale of scores, if there are any."""
        weights = {"weight_column": self.columns.weight} if self.columns.weight else {}
        scale = {"target_scale": list(self.target_scale)} if self.problem == "regression" else {}
        return self.input_settings() | {"class_weights": self._class_weights} | weights | scale

    def rows(self, split: str) -> Iterable[Row]:
        """Returns the rows of a split, after checking the columns."""
        columns = self.columns
        labels = self._flags or [columns.label]
        others = {"train": (*labels, columns.weight), "test": ()}.get(split, labels)
        needed = [name for name in (columns.text, columns.text_b, columns.id, *others) if name]
        return tables.read_table(self.path(split), needed, self.delimiter)

    def example(self, row: Row, split: str) -> InputExample:
        """Returns the example in a row. A test example has no label if its label is not valid."""
        columns = self.columns
        row_id = _text(row, columns.id, "id") if columns.id else str(row.line)
        text_b = _text(row, columns.text_b, "second text") if columns.text_b else None
        example = InputExample(row_id, _text(row, columns.text, "text"), text_b, None)
        if split != "test":  # prediction accepts blank texts, as in an exported model
            sentence_features.check_texts(example, row.where)
        try:
            labelled = dataclasses.replace(example, label=self._label(row))
            if not (split == "train" and self._learns_labels):
                sentence_features.check_label(labelled, row.where, self.labels)
        except InputError:
            if split != "test":
                raise
            return example
        is_weighted = split == "train" and columns.weight
        return WeightedExample(**vars(labelled), weight=_weight(row, columns.weight)) if is_weighted else labelled

    def _label(self, row: Row) -> str | tuple[str, ...]:
        if self._flags:
            return tuple(name for name in self._flags if _is_set(row, name))
        cell = row[self.columns.label]
        if self.problem == "multi_label":
            self._has_lists |= isinstance(cell, tuple)
            if isinstance(cell, dict):
                raise InputError(f"{row.where}: the labels are an object. Use a list of labels.")
            parts = (cell or "").split(self.columns.label_separator) if not isinstance(cell, tuple) else cell
            labels = tuple(self._class(part.strip()) for part in parts if part.strip())
            for label in labels:
                self._check_class(label, row)
            if len(set(labels)) < len(labels):
                raise InputError(f"{row.where}: a label occurs twice in {', '.join(labels)}. {_NAME_THE_COLUMNS}")
            return labels
        label = _text(row, self.columns.label, "label").strip()
        if not label:
            raise InputError(f"{row.where}: the label is empty. Add it.")
        if self.problem == "classification":
            label = self._class(label)
        self._check_class(label, row)
        return label

    def _class(self, label: str) -> str:
        """Returns the class of a label. A number may have another form than the class, such as "1.0" for "1"."""
        whole, given = sentence_features.whole_number(label), self._labels or ()
        known = {} if label in given else {sentence_features.whole_number(name): name for name in given}
        return label if label in given else known.get(whole, whole)

    def _check_class(self, label: str, row: Row) -> None:
        """Raises an InputError if the label of a new class looks like a missing value or a number."""
        if not self._learns_labels:
            return
        if label.startswith(("['", '["')):
            raise InputError(f"{row.where}: the label {label!r} is a list in Python's notation. Remove the brackets.")
        if label.lower() in _MISSING:
            raise InputError(f"{row.where}: the label {label!r} is a missing value. Remove the row, or pass --labels.")
        is_fraction = sentence_features.is_number(label) and not label.lstrip("+-").isdecimal()
        if self.problem == "classification" and is_fraction:
            raise InputError(f"{row.where}: the label {label!r} is a number. Pass --problem=regression, or --labels.")

    def check_training_set(self, examples: Sequence[InputExample]) -> None:
        """Raises an InputError if all weights are 0, or if nothing can be learned from the labels."""
        if examples and not any(getattr(example, "weight", 1.0) for example in examples):
            raise InputError(f"{self._training_set}: every row has weight 0. Give some rows a weight above 0.")
        if self.problem == "classification":
            super().check_training_set(examples)
        elif self.problem == "multi_label" and len({frozenset(example.label) for example in examples}) == 1:
            found = ", ".join(examples[0].label)
            raise InputError(f"{self._training_set}: every row has the labels {found!r}. {_NAME_THE_COLUMNS}")
        elif self.problem == "multi_label" and self._learns_labels and not self._has_lists:
            has_several = any(len(example.label) > 1 for example in examples)
            labels = () if has_several else sorted({label for example in examples for label in example.label})
            if found := next((label for label in labels if set(label) & set(_SEPARATORS)), None):
                raise InputError(
                    f"{self._training_set}: {found!r} may be several labels, but every row has at most one. Pass "
                    "--label_separator, or all --labels."
                )

    def featurize(
        self, examples: Sequence[InputExample], tokenizer: FullTokenizer, max_seq_length: int, num_workers: int = 1
    ) -> FeatureSet:
        """Returns the features (see `SentenceTask.featurize`). Weighted rows also have `sample_weights` [N]."""
        features = super().featurize(examples, tokenizer, max_seq_length, num_workers)
        weights = [example.weight for example in examples if isinstance(example, WeightedExample)]
        return features.with_values(sample_weights=np.array(weights, np.float32)) if weights else features

    def build_model(self, config: BertConfig, **options) -> ClassifierModel:
        """Returns a classifier with one logit per class, or one output for regression."""
        scale = {"target_scale": self.target_scale} if self.problem == "regression" else {}
        return super().build_model(config, class_weights=self.weights(), **scale, **options)

    @functools.cached_property
    def target_scale(self) -> tuple[float, float]:
        """Mean and standard deviation of the training scores, which are standardised in training."""
        scores = [float(example.label) for example in self.examples("train")]
        return float(np.mean(scores)), float(np.std(scores)) or 1.0

    def tune(self, outputs: ModelOutputs, features: FeatureSet) -> dict[str, float]:
        """Returns the threshold with the best F1, and uses it from then on."""
        self.label_threshold = metrics.best_threshold(outputs["probabilities"], features.document_values("label_ids"))
        return {"label_threshold": self.label_threshold}

    def weights(self) -> list[float] | None:
        """Returns the weight of each class in the training loss; None for equal weights.

        Raises:
          InputError: if --class_weights names an unknown class, or a weight is not a number above 0.
        """
        if not self._class_weights:
            return None
        if self._class_weights == BALANCED:
            labels = [example.label for example in self.examples("train")]
            return [len(labels) / (len(self.labels) * max(labels.count(label), 1)) for label in self.labels]
        given, weights = self._class_weights, dict.fromkeys(self.labels, 1.0)
        if isinstance(given, str):  # a class may contain commas
            parts = re.sub(r"(=[^=,]*),", r"\1\n", given).split("\n")
            given = {label: weight for label, _, weight in (part.rpartition("=") for part in parts)}
        for label, weight in given.items():
            known = self._class(label)
            if known not in weights or not sentence_features.is_number(str(weight)) or not float(weight) > 0:
                classes, part = ", ".join(self.labels), f"{label}={weight}"
                raise InputError(f"--class_weights: {part!r} is not class=weight. Use {classes} and numbers above 0.")
            weights[known] = float(weight)
        return list(weights.values())

    def write_predictions(self, output_dir: str, split: SplitOutputs, original_format: bool = False) -> list[str]:
        """Writes test_results.tsv, and test_predictions in the test file's format (JSON lines for JSON and Parquet).

        test_predictions has the id, the texts, the file's other columns, and either the label and the probability of
        each class, or the score. Other columns with the name of one of these are renamed to given_NAME.
        """
        written = super().write_predictions(output_dir, split, original_format)
        source, outputs = self.paths[split.name], split.outputs
        name, suffix = self.output_names.get(split.name, split.name), tables.split_name(source)[1]
        path = os.path.join(output_dir, f"{name}_predictions{suffix if suffix in ('.tsv', '.csv') else '.jsonl'}")
        others = self._other_cells(source)
        rows = []
        for i, (example, prediction) in enumerate(zip(split.examples, self.predictions(outputs), strict=True)):
            cells = others.get(example.guid, {})
            # A column "id" is kept even if no flag selects it. Its values may be missing or duplicate.
            own_id = None if self.columns.id else cells.pop("id", None)
            row: dict[str, object] = {"id": own_id or example.guid, "text": example.text_a}
            if example.text_b is not None:
                row["text_b"] = example.text_b
            if self.labels is None:
                predicted: dict[str, object] = {"score": round(float(prediction), 6)}
            else:
                probabilities = zip(self.labels, outputs["probabilities"][i], strict=True)
                predicted = {"label": self._name(prediction)}
                predicted |= {f"probability_{label}": round(float(value), 6) for label, value in probabilities}
            taken = {*row, *predicted}
            for column, cell in cells.items():
                row[f"given_{column}" if column in taken else column] = cell
            rows.append(row | predicted)
        tables.write_table(path, rows)
        return [*written, path]

    def _other_cells(self, path: str) -> dict[str, dict[str, Cell]]:
        """Returns the cells of a file's unused columns, by row id."""
        columns = self.columns
        used = ("", columns.text, columns.text_b, columns.id)
        return {
            str(row[columns.id] if columns.id else row.line): {x: row[x] for x in row.columns if x not in used}
            for row in tables.read_table(path, (columns.text,), self.delimiter)
            if not row.problem
        }

    def _name(self, prediction: np.ndarray) -> str:
        if self.problem == "multi_label":
            labels = [label for label, is_predicted in zip(self.labels, prediction, strict=True) if is_predicted]
            return self.columns.label_separator.join(labels)
        return self.labels[prediction]


def _as_tuple(label: str | tuple[str, ...]) -> tuple[str, ...]:
    return label if isinstance(label, tuple) else (label,)


def _text(row: Row, column: str, cell_name: str) -> str:
    cell: Cell = row[column]
    if not isinstance(cell, str):
        found = "missing" if cell is None else "an object" if isinstance(cell, dict) else "a list"
        raise InputError(f"{row.where}: the {cell_name} ({column!r}) is {found}. Use text.")
    return cell


def _is_set(row: Row, column: str) -> bool:
    cell = _text(row, column, "label").strip().lower()
    if cell not in _ZERO_OR_ONE:
        raise InputError(f"{row.where}: the label ({column!r}) is {cell!r}. Use 0 or 1.")
    return _ZERO_OR_ONE[cell]


def _weight(row: Row, column: str) -> float:
    cell = _text(row, column, "weight").strip()
    if not sentence_features.is_number(cell) or float(cell) < 0:
        raise InputError(f"{row.where}: the weight ({column!r}) is {cell!r}. Use a number >= 0.")
    return float(cell)
