"""Converts Python data (lists, arrays, tables, data sets) to plain lists of texts and labels."""

import decimal
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.runtime.errors import InputError, first_of
from bert_tf.runtime.messages import say
from bert_tf.serving.answering import records
from bert_tf.tasks import example_rows
from bert_tf.tasks.sentences.examples import whole_number
from bert_tf.tasks.sentences.soft_labels import PREFIX

LABEL_COLUMNS = ("label", "labels")
# The columns of texts. The last two are names of a second text.
_TEXTS = ("text", "text_b", "text_pair")


def as_list(values: Any, name: str, rank: int = 0) -> list[Any]:
    """Returns a list of plain Python values from a list, an array, a tensor, a table or a `tf.data.Dataset`.

    Args:
      values: the data. A row of a table (of pandas, polars, PyArrow or datasets) with several columns becomes a
        dictionary. A `tf.data.Dataset` may be batched.
      name: name of the data in messages.
      rank: nesting depth of one example: 0 for a text or several texts, 1 for a list of words.

    Raises:
      InputError: if the data is a single text, unordered, infinite or not iterable. Also if an element of a data set
        can be a pair of texts or a batch of two texts.
    """
    values = values.numpy() if isinstance(values, tf.Tensor) else records(values, name)
    is_one = isinstance(values, str | bytes | Mapping) or (isinstance(values, np.ndarray) and not values.ndim)
    if is_one or isinstance(values, set | frozenset) or not isinstance(values, Iterable):
        raise InputError(f"{name} is {_shown(values)}. Use a list of examples.")
    if isinstance(values, tf.data.Dataset):
        if values.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise InputError(f"{name} is a data set without an end. Omit repeat(), and use `epochs`.")
        values = _unbatched(values, name, rank).as_numpy_iterator()
    rows = [_plain(value, f"example {number}") for number, value in enumerate(values)]
    has_one_column = all(isinstance(row, Mapping) and len(row) == 1 for row in rows)
    return [cell for row in rows for cell in row.values()] if has_one_column else rows


def labelled(
    x: Any, y: Any, name: str, rank: int = 0, columns: Sequence[str] = LABEL_COLUMNS, sample_weight: Any = None
) -> tuple[list[Any], list[Any], list[float] | None]:
    """Returns examples, labels and weights. The weights are None if none are given.

    Args:
      x: the examples. If `y` is None, a table with a column of labels, or a `tf.data.Dataset` of pairs (example, label)
        or triples (example, label, weight).
      y: the labels.
      name: name of the data in messages.
      rank: see `as_list`.
      columns: the possible names of the label column. If they include `soft_labels.PREFIX`, and the table has columns
        of probabilities, each label is a dictionary of probabilities.
      sample_weight: the weights of the examples; None for equal weights.

    Raises:
      InputError: if there are no labels or no examples, if their numbers differ, or if a weight is not a number >= 0.
    """
    column, examples = getattr(y, "name", "label"), as_list(x, name, rank)
    if y is None and isinstance(x, tf.data.Dataset):
        if any(not isinstance(element, tuple) or len(element) not in (2, 3) for element in examples):
            raise InputError(f"{name}: an element of the data set is not a pair. Use pairs (example, label).")
        examples, y, *weights = map(list, zip(*examples, strict=True)) if examples else ([], [])
        sample_weight = weights[0] if weights else sample_weight
    elif y is None:
        _check_any(examples, name)
        first = examples[0] if isinstance(examples[0], dict) else ()
        matches = [column for column in columns if column in first]
        names = [key for key in first if PREFIX in columns and str(key).startswith(PREFIX)]
        if len(matches) > 1:
            raise InputError(f"{name} has the columns {' and '.join(map(repr, matches))}. Keep only the labels.")
        if not matches and not names:
            problem = f"the columns are {first_of(map(repr, first))}" if first else "labels are needed"
            known = " or ".join(repr(column) for column in columns if column != PREFIX)
            raise InputError(f"{name}: {problem}. Give a pair (examples, labels), or name the labels {known}.")
        column = next(iter(matches), None)
        y = [{key: row.pop(key, None) for key in names} if names else row.get(column) for row in examples]
    labels = as_list(y, f"{name}'s labels")
    rows = [example for example in examples if isinstance(example, dict)]
    if rejected := sum(example_rows.is_rejected(row, [column]) for row in rows):
        raise InputError(f"{name}: annotators rejected {rejected} examples ('answer' or 'status'). Remove them.")
    for row in rows:
        row.pop(column, None)
    if len(examples) != len(labels):
        raise InputError(f"{name} has {len(examples)} examples, but {len(labels)} labels. Give one per example.")
    indexes = [part.index for part in (x, y) if hasattr(part, "iloc")]  # of pandas objects
    if len(indexes) == 2 and not indexes[0].equals(indexes[1]) and set(indexes[0]) == set(indexes[1]):
        say(f"Warning: {name} and its labels have the same index in another order. Rows are paired by position.")
    _check_any(examples, name)
    if sample_weight is None:
        return examples, labels, None
    weights = as_list(sample_weight, "sample_weight")
    if len(weights) != len(examples):
        raise InputError(f"{name} has {len(examples)} examples, but {len(weights)} weights. Give one per example.")
    for number, weight in enumerate(weights):
        if not isinstance(weight, int | float) or not 0 <= weight < math.inf:
            raise InputError(f"the weight of example {number} is {_shown(weight)}. Use a number of at least 0.")
    return examples, labels, list(map(float, weights))


def _check_any(examples: Sequence[Any], name: str) -> None:
    if not examples:
        raise InputError(f"{name} has no examples. Pass at least one.")


def is_pair(data: Any) -> bool:
    """Returns True for a pair of examples and labels, False for two examples."""
    return isinstance(data, tuple | list) and len(data) == 2 and not all(isinstance(item, Mapping) for item in data)


def text(value: Any, where: str) -> str:
    """Returns `value` if it is a valid text.

    Raises:
      InputError: if the value is not a text, or can't be encoded as UTF-8.
    """
    if not isinstance(value, str):
        raise InputError(f"{where} is {_shown(value)}. Use a str.")
    return _plain(value, where)


def texts(value: Any, where: str) -> tuple[str, str | None]:
    """Returns the two texts of an example: a text, a pair, or a row of a table. The second text may be None.

    Raises:
      InputError: if the example is neither a text nor a pair of texts.
    """
    if isinstance(value, Mapping):
        known = [name for name in _TEXTS if name in value]
        names = known if "text" in value else [name for name in value if name not in LABEL_COLUMNS]
        if "text" not in value and len(names) != 1:
            columns = first_of(map(repr, value))
            raise InputError(f"{where} has the columns {columns}. Name them 'text' and, for pairs, 'text_b'.")
        value = [value[name] for name in names]
    items = value if isinstance(value, list | tuple) else [value]
    if not 1 <= len(items) <= 2:
        raise InputError(f"{where} has {len(items)} texts. Use one text or a pair of texts.")
    first, *second = (text(item, where) for item in items)
    return first, second[0] if second else None


def whole(value: Any) -> Any:
    """Converts a whole float to an integer. A pandas column of integers with a missing value contains floats."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def class_name(label: Any) -> str:
    """Returns the name of the class of a label."""
    return str(whole(label)).strip()


def classes_of(labels: Sequence[Any]) -> dict[str, Any]:
    """Returns the distinct labels by the names of their classes, in the order of `numpy.unique`.

    Raises:
      InputError: if there are several types or spellings, because 1 and "1" would become the same class.
    """
    types = sorted({type(whole(label)).__name__ for label in labels if isinstance(whole(label), bool | int | str)})
    if len(types) > 1:
        raise InputError(f"the labels have the types {' and '.join(types)}. Use one type.")
    classes: dict[str, Any] = {}
    for label in sorted(set(labels)):
        other = classes.setdefault(whole_number(class_name(label)), label)
        if other != label:
            raise InputError(f"the labels {other!r} and {label!r} are the same class. Use one spelling.")
    return classes


def label(value: Any, where: str) -> str | int | float | bool:
    """Returns `value` as a label if it is a valid one.

    Raises:
      InputError: if the label is missing, or neither a text nor a number.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise InputError(f"{where} has no label. Add a label.")
    if isinstance(value, bool | int | float):
        return whole(value)
    if isinstance(value, list) and len(value) == 1:  # a row of an array with one column
        return label(value[0], where)
    if isinstance(value, list | tuple):
        raise InputError(f"{where} has several labels, {_shown(value)}. Give one label, or use multi_label=True.")
    return text(value, f"the label of {where}")


def _plain(value: Any, where: str) -> Any:
    if hasattr(value, "tolist"):  # an object of NumPy, PyTorch or JAX
        value = value.tolist()
    if isinstance(value, decimal.Decimal):  # from a database or PyArrow
        return float(value)
    if isinstance(value, Mapping):
        return {key: _plain(item, where) for key, item in value.items()}
    try:
        value = value.decode() if isinstance(value, bytes) else value
        if isinstance(value, str):
            value.encode()
    except UnicodeDecodeError as error:
        raise InputError(f"{_shown(value)} is not UTF-8 at byte {error.start}. Decode it.") from None
    except UnicodeEncodeError as error:
        raise InputError(f"{where} has a lone surrogate at character {error.start}. Remove it.") from None
    if isinstance(value, list | tuple):
        items = (_plain(item, where) for item in value)
        return list(items) if isinstance(value, list) else tuple(items)  # named tuples also become tuples
    return value


def _unbatched(dataset: tf.data.Dataset, name: str, rank: int) -> tf.data.Dataset:
    """Returns a data set of examples from a data set of examples or batches.

    Two texts in one tensor are a batch if all other items of the element, such as labels, also have length 2.
    Otherwise they are a pair.
    """
    specs = tf.nest.flatten(dataset.element_spec)
    first = specs[0].shape
    is_batched = first.rank is not None and first.rank > rank
    if is_batched and first == [2]:  # batches of word lists have two axes, so they never get here
        if len(specs) == 1 and specs[0].dtype == tf.string:
            raise InputError(
                f"{name}: a tensor of two texts can be a pair or a batch. Use tuples, or another batch size."
            )
        is_batched = len(specs) > 1 and all(spec.shape.rank and spec.shape[0] == 2 for spec in specs)
    return dataset.unbatch() if is_batched else dataset


def _shown(value: Any) -> str:
    return f"{str(value)[:40]!r} ({type(value).__name__})"
