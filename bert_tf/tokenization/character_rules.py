"""What the basic tokenizer does to each character of Unicode, as integers that a graph can look up.

Nothing is said twice: every rule is asked of `tokenization`, of `str.lower` and of Python's Unicode data, once for
each code point that any rule touches. So a graph follows the very Unicode version of the Python that made it, and not
that of the libraries it runs on.

A rule is a number: its low bits are the flags below, its high bits (`rule >> SHIFT`) what has to be added to the code
point to get the normalised one. A negative sum means that nothing is left. Where `SPELLED_OUT` is set, the high bits
are a row of `spellings` instead: the character becomes several, each with a rule of its own.
"""

import functools
import sys
import unicodedata
from typing import NamedTuple

import numpy as np

from bert_tf.tokenization.tokenizers import _CJK_BLOCKS, _clean, _set_punctuation_apart

# A word begins before the character, or behind it: punctuation and CJK characters have both, white space the second.
WORD_BEFORE, WORD_BEHIND = 1, 2
# What the release lower-cases as a whole and rids of its accents ends behind the character: white space and CJK.
TOKEN_ENDS = 4
# An accent that is stripped (category Mn), and whatever the release deletes before it looks any further.
ACCENT, DELETED = 8, 16
SPELLED_OUT = 32
# A combining character that isn't stripped, which canonical ordering may move.
COMBINING = 64
# The one letter whose lower case depends on its neighbours.
SIGMA = 128
# Set by the tokenizer where a special token is kept as it stands.
LITERAL = 256
SHIFT = 9

# Higher than any code point, so that what it is taken from becomes negative.
_NOTHING = -(1 << 21)

# `contexts`: the canonical combining class, and what the neighbours of a sigma are looked at for.
COMBINING_CLASS, CASED, CASE_IGNORABLE = 255, 256, 512

# The code points are divided into pages of this many; equal pages are kept once.
PAGE_BITS = 7


class CharacterRules(NamedTuple):
    """The rule and the context of code point c stand at `pages[c >> PAGE_BITS] + (c & (1 << PAGE_BITS) - 1)`.

    Attributes:
      pages: int32, where each page begins in `rules` and `contexts`.
      rules: int32.
      contexts: int32.
      spellings: [rows, longest] int32, what characters are spelled out as; -1 behind the last.
    """

    pages: np.ndarray
    rules: np.ndarray
    contexts: np.ndarray
    spellings: np.ndarray


@functools.cache
def character_rules(do_lower_case: bool) -> CharacterRules:
    """The rules of `BasicTokenizer(do_lower_case)`; takes about a second, and is remembered."""
    touched = np.array([unicodedata.category(char) not in ("Cn", "Co", "Cs") for char in map(chr, _CODE_POINTS)])
    for first, last in _CJK_BLOCKS:
        touched[first : last + 1] = True
    rules = np.zeros(len(_CODE_POINTS), np.int32)
    contexts = np.zeros(len(_CODE_POINTS), np.int32)
    spellings: list[str] = []
    for code in np.flatnonzero(touched).tolist():
        flags, spelling = _rule(chr(code), do_lower_case)
        if flags & SPELLED_OUT:
            change = len(spellings)
            spellings.append(spelling)
        else:
            change = ord(spelling) - code if spelling else _NOTHING
        rules[code] = change << SHIFT | flags
        if do_lower_case:
            contexts[code] = _context(chr(code))
    pages, (rules, contexts) = _paged(rules, contexts)
    longest = max(map(len, spellings), default=1)
    rows = [[*map(ord, spelling), *[-1] * (longest - len(spelling))] for spelling in spellings]
    return CharacterRules(pages, rules, contexts, np.array(rows, np.int32).reshape(-1, longest))


_CODE_POINTS = range(sys.maxunicode + 1)


def _rule(char: str, do_lower_case: bool) -> tuple[int, str]:
    """The flags, and what is left of the character: "", one character, or several where it is spelled out."""
    cleaned = _clean(char)
    if not cleaned:
        return DELETED, ""
    if cleaned.isspace():
        return WORD_BEHIND | TOKEN_ENDS, ""
    flags = WORD_BEFORE | WORD_BEHIND | TOKEN_ENDS if len(cleaned) > 1 else 0
    if not do_lower_case:
        return flags | _apart(char), char
    decomposed = _decomposed(char)
    kept = [c for c in decomposed if unicodedata.category(c) != "Mn"]
    if not kept:
        return flags | ACCENT, ""
    # An accent in front belongs to the character before, so it has to be seen; one behind has nothing to say.
    if len(kept) > 1 or kept[0] != decomposed[0]:
        return flags | SPELLED_OUT, decomposed
    flags |= COMBINING if unicodedata.combining(kept[0]) else 0
    flags |= SIGMA if char == "Σ" else 0
    return flags | _apart(kept[0]), kept[0]


def _apart(char: str) -> int:
    return WORD_BEFORE | WORD_BEHIND if _set_punctuation_apart(char) != char else 0


def _context(char: str) -> int:
    """What `_rule` doesn't tell: the combining class, and the roles of a sigma's neighbours, as Python sees them."""
    # A capital sigma is final behind a cased letter, over any case-ignorable characters in between.
    cased = (char + "Σ").lower().endswith("ς")
    ignorable = not cased and ("a" + char + "Σ").lower().endswith("ς")
    return unicodedata.combining(_decomposed(char)[0]) | cased * CASED | ignorable * CASE_IGNORABLE


def _decomposed(char: str) -> str:
    return unicodedata.normalize("NFD", char.lower())


def _paged(*tables: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Divides tables into pages and keeps one of those that are equal in all tables."""
    size = 1 << PAGE_BITS
    divided = np.stack([table.reshape(-1, size) for table in tables], axis=1)
    unique, numbers = np.unique(divided, axis=0, return_inverse=True)
    pages = (numbers.reshape(-1) * size).astype(np.int32)
    return pages, [unique[:, i].reshape(-1) for i in range(len(tables))]
