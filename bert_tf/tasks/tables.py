"""Reads TSV, CSV, JSON, Parquet and Arrow files as rows with line numbers, and writes TSV, CSV and JSON-lines files."""

import csv
import dataclasses
import io
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple, TypedDict

from bert_tf.runtime import files, json_files, reporting
from bert_tf.runtime.errors import InputError, first_of
from bert_tf.runtime.messages import say
from bert_tf.runtime.storage import first_bytes
from bert_tf.runtime.storage.first_bytes import DELIMITERS
from bert_tf.tasks import arrow_files

Needed = Sequence[str] | Callable[[Collection[str]], Sequence[str]]
# A cell is a text. In JSON, Parquet and Arrow files, it may also be a list of texts, an object, or None (missing).
Cell = str | tuple[str, ...] | dict[str, Any] | None

_JSON = (".jsonl", ".json", ".ndjson")
_COMPRESSED = (".gz", ".bz2", ".xz")
SUFFIXES = (".tsv", ".csv", ".jsonl", ".json", ".parquet", ".arrow", ".tsv.gz", ".csv.gz", ".jsonl.gz")
# A value of --delimiter. Other values are a character, or a name such as "tab".
AUTO = "auto"


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
            found = f" Found: {first_of(map(repr, self.columns))}." if self.columns else ""
            raise InputError(f"{self.where}: there is no column {name!r}.{found} Add it to the row.") from None
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


class TableFile(NamedTuple):
    """A file that may be a table, read once.

    Attributes:
      path: the file.
      form: a suffix, such as ".tsv", or "Parquet", "Arrow" or "Arrow stream"; "" if the file is not a table.
      text: the text of the file; "" for Parquet and Arrow.
    """

    path: str
    form: str
    text: str


class _Wrapped(TypedDict):
    """A list of objects in a JSON object. Other fields, such as "version", are ignored."""

    data: list[dict[str, Any]]


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
    return _tsv_rows(path, files.read_text(path, "--data_dir"), has_header, needed, same_width)


def _tsv_rows(path: str, text: str, has_header: bool, needed: Needed, same_width: bool) -> Iterator[Row]:
    form = first_bytes.format_of_lines(text)
    if form == "JSON" or (form and not has_header) or (form not in ("", "a table with tabs") and not same_width):
        raise InputError(
            f"{path} is {form}, but this task reads lines with tabs. Use --task_name=text for other tables."
        )
    numbered = enumerate(files.lines_of(text), start=1)
    rows = ((number, line.split("\t")) for number, line in numbered if line)
    yield from _rows(path, rows, has_header, needed, same_width)


def _csv_rows(path: str, text: str, needed: Needed, delimiter: str) -> Iterator[Row]:
    """Yields the rows of a file with a header and the quoting of RFC 4180. See `read_table`."""
    csv.field_size_limit(sys.maxsize)  # texts may be long
    delimiter = _detected(text, needed) if delimiter == AUTO else DELIMITERS.get(delimiter, delimiter)
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise InputError(f"--delimiter is {delimiter!r}. Use one character, or {', '.join((AUTO, *DELIMITERS))}.")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter)

    def lines() -> Iterator[tuple[int, list[str]]]:
        line = 0
        try:
            for cells in reader:
                first, line = line + 1, reader.line_num
                if (count := _rows_in_a_cell(cells, delimiter)) > 1:
                    problem = f"a cell in quotes has {count} lines like rows"
                    say(f"Warning: {path}, line {first}: {problem}. Close or double the quotes.")
                if cells:
                    yield first, cells
        except csv.Error as error:
            raise InputError(f"{path}, line {line + 1}: not valid CSV ({error}). Close or double the quote.") from None

    yield from _rows(path, lines(), True, needed, same_width=True)


def _rows_in_a_cell(cells: Sequence[str], delimiter: str) -> int:
    """Returns the number of lines in the cells of a row if all lines look like rows of the table; else 0."""
    inner = [line.split(delimiter) for cell in cells for line in cell.split("\n")[1:-1]]
    are_rows = all(len(row) == len(cells) > 1 and all(x and not x[0].isspace() for x in row[1:]) for row in inner)
    return len(inner) if are_rows else 0


def _rows(
    path: str, lines: Iterable[tuple[int, list[str]]], has_header: bool, needed: Needed, same_width: bool
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


def _detected(text: str, needed: Needed) -> str:
    """Returns the delimiter of a quoted table. See `read_table`."""
    for delimiter in DELIMITERS.values():
        header = next(filter(None, csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)), [])
        names = {cell.strip() for cell in header}
        if names >= set(_needed(needed, names)):
            return delimiter
    return ","


def _json_rows(path: str, text: str) -> Iterator[Row]:
    """Yields the rows of a file with one JSON object per line, or with a list of objects, alone or as "data".

    A row with a lone surrogate, which is not valid UTF-8, can't be used.
    """
    if match := re.match(r'\s*(\{\s*("version"\s*:[^,{[]*,\s*)?"data"\s*:\s*)?\[\s*\{', text):
        rows = json_files.checked(text, f"--data_dir: {path}", _Wrapped if match[1] else list[dict[str, Any]])
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


def read_table(file: str | TableFile, needed: Needed, delimiter: str = AUTO) -> Iterator[Row]:
    """Yields the rows of a file with named columns. See `open_table` for the formats.

    TSV files have no quotes. CSV files have the quoting of RFC 4180. In JSON, numbers and booleans are converted to
    text, and a list to a tuple of texts. null is a missing cell, or an empty text in a list.

    Args:
      file: the file.
      needed: columns that a header must have, or a function that returns them for the names in a header.
      delimiter: the character between cells, or its name. "auto" tries comma, semicolon, tab and pipe, and selects the
        first one with which the header has all needed columns, or else the comma. With another value, the file is read
        like a CSV file, whatever its suffix is.

    Raises:
      InputError: if the file is missing, empty, not text or of an unknown format, a needed column is missing, a quote
        is not closed, or a list is not valid JSON.
    """
    path, form, text = open_table(file) if isinstance(file, str) else file
    if delimiter != AUTO and form not in (".tsv", ".csv", ""):
        raise InputError(f"--delimiter is {delimiter!r}, but {path} has no cells with delimiters. Omit the flag.")
    if delimiter != AUTO or form == ".csv":
        return _csv_rows(path, text, needed, delimiter)
    if form == ".tsv":
        return _tsv_rows(path, text, True, needed, same_width=True)
    if form in _JSON:
        return _json_rows(path, text)
    if form:
        return (_row(path, number, values) for number, values in enumerate(arrow_files.read(path, form), start=1))
    raise InputError(f"{path}: unknown file format. Use a name that ends with {', '.join(SUFFIXES)}.")


def split_name(path: str) -> tuple[str, str]:
    """Returns the name of a file without directory and suffixes, and the suffix. A compression suffix is ignored."""
    name, suffix = os.path.splitext(os.path.basename(path))
    return split_name(name) if suffix.lower() in _COMPRESSED else (name, suffix.lower())


def open_table(path: str, flag_name: str = "--data_dir") -> TableFile:
    """Reads a file, and finds out its format.

    Parquet and Arrow files are recognized by their content. Other formats are recognized by the suffix, or else by the
    content.

    Args:
      path: the file.
      flag_name: the flag that gave the path, for messages.

    Raises:
      InputError: if the file is missing, empty or not text.
    """
    with files.open_file(files.require_file(path, flag_name), "rb") as reader:
        if form := first_bytes.table(reader.read(first_bytes.LENGTH)):
            return TableFile(path, form, "")
    text, suffix = files.read_text(path, flag_name), split_name(path)[1]
    if suffix not in (".tsv", ".csv", *_JSON):
        lines = first_bytes.format_of_lines(text)
        suffix = {"JSON": ".jsonl", "a table with tabs": ".tsv", "": ""}.get(lines, ".csv")
    return TableFile(path, suffix, text)


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


def _header(cells: Sequence[str], needed: Needed, path: str, line: int) -> dict[str, int]:
    names = [name.strip() for name in cells]
    columns = {name: i for i, name in enumerate(names)}
    needed = _needed(needed, columns)
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


def _needed(needed: Needed, names: Collection[str]) -> Sequence[str]:
    return needed(names) if callable(needed) else needed


def _cell(value: object) -> Cell:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list):
        return tuple("" if x is None else x if isinstance(x, str) else _text(x) for x in value)
    return value if isinstance(value, dict) else _text(value)


def _text(value: object) -> str:
    return json.dumps(value, default=str).strip('"')  # `default` converts other types, such as dates in Parquet files
