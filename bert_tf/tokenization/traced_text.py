"""A text that is being changed, each character of which knows where in the original it came from."""

import unicodedata
from collections.abc import Mapping
from typing import NamedTuple


class TracedCharacter(NamedTuple):
    """A character, and the characters [start, end) of the original text that it stands for."""

    char: str
    start: int
    end: int


class TracedText(list[TracedCharacter]):
    """A text whose characters know where they came from; its methods do what those of `str` do."""

    def text(self) -> str:
        return "".join(traced.char for traced in self)

    def translate(self, table: Mapping[int, str]) -> "TracedText":
        return TracedText(TracedCharacter(new, t.start, t.end) for t in self for new in table[ord(t.char)])

    def split(self) -> "list[TracedText]":
        words, word = [], TracedText()
        for traced in self:
            if not traced.char.isspace():
                word.append(traced)
            elif word:
                words.append(word)
                word = TracedText()
        return [*words, word] if word else words

    def lower(self) -> "TracedText":
        # A capital sigma's lower case depends on its neighbours, so the text is lower-cased as a whole; what a
        # character becomes has the same length with and without neighbours.
        lowered = iter(self.text().lower())
        return TracedText(TracedCharacter(next(lowered), t.start, t.end) for t in self for _ in t.char.lower())

    def strip_accents(self) -> "TracedText":
        """NFD, then no marks of category Mn; a mark's place goes to the character that bore it."""
        decomposed = [TracedCharacter(c, t.start, t.end) for t in self for c in unicodedata.normalize("NFD", t.char)]
        kept = TracedText()
        for traced in _canonically_ordered(decomposed):
            if unicodedata.category(traced.char) != "Mn":
                kept.append(traced)
            elif kept:
                kept[-1] = kept[-1]._replace(end=max(kept[-1].end, traced.end))
        return kept

    def span(self) -> tuple[int, int]:
        """The smallest stretch [start, end) of the original text that all characters came from."""
        return min(traced.start for traced in self), max(traced.end for traced in self)


def _canonically_ordered(decomposed: list[TracedCharacter]) -> list[TracedCharacter]:
    """Unicode's canonical order: each run of combining characters is stably sorted by combining class."""
    ordered: list[TracedCharacter] = []
    run: list[TracedCharacter] = []
    for traced in decomposed:
        if unicodedata.combining(traced.char):
            run.append(traced)
            continue
        ordered += sorted(run, key=lambda t: unicodedata.combining(t.char))
        ordered.append(traced)
        run = []
    return ordered + sorted(run, key=lambda t: unicodedata.combining(t.char))
