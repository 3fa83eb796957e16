"""The original rules for single characters, based on the Unicode data of the running Python.

`splitting` applies the rules to texts, `traced_text` also keeps the offsets, and `graphs.characters` converts the rules
to tables for TensorFlow.
"""

import re
import unicodedata
from collections.abc import Callable

# The eight blocks that the original code calls CJK. Each of their characters is a separate word.
CJK_BLOCKS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
# The original code treats every printable ASCII character except letters, digits and the space as punctuation, although
# some of them have other Unicode categories ("$", "+", "^").
_ASCII_PUNCTUATION = ((33, 47), (58, 64), (91, 96), (123, 126))

# In printable ASCII, runs of letters and digits are tokens, and each other character is a token.
ASCII_TOKEN = re.compile("[0-9A-Za-z]+|[^0-9A-Za-z ]")

# str.split() also splits at these control characters, but the original code deletes them first.
_DELETED_WHITE_SPACE = re.compile("[\x0b\x0c\x1c-\x1f\x85]")
# Word separators in texts with such characters: the white space of the original code (space, tab, line ends, category
# Zs), and U+2028 and U+2029, at which str.split() splits too.
_WORD_BREAKS = re.compile("[ \t\n\r\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")


def _within(char: str, blocks: tuple[tuple[int, int], ...]) -> bool:
    return any(first <= ord(char) <= last for first, last in blocks)


def is_accent(char: str) -> bool:
    """Returns True for marks that a lower-casing tokenizer removes after NFD normalization."""
    return unicodedata.category(char) == "Mn"


def clean(char: str) -> str:
    """Puts spaces around a CJK character. Handles other characters like `clean_only`."""
    return f" {char} " if _within(char, CJK_BLOCKS) else clean_only(char)


def clean_only(char: str) -> str:
    """Returns "" for a control character, a space for white space, and other characters unchanged."""
    if char in " \t\n\r" or unicodedata.category(char) == "Zs":
        return " "
    if char in "\0\ufffd" or unicodedata.category(char) in ("Cc", "Cf"):
        return ""
    return char


def separate_punctuation(char: str) -> str:
    """Puts spaces around a punctuation mark. Returns other characters unchanged."""
    is_punctuation = _within(char, _ASCII_PUNCTUATION) or unicodedata.category(char).startswith("P")
    return f" {char} " if is_punctuation else char


class _CharacterTable(dict):
    """A table for `str.translate` that computes an entry when a character first occurs."""

    def __init__(self, rule: Callable[[str], str]) -> None:
        super().__init__()
        self._rule = rule

    def __missing__(self, code: int) -> str:
        replacement = self[code] = self._rule(chr(code))
        return replacement


CLEAN = _CharacterTable(clean)
CLEAN_ONLY = _CharacterTable(clean_only)
SEPARATE_PUNCTUATION = _CharacterTable(separate_punctuation)


def strip_accents(text: str) -> str:
    """Returns a text in NFD without accents."""
    if text.isascii():
        return text
    return "".join(char for char in unicodedata.normalize("NFD", text) if not is_accent(char))


def split_words(text: str) -> list[str]:
    """Splits a raw text where the original code always starts a new word.

    Each word can be tokenized alone: the joined results equal the tokens of the whole text.
    """
    if _DELETED_WHITE_SPACE.search(text) is None:
        return text.split()
    return [word for word in _WORD_BREAKS.split(text) if word]
