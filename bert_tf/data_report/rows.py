"""Checks the rows of data sets for labels that are not classes, and for rows in two splits."""

import collections
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bert_tf.data_report.findings import Finding
from bert_tf.runtime.errors import InputError

# Spellings of missing values that are never classes, and spellings that may be classes.
_MISSING, _MAYBE_MISSING = ("nan", "<na>", "nat"), ("None", "null", "NULL", "Null", "N/A", "n/a", "NaN", "?", "-", "_")
# A list as text: brackets around a comma, quotes, numbers or nothing, also inside of "array(...)" or "frozenset(...)".
_LIST = re.compile(r"(\w*\()?[\[({](\s*|[\d.\s]+|.*[,'\"].*)[\])}]\)?|(set|frozenset|tuple|list)\(\)", re.DOTALL)
# Names of label columns. A class with such a name and few rows is a header line.
_COLUMNS, _HEADERS = ("label", "labels", "class", "category", "target", "gold_label", "tag", "tags"), 3
_SEPARATOR = re.compile(r"\s*[,;|/]\s*|\s+")
# White space, "_" and "-" inside a class.
_SPACE = re.compile(r"(?<=\w)[\s_-]+(?=\w)")
_IN_QUOTES = re.compile(r"(['\"]).+\1")
# Forms that all classes of a data set have by mistake, each with the name of the form and the remedy.
_WRONG_CLASSES = {
    r"[01]([ ,;|][01])+": (
        "rows of 0 and 1",
        "Write a column for each class, and pass --problem=multi_label and --label_column=NAME,NAME",
    ),
    r"[+-]?\d+,\d+": ("numbers with a comma", "Write a point, and train with --problem=regression"),
}
# The number of rows from which a class that only the first row has, and many classes with one row, are unusual.
_MANY, _FEW = 50, 10
# The attributes of examples that are inputs of the model.
_INPUTS = ("text_a", "text_b", "prompt", "endings", "words", "question_text", "context", "doc_tokens")
# Largest usual fraction of the rows of a split that occur in a second split.
_SHARED = 0.01


def is_missing(label: str) -> bool:
    """Returns True if a label is a missing value, as programs write it."""
    return label.lower() in _MISSING


def check_no_list(cell: str, where: str, brackets: str = "") -> None:
    """Raises an InputError if the cell of a label is a list that was written as text.

    Args:
      cell: the cell.
      where: file and line, for the message.
      brackets: pairs of brackets that always show a list, such as "[]{}".
    """
    text = cell.strip()
    if _LIST.fullmatch(text) or (len(text) > 1 and text[0] + text[-1] in brackets):
        raise InputError(
            f"{where}: the label {cell!r:.60} is a list in Python's notation. Remove the brackets and quotes, save the "
            "table as JSON lines, or pass --labels if it is a class."
        )


def unusual_classes(labels: Iterable[str], where: str, column: str = "") -> Iterator[Finding]:
    """Finds classes that are probably mistakes: missing values, header lines, spellings, several labels, and texts.

    Args:
      labels: the class of each row.
      where: the file, for messages.
      column: the name of the label column, if known.
    """
    counts = collections.Counter(labels)
    first_spellings: dict[str, str] = {}
    singles = [label for label, count in counts.items() if count == 1]
    if 2 * len(singles) > counts.total() >= _FEW:
        yield Finding("class", f"{where}: {len(singles)} classes have only one row. Use the column of the labels.")
    for pattern, (form, remedy) in _WRONG_CLASSES.items():
        if counts and all(map(re.compile(pattern).fullmatch, counts)):
            yield Finding("class", f"{where}: the classes are {form}, such as {min(counts)!r}. {remedy}.")
            break
    for number, (label, count) in enumerate(counts.items()):
        other = first_spellings.setdefault(_spelling(label), label)
        is_number_missing = label == "-1" and counts.keys() >= {"0", "1", "2"} and "-2" not in counts
        if label in _MAYBE_MISSING or is_missing(label) or is_number_missing:
            problem = f"{count} rows have the class {label!r}. If it is a missing value, remove these rows"
        elif label.lower() in (*_COLUMNS, column) and count <= _HEADERS:
            problem = f"the class {label!r} is the name of a column. If it is a header line, remove it"
        elif number == 0 and singles == [label] and counts.total() >= _MANY:
            problem = f"only the first row has the class {label!r}. If it is a header line, remove it"
        elif label != other:
            problem = (
                f"the class {label!r} differs from {other!r} only in case, spaces or punctuation. Use one spelling if "
                "it is the same class"
            )
        elif _IN_QUOTES.fullmatch(label):
            problem = f"the class {label!r} is in quotes. Remove them"
        elif column and len(parts := _SEPARATOR.split(label)) > 1 and counts.keys() >= {*parts}:
            problem = f"the class {label!r} consists of other classes. Use --problem=multi_label and --label_separator"
        else:
            continue
        yield Finding("class", f"{where}: {problem}.")


def _spelling(label: str) -> str:
    """Returns a class without differences in case, Unicode's forms, spaces and punctuation at the ends."""
    visible = "".join(char for char in unicodedata.normalize("NFKC", label) if unicodedata.category(char) != "Cf")
    return _SPACE.sub(" ", visible).casefold().strip(" .,;:!'\"") or label


def inputs_of(example: Any) -> tuple[str, ...]:
    """Returns the texts of an example, without its label; empty for examples of other types."""
    parts = (getattr(example, name, None) for name in _INPUTS)
    return tuple(part if isinstance(part, str) else "\n".join(part) for part in parts if part)


def shared_rows(splits: Mapping[str, Sequence[Any]]) -> Iterator[Finding]:
    """Finds rows with the same texts in two splits. `splits` maps names to the examples."""
    rows = {name: {hash(texts) for texts in map(inputs_of, examples) if texts} for name, examples in splits.items()}
    for (first, a), (second, b) in itertools.combinations(rows.items(), 2):
        shared, smallest = len(a & b), min(len(a), len(b))
        if shared > _SHARED * smallest:
            yield Finding(
                f"shared {first} {second}",
                f"{second}: {shared} of {len(b)} different rows are also in {first}, so scores are too high. Remove "
                "them from one file.",
            )
