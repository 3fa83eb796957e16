"""A dev set drawn from the training set, for data without one."""

import collections
import functools
import itertools
import random
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from bert_tf.runtime.files import InputError
from bert_tf.runtime.messages import say

Examples = Callable[[str], list[Any]]
Row = TypeVar("Row")
Labels = str | tuple[str, ...] | None
# The drawn rows do not depend on the training seed, so scores of several seeds can be compared.
_SEED = 12345


def with_held_out_dev(examples: Examples, fraction: float, has_classes: bool = True) -> Examples:
    """Returns a function like `examples` that takes the "dev" split from the training rows. See `divide`.

    If the rows have an attribute `document` that is not None, the rows of a document stay together. The class of a row
    is its attribute `label`, if there is one.

    Args:
      examples: returns the rows of a split.
      fraction: the fraction of the rows, or documents, to draw. With 0, the function is returned unchanged.
      has_classes: whether the labels are classes; False for numbers.

    The returned function raises an InputError if no row is drawn.
    """
    if not fraction:
        return examples

    @functools.cache
    def divided() -> dict[str, list[Any]]:
        rows = examples("train")
        labels = [getattr(row, "label", None) if has_classes else None for row in rows]
        documents = [getattr(row, "document", None) for row in rows]
        units = [number if document is None else (document,) for number, document in enumerate(documents)]
        train, dev = divide(rows, labels, fraction, units)
        say(f"Using {len(dev)} of {len(rows)} training examples as the dev set.")
        return {"train": train, "dev": dev}

    return lambda split: divided()[split] if split in ("train", "dev") else examples(split)


def divide(
    rows: Sequence[Row], labels: Sequence[Labels], fraction: float, units: Sequence[Hashable] | None = None
) -> tuple[list[Row], list[Row]]:
    """Divides rows into training rows and held-out rows, both in the original order.

    The same rows are always drawn. Every class has about the same fraction in both parts. At least one row of every
    class, label or entity type stays in the training part.

    Args:
      rows: the rows.
      labels: for each row its class, a tuple of its labels or entity types, or None.
      fraction: the fraction of the rows, or units, to draw.
      units: a value for each row. Successive rows with the same value are drawn together. By default, each row is drawn
        separately.

    Returns:
      The training rows and the held-out rows.

    Raises:
      InputError: if no row is drawn.
    """
    by_unit = itertools.groupby(range(len(labels)), units.__getitem__ if units else None)
    groups = [list(group) for _, group in by_unit]
    labels_of_group = [{label for number in group for label in as_tuple(labels[number])} for group in groups]
    num_in_training = collections.Counter(itertools.chain.from_iterable(labels_of_group))
    order = list(range(len(groups)))
    random.Random(_SEED).shuffle(order)
    classes = [label if isinstance(label, str) else "" for label in labels]  # the split is stratified by these classes
    order.sort(key=lambda group: classes[groups[group][0]])  # a stable sort, so the order within a class is random
    drawn: set[int] = set()
    due = 1e-9  # number of units to draw, not rounded; above 0 because of rounding errors in the sum
    for group in order:
        due += fraction
        if due >= 1.0 and all(num_in_training[label] > 1 for label in labels_of_group[group]):
            due -= 1.0
            num_in_training.subtract(labels_of_group[group])
            drawn.update(groups[group])
    if not drawn:
        raise InputError(
            f"--dev_fraction={fraction} of {len(labels)} examples is less than one example. Use a larger fraction."
        )
    train = [row for number, row in enumerate(rows) if number not in drawn]
    return train, [rows[number] for number in sorted(drawn)]


def as_tuple(label: Any) -> tuple[Any, ...]:
    """Returns the labels of an example as a tuple. `label` may be a tuple, a single label or None."""
    return label if isinstance(label, tuple) else () if label is None else (label,)
