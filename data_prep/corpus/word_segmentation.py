"""Word segmenters supplied by the user, for whole-word masking in languages without spaces.

In Chinese each character is a token, so "##" does not mark the tokens that continue a word.
"""

import importlib
from collections.abc import Callable, Iterable

import numpy as np

from bert_tf.runtime.files import InputError
from bert_tf.text import Tokenizer
from bert_tf.text.vocabulary import CONTINUATION

# Tokens have 32 bits, and the top bit marks a token that continues a word.
CONTINUES_WORD = np.uint32(1 << 31)

# A value of --word_segmenter for text whose words are separated by spaces.
SPACES = "spaces"

WordSegmenter = Callable[[str], Iterable[str]]


def load_word_segmenter(name: str) -> WordSegmenter:
    """Imports the function given by a flag.

    Args:
      name: "module:function", such as "jieba:lcut". The function returns the words of a text, in order. "spaces" splits
        a text at white space.

    Raises:
      InputError: if the function does not exist.
    """
    if name == SPACES:
        return str.split
    module, _, function = name.partition(":")
    try:
        segment = getattr(importlib.import_module(module), function)
        if not callable(segment):
            raise TypeError(f"it is a {type(segment).__name__}")
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise InputError(
            f"--word_segmenter is {name!r}, which can't be used ({error}). Pass the module:function of an installed "
            "package, such as jieba:lcut."
        ) from None
    return segment


class SegmentedTokenizer:
    """Tokenizes text and marks the tokens that continue a word.

    Args:
      tokenizer: the tokenizer. Its tokens do not depend on the segmentation.
      word_segmenter: see `load_word_segmenter`.
    """

    def __init__(self, tokenizer: Tokenizer, word_segmenter: str) -> None:
        self._tokenizer = tokenizer
        self._name = word_segmenter
        self._segment = load_word_segmenter(word_segmenter)

    def encode_to_bytes(self, text: str) -> bytes:
        """Returns the ids of a text's tokens, 32 bits each. Tokens that continue a word have the bit `CONTINUES_WORD`.

        A token continues a word if it is a "##" token, or if it begins inside a word of the segmenter.

        Raises:
          InputError: if the segmenter does not return words of the text.
        """
        tokens, spans = self._tokenizer.tokenize_with_offsets(text)
        is_inside = np.zeros(len(text) + 1, bool)
        begin = 0
        words = self._segment(text)
        if not isinstance(words, Iterable):
            raise self._error(words)
        for word in words:
            if not isinstance(word, str):
                raise self._error(word)
            begin = text.find(word, begin)
            if begin < 0:
                raise InputError(
                    f"--word_segmenter: {self._name} returned the word {word!r}, which is not in the rest of "
                    f"{text[:80]!r}. Use a function that returns the words unchanged and in order."
                )
            is_inside[begin + 1 : begin + len(word)] = True
            begin += len(word)
        ids = np.array(self._tokenizer.convert_tokens_to_ids(tokens), np.uint32)
        continues = [
            t.startswith(CONTINUATION) or is_inside[start] for t, (start, _) in zip(tokens, spans, strict=True)
        ]
        return (ids | CONTINUES_WORD * np.array(continues, np.uint32)).tobytes()

    def _error(self, value: object) -> InputError:
        return InputError(
            f"--word_segmenter: {self._name} returned {str(value)[:40]!r} ({type(value).__name__}). Use a function "
            "that returns the words of a text as str, such as jieba:lcut."
        )
