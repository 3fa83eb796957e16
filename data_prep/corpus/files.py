"""The files of a corpus, their division into pieces of work, and their lines.

Lines end with `\\n`, `\\r\\n` or `\\r`. A document belongs to the piece in which it begins, so the pieces of a file
give each document once, wherever the file is divided. Compressed files are not divided.
"""

import bz2
import dataclasses
import gzip
import itertools
import json
import math
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

from bert_tf.runtime import files
from bert_tf.runtime.files import InputError

INPUT_FORMATS = ("auto", "text", "jsonl")
DOCUMENTS = ("auto", "blank_line", "file", "record")

LONGEST_LINE = 8 << 20
# A corpus is divided into 64 splits, unless they would be too small or too large.
_SPLITS, _SPLIT_BYTES = 64, (512 << 10, 64 << 20)
_CHUNK = 1 << 17
_DECOMPRESSORS = {".gz": gzip.open, ".bz2": bz2.open}
_BOM = b"\xef\xbb\xbf"
_FLAG_NAME = "--input_file"


@dataclasses.dataclass(frozen=True)
class InputFile:
    """A file of the corpus.

    Attributes:
      path: its path.
      size: its size on the disk in bytes.
      modified: time of the last change in nanoseconds; 0 if unknown.
      is_json: whether it holds one JSON object per line.
    """

    path: str
    size: int
    modified: int
    is_json: bool

    @property
    def is_compressed(self) -> bool:
        """True if the file can only be read from its start."""
        return _decompressor(self.path) is not None


@dataclasses.dataclass(frozen=True)
class FileRange:
    """A piece of a file: the documents that begin in its bytes [start, end).

    Attributes:
      file: the file.
      start: its first byte.
      end: the byte behind its last one.
    """

    file: InputFile
    start: int
    end: int

    @property
    def stop(self) -> float:
        """The first offset, in the uncompressed file, that belongs to the next piece."""
        return math.inf if self.file.is_compressed else self.end


def find_input_files(patterns: str, input_format: str = "auto", as_released: bool = False) -> list[InputFile]:
    """Returns the files that names, globs and folders stand for, in order; the files of a folder are sorted.

    Args:
      patterns: names, globs and folders, separated by commas.
      input_format: "text", "jsonl", or "auto" to decide by each file's first line.
      as_released: whether files may be empty, or be named twice to be read twice, as in the release.

    Raises:
      InputError: if a file is missing, empty, or named twice, or a folder has no files.
    """
    found: list[InputFile] = []
    seen: set[str] = set()
    for match in files.expand_patterns(patterns, _FLAG_NAME):
        for path in _files_below(match) if files.is_folder(match) else [match]:
            if path in seen and not as_released:
                raise InputError(f"{_FLAG_NAME}: {path} is there twice, so its text would be used twice. Name it once.")
            seen.add(path)
            files.require_file(path, _FLAG_NAME, may_be_empty=as_released)
            size, modified = _size_and_time(path)
            is_json = input_format == "jsonl" or (input_format == "auto" and _looks_like_json(path))
            found.append(InputFile(path, size, modified, is_json))
    return found


def _files_below(folder: str) -> list[str]:
    paths: list[str] = []
    for name in files.list_folder(folder):
        path = os.path.join(folder, name)
        if not name.startswith("."):
            paths += _files_below(path) if files.is_folder(path) else [path]
    if not paths:
        raise InputError(f"{_FLAG_NAME}: the folder {folder!r} holds no files.")
    return paths


def _size_and_time(path: str) -> tuple[int, int]:
    if files.is_remote(path):
        with files.open_file(path, "rb") as reader:
            reader.seek(0, os.SEEK_END)
            return reader.tell(), 0
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def _decompressor(path: str) -> Callable | None:
    return _DECOMPRESSORS.get(os.path.splitext(path)[1])


def _looks_like_json(path: str) -> bool:
    for _, line in read_lines(path):
        if line.strip():
            try:
                return line.lstrip().startswith(b"{") and isinstance(json.loads(line), dict)
            except ValueError:
                return False
    return False


def corpus_bytes(inputs: Sequence[InputFile]) -> int:
    """Returns the size of a corpus on the disk."""
    return sum(file.size for file in inputs)


def cut_into_splits(inputs: Sequence[InputFile], documents: str) -> list[list[FileRange]]:
    """Divides a corpus into splits of about equal size, in the order of the corpus.

    Their size depends on the corpus only, so the work can be continued with other resources.

    Args:
      inputs: its files.
      documents: one of `DOCUMENTS`; a file that is one document is not divided.

    Returns:
      For each split, the pieces of files that it consists of.
    """
    smallest, largest = _SPLIT_BYTES
    split_bytes = min(max(corpus_bytes(inputs) // _SPLITS, smallest), largest)
    splits: list[list[FileRange]] = [[]]
    room = split_bytes
    for file in inputs:
        count = 1 if documents == "file" or file.is_compressed else max(1, round(file.size / split_bytes))
        cuts = [file.size * i // count for i in range(count + 1)]
        for start, end in itertools.pairwise(cuts):
            if splits[-1] and end - start > room:
                splits.append([])
                room = split_bytes
            splits[-1].append(FileRange(file, start, end))
            room -= end - start
    return splits


def read_lines(
    path: str, start: int = 0, end: int | None = None, advance: Callable[[int], None] | None = None
) -> Iterator[tuple[int, bytes]]:
    """Reads the lines of a file that begin at or after `start`.

    A line of more than `LONGEST_LINE` bytes is cut to a length above this limit. A byte-order mark is left out.

    Args:
      path: a file, which may be compressed.
      start: an offset; 0 for a compressed file.
      end: the reader may go on behind this offset, but reports progress up to it only.
      advance: is told the number of bytes that were read from the disk.

    Yields:
      The offset of the line in the uncompressed file, and the line without its end.

    Raises:
      InputError: if a compressed file is damaged.
    """
    with files.open_file(path, "rb") as raw:
        decompressor = _decompressor(path)
        reader = decompressor(raw) if decompressor else raw
        if start:
            reader.seek(start - 1)
        lines = _split_lines(_chunks(path, reader, raw, start=start, end=end, advance=advance), max(start - 1, 0))
        if start:
            next(lines, None)  # the rest of the line before
        for offset, line in lines:
            yield offset, line.removeprefix(_BOM) if offset == 0 else line


def _chunks(
    path: str, reader: BinaryIO, raw: BinaryIO, start: int, end: int | None, advance: Callable[[int], None] | None
) -> Iterator[bytes]:
    done = start
    try:
        while chunk := reader.read(_CHUNK):
            if advance is not None:
                now = raw.tell() if end is None else min(raw.tell(), end)
                advance(now - done)
                done = now
            yield chunk
    except (EOFError, OSError, zlib.error) as error:
        if reader is raw:
            raise
        raise InputError(
            f"{_FLAG_NAME}: {path} can't be decompressed ({error}). It was cut short or damaged; download it again."
        ) from None


def _split_lines(chunks: Iterator[bytes], offset: int) -> Iterator[tuple[int, bytes]]:
    rest = b""
    in_long_line = False
    for chunk in chunks:
        lines = (rest + chunk).splitlines(keepends=True)
        # After a final \r, a \n may follow in the next chunk.
        rest = b"" if lines[-1].endswith(b"\n") else lines.pop()
        if in_long_line and lines:
            offset += len(lines.pop(0))
            in_long_line = False
        for line in lines:
            yield offset, line.rstrip(b"\r\n")
            offset += len(line)
        if len(rest) > LONGEST_LINE:
            if not in_long_line:
                yield offset, rest
            in_long_line = True
            offset += len(rest) - 1
            rest = rest[-1:]
    if rest and not in_long_line:
        yield offset, rest.rstrip(b"\r")


def line_number(path: str, offset: int) -> int:
    """Returns the number, counted from 1, of the line at an offset; reads all lines before it."""
    return 1 + sum(1 for _ in itertools.takewhile(lambda line: line[0] < offset, read_lines(path)))
