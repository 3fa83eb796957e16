"""Lines that are not plain text, and documents that are removed.

They are counted, and named in a file beside the output; documents by the line in which they begin.
"""

import collections
import contextlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bert_tf.runtime import files
from bert_tf.runtime.files import InputError
from data_prep.corpus.files import FileRange
from data_prep.corpus.lines import INPUT_FLAG, line_number

STOPPING = ("fail", "error")  # two names of the same
ON_BAD_LINE = ("clean", "skip", *STOPPING)
HELP_ON_BAD_LINE = (
    "What to do if a line is not plain text. clean deletes control characters, and leaves out lines that are not "
    "UTF-8, not valid JSON or too long; skip leaves out all of these; fail (or error) stops at the first one."
)
CLEANED, LEFT_OUT, REMOVED = "cleaned", "left out", "removed"
# The number of lines of each kind that are named in messages.
_NAMED_LINES = 5


class LinePlace(NamedTuple):
    """The place of a line or a row.

    Attributes:
      piece: the piece of a file in which it was found.
      number: the number of the piece among those that are read.
      line: its number, counted from 1, among the lines that begin in the piece or behind it; 0 for the whole file.
      offset: the offset of its first byte in the uncompressed file.
    """

    piece: FileRange
    number: int
    line: int
    offset: int


class BadLine(NamedTuple):
    """A line that is not plain text, or a document that is removed.

    Attributes:
      action: `CLEANED` or `LEFT_OUT`; `REMOVED` for a document.
      reason: the kind of error.
      found: the details of this line.
      piece: the number of its piece, see `LinePlace`.
      line: its number, see `LinePlace`.
      repeats: of a document that repeats another one: the number of the other one's job, its piece and its line.
    """

    action: str
    reason: str
    found: str
    piece: int
    line: int
    repeats: tuple[int, int, int] | None = None


class BadLines:
    """Decides what becomes of lines that are not plain text, and counts them.

    Args:
      on_bad_line: "clean" to delete unwanted characters and to leave out lines that can't be cleaned, "skip" to leave
        out all such lines, "fail" to raise an InputError at the first one.
      take: is given each line, but nothing of what it is given is kept here.
    """

    def __init__(self, on_bad_line: str, take: Callable[[BadLine], None] | None = None) -> None:
        self._on_bad_line = on_bad_line
        self._take = take
        self.counts: collections.Counter[tuple[str, str]] = collections.Counter()

    def add(self, place: LinePlace, reason: str, found: str = "", can_clean: bool = False) -> bool:
        """Counts a line.

        Args:
          place: its place.
          reason: the kind of error.
          found: the details of this line.
          can_clean: whether the line can be used without its unwanted characters.

        Returns:
          True if the line is to be cleaned, False if it is to be left out.

        Raises:
          InputError: if bad lines are errors; the message names file and line.
        """
        if self._on_bad_line in STOPPING:
            advice = "--on_bad_line=clean to delete such characters"
            if not can_clean:
                advice = "--on_bad_line=skip to leave such lines out"
            raise InputError(
                f"{INPUT_FLAG}: {_described(place)}: {reason}{found and f' ({found})'}. Correct the file (`iconv -t "
                f"UTF-8` converts text), or pass {advice} (they are counted, and named in a file beside the output)."
            )
        action = CLEANED if can_clean and self._on_bad_line == "clean" else LEFT_OUT
        self.counts[action, reason] += 1
        if self._take:
            self._take(BadLine(action, reason, found, place.number, place.line))
        return action == CLEANED


def _described(place: LinePlace) -> str:
    path = place.piece.file.path
    if not place.line:
        return path
    if place.piece.file.format == "parquet":
        return f"{path}, row {place.line} of those that begin at byte {place.piece.start} or behind it"
    return f"{path}, line {line_number(path, place.offset)}"


class BadLineFile(contextlib.ExitStack):
    """Collects the bad lines of a job in a file, which is there only if there are any.

    Args:
      path: the file.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._writer: Any = None

    def add(self, line: BadLine | Mapping[str, Any]) -> None:
        """Adds a line."""
        if self._writer is None:
            self._writer = self.enter_context(files.replacing(self._path))
        self._writer.write(json.dumps(line, ensure_ascii=False) + "\n")


class RejectedLines:
    """Names the bad lines of all jobs, by file and line number, in a file.

    Args:
      path: the file, of which nothing is there if there are no bad lines.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lines_before = 0
        # For each job, the name of the file of each piece, and the number of its lines before the piece.
        self._pieces: list[list[tuple[str, int]]] = []
        self._counts: collections.Counter[tuple[str, str]] = collections.Counter()
        self._named: dict[tuple[str, str], list[str]] = collections.defaultdict(list)

    def write(self, jobs: Iterable[tuple[Sequence[FileRange], Sequence[int], Iterable[BadLine]]]) -> list[str]:
        """Writes the file.

        Args:
          jobs: for each job, in the order of the corpus: its pieces, the number of lines that begin in each piece, and
            its bad lines.

        Returns:
          A message for each kind of bad lines.
        """
        with BadLineFile(self._path) as writer:
            for pieces, lines, found in jobs:
                self._pieces.append(self._with_first_lines(pieces, lines))
                for bad in found:
                    path, number = self._place(len(self._pieces) - 1, bad.piece, bad.line)
                    details = bad.found
                    if bad.repeats:
                        details = "of " + _named(*self._place(*bad.repeats))
                    self._name(bad, _named(path, number))
                    writer.add(
                        {"file": path, "line": number, "action": bad.action, "reason": bad.reason, "found": details}
                    )
        return [self._message(kind) for kind in self._counts]

    def _with_first_lines(self, pieces: Sequence[FileRange], lines: Sequence[int]) -> list[tuple[str, int]]:
        found = []
        for piece, count in zip(pieces, lines, strict=True):
            if piece.start == 0:
                self._lines_before = 0
            found.append((piece.file.path, self._lines_before))
            self._lines_before += count
        return found

    def _place(self, job: int, piece: int, line: int) -> tuple[str, int | None]:
        path, first = self._pieces[job][piece]
        return path, first + line if line else None

    def _name(self, bad: BadLine, name: str) -> None:
        kind = bad.action, bad.reason
        self._counts[kind] += 1
        if len(self._named[kind]) < _NAMED_LINES:
            self._named[kind].append(name)

    def _message(self, kind: tuple[str, str]) -> str:
        action, reason = kind
        count, named = self._counts[kind], ", ".join(self._named[kind])
        more = ", ..." if count > _NAMED_LINES else ""
        kind_of_thing = "document" if action == REMOVED else "line"
        return f"{action} {count} {kind_of_thing}{'s' * (count > 1)} ({reason}): {named}{more}"


def _named(path: str, line: int | None) -> str:
    return path if line is None else f"{path} line {line}"


def read_bad_lines(path: str) -> Iterable[BadLine]:
    """Yields the lines of a `BadLineFile`; none if there is no such file."""
    if files.exists(path):
        with files.open_file(path) as reader:
            for line in reader:
                yield BadLine(*json.loads(line))
