"""Compares the outputs in the documentation with the real outputs of the commands.

A ```text or ```json block is the output of the last command or Python block before it in the section. Each line
with a word must be printed, in the same order. Numbers match any number, because the commands run on small data,
and `...` matches any text. A comment on the line before the block changes this:

    <!-- output: exact -->        numbers must be equal
    <!-- output: predicted -->    quoted texts, except keys, and words before a percentage or a last number match any
    <!-- output: skip -->         not compared: from another program, or with another form for small data
"""

import re
from collections.abc import Iterator

from tests.documentation.pages import RUN, Block

LANGUAGES = ("text", "json")
MARKERS = ("", "exact", "predicted", "skip")
# The parts of a line: predicted words, "...", numbers, spaces, and other characters.
_KEY, _TEXT = r"""(?:"[^"]*"|'[^']*')(?=:)""", r""""[^"]*"|'[^']*'"""
_PREDICTED = rf"{_KEY}|(?P<predicted>{_TEXT}|\S+(?= +[\d.]+(?:%|$)))|"
_PART = r"(?P<gap>\.\.\.)|(?P<number>\s*-?\d+(?:,\d{3})*(?:\.\d*)?(?:e[-+]?\d+)?\s*)|(?P<space>\s+)|."
_PATTERNS = {
    "predicted": rf"(?:{_TEXT}|\S+)",
    "gap": ".*",
    "number": r"\s*[-+]?(?:\d[\d,]*\.?\d*(?:e[-+]?\d+)?|nan|inf)\s*",
    "space": r"\s+",
}


def of_blocks(blocks: list[Block]) -> Iterator[tuple[Block, Block]]:
    """Yields each block that is run, with each block of the output."""
    source = None
    for block in blocks:
        if block.language in RUN:
            source = block
        elif block.language in LANGUAGES and source and source.section == block.section and block.marker != "skip":
            yield source, block


def pattern(line: str, marker: str = "") -> re.Pattern:
    """Returns the pattern that a printed line must contain."""
    found = ""
    for part in re.finditer((_PREDICTED if marker == "predicted" else "") + _PART, line.strip()):
        is_exact = part.lastgroup == "number" and marker == "exact"
        found += re.escape(part[0]) if is_exact else _PATTERNS.get(part.lastgroup, re.escape(part[0]))
    return re.compile(found)


def missing_line(shown: Block, printed: str, every: bool = False) -> str | None:
    """Returns the first line of an expected output that was not printed in order; None if all lines were printed.

    Args:
      shown: the block with the expected output.
      printed: the real output. A line may also contain other text, such as a progress bar.
      every: whether lines without words are also compared.
    """
    lines = iter(re.split(r"[\r\n]+", printed))
    for line in shown.code.splitlines():
        if not (re.search(r"[^\W\d]", line) or (every and line.strip())):
            continue
        expected = pattern(line, shown.marker)
        if not any(expected.search(printed_line) for printed_line in lines):
            return line
    return None
