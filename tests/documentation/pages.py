"""Finds the pages of the documentation and their code blocks."""

import dataclasses
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Blocks of these languages are run. The other blocks show files and outputs.
RUN = ("bash", "python")
SHOWN = ("json", "text", "mermaid", "bibtex")

_BLOCK = re.compile(
    r"^(?: *<!-- output: ([a-z0-9% ]+) -->\n)?( *)```(\S*)[^\n]*\n(.*?)^\2```\s*$", re.MULTILINE | re.DOTALL
)
_HEADING = re.compile(r"^#{1,6} ", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block of code.

    Attributes:
      page: path from the root of the repository.
      line: number of the first line of code, from 1.
      language: the word after the opening fence.
      code: the lines inside the fence.
      section: number of headings before the block.
      marker: the comment before the block, which sets the comparison of the lines; see `outputs`.
    """

    page: str
    line: int
    language: str
    code: str
    section: int = 0
    marker: str = ""


def name_of(page: pathlib.Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: pathlib.Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found, section, end = [], 0, 0
    for match in _BLOCK.finditer(text):
        marker, indent, language, code = match.groups()
        code = "".join(line.removeprefix(indent) for line in code.splitlines(keepends=True))
        section += len(_HEADING.findall(text, end, match.start()))
        end = match.end()
        first_line = text.count("\n", 0, match.start(4)) + 1
        found.append(Block(name_of(page), first_line, language, code, section, marker or ""))
    return found


def commands(code: str) -> list[str]:
    """Returns the lines of a shell script, with joined continuations and without comments."""
    lines = code.replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
