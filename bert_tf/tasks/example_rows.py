"""Reads the examples of a split from its source: a file, or examples in memory."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from bert_tf.runtime.errors import InputError
from bert_tf.runtime.messages import say
from bert_tf.tasks.tables import SUFFIXES, Row

T = TypeVar("T")
# A file, or examples in memory.
Source = str | Sequence[Any]

# Maps splits to possible file names in --data_dir.
FILE_NAMES: dict[str, tuple[str, ...]] = {
    split: tuple(f"{split}{suffix}" for suffix in SUFFIXES) for split in ("train", "dev", "test")
}
# The columns in which annotation programs write a review, and the values of rows that do not count.
_REJECTED = {"answer": ("reject", "ignore"), "status": ("Discarded", "discarded")}
# The largest number of bad rows to print. Further rows are only counted.
_MAX_PRINTED = 10


class SkippedRow(Exception):
    """Raised for a known faulty row of a published file, which is skipped. The message is the reason."""


def name_of(source: Source) -> str:
    """Returns the name of a source for messages."""
    return source if isinstance(source, str) else "the examples"


def split_source(sources: Mapping[str, Source], split: str, names: Mapping[str, Sequence[str]]) -> Source:
    """Returns the source of a split.

    Args:
      sources: maps splits to sources.
      split: "train", "dev" or "test".
      names: maps splits to the possible names of their files in --data_dir.

    Raises:
      InputError: if the split has no source.
    """
    if split not in sources:
        choices = ", ".join(names[split])
        raise InputError(f"there is no {split} file. Pass --{split}_file, or add one of {choices} to --data_dir.")
    return sources[split]


def convert_rows(rows: Iterable[Any], convert: Callable[[Any], T | None], source: Source, on_bad_row: str) -> list[T]:
    """Converts rows to examples.

    Args:
      rows: rows, or other objects with `where` and `problem`, such as sentences.
      convert: returns the converted row, or None to omit it. Raises SkippedRow or InputError if the row can't be used.
      source: the source of the rows, for messages.
      on_bad_row: if a row can't be used, "error" raises the InputError, and "skip" prints the error and skips the row.

    Raises:
      InputError: if a row can't be used and `on_bad_row` is "error", or if no rows are left.
    """
    result: list[T] = []
    skipped: dict[str, int] = {}
    for row in rows:
        try:
            if row.problem:
                raise InputError(f"{row.where}: {row.problem}")
            converted = convert(row)
        except SkippedRow as reason:
            skipped[str(reason)] = skipped.get(str(reason), 0) + 1
            continue
        except InputError as error:
            if on_bad_row != "skip":
                raise
            skipped["bad rows"] = skipped.get("bad rows", 0) + 1
            if skipped["bad rows"] <= _MAX_PRINTED:
                say(f"Skipped: {error}")
            continue
        if converted is not None:
            result.append(converted)
    for reason, count in skipped.items():
        say(f"{name_of(source)}: {count} rows skipped ({reason}).")
    if not result:
        raise InputError(f"{name_of(source)}: there are no {'usable ' if skipped else ''}rows. Add rows.")
    if isinstance(source, str):
        say(f"Read {len(result)} examples from {source}.")
    return result


def is_rejected(row: Row | Mapping[str, Any], used: Collection[str | None]) -> bool:
    """Returns True if a row was rejected or ignored in Prodigy, or discarded in Argilla.

    Args:
      row: the row.
      used: the columns of texts and labels, which may have the same names.
    """
    return any(row[name] in _REJECTED[name] for name in _REJECTED.keys() & row.keys() - {*used})


class UniqueIds:
    """Checks that every id occurs only once."""

    def __init__(self) -> None:
        self._lines: dict[str, int] = {}

    def check(self, row_id: str, row: Row) -> str:
        """Returns the id of a row.

        Raises:
          InputError: if an earlier row has the same id.
        """
        first = self._lines.setdefault(row_id, row.line)
        if first != row.line:
            raise InputError(f"{row.where}: the id {row_id!r} is already used in line {first}. Use another id.")
        return row_id
