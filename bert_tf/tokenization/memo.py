"""Remembers the results for the words of a text; a few of them are most of any text."""

from collections.abc import Callable

# A memory is emptied when it holds this many words. Very long words (addresses, base64) rarely occur again and are not
# remembered.
_WORDS = 1 << 18
_WORD_LENGTH = 64


class Memo(dict):
    """Remembers the result of each word; a known word costs one look-up in a dict and no call of a Python function."""

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
