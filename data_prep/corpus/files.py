"""The files of a corpus, and their division into ranges of bytes.

A document belongs to the range in which it begins, so the ranges of a file contain each document once, regardless of
how the file is divided. Compressed files are not divided.

A file is identified by its size and by samples of its content, independent of its path and modification time. A copy of
a file therefore counts as the same text.
"""

import concurrent.futures
import dataclasses
import hashlib
import itertools
import json
import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Literal

from bert_tf.runtime import files, path_checks
from bert_tf.runtime.errors import InputError, first_of
from bert_tf.runtime.messages import say
from bert_tf.runtime.storage import first_bytes, output_checks
from bert_tf.sequences.example_format import METADATA_SUFFIX, Metadata
from data_prep.corpus.lines import INPUT_FLAG, decompressor, read_lines

InputFormat = Literal["auto", "text", "jsonl", "parquet"]
HELP_INPUT_FORMAT = "Format of the text. jsonl: one JSON object per line; auto: detect it in each file."

# A corpus is divided into 64 splits, unless the splits would be too small or too large.
_SPLITS, _SPLIT_BYTES = 64, (512 << 10, 64 << 20)
# The samples of a file that are compared. A file up to the total size of the samples is compared completely.
_SAMPLES, _SAMPLE_BYTES = 8, 32 << 10
# The numbers of lines and bytes of a file that are read to detect its format.
_SEEN_LINES, _SEEN_BYTES = 100, 1 << 20
# Names of files that mark directories as unfinished work of the vocabulary and data programs.
_WORK = re.compile(r"(work|vocabulary)\.lock|(tokens|examples)-[0-9a-f]{16}")
# Files are opened in parallel, because each call to a remote file system takes long. A thread gets several files
# at a time, because passing small files to threads one by one would take longer than reading them.
_OPENED_TOGETHER, _MOST_FOR_A_THREAD = 16, 64


@dataclasses.dataclass(frozen=True)
class InputFile:
    """A file of the corpus.

    Attributes:
      path: the path.
      size: the size on the disk in bytes.
      sample: a hash of samples of the content.
      format: "text", "jsonl" (one JSON object per line) or "parquet".
      is_compressed: whether the file can only be read from its start.
    """

    path: str
    size: int
    sample: str
    format: str
    is_compressed: bool = False

    def may_have_changed(self, since: int) -> bool:
        """Returns True if the file was modified after `since` (ns) and is so large that only samples are compared."""
        is_sampled = self.size > _SAMPLES * _SAMPLE_BYTES and not files.is_remote(self.path)
        return is_sampled and files.stamp(self.path)[1] > since

    @property
    def content(self) -> tuple[int, str, str]:
        """The values that identify the content. A copy of the file has the same values."""
        return self.size, self.sample, self.format

    def check_unchanged(self) -> None:
        """Raises an InputError if the file has changed since it was found. Call it after reading the file."""
        actual = _size_and_sample(self.path) if not files.is_remote(self.path) else (files.size(self.path), self.sample)
        if actual != (self.size, self.sample):
            now = "other content" if actual[0] == self.size else f"{actual[0]} bytes"
            raise InputError(
                f"{INPUT_FLAG}: {self.path} was changed while it was read: it had {self.size} bytes and now has {now}. "
                "Run the command again when no program writes to the file."
            )


@dataclasses.dataclass(frozen=True)
class FileRange:
    """A range of a file: the documents that begin in its bytes [start, end).

    Attributes:
      file: the file.
      start: offset of the first byte.
      end: offset of the last byte plus 1.
    """

    file: InputFile
    start: int
    end: int

    @property
    def stop(self) -> float:
        """The first offset in the uncompressed file that belongs to the next range."""
        return math.inf if self.file.is_compressed else self.end

    @property
    def content(self) -> tuple[Any, ...]:
        """The values that identify the content. The same range of a copy of the file has the same values."""
        return *self.file.content, self.start, self.end


def find_input_files(
    patterns: str,
    input_format: str = "auto",
    as_original: bool = False,
    may_be_empty: bool = False,
    no_text: Collection[str] = (),
) -> list[InputFile]:
    """Returns the files that match names, glob patterns and directories, in order. Files of a directory are sorted.

    The output of data preparation in a directory is ignored: TFRecords, their metadata files, and unfinished work.

    Args:
      patterns: names, glob patterns and directories, separated by commas.
      input_format: "text", "jsonl", "parquet", or "auto" to detect it from the beginning of each file.
      as_original: if True, files may be empty, and files that are named twice are read twice, as in the original code.
      may_be_empty: whether files may be empty.
      no_text: files to ignore in directories, such as the vocabulary.

    Raises:
      InputError: if a file is missing, empty or named twice, a file's format is unclear, or a directory has no files.
    """
    paths: list[str] = []
    ignored = {files.resolved(path) for path in no_text}
    for match in path_checks.expand_patterns(patterns, INPUT_FLAG):
        paths += _text_below(match, ignored) if files.is_directory(match) else [match]
    if not as_original:
        _refuse_repeated(paths)

    def describe(path: str) -> InputFile:
        files.require_file(path, INPUT_FLAG, may_be_empty=as_original or may_be_empty)
        size, sample = _size_and_sample(path)
        file_format = "text" if as_original else input_format
        with files.open_file(path, "rb") as reader:
            is_compressed = decompressor(reader) is not None
        file_format = _format(path) if file_format == "auto" else file_format
        return InputFile(path, size, sample, file_format, is_compressed)

    at_a_time = min(len(paths) // (4 * _OPENED_TOGETHER) + 1, _MOST_FOR_A_THREAD)
    groups = [paths[first : first + at_a_time] for first in range(0, len(paths), at_a_time)]
    with concurrent.futures.ThreadPoolExecutor(_OPENED_TOGETHER) as pool:
        inputs_by_group = pool.map(lambda group: [describe(path) for path in group], groups)
        inputs = list(itertools.chain.from_iterable(inputs_by_group))
    _say_formats(inputs)
    return inputs


def require_columns(inputs: Sequence[InputFile]) -> None:
    """Checks that --text_column applies to at least one file.

    Raises:
      InputError: if all files are plain text.
    """
    if all(file.format == "text" for file in inputs):
        raise InputError(
            f"--text_column applies to JSON lines and Parquet, but {INPUT_FLAG} is plain text. Omit --text_column, or "
            "pass the format with --input_format."
        )


def _text_below(directory: str, ignored: Collection[str]) -> list[str]:
    left_out: list[str] = []
    paths = list(_walk(directory, files.list_directory(directory), ignored, left_out))
    if not paths:
        raise InputError(f"{INPUT_FLAG}: the directory {directory!r} has no {'text ' * bool(left_out)}files. Add one.")
    if left_out:
        say(f"{INPUT_FLAG}: ignoring {first_of(left_out, 1)} in {directory}, made by data preparation.")
    return paths


def _walk(directory: str, names: Sequence[str], ignored: Collection[str], left_out: list[str]) -> Iterator[str]:
    """Yields the files below a directory that contains `names`. Appends files that are not text to `left_out`."""
    metadata = {
        name for name in names if name.endswith(METADATA_SUFFIX) and _is_metadata(os.path.join(directory, name))
    }
    for name in names:
        path = os.path.join(directory, name)
        if name.startswith("."):
            continue
        is_record = name in metadata or name + METADATA_SUFFIX in metadata or output_checks.is_unfinished(name)
        if is_record or _WORK.fullmatch(name) or files.resolved(path) in ignored:
            left_out.append(path)
        elif not files.is_directory(path):
            yield path
        elif any(map(_WORK.fullmatch, below := files.list_directory(path))):
            left_out.append(path)
        else:
            yield from _walk(path, below, ignored, left_out)


def _is_metadata(path: str) -> bool:
    try:
        return Metadata.read(path.removesuffix(METADATA_SUFFIX)) is not None
    except InputError:
        return False


def _refuse_repeated(paths: Iterable[str]) -> None:
    seen: set[str] = set()
    for path in paths:
        if path in seen:
            raise InputError(f"{INPUT_FLAG}: {path} is listed twice. Remove one of them.")
        seen.add(path)


def _size_and_sample(path: str) -> tuple[int, str]:
    with files.open_file(path, "rb") as reader:
        reader.seek(0, os.SEEK_END)
        size = reader.tell()
        rest = max(0, size - _SAMPLE_BYTES)
        offsets = sorted({rest * i // (_SAMPLES - 1) for i in range(_SAMPLES)})
        if size <= _SAMPLES * _SAMPLE_BYTES:
            offsets = range(0, size, _SAMPLE_BYTES)
        digest = hashlib.sha256()
        for offset in offsets:
            reader.seek(offset)
            digest.update(reader.read(_SAMPLE_BYTES))
    return size, digest.hexdigest()[:16]


def _format(path: str) -> str:
    with files.open_file(path, "rb") as reader:
        table = first_bytes.table(reader.read(first_bytes.LENGTH))
    if table == "Parquet":
        return "parquet"
    first_json = first_other = is_cut = None
    lines = list(itertools.islice(read_lines(path), _SEEN_LINES))
    for number, (offset, line) in enumerate(lines, 1):
        if offset > _SEEN_BYTES:
            break
        line = line.strip()
        if _is_json_object(line):
            first_json = first_json or number
        elif line.startswith(b'{"'):
            is_cut = True
        elif line and line != b"{}":
            first_other = first_other or number
    if first_json and first_other:
        raise InputError(
            f"{INPUT_FLAG}: {path}: line {first_json} is a JSON object, but line {first_other} is not, so the format "
            "is unclear. Correct the file, or pass --input_format=jsonl or --input_format=text."
        )
    if first_other and re.search(r"\.jsonl?(\.\w+)?$", path):
        raise InputError(
            f"{INPUT_FLAG}: {path}: line {first_other} is not a JSON object. Write one object per line, or pass "
            "--input_format=text."
        )
    if first_json or (is_cut and not first_other):
        return "jsonl"
    if kind := table or first_bytes.format_of_lines("\n".join(line.decode(errors="ignore") for _, line in lines)):
        raise InputError(
            f"{INPUT_FLAG}: {path} is {kind}. Write it as JSON lines or Parquet, and pass --text_column. To read its "
            "lines as text, pass --input_format=text."
        )
    return "text"


def _is_json_object(line: bytes) -> bool:
    try:
        return line.startswith(b"{") and bool(json.loads(line))
    except RecursionError:
        return True
    except ValueError:
        return False


def _say_formats(inputs: Sequence[InputFile]) -> None:
    by_format = {file.format: file.path for file in reversed(inputs) if file.size}
    if len(by_format) > 1:
        listed = ", ".join(f"{path} is read as {name}" for name, path in sorted(by_format.items()))
        say(f"{INPUT_FLAG}: the files have different formats: {listed}. --input_format sets one format for all files.")


def corpus_bytes(inputs: Sequence[InputFile]) -> int:
    """Returns the size of a corpus on the disk."""
    return sum(file.size for file in inputs)


def cut_into_splits(inputs: Sequence[InputFile], documents: str) -> list[list[FileRange]]:
    """Divides a corpus into splits of about equal size, in the order of the corpus.

    The size depends only on the corpus, so a run can be resumed with another number of processes.

    Args:
      inputs: the files of the corpus.
      documents: see `CorpusOptions`. A file that is a single document is not divided.

    Returns:
      For each split, a list of ranges of files.
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
