"""Rows of delimited text files, each with the line it stands on."""

import dataclasses
from collections.abc import Iterator, Mapping

from bert_tf import files
from bert_tf.files import InputError


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of a table.

    Attributes:
      path: the file.
      line: its number, from 1.
      cells: what stands between the delimiters.
      columns: name -> index; empty without a header.
    """

    path: str
    line: int
    cells: list[str]
    columns: Mapping[str, int]

    @property
    def where(self) -> str:
        """File and line, for messages."""
        return f"{self.path}, line {self.line}"

    def __getitem__(self, column: str | int) -> str:
        """The cell of a column, by its name in the header or by its place (from the end if negative).

        Raises:
          InputError: if the row is too short.
        """
        index = self.columns[column] if isinstance(column, str) else column
        if not -len(self.cells) <= index < len(self.cells):
            raise InputError(
                f"{self.where}: the row has {len(self.cells)} tab-separated columns, but column "
                f"{column if isinstance(column, str) else index + 1} is needed."
            )
        return self.cells[index]


def read_tsv(path: str, has_header: bool, needed: tuple[str, ...] = ()) -> Iterator[Row]:
    """The rows of a tab-separated file without quoting, as GLUE's are.

    Lines end at a newline alone (a cell may hold any other separator that Unicode knows); a carriage return before it
    and a byte-order mark at the file's start are dropped, and blank lines are passed over.

    Args:
      path: the file.
      has_header: whether the first line names the columns; it is not returned.
      needed: columns that the header must have.

    Raises:
      InputError: if the file is missing, empty or not UTF-8, or a needed column is missing.
    """
    columns: dict[str, int] = {}
    for number, line in enumerate(files.read_text(path, "--data_dir").removeprefix("\ufeff").split("\n"), start=1):
        line = line.removesuffix("\r")
        if not line:
            continue
        cells = line.split("\t")
        if has_header and not columns:
            columns = {name.strip(): i for i, name in enumerate(cells)}
            missing = [name for name in needed if name not in columns]
            if missing:
                raise InputError(
                    f"{path}, line {number}: the column {missing[0]!r} is missing. "
                    f"The header has {', '.join(map(repr, columns))}."
                )
            continue
        yield Row(path, number, cells, columns)
