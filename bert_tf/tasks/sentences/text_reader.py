"""Reads texts with labels from TSV, CSV, JSON-lines, Parquet and Arrow files with named columns."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from bert_tf.data_report.rows import check_no_list
from bert_tf.runtime.errors import InputError, first_of
from bert_tf.runtime.messages import say
from bert_tf.tasks import example_rows, tables
from bert_tf.tasks.data_config import DataConfig
from bert_tf.tasks.example_rows import Source
from bert_tf.tasks.sentences import soft_labels
from bert_tf.tasks.sentences.examples import (
    ExampleReader,
    InputExample,
    WeightedExample,
    check_texts,
    is_number,
    with_classes,
)
from bert_tf.tasks.tables import Cell, Row

# The cells of a column of 0 and 1. pandas writes numbers and bools in several ways.
_ZERO_OR_ONE = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}
_SEPARATORS = ",;|"  # common separators between the labels in a cell
# Common names of the second text of a pair.
_SECOND_TEXTS = ("text_b", "text_pair", "text2", "sentence2", "question2", "hypothesis")


KnownClasses = Callable[[str], tuple[str, ...] | None]


@dataclasses.dataclass(frozen=True)
class TestExample(InputExample):
    """A row of a test file.

    Attributes:
      cells: maps names of columns to cells, for all columns except the texts and the id.
    """

    cells: Mapping[str, Cell] = dataclasses.field(default_factory=dict, compare=False)


class TextReader(ExampleReader):
    """Reads and checks the examples of the task "text".

    Args:
      sources: maps splits ("train", "dev", "test") to files, or to examples in memory. The test set needs no labels. It
        is scored if every row of the file has a valid label.
      config: the columns, the type of the labels, and how to read the files.
      known: returns the valid classes for a split; None for regression, and if the classes are not known yet.
    """

    def __init__(self, sources: Mapping[str, Source], config: DataConfig, known: KnownClasses) -> None:
        super().__init__(sources, config.on_bad_row)
        self._config = config
        self._columns = config.columns
        self._flags = flag_columns(config)
        self._known = known
        self._has_lists = False  # whether some labels are lists, which need no separator
        self._soft: tuple[str, ...] = ()  # the columns of probabilities in the training set

    def examples(self, split: str) -> list[InputExample]:
        """Returns the examples of a split. See `ExampleReader.examples`."""
        examples = super().examples(split)
        is_file = isinstance(self.sources[split], str)
        if split == "train" and is_file and self._config.problem == "multi_label" and self._known(split) is None:
            self._check_separator(examples)
        return examples

    def rows(self, split: str) -> Iterable[Row]:
        """Yields the rows of a split, after checking the columns."""
        columns = self._columns

        def needed(names: Collection[str]) -> list[str]:
            is_soft = split == "train" and self._probabilities(names)
            labels = () if is_soft else self._flags or (columns.label,)
            others = {"train": (*labels, columns.weight), "test": ()}.get(split, labels)
            return [name for name in (columns.text, columns.text_b, columns.id, *others) if name]

        for number, row in enumerate(tables.read_table(self.sources[split], needed, self._config.delimiter)):
            if number == 0 and split == "train":
                self._report_columns(row)
            yield row

    def example(self, row: Row, split: str) -> InputExample:
        """Returns the example in a row. A test example has no label if its label is not valid."""
        columns = self._columns
        if split != "test" and example_rows.is_rejected(row, (columns.text, columns.text_b, columns.label)):
            raise example_rows.SkippedRow("rejected or discarded by an annotator")
        row_id = _text(row, columns.id, "id") if columns.id else str(row.line)
        text_b = _text(row, columns.text_b, "second text") if columns.text_b else None
        example = InputExample(row_id, _text(row, columns.text, "text"), text_b)
        if split == "test":
            used = ("", columns.text, columns.text_b, columns.id)
            example = TestExample(**vars(example), cells={x: row[x] for x in row.columns if x not in used})
        elif split == "train" and columns.weight:
            example = WeightedExample(**vars(example), weight=_weight(row, columns.weight))
        try:
            return self.checked(dataclasses.replace(example, label=self._label(row, split)), row.where, split)
        except InputError:
            if split != "test":
                raise
            return example

    def checked(self, example: InputExample, where: str, split: str) -> InputExample:
        """Checks an example, and returns it with the names of its classes. See `ExampleReader.checked`."""
        if split != "test":  # prediction accepts blank texts, as in an exported model
            check_texts(example, where)
        elif example.label is None:
            return example
        known, problem = self._known(split), self._config.problem
        if not isinstance(example.label, Mapping):
            return with_classes(example, where, problem, known)
        self._soft = self._soft or tuple(example.label)
        return soft_labels.checked(example, where, problem, known or self._soft)

    def _probabilities(self, names: Collection[str]) -> tuple[str, ...]:
        """Returns the columns of probabilities."""
        is_class = self._config.problem != "regression"
        return tuple(name for name in names if is_class and name.startswith(soft_labels.PREFIX))

    def _report_columns(self, first: Row) -> None:
        """Stores the columns of probabilities of the training file, and reports them and unused second texts."""
        names, columns = first.keys(), self._columns
        second = next((name for name in _SECOND_TEXTS if name in names and name != columns.text), "")
        if second and not columns.text_b:
            say(f"Warning: {first.path}: the column {second!r} is not used. For pairs, pass --text_b_column={second}.")
        self._soft = self._probabilities(names)
        if self._soft:
            say(f"{first.path}: training on the probabilities in {first_of(self._soft)}. A label column is ignored.")

    def _label(self, row: Row, split: str) -> str | tuple[str, ...] | dict[str, Cell]:
        if split == "train" and self._soft:
            return {name: row[name] for name in (*self._soft, *row.columns) if name.startswith(soft_labels.PREFIX)}
        if self._flags:
            return tuple(name for name in self._flags if _is_set(row, name))
        cell = row[self._columns.label]
        if self._columns.label == "gold_label" and cell == "-":
            raise InputError(f"{row.where}: the label is '-', which means none in SNLI and MultiNLI. Remove the row.")
        if self._config.problem != "multi_label":
            return _text(row, self._columns.label, "label")
        if isinstance(cell, str) and self._known(split) is None:
            check_no_list(cell, row.where, brackets="[]{}")
        if isinstance(cell, dict):
            raise InputError(f"{row.where}: the labels are an object. Use a list of labels.")
        self._has_lists |= isinstance(cell, tuple)
        return cell if isinstance(cell, tuple) else tuple((cell or "").split(self._columns.label_separator))

    def _check_separator(self, examples: Sequence[InputExample]) -> None:
        """Raises an InputError if a label looks like several labels with another separator."""
        if self._soft or self._has_lists or any(len(example.label) > 1 for example in examples):
            return
        labels = sorted({label for example in examples for label in example.label})
        if joined := next((label for label in labels if set(label) & set(_SEPARATORS)), None):
            raise InputError(
                f"{self.sources['train']}: {joined!r} may be several labels, but every row has at most one. Pass "
                "--label_separator to split it, or list all classes with --labels."
            )


def flag_columns(config: DataConfig) -> tuple[str, ...]:
    """Returns the columns of 0 and 1 in --label_column. Their names are the classes. Empty for a single column."""
    label = config.columns.label
    return tuple(label.split(",")) if config.problem == "multi_label" and "," in label else ()


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
