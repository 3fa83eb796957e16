"""The rules of `BasicTokenizer` for each Unicode character, as tables of integers for a graph.

The tables are computed with the functions of `characters`, `str.lower` and Python's Unicode data. The graph therefore
uses the Unicode version of the Python that created it, whatever libraries run it.

The low bits of a rule are the flags below. The normalized code point is the code point plus the high bits,
`rule >> SHIFT`. If the sum is negative, the character is deleted. With the flag `SPELLED_OUT`, the high bits are a row
number of `spellings`: the character becomes several characters, and each has its own rule.
"""

import functools
import sys
import unicodedata
from typing import NamedTuple

import numpy as np

from bert_tf.text.characters import CJK_BLOCKS, clean, clean_only, is_accent, separate_punctuation

# A word begins before or after the character: both for punctuation and CJK, only after for white space.
WORD_BEFORE, WORD_BEHIND = 1, 2
# A token ends after the character (white space, CJK). Lower case and accents are decided within a token.
TOKEN_ENDS = 4
# ACCENT: an accent that is removed. DELETED: a character that is deleted before all other rules.
ACCENT, DELETED = 8, 16
SPELLED_OUT = 32
# A combining character that is kept. Canonical ordering may move it.
COMBINING = 64
# The only letter whose lower case depends on its neighbours.
SIGMA = 128
# Set by the graph tokenizer inside special tokens that are kept.
LITERAL = 256
SHIFT = 9

# A number whose sum with any code point is negative.
_NOTHING = -(1 << 21)

# Bits of `contexts`: the canonical combining class, and two properties that determine the lower case of a sigma.
COMBINING_CLASS, CASED, CASE_IGNORABLE = 255, 256, 512

# Code points are divided into pages of 2**7; equal pages are stored once.
PAGE_BITS = 7


class CharacterRules(NamedTuple):
    """Tables for a look-up. Code point c has the index `pages[c >> PAGE_BITS] + (c & (1 << PAGE_BITS) - 1)`.

    Attributes:
      pages: [pages] int32, the index in `rules` and `contexts` at which each page begins.
      rules: [entries] int32.
      contexts: [entries] int32.
      spellings: [rows, longest] int32, the characters of each spelled-out character, padded with -1.
    """

    pages: np.ndarray
    rules: np.ndarray
    contexts: np.ndarray
    spellings: np.ndarray


@functools.cache
def character_rules(do_lower_case: bool, strip_accents: bool, tokenize_chinese_chars: bool) -> CharacterRules:
    """Computes the tables of a `BasicTokenizer` with these attributes. This takes about a second."""
    touched = np.array([unicodedata.category(char) not in ("Cn", "Co", "Cs") for char in map(chr, _CODE_POINTS)])
    for first, last in CJK_BLOCKS:
        touched[first : last + 1] = True
    rules = np.zeros(len(_CODE_POINTS), np.int32)
    contexts = np.zeros(len(_CODE_POINTS), np.int32)
    spellings: list[str] = []
    for code in np.flatnonzero(touched).tolist():
        flags, spelling = _rule(chr(code), do_lower_case, strip_accents, tokenize_chinese_chars)
        if flags & SPELLED_OUT:
            change = len(spellings)
            spellings.append(spelling)
        else:
            change = ord(spelling) - code if spelling else _NOTHING
        rules[code] = change << SHIFT | flags
        if do_lower_case or strip_accents:
            contexts[code] = _context(chr(code))
    pages, (rules, contexts) = _paged(rules, contexts)
    longest = max(map(len, spellings), default=1)
    rows = [[*map(ord, spelling), *[-1] * (longest - len(spelling))] for spelling in spellings]
    return CharacterRules(pages, rules, contexts, np.array(rows, np.int32).reshape(-1, longest))


_CODE_POINTS = range(sys.maxunicode + 1)


def _rule(char: str, do_lower_case: bool, strip_accents: bool, tokenize_chinese_chars: bool) -> tuple[int, str]:
    """Returns a character's flags and its normalized form: "", one character, or several (`SPELLED_OUT`)."""
    cleaned = clean(char) if tokenize_chinese_chars else clean_only(char)
    if not cleaned:
        return DELETED, ""
    if cleaned.isspace():
        return WORD_BEHIND | TOKEN_ENDS, ""
    flags = WORD_BEFORE | WORD_BEHIND | TOKEN_ENDS if len(cleaned) > 1 else 0
    spelling = char.lower() if do_lower_case else char
    spelling = unicodedata.normalize("NFD", spelling) if strip_accents else spelling
    kept_chars = [c for c in spelling if not (strip_accents and is_accent(c))]
    if not kept_chars:
        return flags | ACCENT, ""
    # A leading accent belongs to the previous character, so the graph must process it. A trailing one has no effect.
    if len(kept_chars) > 1 or kept_chars[0] != spelling[0]:
        return flags | SPELLED_OUT, spelling
    flags |= COMBINING if strip_accents and unicodedata.combining(kept_chars[0]) else 0
    flags |= SIGMA if do_lower_case and char == "Σ" else 0
    flags |= WORD_BEFORE | WORD_BEHIND if separate_punctuation(kept_chars[0]) != kept_chars[0] else 0
    return flags, kept_chars[0]


def _context(char: str) -> int:
    """Returns the combining class of a character and the properties that `str.lower` uses for a sigma next to it."""
    # A capital sigma is final after a cased letter. Case-ignorable characters may be between the two.
    cased = (char + "Σ").lower().endswith("ς")
    ignorable = not cased and ("a" + char + "Σ").lower().endswith("ς")
    combining = unicodedata.combining(unicodedata.normalize("NFD", char.lower())[0])
    return combining | cased * CASED | ignorable * CASE_IGNORABLE


def _paged(*tables: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Divides tables into pages, and stores equal pages only once."""
    size = 1 << PAGE_BITS
    divided = np.stack([table.reshape(-1, size) for table in tables], axis=1)
    unique, numbers = np.unique(divided, axis=0, return_inverse=True)
    pages = (numbers.reshape(-1) * size).astype(np.int32)
    return pages, [unique[:, i].reshape(-1) for i in range(len(tables))]
