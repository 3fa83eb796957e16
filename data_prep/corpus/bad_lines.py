"""Lines that are not plain text: cleaned, left out, or an error; counted by reason, with the first ones named."""

import collections
import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

from bert_tf.runtime.files import InputError
from data_prep.corpus.lines import INPUT_FLAG, line_numbers

STOPPING = ("fail", "error")  # two names of the same
ON_BAD_LINE = ("clean", "skip", *STOPPING)
HELP_ON_BAD_LINE = (
    "What to do if a line is not plain text. clean deletes control characters, and leaves out lines that are not "
    "UTF-8, not valid JSON or too long; skip leaves out all of these; fail (or error) stops at the first one."
)
CLEANED, LEFT_OUT = "cleaned", "left out"
# The number of lines that are named for each reason.
_NAMED_LINES = 5


class LinePlace(NamedTuple):
    """The position of a line, of a row, or of a file as a whole.

    Attributes:
      path: the file.
      offset: the offset of the line's first byte in the uncompressed file; None if it is not a line.
      row: the row of a Parquet file, counted from 1; None if it is not a row.
    """

    path: str
    offset: int | None = None
    row: int | None = None


# For each action and reason, the number of lines and the positions of the first ones. It is stored as JSON.
BadLineCounts = list[tuple[str, str, int, list[LinePlace]]]


class BadLines:
    """Decides what becomes of lines that are not plain text, and counts them.

    Args:
      on_bad_line: "clean" to delete unwanted characters and to leave out lines that can't be cleaned, "skip" to leave
        out all such lines, "fail" to raise an InputError at the first one.
    """

    def __init__(self, on_bad_line: str) -> None:
        self._on_bad_line = on_bad_line
        self._counts: collections.Counter[tuple[str, str]] = collections.Counter()
        self._first: dict[tuple[str, str], list[LinePlace]] = collections.defaultdict(list)

    def add(self, place: LinePlace, reason: str, found: str = "", can_clean: bool = False) -> bool:
        """Counts a line.

        Args:
          place: its position.
          reason: the type of error.
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
            (name,) = _names([place])
            raise InputError(
                f"{INPUT_FLAG}: {name}: {reason}{found and f' ({found})'}. Correct the file (`iconv -t UTF-8` converts "
                f"text), or pass {advice}."
            )
        kind = CLEANED if can_clean and self._on_bad_line == "clean" else LEFT_OUT, reason
        self._counts[kind] += 1
        if len(self._first[kind]) < _NAMED_LINES:
            self._first[kind].append(place)
        return kind[0] == CLEANED

    @property
    def found(self) -> BadLineCounts:
        """The counts of all lines so far."""
        return [(*kind, count, self._first[kind]) for kind, count in self._counts.items()]


def bad_line_messages(parts: Iterable[Any]) -> list[str]:
    """Returns a message for each action and reason, such as "left out 2 lines (not UTF-8): a.txt line 3, ...".

    Args:
      parts: the `BadLines.found` of the parts of a corpus, in order.
    """
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    first: dict[tuple[str, str], list[LinePlace]] = collections.defaultdict(list)
    for action, reason, count, places in itertools.chain.from_iterable(parts):
        counts[action, reason] += count
        first[action, reason] += [LinePlace(*place) for place in places]
    messages = []
    for kind, count in counts.items():
        named = ", ".join(_names(first[kind][:_NAMED_LINES])) + ", ..." * (count > _NAMED_LINES)
        messages.append(f"{kind[0]} {count} line{'s' * (count > 1)} ({kind[1]}): {named}")
    return messages


def _names(places: list[LinePlace]) -> list[str]:
    numbers = {
        path: line_numbers(path, {place.offset for place in of_file if place.offset is not None})
        for path, of_file in itertools.groupby(places, key=lambda place: place.path)
    }
    names = []
    for path, offset, row in places:
        if offset is not None:
            names.append(f"{path} line {numbers[path][offset]}")
        else:
            names.append(path if row is None else f"{path} row {row}")
    return names
