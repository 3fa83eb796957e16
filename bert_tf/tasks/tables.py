"""Rows of tables in text files (TSV, CSV, JSON lines), each with the line it stands on; and writing such files."""

import contextlib
import csv
import dataclasses
import gc
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from bert_tf.runtime import files
from bert_tf.runtime.files import InputError
from bert_tf.runtime.program import say

T = TypeVar("T")
# A cell is text; in JSON lines it may be a list of texts, or missing.
Cell = str | tuple[str, ...] | None

ON_BAD_ROW = ("error", "skip")
SUFFIXES = (".tsv", ".csv", ".jsonl")
# Bad rows that are shown one by one; the others are only counted.
_SHOWN = 10


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes:
      path: the file.
      line: the number of its (first) line, from 1.
      cells: what stands between the delimiters.
      columns: name -> index; empty without a header.
      problem: why none of it can be used; "" if it can.
    """

    path: str
    line: int
    cells: Sequence[Cell]
    columns: Mapping[str, int]
    problem: str = ""

    @property
    def where(self) -> str:
        """File and line, for messages."""
        return f"{self.path}, line {self.line}"

    def __getitem__(self, column: str | int) -> Cell:
        """The cell of a column, by its name in the header or by its place (from the end if negative).

        Raises:
          InputError: if the row is too short.
        """
        try:
            return self.cells[self.columns[column] if isinstance(column, str) else column]
        except LookupError:
            name = column if isinstance(column, str) else column + 1
            raise InputError(
                f"{self.where}: the row has {len(self.cells)} columns, but column {name} is needed."
            ) from None


class Record(Protocol):
    """What stands somewhere in a file: a row, or several that belong together.

    Attributes:
      where: file and line, for messages.
      problem: why it can't be used; "" if it can.
    """

    where: str
    problem: str


R = TypeVar("R", bound=Record)


class SkippedRow(Exception):
    """A row that published files are known to have and that no one uses; the reason is the message."""


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Keeps the garbage collector from going through all rows so far again and again: none of them is garbage."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def convert_rows(rows: Iterable[R], convert: Callable[[R], T | None], path: str, on_bad_row: str) -> list[T]:
    """Converts rows, and stops at one that can't be used, or counts it.

    Args:
      rows: of a file.
      convert: gives None for a row that is not meant; raises SkippedRow or InputError for one that can't be used.
      path: the file.
      on_bad_row: "error" lets an InputError pass; "skip" shows and counts it.

    Raises:
      InputError: see above; and if there is no row in the end.
    """
    found: list[T] = []
    skipped: dict[str, int] = {}
    with _without_collector():
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
                if skipped["bad rows"] <= _SHOWN:
                    say(f"skipped: {error}")
                continue
            if converted is not None:
                found.append(converted)
    for reason, count in skipped.items():
        say(f"{path}: {count} rows skipped ({reason}).")
    if not found:
        raise InputError(f"{path} has no rows{' that can be used' if skipped else ''}.")
    return found


class UniqueIds:
    """Remembers ids, and refuses one that comes again."""

    def __init__(self) -> None:
        self._lines: dict[str, int] = {}

    def check(self, row_id: str, row: Row) -> str:
        """Returns the id of a row.

        Raises:
          InputError: if an earlier row had it.
        """
        first = self._lines.setdefault(row_id, row.line)
        if first != row.line:
            raise InputError(f"{row.where}: the id {row_id!r} stands on line {first} already.")
        return row_id


def find_splits(data_dir: str | None, names: Mapping[str, Sequence[str]], given: Mapping[str, str | None]) -> dict:
    """The file of each split: the one that is given, or else the first of some names that is in a folder.

    Args:
      data_dir: the folder; None if every file is given.
      names: split -> names to look for.
      given: split -> file; None or missing if it is not given.

    Returns:
      split -> path; for a split that is not there, the path of its first name.

    Raises:
      InputError: if there is neither a folder nor a file.
    """
    if not data_dir and not any(given.values()):
        raise InputError("--data_dir is needed, or --train_file, --dev_file and --test_file, but none is given.")
    paths = {}
    for split, candidates in names.items():
        if given.get(split):
            paths[split] = given[split]
        elif data_dir:
            found = [os.path.join(data_dir, name) for name in candidates]
            paths[split] = next(filter(files.exists, found), found[0])
    return paths


def split_file(paths: Mapping[str, str], split: str) -> str:
    """The file of a split, of those that `find_splits` found.

    Raises:
      InputError: if it is not among them: other files are given, and no folder.
    """
    if split not in paths:
        raise InputError(f"--{split}_file or --data_dir is needed for the {split} set, but neither is given.")
    return paths[split]


def read_tsv(path: str, has_header: bool, needed: Sequence[str] = (), same_width: bool = False) -> Iterator[Row]:
    """The rows of a tab-separated file without quoting, as GLUE's are.

    Lines end at a newline alone (a cell may hold any other separator that Unicode knows); a carriage return before it
    and a byte-order mark at the file's start are dropped, and blank lines are passed over.

    Args:
      path: the file.
      has_header: whether the first line names the columns; it is not returned.
      needed: columns that the header must have.
      same_width: whether a row of another length than the first line's is a problem.

    Raises:
      InputError: if the file is missing, empty or not UTF-8, or a needed column is missing.
    """
    columns: Mapping[str, int] = {}
    width = 0
    for number, line in enumerate(_read(path).split("\n"), start=1):
        line = line.removesuffix("\r")
        if not line:
            continue
        cells = line.split("\t")
        if not width:
            width = len(cells)
            if has_header:
                columns = _header(cells, needed, path, number)
                continue
        ragged = same_width and len(cells) != width
        yield Row(path, number, cells, columns, _ragged(len(cells), width) if ragged else "")


def read_csv(path: str, needed: Sequence[str] = ()) -> Iterator[Row]:
    """The rows of a comma-separated file with a header, quoted as RFC 4180 says.

    Args:
      path: the file.
      needed: columns that the header must have.

    Raises:
      InputError: if the file is missing, empty or not UTF-8, or a needed column is missing, or a quote is left open.
    """
    csv.field_size_limit(sys.maxsize)  # texts may be long
    reader = csv.reader(io.StringIO(_read(path), newline=""), strict=True)
    columns: Mapping[str, int] = {}
    width = line = 0
    try:
        for cells in reader:
            first, line = line + 1, reader.line_num
            if not cells:
                continue
            if not width:
                columns, width = _header(cells, needed, path, first), len(cells)
                continue
            yield Row(path, first, cells, columns, _ragged(len(cells), width))
    except csv.Error as error:
        raise InputError(
            f"{path}, line {line + 1}: not valid CSV ({error}). Is a quote left open or not doubled?"
        ) from None


def read_jsonl(path: str) -> Iterator[Row]:
    """The rows of a file with one JSON object a line.

    Numbers and booleans become text, null a missing cell (in a list an empty text), and a list a tuple of texts.

    Raises:
      InputError: if the file is missing, empty or not UTF-8.
    """
    for number, line in enumerate(_read(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            yield Row(path, number, (), {}, f"column {error.colno}: not valid JSON ({error.msg}).")
            continue
        if isinstance(value, dict):
            cells = [_json_cell(x) for x in value.values()]
            yield Row(path, number, cells, {name: i for i, name in enumerate(value)})
        else:
            yield Row(path, number, (), {}, "a JSON object ({...}) is expected.")


def read_table(path: str, needed: Sequence[str]) -> Iterator[Row]:
    """The rows of a file with named columns, in the format that its name ends with.

    Raises:
      InputError: see `read_tsv`, `read_csv`, `read_jsonl`; and if the name ends with something else.
    """
    suffix = os.path.splitext(path)[1].lower()
    if suffix == ".tsv":
        return read_tsv(path, has_header=True, needed=needed, same_width=True)
    if suffix == ".csv":
        return read_csv(path, needed)
    if suffix == ".jsonl":
        return read_jsonl(path)
    raise InputError(f"{path}: the name must end with one of {', '.join(SUFFIXES)}, which tells the format.")


def write_table(path: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Writes rows with the same keys, in the format that the file's name ends with; whole or not at all.

    In TSV there is no quoting, so tabs and line ends in a cell become spaces.
    """
    with files.replacing(path) as writer:
        if path.endswith(".jsonl"):
            writer.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        elif path.endswith(".csv"):
            table = csv.writer(writer, lineterminator="\n")
            table.writerow(rows[0])
            table.writerows(row.values() for row in rows)
        else:
            spaces = str.maketrans("\t\r\n", "   ")
            for cells in (rows[0], *(row.values() for row in rows)):
                writer.write("\t".join(str(cell).translate(spaces) for cell in cells) + "\n")


def _read(path: str) -> str:
    return files.read_text(path, "--data_dir").removeprefix("\ufeff")


def _header(cells: Sequence[str], needed: Sequence[str], path: str, line: int) -> dict[str, int]:
    names = [name.strip() for name in cells]
    columns = {name: i for i, name in enumerate(names)}
    missing = [name for name in needed if name not in columns]
    if missing:
        raise InputError(
            f"{path}, line {line}: the column {missing[0]!r} is missing. "
            f"The header has {', '.join(map(repr, columns))}."
        )
    twice = [name for name in needed if names.count(name) > 1]
    if twice:
        raise InputError(f"{path}, line {line}: {names.count(twice[0])} columns are called {twice[0]!r}; rename some.")
    return columns


def _ragged(width: int, expected: int) -> str:
    return "" if width == expected else f"the row has {width} columns, but the header has {expected}."


def _json_cell(value: object) -> Cell:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list):
        return tuple("" if x is None else x if isinstance(x, str) else json.dumps(x) for x in value)
    return json.dumps(value)
