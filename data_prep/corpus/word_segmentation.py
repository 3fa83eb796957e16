"""Words that don't show in the pieces: a word segmentation of one's own, so that whole-word masking means something.

In Chinese each character is a piece, and no "##" says which of them make up a word.
"""

import importlib
from collections.abc import Callable, Iterable

import numpy as np

from bert_tf.runtime.files import InputError
from bert_tf.tokenization import FullTokenizer
from data_prep.corpus.token_store import CONTINUES_WORD

WordSegmenter = Callable[[str], Iterable[str]]


def load_word_segmenter(name: str) -> WordSegmenter:
    """The function that a flag names.

    Args:
      name: "module:function", of a function that gives the words of a text in their order, such as "jieba:lcut".

    Raises:
      InputError: if there is no such function.
    """
    module, _, function = name.partition(":")
    try:
        segment = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"--word_segmenter is {name!r}, which can't be imported ({error}). module:function is expected, "
            "such as jieba:lcut, of a package that is installed."
        ) from None
    return segment


class SegmentedTokenizer:
    """A tokenizer whose tokens know whether they continue a word.

    Args:
      tokenizer: what makes the tokens, which don't depend on the segmentation.
      word_segmenter: see `load_word_segmenter`.
    """

    def __init__(self, tokenizer: FullTokenizer, word_segmenter: str) -> None:
        self._tokenizer = tokenizer
        self._name = word_segmenter
        self._segment = load_word_segmenter(word_segmenter)

    def encode_to_bytes(self, text: str) -> bytes:
        """The ids of a text's tokens, 32 bits each, with `CONTINUES_WORD` in those that continue a word.

        A token continues a word if it is a "##" piece, or begins inside of one of the segmenter's words.

        Raises:
          InputError: if the segmenter gives words that aren't in the text.
        """
        tokens, spans = self._tokenizer.tokenize_with_offsets(text)
        is_inside = np.zeros(len(text) + 1, bool)
        begin = 0
        for word in self._segment(text):
            begin = text.find(word, begin)
            if begin < 0:
                raise InputError(
                    f"--word_segmenter: {self._name} gives the word {word!r}, which doesn't stand (any more) in "
                    f"{text[:80]!r}. It must give the words of a text as they stand there, in their order."
                )
            is_inside[begin + 1 : begin + len(word)] = True
            begin += len(word)
        ids = np.array(self._tokenizer.convert_tokens_to_ids(tokens), np.uint32)
        continues = [t.startswith("##") or is_inside[start] for t, (start, _) in zip(tokens, spans, strict=True)]
        return (ids | CONTINUES_WORD * np.array(continues, np.uint32)).tobytes()
