"""A text in which every character has its position in the original text."""

import unicodedata
from collections.abc import Mapping
from typing import NamedTuple

from bert_tf.text.characters import is_accent


class TracedCharacter(NamedTuple):
    """A character, and its span [start, end) in the original text."""

    char: str
    start: int
    end: int


class TracedText(list[TracedCharacter]):
    """A list of traced characters with the methods of `str` that the tokenizer uses."""

    def text(self) -> str:
        """Returns the characters as a `str`."""
        return "".join(traced.char for traced in self)

    def translate(self, table: Mapping[int, str]) -> "TracedText":
        """Replaces each character by its text in the table, like `str.translate`."""
        return TracedText(TracedCharacter(new, t.start, t.end) for t in self for new in table[ord(t.char)])

    def split(self) -> "list[TracedText]":
        """Splits at white space, like `str.split`."""
        words, word = [], TracedText()
        for traced in self:
            if not traced.char.isspace():
                word.append(traced)
            elif word:
                words.append(word)
                word = TracedText()
        return [*words, word] if word else words

    def lower(self) -> "TracedText":
        """Converts to lower case, like `str.lower`."""
        # The lower case of a capital sigma depends on its neighbours, so the whole text is converted at once. The
        # number of characters does not depend on neighbours.
        lowered = iter(self.text().lower())
        return TracedText(TracedCharacter(next(lowered), t.start, t.end) for t in self for _ in t.char.lower())

    def strip_accents(self) -> "TracedText":
        """Returns the text in NFD without accents. The span of a letter is extended to its removed accents."""
        decomposed = [TracedCharacter(c, t.start, t.end) for t in self for c in unicodedata.normalize("NFD", t.char)]
        kept = TracedText()
        for traced in _canonically_ordered(decomposed):
            if not is_accent(traced.char):
                kept.append(traced)
            elif kept:
                kept[-1] = kept[-1]._replace(end=max(kept[-1].end, traced.end))
        return kept

    def span(self) -> tuple[int, int]:
        """Returns the smallest span [start, end) of the original text that contains all characters."""
        return min(traced.start for traced in self), max(traced.end for traced in self)


def _canonically_ordered(decomposed: list[TracedCharacter]) -> list[TracedCharacter]:
    """Sorts each run of combining characters by combining class, as in Unicode's canonical ordering."""
    ordered: list[TracedCharacter] = []
    run_start = 0
    for traced in decomposed:
        ordered.append(traced)
        if unicodedata.combining(traced.char):
            ordered[run_start:] = sorted(ordered[run_start:], key=lambda t: unicodedata.combining(t.char))
        else:
            run_start = len(ordered)
    return ordered
