"""Classification or regression of your own data, from TSV, CSV or JSON-lines files with named columns."""

import dataclasses
import functools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf.config import BertConfig
from bert_tf.finetuning.feature_sets import FeatureSet
from bert_tf.finetuning.models import ClassifierModel
from bert_tf.runtime.errors import InputError, require_choice
from bert_tf.tasks import metrics, sentence_features, tables
from bert_tf.tasks.names import PROBLEMS
from bert_tf.tasks.sentence_features import InputExample, WeightedExample
from bert_tf.tasks.sentence_task import ModelOutputs, SentenceTask
from bert_tf.tasks.tables import Cell, Row
from bert_tf.tokenization import FullTokenizer

FILE_NAMES = {split: tuple(f"{split}{suffix}" for suffix in tables.SUFFIXES) for split in ("train", "dev", "test")}
# --class_weights: every class has the same total weight in the loss, however many examples it has.
BALANCED = "balanced"
_MISSING = ("nan", "<na>", "nat")
_SEPARATORS = ",;|"  # which tables have between the labels in a cell

_METRICS = {
    "classification": (metrics.accuracy_and_macro_f1, "accuracy"),
    "regression": (metrics.pearson_and_spearman, "pearson"),
    "multi_label": (metrics.multi_label_f1, "micro_f1"),
}


@dataclasses.dataclass(frozen=True)
class Columns:
    """The names of the columns.

    Attributes:
      text: the column of the first, or only, text.
      text_b: the column of the second text of a pair; "" for single texts.
      label: the column of the label, the score, or the labels.
      id: the column of a unique id; "" to use the line numbers as ids.
      weight: the column of the weights of training rows; "" if all count the same. Other files don't need it.
      label_separator: the separator of several labels in one cell.
    """

    text: str = "text"
    text_b: str = ""
    label: str = "label"
    id: str = ""
    weight: str = ""
    label_separator: str = ","


class CustomTask(SentenceTask):
    """A task on your own files.

    Args:
      paths: split ("train", "dev", "test") -> file.
      columns: the columns of all files; the test file needs no label, and is scored if every row has a valid one.
      problem: "classification", "regression" or "multi_label".
      labels: the classes; None to take them from the training file.
      class_weights: the weights of the classes in the training loss of a classification: "" for equal weights,
        "balanced", or "class=weight,...".
      on_bad_row: "error" stops at a row that can't be used; "skip" skips and counts it.
      delimiter: what separates the cells of the files; see `tables.read_table`.

    Raises:
      InputError: if the settings contradict each other.
    """

    def __init__(
        self,
        paths: Mapping[str, str],
        columns: Columns,
        *,
        problem: str = "classification",
        labels: Sequence[str] | None = None,
        class_weights: str = "",
        on_bad_row: str = "error",
        delimiter: str = tables.AUTO,
    ) -> None:
        require_choice("--problem", problem, PROBLEMS)
        if problem == "regression" and labels:
            raise InputError("--labels are given, but a regression has no classes.")
        if problem != "classification" and class_weights:
            raise InputError(f"--class_weights can be used for classification only, but --problem is {problem}.")
        if problem != "multi_label" and columns.label_separator != Columns.label_separator:
            raise InputError(f"--label_separator is for --problem=multi_label only, but --problem is {problem}.")
        if problem == "multi_label" and not columns.label_separator:
            raise InputError("--label_separator is empty, but several labels in one cell need a separator.")
        if labels is not None and len(set(labels)) != len(labels):
            raise InputError(f"--labels: a label occurs twice in {', '.join(labels)}.")
        metric, selection_metric = _METRICS[problem]
        super().__init__("custom", labels, metric, selection_metric)
        self.paths = dict(paths)
        self.columns = columns
        self.problem = problem
        self.on_bad_row = on_bad_row
        self.delimiter = delimiter
        self._class_weights = class_weights
        self._has_lists = False  # whether labels were read that need no separator
        self.examples = functools.cache(self.examples)

    @functools.cached_property
    def labels(self) -> tuple[str, ...] | None:
        """The given classes, or those of the training file, sorted (numbers by value); None for regression."""
        if self.problem == "regression" or self._labels is not None:
            return self._labels
        labels = {label for example in self.examples("train") for label in _as_tuple(example.label)}
        if not labels:
            raise InputError(f"{self.paths['train']}: no row has a label, so there is nothing to learn.")
        if len(labels) < 2 and self.problem == "classification":
            raise InputError(f"{self.paths['train']}: every row has the label {min(labels)!r}; two classes are needed.")
        return tuple(
            sorted(labels, key=lambda label: (not label.isdecimal(), int(label) if label.isdecimal() else 0, label))
        )

    @property
    def _learns_labels(self) -> bool:
        return self.problem != "regression" and self._labels is None

    def input_settings(self) -> dict[str, Any]:
        """Returns the problem, the classes, and the columns under the names of their flags."""
        columns = {f"{name}_column": getattr(self.columns, name) for name in ("text", "text_b", "label")}
        separator = {"label_separator": self.columns.label_separator} if self.problem == "multi_label" else {}
        return super().input_settings() | {"problem": self.problem} | columns | separator

    def resume_settings(self) -> dict[str, Any]:
        """Returns also the weights of the classes, and the column of the rows' weights if there is one."""
        weights = {"weight_column": self.columns.weight} if self.columns.weight else {}
        return self.input_settings() | {"class_weights": self._class_weights} | weights

    def examples(self, split: str) -> list[InputExample]:
        """Returns the rows of a split; those of "test" have labels only if all of them are valid.

        Raises:
          InputError: if the file is missing or a row can't be used; the message has the file and the line.
        """
        columns, path = self.columns, tables.split_file(self.paths, split)
        label = () if split == "test" else (columns.label,)
        weight = columns.weight if split == "train" else ""
        needed = [name for name in (columns.text, columns.text_b, columns.id, *label, weight) if name]
        ids = tables.UniqueIds()

        def convert(row: Row) -> InputExample:
            row_id = ids.check(_text(row, columns.id, "id"), row) if columns.id else str(row.line)
            text_b = _text(row, columns.text_b, "second text") if columns.text_b else None
            example = InputExample(row_id, _text(row, columns.text, "text"), text_b, None)
            if split != "test":  # what is only predicted may be blank, as in an exported model
                sentence_features.check_texts(example, row.where)
            try:
                labelled = dataclasses.replace(example, label=self._label(row))
                if not (split == "train" and self._learns_labels):
                    sentence_features.check_label(labelled, row.where, self.labels)
            except InputError:
                if split != "test":
                    raise
                return example
            return WeightedExample(**vars(labelled), weight=_weight(row, weight)) if weight else labelled

        rows = tables.read_table(path, needed, self.delimiter)
        examples = tables.convert_rows(rows, convert, path, self.on_bad_row)
        return sentence_features.all_labels_or_none(examples, path) if split == "test" else examples

    def _label(self, row: Row) -> str | tuple[str, ...]:
        cell = row[self.columns.label]
        if self.problem == "multi_label":
            self._has_lists |= isinstance(cell, tuple)
            parts = (cell or "").split(self.columns.label_separator) if not isinstance(cell, tuple) else cell
            labels = tuple(part.strip() for part in parts if part.strip())
            for label in labels:
                self._check_class(label, row)
            return labels
        label = _text(row, self.columns.label, "label").strip()
        if not label:
            raise InputError(f"{row.where}: the label is empty.")
        self._check_class(label, row)
        return label

    def _check_class(self, label: str, row: Row) -> None:
        """Raises an InputError if a label that is to become a class looks like a missing value or a number."""
        if not self._learns_labels:
            return
        if label.lower() in _MISSING:
            raise InputError(
                f"{row.where}: the label is {label!r}, which pandas writes for a missing value. Remove the row. If "
                "this is a class, list all classes in --labels."
            )
        if self.problem == "classification" and _is_fraction(label):
            raise InputError(
                f"{row.where}: the label {label!r} is a number with a decimal point, but classes are expected. "
                "To predict numbers, use --problem=regression. If these are classes, list them in --labels."
            )

    @property
    def metric_names(self) -> list[str]:
        """The scores that models can be chosen by."""
        return list(self.metric(np.eye(2), np.eye(2))) if self.problem == "multi_label" else super().metric_names

    def check_training_set(self, examples: Sequence[InputExample]) -> None:
        """Raises an InputError if no row has a weight above 0, or no labels can be told from each other."""
        if examples and not any(getattr(example, "weight", 1.0) for example in examples):
            raise InputError(f"{self.paths['train']}: every row has the weight 0, so there is nothing to learn.")
        if self.problem == "classification":
            super().check_training_set(examples)
        elif self.problem == "multi_label" and self._learns_labels and not self._has_lists:
            self._check_separator(examples)

    def _check_separator(self, examples: Sequence[InputExample]) -> None:
        """Raises an InputError if each row has one label at most, in which something else may separate several."""
        labels = {label for example in examples for label in example.label}
        if any(len(example.label) > 1 for example in examples):
            return
        for separator in _SEPARATORS:
            if found := next((label for label in sorted(labels) if separator in label), None):
                raise InputError(
                    f"{self.paths['train']}: no row has several labels with {self.columns.label_separator!r} between "
                    f"them, but there is {found!r}. If {separator!r} separates labels, pass "
                    f"--label_separator='{separator}'. If this is one label, list all labels in --labels."
                )

    def featurize(
        self, examples: Sequence[InputExample], tokenizer: FullTokenizer, max_seq_length: int, num_workers: int = 1
    ) -> FeatureSet:
        """Returns the features; see `sentence_features.featurize`. Weighted rows have `sample_weights` [N] too."""
        multi_label = self.problem == "multi_label"
        features = sentence_features.featurize(
            examples, self.labels, max_seq_length, tokenizer, num_workers, multi_label=multi_label
        )
        weights = [example.weight for example in examples if isinstance(example, WeightedExample)]
        return features.with_values(sample_weights=np.array(weights, np.float32)) if weights else features

    def build_model(self, config: BertConfig, **options) -> ClassifierModel:
        """Returns a classifier with one logit per class, or one output for regression."""
        outputs = 1 if self.labels is None else len(self.labels)
        options |= {"problem": self.problem, "class_weights": self.weights(), "classes": self.labels}
        return ClassifierModel(config, outputs, **options)

    def weights(self) -> list[float] | None:
        """Returns the weight of each class's examples in the training loss; None for equal weights.

        Raises:
          InputError: if --class_weights names an unknown class, or a weight is not a number above 0.
        """
        if not self._class_weights:
            return None
        if self._class_weights == BALANCED:
            labels = [example.label for example in self.examples("train")]
            return [len(labels) / (len(self.labels) * max(labels.count(label), 1)) for label in self.labels]
        weights = dict.fromkeys(self.labels, 1.0)
        for part in re.sub(r"(=[^=,]*),", r"\1\n", self._class_weights).split("\n"):  # a class may have commas
            label, _, weight = part.rpartition("=")
            if label not in weights or not sentence_features.is_number(weight) or not float(weight) > 0:
                raise InputError(
                    f"--class_weights: {part!r} is not of the form class=weight, with a class of "
                    f"{', '.join(self.labels)} and a weight above 0."
                )
            weights[label] = float(weight)
        return list(weights.values())

    def predictions(self, outputs: ModelOutputs) -> np.ndarray:
        """Returns class numbers, scores, or (multi-label) 0 or 1 for each class."""
        if self.problem == "multi_label":
            return (outputs["probabilities"] >= 0.5).astype(np.int32)
        return super().predictions(outputs)

    def confusion(self, outputs: ModelOutputs, features: FeatureSet) -> tuple[np.ndarray, Sequence[str]] | None:
        """Returns the counts of true (rows) and predicted classes (columns), and their names; None if not defined."""
        return super().confusion(outputs, features) if self.problem == "classification" else None

    def write_predictions(
        self,
        output_dir: str,
        split: str,
        examples: Sequence[InputExample],
        outputs: ModelOutputs,
        features: FeatureSet,
        *,
        release_format: bool = False,
    ) -> list[str]:
        """Writes test_results.tsv, and test_predictions in the test file's format.

        test_predictions has the id, the texts, the file's other columns, and either the label and each class's
        probability, or the score. Columns of the file that have the name of one of these are there as given_NAME.
        """
        written = super().write_predictions(
            output_dir, split, examples, outputs, features, release_format=release_format
        )
        name, suffix = self.output_names.get(split, split), os.path.splitext(self.paths[split])[1].lower()
        path = os.path.join(output_dir, f"{name}_predictions{suffix}")
        others = self._other_cells(self.paths[split])
        rows = []
        for i, (example, prediction) in enumerate(zip(examples, self.predictions(outputs), strict=True)):
            cells = others.get(example.guid, {})
            # A column "id" is kept as it is, though nothing asks for it; its values may be missing, or not unique.
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
        """Returns the cells of a file's columns that no example is made of, by the ids of the rows."""
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
        raise InputError(f"{row.where}: the {cell_name} ({column!r}) is {'a list' if cell else 'missing'}, not text.")
    return cell


def _weight(row: Row, column: str) -> float:
    cell = _text(row, column, "weight").strip()
    if not sentence_features.is_number(cell) or float(cell) < 0:
        raise InputError(f"{row.where}: the weight ({column!r}) is {cell!r}, but a number of at least 0 is expected.")
    return float(cell)


def _is_fraction(label: str) -> bool:
    return sentence_features.is_number(label) and not label.lstrip("+-").isdecimal()
