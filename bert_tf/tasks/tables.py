"""Reads TSV, CSV, JSON, Parquet and Arrow files as rows with line numbers, and writes TSV, CSV and JSON-lines files."""

import csv
import dataclasses
import io
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, TypedDict, TypeVar

from bert_tf.runtime import files, json_files, reporting
from bert_tf.runtime.errors import InputError, first_of
from bert_tf.runtime.messages import say
from bert_tf.runtime.storage import first_bytes
from bert_tf.runtime.storage.first_bytes import DELIMITERS
from bert_tf.tasks import arrow_files

T = TypeVar("T")
# A cell is a text. In JSON, Parquet and Arrow files, it may also be a list of texts, an object, or None (missing).
Cell = str | tuple[str, ...] | dict[str, Any] | None
# A file, or examples in memory.
Source = str | Sequence[Any]

_JSON = (".jsonl", ".json", ".ndjson")
_COMPRESSED = (".gz", ".bz2", ".xz")
SUFFIXES = (".tsv", ".csv", ".jsonl", ".json", ".parquet", ".arrow", ".tsv.gz", ".csv.gz", ".jsonl.gz")
# Maps splits to possible file names in --data_dir.
FILE_NAMES: dict[str, tuple[str, ...]] = {
    split: tuple(f"{split}{suffix}" for suffix in SUFFIXES) for split in ("train", "dev", "test")
}
# A value of --delimiter. Other values are a character, or a name such as "tab".
AUTO = "auto"
# The columns in which annotation programs write a review, and the values of rows that do not count.
_REJECTED = {"answer": ("reject", "ignore"), "status": ("Discarded", "discarded")}
# The largest number of bad rows to print. Further rows are only counted.
_MAX_PRINTED = 10


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes:
      path: the file.
      line: the 1-based number of the row's first line.
      cells: the values of the row.
      columns: maps column names to indices; empty without a header.
      problem: the reason why the row can't be used, or "".
    """

    path: str
    line: int
    cells: Sequence[Any]
    columns: Mapping[str, int]
    problem: str = ""

    @property
    def where(self) -> str:
        """File and line, for messages."""
        return f"{self.path}, line {self.line}"

    def __getitem__(self, column: str | int) -> Cell:
        """Returns the cell of a column, by name or index (counted from the end if negative). See `read_json`.

        Raises:
          InputError: if the row is too short, or the cell has bytes that are not UTF-8.
        """
        name = column if isinstance(column, str) else column + 1
        try:
            value = self.cells[self.columns[column] if isinstance(column, str) else column]
        except LookupError:
            raise InputError(f"{self.where}: there is no column {name!r}. Add it to the row.") from None
        if isinstance(value, bytes):
            raise InputError(f"{self.where}: the column {name!r} is not UTF-8. Convert it to text.")
        return _cell(value)

    def keys(self) -> Set[str]:
        """Returns the names of the columns."""
        return self.columns.keys()

    @property
    def values(self) -> dict[str, Any]:
        """Maps column names to unconverted values.

        Raises:
          InputError: if several columns have the same name, or no name.
        """
        if len(self.columns) < len(self.cells):
            raise InputError(f"{self.path}: several columns have the same name, or no name. Rename or remove them.")
        return dict(zip(self.columns, self.cells, strict=True))


class _Wrapped(TypedDict):
    """A list of objects in a JSON object. Other fields, such as "version", are ignored."""

    data: list[dict[str, Any]]


class SkippedRow(Exception):
    """Raised for a known faulty row of a published file, which is skipped. The message is the reason."""


def is_rejected(row: Row | Mapping[str, Any], used: Collection[str | None]) -> bool:
    """Returns True if a row was rejected or ignored in Prodigy, or discarded in Argilla.

    Args:
      row: the row.
      used: the columns of texts and labels, which may have the same names.
    """
    return any(row[name] in _REJECTED[name] for name in _REJECTED.keys() & row.keys() - {*used})


def name_of(source: Source) -> str:
    """Returns the name of a source for messages."""
    return source if isinstance(source, str) else "the examples"


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


def read_tsv(path: str, has_header: bool, needed: Sequence[str] = (), same_width: bool = False) -> Iterator[Row]:
    """Yields the rows of a tab-separated file without quoting, like GLUE's files.

    Only a newline ends a line; a cell may contain Unicode's other line separators. Carriage returns before newlines and
    a byte-order mark at the start of the file are removed. Blank lines are skipped.

    Args:
      path: the file.
      has_header: whether the first line contains the names of the columns.
      needed: columns that the header must have.
      same_width: whether each row must have as many cells as the first line.

    Raises:
      InputError: if the file is missing, empty or not UTF-8, or a needed column is missing.
    """
    text = files.read_text(path, "--data_dir")
    form = first_bytes.format_of_lines(text)
    if form == "JSON" or (form and not has_header) or (form not in ("", "a table with tabs") and not same_width):
        raise InputError(
            f"{path} is {form}, but this task reads lines with tabs. Use --task_name=text for other tables."
        )
    numbered = enumerate(files.lines_of(text), start=1)
    rows = ((number, line.split("\t")) for number, line in numbered if line)
    yield from _rows(path, rows, has_header, needed, same_width)


def read_csv(path: str, needed: Sequence[str] = (), delimiter: str = AUTO) -> Iterator[Row]:
    """Yields the rows of a file with a header and the quoting of RFC 4180.

    Args:
      path: the file.
      needed: columns that the header must have.
      delimiter: the character between cells, or its name. "auto" tries comma, semicolon, tab and pipe, and selects the
        first one with which the header has all needed columns, or else the comma.

    Raises:
      InputError: if the file is missing, empty or not text, a needed column is missing, or a quote is not closed.
    """
    csv.field_size_limit(sys.maxsize)  # texts may be long
    text = files.read_text(path, "--data_dir")
    delimiter = _detected(text, needed) if delimiter == AUTO else DELIMITERS.get(delimiter, delimiter)
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise InputError(f"--delimiter is {delimiter!r}. Use one character, or {', '.join((AUTO, *DELIMITERS))}.")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter)

    def lines() -> Iterator[tuple[int, list[str]]]:
        line = 0
        try:
            for cells in reader:
                first, line = line + 1, reader.line_num
                if cells:
                    yield first, cells
        except csv.Error as error:
            raise InputError(f"{path}, line {line + 1}: not valid CSV ({error}). Close or double the quote.") from None

    yield from _rows(path, lines(), True, needed, same_width=True)


def _rows(
    path: str, lines: Iterable[tuple[int, list[str]]], has_header: bool, needed: Sequence[str], same_width: bool
) -> Iterator[Row]:
    """Yields rows for numbered lists of cells. For the other arguments see `read_tsv`."""
    columns: Mapping[str, int] = {}
    width = 0
    for number, cells in lines:
        if not width:
            width = len(cells)
            if has_header:
                columns = _header(cells, needed, path, number)
                continue
        problem = f"the row has {len(cells)} columns, but the header has {width}. Correct the row."
        yield Row(path, number, cells, columns, problem if same_width and len(cells) != width else "")


def _detected(text: str, needed: Sequence[str]) -> str:
    """Returns the delimiter of a quoted table. See `read_csv`."""
    for delimiter in DELIMITERS.values():
        header = next(filter(None, csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)), [])
        if {cell.strip() for cell in header} >= set(needed):
            return delimiter
    return ","


def read_json(path: str) -> Iterator[Row]:
    """Yields the rows of a file with one JSON object per line, or with a list of objects, alone or as "data".

    Numbers and booleans are converted to text, and a list to a tuple of texts. null is a missing cell, or an empty text
    in a list. A row with a lone surrogate, which is not valid UTF-8, can't be used.

    Raises:
      InputError: if the file is missing, empty or not UTF-8, or a list is not valid JSON.
    """
    text = files.read_text(path, "--data_dir")
    if match := re.match(r'\s*(\{\s*("version"\s*:[^,{[]*,\s*)?"data"\s*:\s*)?\[\s*\{', text):
        rows = json_files.read(path, "--data_dir", _Wrapped if match[1] else list[dict[str, Any]])
        rows = rows["data"] if match[1] else rows
        yield from (_row(path, number, values) for number, values in enumerate(rows, start=1))
        return
    for number, line in enumerate(files.lines_of(text), start=1):
        if not line.strip():
            continue
        try:
            value = json_files.parse(line)
            json_files.check_surrogates(line, value)
        except InputError as error:
            yield Row(path, number, (), {}, str(error))
            continue
        if isinstance(value, dict):
            yield _row(path, number, value)
        else:
            yield Row(path, number, (), {}, "the line is not a JSON object. Use {...}.")


def _row(path: str, number: int, values: Mapping[str, Any]) -> Row:
    return Row(path, number, list(values.values()), {name: i for i, name in enumerate(values)})


def read_table(path: str, needed: Sequence[str], delimiter: str = AUTO) -> Iterator[Row]:
    """Returns the rows of a file with named columns. See `format_of` for the format.

    If a delimiter is given, `read_csv` reads the file, with any suffix.

    Raises:
      InputError: see `read_tsv`, `read_csv`, `read_json` and `arrow_files.read`; also if the format is unknown.
    """
    form = format_of(path)
    if delimiter != AUTO and form not in (".tsv", ".csv", ""):
        raise InputError(f"--delimiter is {delimiter!r}, but {path} has no cells with delimiters. Omit the flag.")
    if delimiter != AUTO or form == ".csv":
        return read_csv(path, needed, delimiter)
    if form == ".tsv":
        return read_tsv(path, has_header=True, needed=needed, same_width=True)
    if form in _JSON:
        return read_json(path)
    if form:
        return (_row(path, number, values) for number, values in enumerate(arrow_files.read(path, form), start=1))
    raise InputError(f"{path}: unknown file format. Use a name that ends with {', '.join(SUFFIXES)}.")


def split_name(path: str) -> tuple[str, str]:
    """Returns the name of a file without directory and suffixes, and the suffix. A compression suffix is ignored."""
    name, suffix = os.path.splitext(os.path.basename(path))
    return split_name(name) if suffix.lower() in _COMPRESSED else (name, suffix.lower())


def format_of(path: str) -> str:
    """Returns the format of a table: a suffix, "Parquet" or "Arrow"; "" if the file is not a table.

    Parquet and Arrow files are recognized by their content. Other formats are recognized by the suffix, or else by the
    content.
    """
    suffix = split_name(path)[1]
    with files.open_file(files.require_file(path, "--data_dir"), "rb") as reader:
        if form := first_bytes.table(reader.read(first_bytes.LENGTH)):
            return form
    if suffix in (".tsv", ".csv", *_JSON):
        return suffix
    form = first_bytes.format_of_lines(files.read_text(path, "--data_dir"))
    return {"JSON": ".jsonl", "a table with tabs": ".tsv", "": ""}.get(form, ".csv")


def write_table(path: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Writes rows with the same keys. The suffix of the file determines the format.

    The file appears only when it is complete. For TSV, see `reporting.write_tsv`.
    """
    with files.replacing(path) as writer:
        if path.endswith(".jsonl"):
            writer.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        elif path.endswith(".csv"):
            table = csv.writer(writer, lineterminator="\n")
            table.writerow(rows[0])
            table.writerows(row.values() for row in rows)
        else:
            reporting.write_tsv(writer, rows)


def _header(cells: Sequence[str], needed: Sequence[str], path: str, line: int) -> dict[str, int]:
    names = [name.strip() for name in cells]
    columns = {name: i for i, name in enumerate(names)}
    missing = [name for name in needed if name not in columns]
    if missing:
        raise InputError(
            f"{path}, line {line}: the column {missing[0]!r} is missing. Found: {first_of(map(repr, columns))}. "
            "Rename your column, or with --task_name=text pass its name (--text_column) or the separator (--delimiter)."
        )
    repeated = [name for name in needed if names.count(name) > 1]
    if repeated:
        raise InputError(f"{path}, line {line}: several columns have the name {repeated[0]!r}. Rename them.")
    return columns


def _cell(value: object) -> Cell:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list):
        return tuple("" if x is None else x if isinstance(x, str) else _text(x) for x in value)
    return value if isinstance(value, dict) else _text(value)


def _text(value: object) -> str:
    return json.dumps(value, default=str).strip('"')  # `default` converts other types, such as dates in Parquet files
