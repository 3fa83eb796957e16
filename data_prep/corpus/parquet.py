"""The rows of Parquet files: a column of texts, one per document."""

from collections.abc import Callable, Iterator
from typing import Any

from bert_tf.runtime import extras, files
from bert_tf.runtime.files import InputError
from data_prep.corpus.lines import INPUT_FLAG

MAGIC = b"PAR1"
_ROWS_AT_A_TIME = 256
# By their names, for older versions of pyarrow lack some.
_TEXTS = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")


def read_rows(
    path: str, column: str, start: int, end: int, advance: Callable[[int], None] | None = None
) -> Iterator[tuple[int, bytes | None]]:
    """Reads the texts of the row groups that begin in the bytes [start, end) of a file.

    Args:
      path: a Parquet file.
      column: the name of the column.
      start: an offset.
      end: an offset.
      advance: is told the number of bytes of which the rows have been read.

    Yields:
      The number of each row, counted from 1, and its text in UTF-8; None if it has no text.

    Raises:
      InputError: if the file is damaged, or has no such column of texts.
    """
    parquet = extras.require("pyarrow.parquet", f"{INPUT_FLAG} with Parquet files")
    arrow = extras.require("pyarrow", f"{INPUT_FLAG} with Parquet files")
    try:
        with files.open_file(path, "rb") as raw, parquet.ParquetFile(raw) as table:
            number = _column_of_texts(path, column, table, arrow.types)
            done, row = start, 0
            for group in range(table.metadata.num_row_groups):
                first = _offset(table.metadata.row_group(group).column(number))
                if not start <= first < end:
                    row += table.metadata.row_group(group).num_rows
                    continue
                for batch in table.iter_batches(_ROWS_AT_A_TIME, row_groups=[group], columns=[column]):
                    yield from enumerate(batch.column(0).cast(arrow.large_binary()).to_pylist(), row + 1)
                    row += batch.num_rows
                if advance is not None:
                    behind = first + table.metadata.row_group(group).total_byte_size
                    now = max(done, min(behind, end))
                    advance(now - done)
                    done = now
            if advance is not None:
                advance(end - done)
    except (arrow.ArrowException, OSError) as error:
        raise InputError(
            f"{INPUT_FLAG}: {path} can't be read as Parquet ({error}). It was cut short or damaged, or has another "
            "format; see --input_format."
        ) from None


def _column_of_texts(path: str, column: str, table: Any, types: Any) -> int:
    names = table.schema_arrow.names
    if column not in names:
        raise InputError(
            f"--text_column is {column!r}, but the columns of {path} are {', '.join(names)}. Name the one with "
            "the text."
        )
    kind = table.schema_arrow.field(column).type
    if types.is_dictionary(kind):
        kind = kind.value_type
    if str(kind) not in _TEXTS:
        raise InputError(f"--text_column is {column!r}, which holds {kind} in {path}, but text is expected.")
    return table.metadata.schema.names.index(column)


def _offset(column: Any) -> int:
    """Returns the place of a column's first page in the file."""
    pages = (column.dictionary_page_offset, column.data_page_offset)
    return min(page for page in pages if page)
