"""The classes of a `Classifier`: labels as users give them, and the names that the task and the run record.

Axis letters: C classes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bert_tf.api import in_memory
from bert_tf.runtime.errors import InputError, first_of
from bert_tf.tasks.sentences.examples import whole_number
from bert_tf.tasks.sentences.soft_labels import PREFIX

_NAME_THE_COLUMNS = "Name the columns of 0 and 1: from_pretrained(..., labels=[...])."


class ClassLabels:
    """The classes that were passed to `from_pretrained`, and the labels of examples.

    Args:
      originals: the classes as they were given; None for the classes of the data.
      recorded: the names of the classes of the trained model; empty if there is no model.

    Attributes:
      originals: the classes as they were given.
      names: the names of the classes in `originals`. A model that was trained on "1.0" has recorded the name "1".
    """

    def __init__(self, originals: Sequence[Any] | None, recorded: Sequence[str] = ()) -> None:
        self.originals = originals
        names = list(map(in_memory.class_name, originals or ()))
        short = list(map(whole_number, names))
        self.names: list[str] = short if sorted(short) == sorted(recorded) else names

    @property
    def by_name(self) -> dict[str, Any]:
        """Maps the names of the classes to the classes as they were given; empty if none were given."""
        return dict(zip(self.names, self.originals or (), strict=True))

    def probabilities(self, value: Any, where: str) -> Mapping[str, Any]:
        """Returns the probabilities of an example by column or class. For `where`, see `in_memory.label`."""
        if isinstance(value, Mapping):
            return value
        if not isinstance(value, list) or len(value) != len(self.names):
            problem = f"{where} has the label {value!r}."
            raise InputError(f"{problem} Give a probability for each class of labels={self.names}.")
        return dict(zip(self.names, value, strict=True))

    def name(self, value: Any, where: str) -> str:
        """Returns the name of a class from its name or, as in Hugging Face's data sets, its index in `originals`."""
        value, classes = in_memory.label(value, where), self.originals or []
        is_number = type(value) is int and 0 <= value < len(classes)  # True and False are also instances of int
        is_index = is_number and isinstance(classes[value], str) and str(value) not in classes
        return classes[value] if is_index else str(value)

    def several(self, value: Any, where: str, classes: Callable[[], Sequence[Any]]) -> tuple[str, ...]:
        """Returns the names of the labels of an example.

        Args:
          value: a list of labels, or a row of 0 and 1.
          where: see `in_memory.label`.
          classes: returns the classes of the model, if `originals` is None.
        """
        if isinstance(value, Mapping):
            value = _flagged(value, where, list(self.originals or classes()))
        if not isinstance(value, list | tuple) or any(isinstance(label, list | tuple) for label in value):
            raise InputError(f"{where} has the label {value!r}. Give a list of labels (multi_label=True).")
        if self.is_row(value):
            return tuple(label for label, is_there in zip(self.names, value, strict=True) if is_there)
        labels = tuple(str(in_memory.label(label, where)) for label in value)
        if len(set(labels)) < len(labels):
            raise InputError(f"{where} has a label twice: {first_of(labels)}. {_NAME_THE_COLUMNS}")
        return labels

    def is_row(self, value: Any) -> bool:
        """Returns True for a label that has 0 or 1 for each class in `originals`."""
        if isinstance(value, Mapping):
            names = list(map(in_memory.class_name, value))
            return names in (self.names, list(map(str, range(len(names)))))
        return _are_flags(value) and len(value) == len(self.names) and not {"0", "1"} & set(self.names)

    def of_training(self, labels: Sequence[Any]) -> dict[str, Any]:
        """Returns the classes by name: the given ones, or the classes of the training labels."""
        if self.originals:
            return self.by_name
        if are_probabilities(labels):
            return {name: name for name in sorted(str(name).removeprefix(PREFIX) for name in labels[0])}
        rows = (row if isinstance(row, list | tuple | Mapping) else [row] for row in labels)
        return in_memory.classes_of([label for row in rows for label in row])

    def weights(self, value: Any, order: Sequence[str]) -> str | dict[str, float]:
        """Returns the value of `class_weights` for the task.

        Args:
          value: the value of the argument: text, a dictionary from classes to weights, or weights in order.
          order: the names of the classes in their order.

        Raises:
          InputError: if the number of weights is not the number of classes.
        """
        if isinstance(value, str):
            return value
        if isinstance(value, Mapping):
            return {self.name(label, ""): weight for label, weight in value.items()}
        if len(value) != len(order):
            problem = f"there are {len(value)} weights, but {len(order)} classes: {first_of(order)}"
            raise InputError(f"{problem}. Give one weight for each class.", "class_weights")
        return dict(zip(order, value, strict=True))


def as_given(names: Sequence[str], flags: Mapping[str, Any]) -> list[Any]:
    """Returns classes in the type and the spelling that the flags of a run record."""
    if "given_labels" in flags:
        return [flags["given_labels"].get(name, name) for name in names]
    # Earlier versions recorded the type. In the programs' runs, classes are text.
    kind = flags.get("label_type", "str")
    return [{"int": int, "bool": "True".__eq__, "str": str}[kind](name) for name in names]


def are_probabilities(labels: Iterable[Any]) -> bool:
    """Returns True for rows of numbers in columns of probabilities, or with at least one number that is not whole."""
    if any(isinstance(row, Mapping) and str(next(iter(row), "")).startswith(PREFIX) for row in labels):
        return True
    rows = (row.values() if isinstance(row, Mapping) else row for row in labels if isinstance(row, Mapping | list))
    return any(isinstance(number, float) and not number.is_integer() for row in rows for number in row)


def check_named(labels: Iterable[Any]) -> None:
    """Raises an InputError if all labels are rows of 0 and 1, because the classes have no names then."""
    if all(_are_flags(value) and len(value) >= 2 for value in labels):
        raise InputError(f"the labels of every example are 0 and 1. {_NAME_THE_COLUMNS}")


def _are_flags(value: Any) -> bool:
    """Returns True for a list that contains only 0 and 1, such as a row with one column per class."""
    return isinstance(value, list | tuple) and all(flag in (0, 1) and not isinstance(flag, str) for flag in value)


def _flagged(row: Mapping[Any, Any], where: str, classes: Sequence[Any]) -> list[Any]:
    """Returns the classes whose columns are 1 in a table row. Unnamed columns are in the order of the classes."""
    if list(row) == list(range(len(classes))):
        row = dict(zip(classes, row.values(), strict=True))
    names = set(map(in_memory.class_name, row))
    if not _are_flags(list(row.values())) or names != set(map(in_memory.class_name, classes)):
        columns, expected = (first_of(map(repr, names)) for names in (row, classes))
        raise InputError(f"{where} has the columns {columns}. Use columns of 0 and 1 for the classes {expected}.")
    return [label for label, is_there in row.items() if is_there]
