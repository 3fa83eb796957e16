"""Checks the rows of data sets for labels that are not classes, and for rows in two splits."""

import collections
import itertools
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from bert_tf.data_report.findings import Finding
from bert_tf.runtime.errors import InputError

# Spellings of missing values that are never classes, spellings that may be classes, and numbers.
_MISSING = ("nan", "<na>", "nat", "#n/a", "#ref!", "#value!", "#name?", "#div/0!", "#num!", "#null!")
_MAYBE_MISSING = ("None", "null", "NULL", "Null", "N/A", "n/a", "NaN", "?", "-", "_")
_MISSING_NUMBERS = (-1, -9, -99, -999, -9999, 99, 999, 9999)
# A list as text: brackets around a comma, quotes, numbers or nothing, also inside of "array(...)" or "frozenset(...)".
_LIST = re.compile(r"(\w*\()?[\[({](\s*|[\d.\s]+|.*[,'\"].*)[\])}]\)?|(set|frozenset|tuple|list)\(\)", re.DOTALL)
# Names of label columns. A class with such a name and few rows is a header line.
_COLUMNS, _HEADERS = ("label", "labels", "class", "category", "target", "gold_label", "tag", "tags"), 3
_SEPARATOR = re.compile(r"\s*[,;|/]\s*|\s+")
# White space, "_" and "-" inside a class.
_SPACE = re.compile(r"(?<=\w)[\s_-]+(?=\w)")
# Cyrillic and Greek letters that look like Latin letters, and other words for common classes.
_LOOKALIKES = str.maketrans("авекмнорстухіјѕαεικνορτυχ", "abekmhopctyxijsaeiknoptux")
_SYNONYMS = {
    "y": "yes",
    "n": "no",
    "true": "1",
    "false": "0",
    "person": "per",
    "location": "loc",
    "organization": "org",
}
_IN_QUOTES = re.compile(r"(['\"]).+\1")
# The number of rows from which a class that only the first or last row has, and many classes with one row, are unusual.
_MANY, _FEW = 50, 10
# The number of numbers up to which none of them is unusual.
_FEW_NUMBERS, _INTEGER = 3, re.compile(r"-?\d+")
# The attributes of examples that are inputs of the model.
_INPUTS = ("text_a", "text_b", "prompt", "endings", "words", "question_text", "context", "doc_tokens")
# Largest usual fractions of the rows of a split that occur in a second split, and of repeated rows with other labels.
_SHARED, _CONTRADICTING = 0.01, 0.05
# Largest usual fraction of the entities that begin with I- instead of B-.
_BROKEN = 0.05


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
    rows = list(labels)
    counts = collections.Counter(rows)
    missing = _missing_number(set(map(int, counts))) if all(map(_INTEGER.fullmatch, counts)) else None
    first_spellings: dict[str, str] = {}
    singles = [label for label, count in counts.items() if count == 1]
    if 2 * len(singles) > counts.total() >= _FEW:
        yield Finding("class", f"{where}: {len(singles)} classes have only one row. Use the column of the labels.")
    for label, count in counts.items():
        other = first_spellings.setdefault(_spelling(label), label)
        if label in _MAYBE_MISSING or is_missing(label) or label == str(missing):
            problem = f"{count} rows have the class {label!r}. If it is a missing value, remove these rows"
        elif label.lower() in (*_COLUMNS, column) and count <= _HEADERS:
            problem = f"the class {label!r} is the name of a column. If it is a header line, remove it"
        elif singles == [label] and counts.total() >= _MANY and label in (rows[0], rows[-1]):
            end = "first" if label == rows[0] else "last"
            problem = f"only the {end} row has the class {label!r}. If it is a header line or a sum, remove it"
        elif label != other:
            problem = f"the class {label!r} may be another spelling of {other!r}. Use one spelling of each class"
        elif _IN_QUOTES.fullmatch(label):
            problem = f"the class {label!r} is in quotes. Remove them"
        elif column and len(parts := _SEPARATOR.split(label)) > 1 and counts.keys() >= {*parts}:
            problem = f"the class {label!r} consists of other classes. Use --problem=multi_label and --label_separator"
        else:
            continue
        yield Finding("class", f"{where}: {problem}.")


def unusual_scores(scores: Iterable[float], where: str) -> Iterator[Finding]:
    """Finds scores that are probably mistakes: a single value, and numbers for missing values."""
    counts = collections.Counter(scores)
    if len(counts) == 1:
        yield Finding("class", f"{where}: every row has the score {min(counts):g}. Use the column of the scores.")
    elif (missing := _missing_number(counts)) is not None:
        problem = f"{counts[missing]} rows have the score {missing:g}"
        yield Finding("class", f"{where}: {problem}. If it is a missing value, remove these rows.")


def _missing_number(numbers: Collection[float]) -> float | None:
    """Returns a number that is probably a missing value, because it is far from the others; None if there is none."""
    smallest, *others, largest = sorted(numbers) if len(numbers) > _FEW_NUMBERS else (0, 0, 0)
    if smallest in _MISSING_NUMBERS and smallest < 0 <= others[0] and largest > 1:
        return smallest
    return largest if largest in _MISSING_NUMBERS and others[-1] <= largest / 2 else None


def contradictions(examples: Sequence[Any], where: str) -> Iterator[Finding]:
    """Finds rows with the same texts and different labels."""
    labels = collections.defaultdict[tuple[str, ...], list[Any]](list)
    for example in examples:
        labels[inputs_of(example)].append(example.label)
    repeated = [row for row in labels.values() if len(row) > 1]
    different = sum(len(set(row)) > 1 for row in repeated)
    if different > max(_SHARED * len(labels), _CONTRADICTING * len(repeated)):
        message = f"{different} of {len(repeated)} repeated texts have different labels. Correct them, or remove them."
        yield Finding("contradictions", f"{where}: {message}")


def broken_entities(tags: Iterable[Sequence[str]], where: str) -> Iterator[Finding]:
    """Finds entities that begin with I- in the scheme IOB2, in which they begin with B-.

    Args:
      tags: the tags of each sentence.
      where: the file, for messages.
    """
    pairs = itertools.chain.from_iterable(itertools.pairwise(("O", *row)) for row in tags)
    starts = [tag[0] for before, tag in pairs if tag[0] == "B" or (tag[0] == "I" and tag[1:] != before[1:])]
    if (broken := starts.count("I")) > _BROKEN * len(starts):
        problem = f"{broken} of {len(starts)} entities begin with I-, which does not fit the scheme iob2"
        yield Finding("starts", f"{where}: {problem}. Check the tags and the sentences.")


def _spelling(label: str) -> str:
    """Returns a class without differences in case, spaces, punctuation at the ends, Unicode's forms, and synonyms."""
    visible = "".join(char for char in unicodedata.normalize("NFKC", label) if unicodedata.category(char) != "Cf")
    spelling = _SPACE.sub(" ", visible).casefold().translate(_LOOKALIKES).strip(" .,;:!'\"") or label
    return str(int(spelling)) if spelling.isdecimal() else _SYNONYMS.get(spelling, spelling)


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
