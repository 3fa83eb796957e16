"""Reads and checks texts with labels: rows of TSV, CSV, JSON-lines, Parquet and Arrow files, or examples in memory.

A class is identified by its name. Names that are numbers may have several forms: "1.0" is the class "1".
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

from bert_tf.runtime.files import InputError
from bert_tf.tasks import tables
from bert_tf.tasks.data_config import DataConfig
from bert_tf.tasks.examples import (
    DataSet,
    ExampleReader,
    InputExample,
    WeightedExample,
    by_value,
    check_label,
    check_texts,
    is_number,
    whole_number,
)
from bert_tf.tasks.tables import Cell, Row

NAME_THE_COLUMNS = "If they are columns of 0 and 1, name these with --label_column=NAME,NAME."
# The cells of a column of 0 and 1. pandas writes numbers and bools in several ways.
_ZERO_OR_ONE = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}
_MISSING = ("nan", "<na>", "nat")
_SEPARATORS = ",;|"  # common separators between the labels in a cell


@dataclasses.dataclass(frozen=True)
class TestExample(InputExample):
    """A row of a test file.

    Attributes:
      cells: the cells of the columns that are neither texts nor the id, by column.
    """

    cells: Mapping[str, Cell] = dataclasses.field(default_factory=dict, compare=False)


class TextReader(ExampleReader):
    """Reads the files of the task "text".

    Args:
      paths: maps splits ("train", "dev", "test") to files. The test set needs no label; it is scored if every row has a
        valid one.
      config: the columns, the type of the labels, and how to read the files.
      classes: the classes; None to use those in the training file.

    Attributes:
      read: the function `examples`, which reads each file once.
    """

    def __init__(self, paths: Mapping[str, str], config: DataConfig, classes: Sequence[str] | None) -> None:
        super().__init__(paths, config.on_bad_row)
        self._config = config
        self._columns = config.columns
        self._flags = flag_columns(config)
        self._given = classes
        self._has_lists = False  # whether some labels are lists, which need no separator
        self.read = functools.cache(self.examples)

    @functools.cached_property
    def labels(self) -> tuple[str, ...] | None:
        """The classes; see `classes_of`."""
        return classes_of(self._config.problem, self._given, self.read, self.paths.get("train", ""))

    def examples(self, split: str) -> list[InputExample]:
        """Returns the examples of a split. See `ExampleReader.examples`."""
        examples = super().examples(split)
        if split == "train" and self._config.problem == "multi_label" and self._given is None:
            self._check_separator(examples)
        return examples

    def rows(self, split: str) -> Iterable[Row]:
        """Returns the rows of a split, after checking the columns."""
        columns = self._columns
        labels = self._flags or (columns.label,)
        others = {"train": (*labels, columns.weight), "test": ()}.get(split, labels)
        needed = [name for name in (columns.text, columns.text_b, columns.id, *others) if name]
        return tables.read_table(self.path(split), needed, self._config.delimiter)

    def example(self, row: Row, split: str) -> InputExample:
        """Returns the example in a row. A test example has no label if its label is not valid."""
        columns = self._columns
        row_id = _text(row, columns.id, "id") if columns.id else str(row.line)
        text_b = _text(row, columns.text_b, "second text") if columns.text_b else None
        example = InputExample(row_id, _text(row, columns.text, "text"), text_b)
        if split == "test":  # prediction accepts blank texts, as in an exported model
            used = ("", columns.text, columns.text_b, columns.id)
            example = TestExample(**vars(example), cells={x: row[x] for x in row.columns if x not in used})
        else:
            check_texts(example, row.where)
        try:
            known = self._given if split == "train" else self.labels
            example = labelled(example, self._label(row), row.where, self._config.problem, known)
        except InputError:
            if split != "test":
                raise
        if split == "train" and columns.weight:
            return WeightedExample(**vars(example), weight=_weight(row, columns.weight))
        return example

    def _label(self, row: Row) -> str | tuple[str, ...]:
        if self._flags:
            return tuple(name for name in self._flags if _is_set(row, name))
        if self._config.problem != "multi_label":
            return _text(row, self._columns.label, "label")
        cell = row[self._columns.label]
        if isinstance(cell, dict):
            raise InputError(f"{row.where}: the labels are an object. Use a list of labels.")
        self._has_lists |= isinstance(cell, tuple)
        return cell if isinstance(cell, tuple) else tuple((cell or "").split(self._columns.label_separator))

    def _check_separator(self, examples: Sequence[InputExample]) -> None:
        """Raises an InputError if a label looks like several labels with another separator."""
        if self._has_lists or any(len(example.label) > 1 for example in examples):
            return
        labels = sorted({label for example in examples for label in example.label})
        if found := next((label for label in labels if set(label) & set(_SEPARATORS)), None):
            raise InputError(
                f"{self.path('train')}: {found!r} may be several labels, but every row has at most one. Pass "
                "--label_separator, or all --labels."
            )


def flag_columns(config: DataConfig) -> tuple[str, ...]:
    """Returns the names of columns of 0 and 1, which are the classes; empty if the labels are in one column."""
    label = config.columns.label
    return tuple(label.split(",")) if config.problem == "multi_label" and "," in label else ()


def in_memory(examples: Mapping[str, Sequence[InputExample]], problem: str, classes: Sequence[str] | None) -> DataSet:
    """Returns the data set of examples in memory, which are checked like the rows of files.

    Args:
      examples: maps splits to examples. Those of "test" have no labels.
      problem: "classification", "regression" or "multi_label".
      classes: the classes; None to use those of the training set.
    """

    @functools.cache
    def read(split: str) -> list[InputExample]:
        if split == "test":  # prediction accepts blank texts
            return list(examples[split])
        known = classes if split == "train" else labels()
        checked = []
        for number, example in enumerate(examples[split]):
            check_texts(example, f"example {number}")
            checked.append(labelled(example, example.label, f"example {number}", problem, known))
        return checked

    @functools.cache
    def labels() -> tuple[str, ...] | None:
        return classes_of(problem, classes, read, "the examples")

    return DataSet(read, labels)


def classes_of(
    problem: str, given: Sequence[str] | None, read: Callable[[str], Sequence[InputExample]], source: str
) -> tuple[str, ...] | None:
    """Returns the given classes, or the sorted classes of the training set (numbers by value); None for regression.

    Args:
      problem: "classification", "regression" or "multi_label".
      given: the classes; None to use those of the training set.
      read: returns the examples of a split.
      source: the name of the training set, for messages.

    Raises:
      InputError: if no row has a label, or a classification has only one class.
    """
    if problem == "regression":
        return None
    if given is not None:
        if len(given) < 2 and problem == "classification":
            raise InputError(f"--labels has only {', '.join(given)!r}. Name two classes or more.")
        return tuple(given)
    labels = {label for example in read("train") for label in _as_tuple(example.label)}
    if not labels:
        raise InputError(f"{source}: no row has a label. Add labels.")
    if len(labels) < 2 and problem == "classification":
        raise InputError(f"{source}: every row has the label {min(labels)!r}. Use two classes or more.")
    return tuple(sorted(labels, key=by_value))


def class_of(label: str, classes: Sequence[str] | None) -> str:
    """Returns the class of a label. A number may have another form than the class, such as "1.0" for "1"."""
    if not classes:
        return whole_number(label)
    known = {} if label in classes else {whole_number(name): name for name in classes}
    return label if label in classes else known.get(whole_number(label), whole_number(label))


def labelled(
    example: InputExample, label: str | float | tuple[str, ...], where: str, problem: str, known: Sequence[str] | None
) -> InputExample:
    """Returns an example with a label: the name of a class, several names, or a number.

    Args:
      example: the example.
      label: its label, as written in the file or given in memory.
      where: its file and line, for messages.
      problem: "classification", "regression" or "multi_label".
      known: the classes; None if they are not known yet, or for regression.

    Raises:
      InputError: if a label is unknown, missing or not a number, or occurs twice.
    """
    parts = list(label) if isinstance(label, tuple) else [label]
    parts = [part.strip() if isinstance(part, str) else part for part in parts]
    if problem == "multi_label":
        parts = list(filter(None, parts))
    elif parts == [""]:
        raise InputError(f"{where}: the label is empty. Add it.")
    if problem != "regression":
        parts = [class_of(part, known) for part in parts]
        for part in parts if known is None else ():
            _check_new_class(part, where, problem)
    if len(set(parts)) < len(parts):
        raise InputError(f"{where}: a label occurs twice in {', '.join(parts)}. {NAME_THE_COLUMNS}")
    example = dataclasses.replace(example, label=tuple(parts) if problem == "multi_label" else parts[0])
    if known is not None or problem == "regression":
        check_label(example, where, known)
    return example


def _check_new_class(label: str, where: str, problem: str) -> None:
    """Raises an InputError if the label of a new class looks like a missing value or a number."""
    if label.startswith(("['", '["')):
        raise InputError(f"{where}: the label {label!r} is a list in Python's notation. Remove the brackets.")
    if label.lower() in _MISSING:
        raise InputError(f"{where}: the label {label!r} is a missing value. Remove the row, or pass --labels.")
    if problem == "classification" and is_number(label) and not label.lstrip("+-").isdecimal():
        raise InputError(f"{where}: the label {label!r} is a number. Pass --problem=regression, or --labels.")


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
    if not is_number(cell) or float(cell) < 0:
        raise InputError(f"{row.where}: the weight ({column!r}) is {cell!r}. Use a number >= 0.")
    return float(cell)
