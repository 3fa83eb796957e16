"""Baseline for the tokenizer: the original rules, applied to one character after the other, without a cache."""

import unicodedata

from bert_tf.text import FullTokenizer


class CharacterTokenizer:
    """The basic tokenizer's rules, applied to one character after the other."""

    def __init__(self, do_lower_case=True):
        self.do_lower_case = do_lower_case

    def tokenize(self, text):
        """Splits a text into words and punctuation marks."""
        tokens = []
        for word in "".join(self._cleaned(text)).split():
            if self.do_lower_case:
                decomposed = unicodedata.normalize("NFD", word.lower())
                word = "".join([char for char in decomposed if unicodedata.category(char) != "Mn"])
            current = ""
            for char in word:
                if self._is_punctuation(char):
                    tokens += [current, char]
                    current = ""
                else:
                    current += char
            tokens.append(current)
        return [token for token in tokens if token]

    def _cleaned(self, text):
        for char in text:
            category = unicodedata.category(char)
            if char in " \t\n\r" or category == "Zs":
                yield " "
            elif char not in "\0\ufffd" and category not in ("Cc", "Cf"):
                yield f" {char} " if self._is_cjk(ord(char)) else char

    def _is_cjk(self, code):
        return (
            0x4E00 <= code <= 0x9FFF
            or 0x3400 <= code <= 0x4DBF
            or 0x20000 <= code <= 0x2A6DF
            or 0x2A700 <= code <= 0x2CEAF
            or 0xF900 <= code <= 0xFAFF
            or 0x2F800 <= code <= 0x2FA1F
        )

    def _is_punctuation(self, char):
        code = ord(char)
        if 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126:
            return True
        return unicodedata.category(char).startswith("P")


class ForgetfulTokenizer(FullTokenizer):
    """A tokenizer without a cache."""

    def tokenize(self, text):
        """Splits a text into tokens."""
        words = CharacterTokenizer(self.do_lower_case).tokenize(text)
        return [piece for word in words for piece in self.wordpiece_tokenizer.tokenize(word)]

    def encode(self, text):
        """Returns the token ids of a text."""
        return self.convert_tokens_to_ids(self.tokenize(text))
