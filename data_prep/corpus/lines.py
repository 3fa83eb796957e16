r"""The lines of text files, which may be compressed, and the rows of Parquet files.

Lines end with `\n`, `\r\n` or `\r`. Each row is a document.
"""

import bz2
import gzip
import itertools
import lzma
import math
import re
import zlib
from collections.abc import Callable, Collection, Iterator
from typing import Any, BinaryIO

from bert_tf.runtime import files, lazy_imports
from bert_tf.runtime.errors import InputError, first_of
from bert_tf.runtime.storage import first_bytes

INPUT_FLAG = "--input_file"
LONGEST_LINE = 8 << 20
_CHUNK = 1 << 17
_BOM = b"\xef\xbb\xbf"
_UTF32 = (b"\xff\xfe\0\0", b"\0\0\xfe\xff")
# The start of UTF-16 text: a byte-order mark, or two ASCII characters of two bytes each.
_UTF16 = re.compile(rb"\xff\xfe|\xfe\xff|[^\0]\0[^\0]\0|\0[^\0]\0[^\0]")
_ROWS_AT_A_TIME = 256
# Compared by name, because older versions of pyarrow lack some of these types.
_TEXTS = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")


def _open_zstandard(raw: BinaryIO) -> Any:
    arrow = lazy_imports.require("pyarrow", f"{INPUT_FLAG} with .zst files")
    return arrow.CompressedInputStream(arrow.PythonFile(raw, mode="r"), "zstd")


_DECOMPRESSORS = {"gzip": gzip.open, "bzip2": bz2.open, "xz": lzma.open, "zstandard": _open_zstandard}


def decompressor(raw: BinaryIO) -> Callable[[BinaryIO], Any] | None:
    """Returns the function that opens a compressed file, detected by its content; None for other files.

    Raises:
      InputError: if the compression is not supported.
    """
    name = first_bytes.compression(raw.read(first_bytes.LENGTH))
    raw.seek(0)
    if name and name not in _DECOMPRESSORS:
        raise _not_text(raw.name, name)
    return _DECOMPRESSORS.get(name)


def read_lines(
    path: str, start: int = 0, end: int | None = None, advance: Callable[[int], None] | None = None
) -> Iterator[tuple[int, bytes]]:
    """Reads the lines of a file that begin at or after `start`.

    A line of more than `LONGEST_LINE` bytes is truncated, and remains longer than `LONGEST_LINE`. A byte-order mark is
    removed.

    Args:
      path: a file, which may be compressed.
      start: an offset; 0 for a compressed file.
      end: the offset up to which progress is reported. Lines after this offset are read too.
      advance: called with the number of bytes that were read from the disk.

    Yields:
      The offset of the line in the uncompressed file, and the line without its end.

    Raises:
      InputError: if a compressed file is damaged, or the file is UTF-16.
    """
    with files.open_file(path, "rb") as raw:
        decompress = decompressor(raw)
        reader = decompress(raw) if decompress else raw
        if start:
            reader.seek(start - 1)
        chunks = _chunks(path, reader, raw, start=start, end=end, advance=advance)
        inside_until = (math.inf if end is None else end) if start else None
        for offset, line in _split_lines(chunks, max(start - 1, 0), inside_until):
            if offset == 0:
                _check_text(path, line)
                line = line.removeprefix(_BOM)
            yield offset, line


def _not_text(path: str, name: str) -> InputError:
    return InputError(f"{INPUT_FLAG}: {path} is {name} data. Unpack it, or convert it to text.")


def _check_text(path: str, first_line: bytes) -> None:
    if name := first_bytes.compression(first_line):  # of a file inside a compressed file
        raise _not_text(path, name)
    if first_line.startswith(_UTF32) or _UTF16.match(first_line):
        name = "UTF-32" if first_line.startswith(_UTF32) else "UTF-16"
        raise InputError(f"{INPUT_FLAG}: {path} is {name}. Convert it to UTF-8: iconv -f {name} -t UTF-8 FILE.")


def _chunks(
    path: str, reader: Any, raw: BinaryIO, start: int, end: int | None, advance: Callable[[int], None] | None
) -> Iterator[bytes]:
    done = start
    try:
        while chunk := reader.read(_CHUNK):
            if advance is not None:
                position = raw.tell() if end is None else min(raw.tell(), end)
                advance(position - done)
                done = position
            yield chunk
    except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        if reader is raw:
            raise
        remedy = "It is truncated or damaged. Download it again."
        if "too much memory" in str(error):  # zstd's window is larger than 128 MB
            remedy = "It was compressed with a long window. Unpack it: zstd -d --long=31 FILE."
        raise InputError(f"{INPUT_FLAG}: {path} can't be decompressed ({error}). {remedy}") from None


def _split_lines(
    chunks: Iterator[bytes], offset: int, inside_until: float | None = None
) -> Iterator[tuple[int, bytes]]:
    """Splits chunks into lines.

    Args:
      chunks: consecutive bytes.
      offset: the position of the first byte in the file.
      inside_until: if given, the first byte is inside a line, which is skipped. If the line does not end before this
        offset, reading stops. A line that spans many ranges of the file is therefore read only once.
    """
    rest = b""
    is_cut = inside_until is not None  # inside a line that was already yielded or is skipped
    for chunk in chunks:
        lines = (rest + chunk).splitlines(keepends=True)
        # After a final \r, a \n may follow in the next chunk.
        rest = b"" if lines[-1].endswith(b"\n") else lines.pop()
        if is_cut and lines:
            offset += len(lines.pop(0))
            is_cut, inside_until = False, None
        for line in lines:
            yield offset, line.rstrip(b"\r\n")
            offset += len(line)
        if is_cut or len(rest) > LONGEST_LINE:
            if not is_cut:
                yield offset, rest
            is_cut = True
            if inside_until is not None and offset + len(rest) >= inside_until:
                return
            offset += len(rest) - 1
            rest = rest[-1:]
    if rest and not is_cut:
        yield offset, rest.rstrip(b"\r")


def line_numbers(path: str, offsets: Collection[int]) -> dict[int, int]:
    """Returns the 1-based numbers of the lines at `offsets`. Reads all lines up to the last offset."""
    numbered = ((offset, number) for number, (offset, _) in enumerate(read_lines(path), 1) if offset in offsets)
    return dict(itertools.islice(numbered, len(offsets)))


def read_rows(
    path: str, column: str, start: int, end: int, advance: Callable[[int], None] | None = None
) -> Iterator[tuple[int, bytes | None]]:
    """Reads the texts of the row groups that begin in the bytes [start, end) of a file.

    Args:
      path: a Parquet file.
      column: the name of the column.
      start: offset of the first byte.
      end: offset of the last byte plus 1.
      advance: called with the number of bytes whose rows have been read.

    Yields:
      The 1-based number of each row, and its text in UTF-8 or None.

    Raises:
      InputError: if the file is damaged, or has no such text column.
    """
    parquet = lazy_imports.require("pyarrow.parquet", f"{INPUT_FLAG} with Parquet files")
    arrow = lazy_imports.require("pyarrow", f"{INPUT_FLAG} with Parquet files")
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
                    position = max(done, min(behind, end))
                    advance(position - done)
                    done = position
            if advance is not None:
                advance(end - done)
    except (arrow.ArrowException, OSError) as error:
        raise InputError(
            f"{INPUT_FLAG}: {path} can't be read as Parquet ({error}). It is truncated or damaged, or has another "
            "format; see --input_format."
        ) from None


def _column_of_texts(path: str, column: str, table: Any, types: Any) -> int:
    names = table.schema_arrow.names
    if column not in names:
        raise InputError(
            f"--text_column is {column!r}, but the columns of {path} are {first_of(names)}. Pass the name of the "
            "column with the text."
        )
    kind = table.schema_arrow.field(column).type
    if types.is_dictionary(kind):
        kind = kind.value_type
    if str(kind) not in _TEXTS:
        raise InputError(f"--text_column is {column!r}, whose type in {path} is {kind}. Use a column of text.")
    return table.metadata.schema.names.index(column)


def _offset(column: Any) -> int:
    """Returns the position of a column's first page in the file."""
    pages = (column.dictionary_page_offset, column.data_page_offset)
    return min(page for page in pages if page)
