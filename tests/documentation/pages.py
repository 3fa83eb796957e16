"""The pages of the documentation, and the code blocks in them."""

import dataclasses
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Blocks of these languages are run. The other blocks show files and outputs.
RUN = ("bash", "python")
SHOWN = ("json", "text", "mermaid", "bibtex")

_BLOCK = re.compile(r"^( *)```(\S*)[^\n]*\n(.*?)^\1```\s*$", re.MULTILINE | re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block of code.

    Attributes:
      page: path from the root of the repository.
      line: of its first line of code, from 1.
      language: the word after the opening fence.
      code: the lines inside the fence.
    """

    page: str
    line: int
    language: str
    code: str


def name_of(page: pathlib.Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: pathlib.Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        indent, language, code = match.groups()
        code = "".join(line.removeprefix(indent) for line in code.splitlines(keepends=True))
        found.append(Block(name_of(page), text.count("\n", 0, match.start()) + 2, language, code))
    return found


def commands(code: str) -> list[str]:
    """The lines of a shell script, continuations joined, without comments."""
    lines = code.replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
