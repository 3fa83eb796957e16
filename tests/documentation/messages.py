"""Finds the messages of docs/reference/errors.md in the source of the programs."""

import ast
import re
from collections.abc import Iterator

from tests.documentation.pages import ROOT

# Messages of the operating system and of absl.
_OF_OTHERS = ("No space left on device", "Unknown command line flag")
# The parts of a message that depend on the run: "...", upper-case words, single letters, flags, numbers and quoted
# values. "is" and "with" often connect two formatted values.
_VALUES = re.compile(r"\.\.\.|[A-Z][A-Z_]+|\b[A-Z]\b|--\w+|'[^']*'|\d+|[():=/`]|\b(?:is|with)\b")


def listed() -> list[str]:
    """Returns the messages in the first columns of the tables."""
    page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    cells = [line.partition(" | ")[0] for line in page.splitlines() if line.startswith("| `")]
    return [message for cell in cells for message in re.findall(r"`([^`]+)`", cell)]


def in_source() -> set[str]:
    """Returns all strings in the source. Formatted values are replaced by a NUL character."""
    paths = [*ROOT.glob("*.py"), *(path for name in ("bert_tf", "data_prep") for path in (ROOT / name).rglob("*.py"))]
    return {
        text for path in paths for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) for text in _text(node)
    }


def _text(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.JoinedStr):
        yield "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def unknown_parts(message: str, known: set[str]) -> list[str]:
    """Returns the parts of a message, without values, that no string in the source contains."""
    parts = (part.strip(" .:,;") for part in _VALUES.split(message))
    return [part for part in parts if part not in _OF_OTHERS and not any(part in text for text in known)]
