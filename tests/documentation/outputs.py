"""Compares the outputs in the documentation with the real outputs of the commands.

A ```text or ```json block is the output of the last command or Python block before it in the section. A block that
prints lines needs an output, except in docs/results, where tables replace it. Each line with a word must be printed, in
the same order. Numbers match any number, because the commands run on small data, and `...` matches any text. A comment
on the line before the block changes this:

    <!-- output: exact -->        numbers must be equal
    <!-- output: predicted -->    quoted texts, except keys, and words before a percentage or a last number match any
    <!-- output: within 5% -->    as "predicted". If the commands run on the complete data, words must be equal, and
                                  numbers may differ by 5%, or by 1 in the last digit.
    <!-- output: skip -->         not compared: from another program, or with another form for small data
"""

import re
from collections.abc import Iterator

from tests.documentation.pages import RUN, Block

LANGUAGES = ("text", "json")
_LARGEST_DIFFERENCE = 0.05
WITHIN = f"within {_LARGEST_DIFFERENCE:.0%}"
MARKERS = ("", "exact", "predicted", WITHIN, "skip")
# The parts of a line: predicted words, "...", numbers, spaces, and other characters.
_KEY, _TEXT = r"""(?:"[^"]*"|'[^']*')(?=:)""", r""""[^"]*"|'[^']*'"""
_PREDICTED = rf"{_KEY}|(?P<predicted>{_TEXT}|\S+(?= +[\d.]+(?:%|$)))|"
_PART = r"(?P<gap>\.\.\.)|(?P<number>\s*-?\d+(?:,\d{3})*(?:\.\d*)?(?:e[-+]?\d+)?\s*)|(?P<space>\s+)|."
_PATTERNS = {
    "predicted": rf"(?:{_TEXT}|\S+)",
    "gap": ".*",
    "number": r"\s*([-+]?(?:\d[\d,]*\.?\d*(?:e[-+]?\d+)?|nan|inf))\s*",
    "space": r"\s+",
}


def of_blocks(blocks: list[Block]) -> Iterator[tuple[Block, Block]]:
    """Yields each block that is run, with each block of the output."""
    source = None
    for block in blocks:
        if block.language in RUN:
            source = block
        elif block.language in LANGUAGES and source and source.section == block.section:
            yield source, block


def is_silent(printed: str) -> bool:
    """Returns True if a command printed only progress bars and Python's warnings."""
    lines = re.split(r"[\r\n]+", re.sub(r"^\S+: \w*Warning: .*\n(?:  .*\n)?", "", printed, flags=re.MULTILINE))
    return all("%|" in line or " [00:" in line or not line.strip() for line in lines)


def pattern(line: str, marker: str = "") -> re.Pattern:
    """Returns the pattern that a printed line must contain. The groups are the numbers."""
    found = ""
    for part in re.finditer((_PREDICTED if marker in ("predicted", WITHIN) else "") + _PART, line.strip()):
        is_exact = part.lastgroup == "number" and marker == "exact"
        found += re.escape(part[0]) if is_exact else _PATTERNS.get(part.lastgroup, re.escape(part[0]))
    return re.compile(found)


def _is_within_range(shown: str, printed: str) -> bool:
    """Returns True if two numbers differ by at most 5%, or by 1 in the last digit of the first number."""
    expected, actual = (float(number.replace(",", "")) for number in (shown, printed))
    return abs(actual - expected) <= max(
        _LARGEST_DIFFERENCE * abs(expected), 1.001 * 10.0 ** -len(shown.partition(".")[2])
    )


def missing_line(shown: Block, printed: str, every: bool = False, is_complete: bool = False) -> str | None:
    """Returns the first line of an expected output that was not printed in order; None if all lines were printed.

    Args:
      shown: the block with the expected output.
      printed: the real output. A line may also contain other text, such as a progress bar.
      every: whether lines without words are also compared.
      is_complete: whether the commands ran on the complete data.
    """
    if shown.marker == "skip":
        return None
    has_range = is_complete and shown.marker == WITHIN
    lines = iter(re.split(r"[\r\n]+", printed))
    for line in shown.code.splitlines():
        if not (re.search(r"[^\W\d]", line) or (every and line.strip())):
            continue
        expected = pattern(line, "" if has_range else shown.marker)
        numbers = expected.search(line.strip()).groups() if has_range else ()
        found = (match.groups() for match in map(expected.search, lines) if match)
        if not any(all(map(_is_within_range, numbers, others)) for others in found):
            return line
    return None
