"""A dev set that is drawn from the training set, for data that come without one."""

import collections
import functools
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

from bert_tf.runtime.files import InputError
from bert_tf.runtime.program import say
from bert_tf.tasks.tagging.conll import Sentence

Examples = Callable[[str], list[Any]]
# The same rows are drawn whatever the seed of training is, so that scores of several seeds can be compared.
_SEED = 12345


def with_held_out_dev(examples: Examples, fraction: float) -> Examples:
    """Returns a function like a task's `examples`, whose "dev" split is a part of the training file.

    The drawn rows are the same each time. Every class has about the same share in both parts, and every class, label or
    type of entity that the file has stays in the training set. Documents of tagged sentences are not divided.

    Args:
      examples: returns the rows of a split.
      fraction: the share of the rows, or documents, that are drawn.

    Raises:
      InputError: if the fraction is not between 0 and 1. The returned function also raises it if no row is drawn.
    """
    if not 0 < fraction < 1:
        raise InputError(f"--dev_fraction is {fraction}, but a number between 0 and 1 is expected.")

    @functools.cache
    def parts() -> dict[str, list[Any]]:
        rows = examples("train")
        drawn = _draw(rows, fraction)
        if not drawn:
            raise InputError(f"--dev_fraction={fraction} of {len(rows)} training rows are none. Use a larger share.")
        say(f"--dev_fraction: {len(drawn)} of {len(rows)} rows of the training file are the dev set.")
        return {
            "train": [row for number, row in enumerate(rows) if number not in drawn],
            "dev": [rows[number] for number in sorted(drawn)],
        }

    return lambda split: parts()[split] if split in ("train", "dev") else examples(split)


def _draw(rows: Sequence[Any], fraction: float) -> set[int]:
    """Returns the numbers of the drawn rows."""
    units = [list(numbers) for _, numbers in itertools.groupby(range(len(rows)), lambda i: _unit(i, rows[i]))]
    labels = [{label for number in unit for label in _labels(rows[number])} for unit in units]
    left = collections.Counter(itertools.chain.from_iterable(labels))
    order = list(range(len(units)))
    random.Random(_SEED).shuffle(order)
    order.sort(key=lambda unit: _stratum(rows[units[unit][0]]))  # of equal ones, the order stays random
    drawn: set[int] = set()
    due = 1e-9  # the number of units to draw, not rounded; above 0 because sums of fractions may be too small
    for unit in order:
        due += fraction
        if due >= 1.0 and all(left[label] > 1 for label in labels[unit]):
            due -= 1.0
            left.subtract(labels[unit])
            drawn.update(units[unit])
    return drawn


def _unit(number: int, row: Any) -> tuple[str, int]:
    """Rows with the same value are drawn together."""
    document = row.document if isinstance(row, Sentence) else None
    return ("row", number) if document is None else ("document", document)


def _stratum(row: Any) -> str:
    """The class, of which both parts have the same share; "" for rows without a class."""
    label = getattr(row, "label", None)
    return label if isinstance(label, str) else ""


def _labels(row: Any) -> Sequence[str]:
    """The classes, labels or types of entities of a row, which must stay in the training set."""
    if isinstance(row, Sentence):
        return [kind for kind, *_ in row.entities()]
    return row.label if isinstance(row.label, tuple) else (row.label,)
