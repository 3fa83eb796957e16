"""Examples of sentence tasks, the base class of readers, and the rules for texts and labels.

A class is identified by a name. A number may be written in several forms: "1.0" is the class "1".
"""

import abc
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf.data_report.rows import check_no_list, is_missing
from bert_tf.finetuning.dev_split import as_tuple
from bert_tf.runtime.errors import InputError, first_of
from bert_tf.runtime.messages import say
from bert_tf.tasks import example_rows
from bert_tf.tasks.example_rows import Source
from bert_tf.tasks.tables import Row

NAME_THE_COLUMNS = "If they are columns of 0 and 1, name these with --label_column=NAME,NAME."


@dataclasses.dataclass(frozen=True)
class InputExample:
    """A row of a data set.

    Attributes:
      guid: a unique id.
      text_a: the first or only text.
      text_b: the second text of a pair.
      label: the name of the class; in multi-label tasks a tuple of names; for regression a number or the text of a
        number; None for test examples without a label. Before it is checked, a label may also be a mapping from classes
        to probabilities; see `soft_labels`.
    """

    guid: str
    text_a: str
    text_b: str | None = None
    label: str | float | tuple[str, ...] | Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class WeightedExample(InputExample):
    """A training row with a weight.

    Attributes:
      weight: the factor of the row's loss, >= 0.
    """

    weight: float = 1.0


class ExampleReader(abc.ABC):
    """Base class that reads and checks examples. Subclasses read the rows of files.

    Args:
      sources: maps splits to files, or to examples in memory.
      on_bad_row: "error" stops at a row that can't be used; "skip" skips and counts it.
    """

    for_server = False  # if True, each row of a test set needs a prediction and has no label
    # Maps splits to possible file names in --data_dir, for messages.
    file_names: dict[str, tuple[str, ...]] = example_rows.FILE_NAMES

    def __init__(self, sources: Mapping[str, Source], on_bad_row: str = "error") -> None:
        self.sources: dict[str, Source] = dict(sources)
        self.on_bad_row = on_bad_row

    def examples(self, split: str) -> list[Any]:
        """Returns the examples of a split. Test examples have labels only if all labels are valid.

        Raises:
          InputError: if the file is missing or a row can't be used; the message has the file and the line.
        """
        ids, source = example_rows.UniqueIds(), example_rows.split_source(self.sources, split, self.file_names)
        if not isinstance(source, str):
            return [self.checked(example, f"example {number}", split) for number, example in enumerate(source)]

        def convert(row: Row) -> Any:
            example = self.example(row, split)
            if example is not None:
                ids.check(example.guid, row)
            return example

        is_test = split.startswith("test")
        on_bad_row = "error" if is_test and self.for_server else self.on_bad_row
        examples = example_rows.convert_rows(self.rows(split), convert, source, on_bad_row)
        return examples if self.for_server or not is_test else all_labels_or_none(examples, source)

    @abc.abstractmethod
    def rows(self, split: str) -> Iterable[Row]:
        """Returns the rows of the file of a split."""

    @abc.abstractmethod
    def example(self, row: Row, split: str) -> Any:
        """Checks the example in a row, and returns it; None to omit the row."""

    @abc.abstractmethod
    def checked(self, example: Any, where: str, split: str) -> Any:
        """Checks the texts and the label of an example, and returns the example.

        Args:
          example: the example.
          where: file and line, or the index in memory, for messages.
          split: the split of the example.
        """


def check_texts(example: InputExample, where: str) -> None:
    """Checks that no text of an example is empty or white space.

    Args:
      example: the example.
      where: file and line, for the message.

    Raises:
      InputError: if a text is empty.
    """
    for name, text in (("text", example.text_a), ("second text", example.text_b)):
        if text is not None and not text.strip():
            raise InputError(f"{where}: the {name} is empty. Add it, or remove the row.")


def check_label(example: InputExample, where: str, labels: Sequence[str] | None) -> None:
    """Checks that the labels of an example are known classes or, for regression, that the label is a number.

    Args:
      example: the example.
      where: file and line, for the message.
      labels: the classes; None for regression.

    Raises:
      InputError: if a label is unknown or not a number.
    """
    for label in example.label if isinstance(example.label, tuple) else [example.label]:
        if labels is not None and label not in labels:
            raise InputError(f"{where}: the label {label!r} is unknown. Use one of {first_of(map(repr, labels))}.")
    if labels is None and not is_number(example.label):
        raise InputError(f"{where}: the score {example.label!r} is not a number. Correct it.")


def all_labels_or_none(examples: list[Any], source: str) -> list[Any]:
    """Returns the rows of a test set, without labels if the labels can't be used to score predictions.

    Args:
      examples: the rows. `label` is None if the label is missing or is not a class of the model.
      source: the file of the rows, for the message.
    """
    labels = {example.label for example in examples}
    if labels == {None} or (None not in labels and len(labels) > 1):
        return examples
    missing = sum(example.label is None for example in examples)
    reason = f"{missing} rows have no known label" if missing else "all rows have the same label"
    say(f"{source}: predictions are not scored, because {reason}.")
    return [dataclasses.replace(example, label=None) for example in examples]


def whole_number(label: str) -> str:
    """Returns "1" for "1.0"; other labels are unchanged.

    If a column of integers has a missing value, some programs write 1 as 1.0.
    """
    return label.partition(".")[0] if re.fullmatch(r"[+-]?\d+\.0*", label) else label


def by_value(label: str) -> tuple[bool, float, str]:
    """Returns the sort key of a class. Numbers are ordered by value, before other classes."""
    return not is_number(label), float(label) if is_number(label) else 0.0, label


def is_number(value: str | float | None) -> bool:
    """Returns True if a value is a number, or the text of a number, in the range of float32."""
    try:
        return not isinstance(value, bool) and abs(float(value)) <= float(np.finfo(np.float32).max)
    except (TypeError, ValueError, OverflowError):
        return False


def classes_of(
    problem: str, examples: Sequence[InputExample], source: str, order: Sequence[str] = ()
) -> tuple[str, ...]:
    """Returns the classes of a training set.

    Args:
      problem: "classification" or "multi_label".
      examples: the training set.
      source: the name of the training set, for messages.
      order: the first classes. Other classes are sorted, numbers by value.

    Raises:
      InputError: if no row has a label, or a classification has only one class.
    """
    labels = {label for example in examples for label in getattr(example, "probabilities", as_tuple(example.label))}
    if not labels:
        raise InputError(f"{source}: no row has a label. Add labels.")
    if len(labels) < 2 and problem == "classification":
        raise InputError(f"{source}: every row has the label {min(labels)!r}. Use two classes or more.")
    positions = {label: number for number, label in enumerate(order)}
    return tuple(sorted(labels, key=lambda label: (positions.get(label, len(order)), by_value(label))))


def class_of(label: str, classes: Sequence[str] | None) -> str:
    """Returns the class of a label. For the class "1", the label may also be "1.0"."""
    if not classes:
        return whole_number(label)
    known = {} if label in classes else {whole_number(name): name for name in classes}
    return label if label in classes else known.get(whole_number(label), whole_number(label))


def with_classes(example: InputExample, where: str, problem: str, known: Sequence[str] | None) -> InputExample:
    """Returns an example whose label is the name of a class, a tuple of several names, or a number.

    Args:
      example: the example, with the label as written in the file or given in memory.
      where: file and line, for messages.
      problem: "classification", "regression" or "multi_label".
      known: the classes; None if they are not known yet, or for regression.

    Raises:
      InputError: if a label is unknown, missing or not a number, or occurs twice.
    """
    labels = [label.strip() if isinstance(label, str) else label for label in as_tuple(example.label)]
    if problem == "multi_label":
        labels = list(filter(None, labels))
    elif labels in ([], [""]):
        raise InputError(f"{where}: the label is empty. Add it.")
    if problem != "regression":
        labels = [class_of(label, known) for label in labels]
        for label in labels if known is None else ():
            _check_new_class(label, where, problem)
    if len(set(labels)) < len(labels):
        raise InputError(f"{where}: a label occurs twice in {first_of(labels)}. {NAME_THE_COLUMNS}")
    example = dataclasses.replace(example, label=tuple(labels) if problem == "multi_label" else labels[0])
    if known is not None or problem == "regression":
        check_label(example, where, known)
    return example


def _check_new_class(label: str, where: str, problem: str) -> None:
    """Raises an InputError if the label of a new class is probably a missing value, a list or a number."""
    check_no_list(label, where)
    if is_missing(label):
        raise InputError(f"{where}: the label {label!r} is a missing value. Remove the row, or pass --labels.")
    number = label.replace(",", ".")
    if problem == "classification" and is_number(number) and not number.lstrip("+-").isdecimal():
        raise InputError(f"{where}: the label {label!r} is a number. Pass --problem=regression, or --labels.")
