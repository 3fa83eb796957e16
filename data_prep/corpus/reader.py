"""Streams text as documents of sentences, and handles lines that are not plain text.

(With `--original_order`, `original_order.read_documents` reads text like the original program.)
"""

import collections
import itertools
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Literal, NamedTuple

from bert_tf.runtime.files import InputError
from bert_tf.runtime.settings import AbsentFrom, Settings, about, not_with, only_with
from data_prep.corpus.files import FileRange
from data_prep.corpus.lines import INPUT_FLAG, LONGEST_LINE, line_numbers, read_lines, read_rows

_STOPPING = ("fail", "error")  # synonyms
_HELP_ON_BAD_LINE = (
    "Handling of lines that are not plain text. clean: delete control characters, skip undecodable lines; skip: skip "
    "both; fail, error: stop."
)
# The number of bad lines to list for each reason.
_NAMED_LINES = 5
# Control characters (Unicode category Cc) except tab and line ends. `_UNWANTED` also contains lone surrogates. The
# original tokenizer also deletes these characters, so a text without them has the same tokens.
_CONTROL_BYTES = bytes({*range(0x20), 0x7F} - set(b"\t\n\r"))
_C1 = re.compile("[\x80-\x9f]")
_UNWANTED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_LINE_END = re.compile("\r\n|\r|\n")
# The program that makes a vocabulary, which needs no documents and sentences.
_NOT_FOR_VOCABULARY = AbsentFrom("data_prep.build_vocab")
_NOT_ORIGINAL = not_with("original_order")


class CorpusOptions(Settings, frozen=True):
    """How files are split into documents and sentences.

    Attributes:
      documents: the unit that is a document: "blank_line" (text between blank lines), "file", "record" (a JSON object
        or a line of text), or "auto": records in JSON and Parquet files, text between blank lines in others.
      split_sentences: whether lines are paragraphs to split into sentences; otherwise a line is a sentence.
      language: ISO code of the language for splitting sentences.
      join_lines: whether the lines between two blank lines are one paragraph.
      on_bad_line: how to handle a line that is not plain text: "clean" deletes control characters and skips lines that
        can't be cleaned, "skip" skips all such lines, "fail" or "error" raises an InputError at the first one.
      text_column: the name of the text in JSON objects and Parquet files.
    """

    documents: Annotated[
        Literal["auto", "blank_line", "file", "record"],
        about(
            "Unit of a document. auto: record in JSON lines and Parquet, otherwise text between blank lines.",
            group="Form of the text",
        ),
        _NOT_ORIGINAL,
        _NOT_FOR_VOCABULARY,
    ] = "auto"
    split_sentences: Annotated[
        bool, about("Treat lines as paragraphs and split them into sentences."), _NOT_ORIGINAL, _NOT_FOR_VOCABULARY
    ] = False
    language: Annotated[
        str, about("Language (ISO code) for splitting sentences."), only_with("split_sentences"), _NOT_FOR_VOCABULARY
    ] = "en"
    join_lines: Annotated[
        bool,
        about("Join the lines between blank lines to one paragraph."),
        only_with("split_sentences"),
        _NOT_FOR_VOCABULARY,
    ] = False
    on_bad_line: Annotated[Literal["clean", "skip", "fail", "error"], about(_HELP_ON_BAD_LINE), _NOT_ORIGINAL] = "clean"
    text_column: Annotated[str, about("Name of the text in JSON lines and Parquet files."), _NOT_ORIGINAL] = "text"

    @property
    def record(self) -> dict[str, Any]:
        """The values for records. Data of older versions was made without `join_lines`."""
        values = self.to_dict()
        return values if self.join_lines else {name: value for name, value in values.items() if name != "join_lines"}

    @property
    def keeps_going(self) -> bool:
        """True if reading continues after a line that is not plain text."""
        return self.on_bad_line not in _STOPPING


class LinePosition(NamedTuple):
    """The position of a line, of a row, or of a complete file.

    Attributes:
      path: the file.
      offset: the offset of the line's first byte in the uncompressed file; None if it is not a line.
      row: the 1-based row of a Parquet file; None if it is not a row.
    """

    path: str
    offset: int | None = None
    row: int | None = None


# The action, the reason, the number of lines, and the positions of the first lines.
BadLines = list[tuple[str, str, int, list[LinePosition]]]


class CorpusReader:
    """Reads ranges of the files of a corpus.

    Args:
      options: how files are split into sentences.
    """

    def __init__(self, options: CorpusOptions) -> None:
        self._options = options
        self._split_sentences = _sentence_splitter(options.language) if options.split_sentences else None
        self._counts: collections.Counter[tuple[str, str]] = collections.Counter()
        self._first: dict[tuple[str, str], list[LinePosition]] = collections.defaultdict(list)

    @property
    def bad_lines(self) -> BadLines:
        """The lines read so far that were not plain text."""
        return [(*kind, count, self._first[kind]) for kind, count in self._counts.items()]

    def sentences(self, file_range: FileRange, advance: Callable[[int], None] | None = None) -> Iterator[str | None]:
        """Yields the sentences of the documents that begin in a range of a file; None ends a document.

        Documents may be empty (a file or record without text or with only bad lines), and sentences may have no tokens.

        Args:
          file_range: the range.
          advance: called with the number of bytes that were read from the disk.

        Raises:
          InputError: if the file is damaged, has changed meanwhile, or has bad lines that are errors.
        """
        documents = self._options.documents
        is_text = file_range.file.format == "text"
        if documents == "auto":
            documents = "blank_line" if is_text else "record"
        self._position = None
        if not is_text:
            lines = self._documents_of_records(file_range, documents, advance)
        elif documents == "blank_line":
            lines = self._documents_between_blank_lines(file_range, advance)
        else:
            lines = self._documents_by_line(file_range, documents, advance)
        split = self._split_sentences
        for line in _paragraphs(lines) if self._options.join_lines else lines:
            if line is None:
                yield None
            elif split is None:
                yield line
            else:
                yield from split(line)
        if file_range.end - file_range.start == file_range.file.size and self._position is None:
            self._position = LinePosition(file_range.file.path)
            self._bad("an empty file")
        file_range.file.check_unchanged()

    def _read(self, file_range: FileRange, advance: Callable[[int], None] | None) -> Iterator[tuple[int, bytes | None]]:
        """Yields (offset, line) for the range and the text after it; for Parquet, (range start, text) for each row."""
        path = file_range.file.path
        self._is_parquet = file_range.file.format == "parquet"
        if self._is_parquet:
            for row, text in read_rows(path, self._options.text_column, file_range.start, file_range.end, advance):
                self._position = LinePosition(path, row=row)
                yield file_range.start, text
        else:
            for offset, line in read_lines(path, file_range.start, file_range.end, advance):
                self._position = LinePosition(path, offset)
                yield offset, line

    def _lines_in_range(self, file_range: FileRange, advance: Callable[[int], None] | None) -> Iterator[bytes | None]:
        """Yields the lines that begin in the range. Skips blank lines; with `join_lines`, yields "" instead."""
        for offset, line in self._read(file_range, advance):
            if offset >= file_range.stop:
                return
            if line is None or not is_blank(line):
                yield line
            elif self._options.join_lines:
                yield b""

    def _documents_between_blank_lines(
        self, file_range: FileRange, advance: Callable[[int], None] | None
    ) -> Iterator[str | None]:
        # A document belongs to the range in which the blank line before it begins.
        in_range = file_range.start == 0
        has_lines = False
        for offset, line in self._read(file_range, advance):
            if not in_range and offset >= file_range.stop:
                return
            if is_blank(line):
                if has_lines:
                    yield None
                in_range, has_lines = True, False
                if offset >= file_range.stop:
                    return
            elif in_range:
                has_lines = True
                if (text := self._text(line)) is not None:
                    yield text
        if has_lines:
            yield None

    def _documents_by_line(
        self, file_range: FileRange, documents: str, advance: Callable[[int], None] | None
    ) -> Iterator[str | None]:
        for line in self._lines_in_range(file_range, advance):
            if (text := self._text(line)) is not None:
                yield text
            if documents == "record" and line:
                yield None
        if documents == "file":
            yield None

    def _documents_of_records(
        self, file_range: FileRange, documents: str, advance: Callable[[int], None] | None
    ) -> Iterator[str | None]:
        for line in filter(lambda line: line != b"", self._lines_in_range(file_range, advance)):
            has_lines = documents == "record"
            for text in self._lines_of_record(line):
                if not is_blank(text.encode()):
                    yield text
                    has_lines = True
                elif documents == "blank_line" and has_lines:
                    yield None
                    has_lines = False
                elif self._options.join_lines:
                    yield ""
            if documents != "file" and has_lines:
                yield None
        if documents == "file":
            yield None

    def _text(self, line: bytes) -> str | None:
        """Returns a line as text; None if it is bad."""
        text = self._decoded(line)
        if text is None:
            return None
        has_control = len(line.translate(None, _CONTROL_BYTES)) != len(line) or (b"\xc2" in line and _C1.search(text))
        return self._cleaned(text) if has_control else text

    def _decoded(self, line: bytes) -> str | None:
        if len(line) > LONGEST_LINE:
            self._bad(f"longer than {LONGEST_LINE >> 20} MB")
            return None
        try:
            return line.decode("utf-8")
        except UnicodeDecodeError as error:
            self._bad("not UTF-8", f"byte 0x{line[error.start]:02x}")
            return None

    def _lines_of_record(self, line: bytes | None) -> list[str]:
        """Returns the lines of the text of a JSON object or a row; empty if it is bad."""
        if line is None:
            self._bad("a row without text")
            return []
        text = self._decoded(line)
        if text is not None and not self._is_parquet:
            text = self._text_of_json(text)
        text = text and self._cleaned(text)
        return _LINE_END.split(text) if text is not None else []

    def _text_of_json(self, line: str) -> str | None:
        name = self._options.text_column
        reason = f'not a JSON object with a "{name}"'
        try:
            # Strings may contain unescaped control characters, which are removed later.
            record = json.loads(line, strict=False)
        except RecursionError:
            reason, record = "JSON that is nested too deeply", None
        except ValueError:
            record = None
        text = record.get(name) if isinstance(record, dict) else None
        if isinstance(record, dict) and name in record:
            reason = f'"{name}" is {"null" if text is None else "not a string"}'
        if not isinstance(text, str):
            self._bad(reason)
            return None
        return text

    def _cleaned(self, text: str) -> str | None:
        """Returns the text without control characters; None if the line must be skipped because of them."""
        match = _UNWANTED.search(text)
        if match is None:
            return text
        code = ord(match.group())
        if code == 0:
            reason, name = "a NUL character", ""
        else:
            reason = "a control character" if code < 0xD800 else "half of a surrogate pair"
            name = f"U+{code:04X}"
        return _UNWANTED.sub("", text) if self._bad(reason, name, can_clean=True) else None

    def _bad(self, reason: str, detail: str = "", can_clean: bool = False) -> bool:
        """Counts the current line as bad. Returns True if it should be cleaned, and False if it should be skipped."""
        if not self._options.keeps_going:
            advice = "clean to delete such characters" if can_clean else "skip to skip such lines"
            (name,) = _names([self._position])
            raise InputError(
                f"{reason}{detail and f' ({detail})'}. Correct the file (`iconv -t UTF-8` converts text), or pass "
                f"--on_bad_line={advice}.",
                f"{INPUT_FLAG}: {name}",
            )
        is_cleaned = can_clean and self._options.on_bad_line == "clean"
        kind = "cleaned" if is_cleaned else "skipped", reason
        self._counts[kind] += 1
        if len(self._first[kind]) < _NAMED_LINES:
            self._first[kind].append(self._position)
        return is_cleaned


def is_blank(line: bytes) -> bool:
    """Returns True if a line has only white space and zero-width characters."""
    if line[:1].isalnum():
        return False
    stripped = line.strip()
    if not stripped or stripped.isascii():
        return not stripped
    text = stripped.decode("utf-8", "replace")
    return all(char.isspace() or unicodedata.category(char) == "Cf" for char in text)


def _paragraphs(lines: Iterable[str | None]) -> Iterator[str | None]:
    """Joins lines to paragraphs. "" ends a paragraph, and None ends a document."""
    paragraph: list[str] = []
    for line in lines:
        if line:
            paragraph.append(line.strip())
            continue
        if paragraph:
            yield " ".join(paragraph)
            paragraph = []
        if line is None:
            yield None


def _sentence_splitter(language: str) -> Callable[[str], list[str]]:
    import sentencex

    return lambda text: sentencex.segment(language, text)


def bad_line_messages(bad_lines: Iterable[Any]) -> list[str]:
    """Returns a message for each action and reason, such as "skipped 2 lines (not UTF-8): a.txt line 3, ...".

    Args:
      bad_lines: the `CorpusReader.bad_lines` of the parts of a corpus, in order. Lists from JSON are accepted too.
    """
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    first: dict[tuple[str, str], list[LinePosition]] = collections.defaultdict(list)
    for action, reason, count, positions in itertools.chain.from_iterable(bad_lines):
        counts[action, reason] += count
        first[action, reason] += itertools.starmap(LinePosition, positions)
    messages = []
    for kind, count in counts.items():
        named = ", ".join(_names(first[kind][:_NAMED_LINES])) + ", ..." * (count > _NAMED_LINES)
        messages.append(f"{kind[0]} {count} line{'s' * (count > 1)} ({kind[1]}): {named}")
    return messages


def _names(positions: list[LinePosition]) -> list[str]:
    numbers = {
        path: line_numbers(path, {position.offset for position in of_file if position.offset is not None})
        for path, of_file in itertools.groupby(positions, key=lambda position: position.path)
    }
    names = []
    for path, offset, row in positions:
        if offset is not None:
            names.append(f"{path} line {numbers[path][offset]}")
        else:
            names.append(path if row is None else f"{path} row {row}")
    return names
