"""Caches the results for the words of a text, because a few words make up most of any text."""

from collections.abc import Callable

# A cache is emptied when it has this many words. Very long words (addresses, base64) rarely recur and are not cached.
_WORDS = 1 << 18
_WORD_LENGTH = 64


class Memo(dict):
    """Caches the result of each word. A cached word costs one dict look-up and no call of a Python function."""

    def __init__(self, compute: Callable) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, word: str) -> object:
        computed = self._compute(word)
        if len(word) <= _WORD_LENGTH:
            if len(self) >= _WORDS:
                self.clear()
            self[word] = computed
        return computed
