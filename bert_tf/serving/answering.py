"""The base class of models that take and return plain Python values: fields, checks of examples, and batches."""

import abc
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from bert_tf.runtime.errors import InputError, first_of, is_no_list, require_whole

# Default names of the text inputs. A model that was trained on named columns uses their names.
TEXT_INPUTS = ("text_a", "text_b")
# The inputs of multiple choice: a text, and a list of texts.
CHOICE_INPUTS = ["prompt", "endings"]
# Methods of PyArrow, polars, pandas, datasets and TensorFlow that return plain lists.
_TO_LIST = ("to_pylist", "to_dicts", "to_list")
_MAX_ID = (1 << 31) - 1


class Input(NamedTuple):
    """The type of an input: `kind`, or a list of `kind` if `is_list` is True."""

    kind: type[str] | type[int]
    is_list: bool = False


def records(values: Any, name: str) -> Any:
    """Returns the rows of a table as dictionaries, or the values of a column as a list; other objects unchanged.

    Args:
      values: a table, a column, or another object.
      name: the name of the argument, for messages.

    Raises:
      InputError: if several columns have the same name.
    """
    if hasattr(values, "itertuples"):  # a pandas.DataFrame
        if not values.columns.is_unique:
            raise InputError(f"{name} has columns with the same name: {first_of(values.columns)}. Rename them.")
        return values.to_dict("records")
    method = next((method for method in _TO_LIST if hasattr(values, method)), None)
    return getattr(values, method)() if method else values


def softmax(scores: Sequence[float]) -> list[float]:
    """Returns the softmax of scores."""
    highest = max(scores)
    powers = [math.exp(score - highest) for score in scores]
    total = sum(powers)
    return [power / total for power in powers]


class Predictor(abc.ABC):
    """A model that answers examples.

    Args:
      fields: maps input names to fields.
      texts: for a classifier, the names of its one or two texts. `TEXT_INPUTS` are accepted as aliases.

    Attributes:
      inputs: the names of the inputs, which are the fields of an example.
    """

    def __init__(self, fields: Mapping[str, Input], texts: Sequence[str] = ()) -> None:
        self.inputs: list[str] = sorted(fields)
        self._fields = fields
        self._aliases = {other: name for other, name in zip(TEXT_INPUTS, texts, strict=False) if other not in fields}

    def _renamed(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields with aliases replaced by the names of the inputs."""
        renamed = dict(fields)
        for other, name in self._aliases.items():
            if other in renamed and name not in renamed:
                renamed[name] = renamed.pop(other)
        return renamed

    def other_fields(self, example: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields of an example that are not inputs."""
        return {name: value for name, value in self._renamed(example).items() if name not in self.inputs}

    def check(self, example: Any) -> dict[str, Any]:
        """Checks an example, and returns the fields that are inputs.

        If there is only one text input, the example may be a string. For `token_ids`, fields are lists of integers.

        Raises:
          InputError: if a field is missing or has the wrong type. If the example is itself an InputError, it is raised.
        """
        if isinstance(example, InputError):
            raise example
        fields = {self.inputs[0]: example} if isinstance(example, str) and len(self.inputs) == 1 else example
        if not isinstance(fields, Mapping):
            raise InputError(
                f"{_abbreviated(example)} is not an object with the fields {', '.join(map(repr, self.inputs))}."
            )
        fields = self._renamed(fields)
        for name in self.inputs:
            if name not in fields:
                names = _abbreviated(list(fields))
                raise InputError(f"the field {name!r} is missing. Expected: {self.inputs}; given: {names}.")
            self._check_field(name, fields[name])
        ids = [name for name in self.inputs if self._fields[name].kind is int]
        if len({len(fields[name]) for name in ids}) > 1:
            raise InputError(f"the fields {', '.join(map(repr, ids))} have different lengths. Use the same length.")
        return {name: fields[name] for name in self.inputs}

    def _check_field(self, name: str, value: Any) -> None:
        kind, is_list = self._fields[name]
        items = value if is_list else [value]
        is_right = isinstance(items, list) and items and all(isinstance(item, kind) for item in items)
        if not is_right or bool in map(type, items):
            expected = ("a list of " if is_list else "") + ("text" if kind is str else "integers")
            raise InputError(f"the field {name!r} must be {expected}, not {_abbreviated(value)}.")
        if kind is int and not all(0 <= item <= _MAX_ID for item in items):
            raise InputError(f"the field {name!r} must contain numbers from 0 to {_MAX_ID}, not {_abbreviated(value)}.")

    def predict(self, examples: Sequence[Any], batch_size: int = 32) -> list[dict[str, Any]]:
        """Answers examples. Examples of similar length share a batch.

        Args:
          examples: mappings with the fields `inputs`, or strings if there is only one input; or a table of pandas,
            polars, PyArrow or datasets with columns of these names.
          batch_size: number of examples per batch.

        Returns:
          For each example, in the same order, the outputs as Python values without padding.

        Raises:
          InputError: if an example can't be used; the message contains its index. Also if `examples` is a single
            example.
        """
        examples = records(examples, "examples")
        if is_no_list(examples):
            raise InputError(f"examples is {_abbreviated(examples)}. Pass a list of examples.")
        require_whole("batch_size", batch_size, 1)
        answers = self.answer(examples, batch_size)
        for number, answer in enumerate(answers):
            if isinstance(answer, InputError):
                raise InputError(f"example {number}: {answer}")
        return answers

    def explain(self, examples: Sequence[Any]) -> NoReturn:
        """Raises an InputError, because an exported model has no gradients."""
        raise InputError("explain(): an exported model has no gradients. Load the run: bert_tf.Classifier.load(...).")

    def answer(self, examples: Iterable[Any], batch_size: int) -> list[dict[str, Any] | InputError]:
        """Answers examples like `predict`. If an example can't be used, the answer is the InputError."""
        answers = list(map(self._fields_or_error, examples))
        usable = [number for number, fields in enumerate(answers) if not isinstance(fields, InputError)]
        usable.sort(key=lambda number: sum(len(str(value)) for value in answers[number].values()))
        for begin in range(0, len(usable), batch_size):
            numbers = usable[begin : begin + batch_size]
            for number, row in zip(numbers, self._answer([answers[number] for number in numbers]), strict=True):
                answers[number] = row
        return answers

    def _fields_or_error(self, example: Any) -> dict[str, Any] | InputError:
        try:
            return self.check(example)
        except InputError as error:
            return error

    @abc.abstractmethod
    def _answer(self, examples: Sequence[Mapping[str, Any]]) -> list[dict[str, Any] | InputError]:
        """Answers checked examples in one batch."""


def _abbreviated(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
