"""Streams raw text as documents of sentences, and reports bad lines by file and line number.

(With `--reference_order`, `reference_order.read_documents` reads as the release does instead.)
"""

import collections
import dataclasses
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from bert_tf.runtime.files import InputError
from data_prep.corpus.files import LONGEST_LINE, FileRange, line_number, read_lines

ON_BAD_LINE = ("error", "skip")

# Category Cc without tab and line ends: as bytes of UTF-8, and in text.
_CONTROL_BYTES = bytes({*range(0x20), 0x7F} - set(b"\t\n\r"))
_C1 = re.compile("[\x80-\x9f]")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_LINE_END = re.compile("\r\n|\r|\n")
# The number of bad lines of each kind that are named.
_NAMED_LINES = 5


@dataclasses.dataclass(frozen=True)
class CorpusOptions:
    """How files become documents of sentences.

    Attributes:
      documents: what a document is: "blank_line" (text between blank lines), "file", "record" (a JSON object, or a
        line of text), or "auto": records in JSON files and blank lines in others.
      split_sentences: whether lines are paragraphs and are split into sentences; otherwise a line is a sentence.
      language: ISO code of the language for splitting sentences.
      on_bad_line: "error" to stop at the first line that isn't plain text, "skip" to leave such lines out.
    """

    documents: str = "auto"
    split_sentences: bool = False
    language: str = "en"
    on_bad_line: str = "error"


class LinePlace(NamedTuple):
    """The place of a line in a corpus: its file and the offset of its first byte."""

    path: str
    offset: int


class BadLines:
    """Counts lines that aren't plain text by the kind of error, and remembers the first lines of each kind.

    Args:
      on_bad_line: with "error", the first bad line raises an InputError.
    """

    def __init__(self, on_bad_line: str) -> None:
        self._on_bad_line = on_bad_line
        self.counts: collections.Counter[str] = collections.Counter()
        self.places: dict[str, list[LinePlace]] = collections.defaultdict(list)

    def add(self, reason: str, place: LinePlace, found: str = "") -> None:
        """Counts a line.

        Args:
          reason: the kind of error.
          place: its place.
          found: the details of this line.

        Raises:
          InputError: if bad lines are errors; the message names file and line.
        """
        if self._on_bad_line == "error":
            raise InputError(
                f"--input_file: {place.path}, line {line_number(*place)}: {reason}{found and f' ({found})'}. Correct "
                "the file (`iconv -t UTF-8` converts text), or pass --on_bad_line=skip to leave such lines out "
                "(they are counted, and the first ones are named)."
            )
        self.counts[reason] += 1
        if len(self.places[reason]) < _NAMED_LINES:
            self.places[reason].append(place)

    def result(self) -> dict[str, Any]:
        """Returns a job's report about bad lines; see `describe_bad_lines`."""
        return {"bad_lines": self.counts, "bad_places": self.places}


def describe_bad_lines(results: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns a message for each kind of bad lines, from the results of `BadLines.result` of all jobs."""
    counts: collections.Counter[str] = collections.Counter()
    places: dict[str, list] = collections.defaultdict(list)
    for result in results:
        counts.update(result["bad_lines"])
        for reason, found in result["bad_places"].items():
            places[reason] += found[: _NAMED_LINES - len(places[reason])]
    messages = []
    for reason, count in counts.items():
        named = ", ".join(f"{path} line {line_number(path, offset)}" for path, offset in places[reason])
        more = ", ..." if count > len(places[reason]) else ""
        messages.append(f"left out {count} line{'s' * (count > 1)} ({reason}): {named}{more}")
    return messages


class CorpusReader:
    """Reads pieces of a corpus.

    Args:
      options: how files become sentences.
      bad_lines: counts bad lines.
    """

    def __init__(self, options: CorpusOptions, bad_lines: BadLines) -> None:
        self._options = options
        self._bad_lines = bad_lines
        self._split_sentences = _sentence_splitter(options.language) if options.split_sentences else None

    def sentences(self, piece: FileRange, advance: Callable[[int], None] | None = None) -> Iterator[str | None]:
        """Yields the sentences of the documents that begin in a piece of a file; None ends a document.

        Documents may be empty (a file or record without text or with bad lines only), and sentences may have no tokens.

        Args:
          piece: the piece.
          advance: is told the number of bytes that were read from the disk.

        Raises:
          InputError: see `BadLines.add` and `read_lines`.
        """
        documents = self._options.documents
        if documents == "auto":
            documents = "record" if piece.file.is_json else "blank_line"
        if piece.file.is_json:
            return self._json_documents(piece, documents, advance)
        if documents == "blank_line":
            return self._documents_between_blank_lines(piece, advance)
        return self._documents_by_line(piece, documents, advance)

    def _documents_between_blank_lines(
        self, piece: FileRange, advance: Callable[[int], None] | None
    ) -> Iterator[str | None]:
        # A document belongs to the piece in which the blank line before it begins.
        is_own = piece.start == 0
        has_lines = False
        for offset, line in read_lines(piece.file.path, piece.start, piece.end, advance):
            if not is_own and offset >= piece.stop:
                return
            if is_blank(line):
                if has_lines:
                    yield None
                is_own, has_lines = True, False
                if offset >= piece.stop:
                    return
            elif is_own:
                has_lines = True
                if (text := self._text(piece, offset, line)) is not None:
                    yield from self._sentences_of(text)
        if has_lines:
            yield None

    def _documents_by_line(
        self, piece: FileRange, documents: str, advance: Callable[[int], None] | None
    ) -> Iterator[str | None]:
        for offset, line in _own_lines(piece, advance):
            if (text := self._text(piece, offset, line)) is not None:
                yield from self._sentences_of(text)
            if documents == "record":
                yield None
        if documents == "file":
            yield None

    def _json_documents(
        self, piece: FileRange, documents: str, advance: Callable[[int], None] | None
    ) -> Iterator[str | None]:
        for offset, line in _own_lines(piece, advance):
            has_lines = documents == "record"
            for text in self._lines_of_record(piece, offset, line):
                if not is_blank(text.encode()):
                    yield from self._sentences_of(text)
                    has_lines = True
                elif documents == "blank_line" and has_lines:
                    yield None
                    has_lines = False
            if documents != "file" and has_lines:
                yield None
        if documents == "file":
            yield None

    def _text(self, piece: FileRange, offset: int, line: bytes) -> str | None:
        """Returns a line as text; None if it is bad."""
        place = LinePlace(piece.file.path, offset)
        if len(line) > LONGEST_LINE:
            self._bad_lines.add(f"longer than {LONGEST_LINE >> 20} MB", place)
            return None
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            self._bad_lines.add("not UTF-8", place, f"byte 0x{line[error.start]:02x}")
            return None
        has_control = len(line.translate(None, _CONTROL_BYTES)) != len(line) or (b"\xc2" in line and _C1.search(text))
        return None if has_control and self._refuse_control_character(text, place) else text

    def _lines_of_record(self, piece: FileRange, offset: int, line: bytes) -> list[str]:
        """Returns the lines of a JSON object's text; none if the object is bad."""
        place = LinePlace(piece.file.path, offset)
        text = self._text(piece, offset, line)
        if text is None:
            return []
        try:
            record = json.loads(text)
        except ValueError:
            record = None
        text = record.get("text") if isinstance(record, dict) else None
        if not isinstance(text, str) or _SURROGATE.search(text):
            self._bad_lines.add('not a JSON object with a "text" of valid characters', place)
            return []
        return [] if self._refuse_control_character(text, place) else _LINE_END.split(text)

    def _refuse_control_character(self, text: str, place: LinePlace) -> bool:
        found = _CONTROL.search(text)
        if found is None:
            return False
        if found.group() == "\0":
            self._bad_lines.add("a NUL character", place)
        else:
            self._bad_lines.add("a control character", place, f"U+{ord(found.group()):04X}")
        return True

    def _sentences_of(self, line: str) -> list[str]:
        return [line] if self._split_sentences is None else self._split_sentences(line)


def is_blank(line: bytes) -> bool:
    """Returns True if a line has nothing but white space and characters without width."""
    if line[:1].isalnum():
        return False
    stripped = line.strip()
    if not stripped or stripped.isascii():
        return not stripped
    text = stripped.decode("utf-8", "replace")
    return all(char.isspace() or unicodedata.category(char) == "Cf" for char in text)


def _own_lines(piece: FileRange, advance: Callable[[int], None] | None) -> Iterator[tuple[int, bytes]]:
    for offset, line in read_lines(piece.file.path, piece.start, piece.end, advance):
        if offset >= piece.stop:
            return
        if not is_blank(line):
            yield offset, line


def _sentence_splitter(language: str) -> Callable[[str], list[str]]:
    import sentencex

    return lambda text: sentencex.segment(language, text)
