"""The two steps of the original tokenizer: splits a text into words and punctuation, and each word into tokens.

Class names, arguments and results are the same as in the original code.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from bert_tf.text.characters import ASCII_TOKEN, CLEAN, CLEAN_ONLY, SEPARATE_PUNCTUATION, strip_accents
from bert_tf.text.traced_text import TracedCharacter, TracedText
from bert_tf.text.vocabulary import CONTINUATION, MAX_CHARS_PER_WORD, UNK

Text = TypeVar("Text", str, TracedText)


def convert_to_unicode(text: str | bytes) -> str:
    """Returns a text as `str`. Bytes are decoded as UTF-8, and invalid bytes are dropped.

    Raises:
      ValueError: if `text` is neither `str` nor `bytes`.
    """
    if isinstance(text, str):
        return text
    if isinstance(text, bytes):
        return text.decode("utf-8", "ignore")
    raise ValueError(f"Unsupported string type: {type(text)}")


def printable_text(text: str | bytes) -> str:
    """Returns a text as `str`. In Python 3, this is the same as `convert_to_unicode`."""
    return convert_to_unicode(text)


def whitespace_tokenize(text: str) -> list[str]:
    """Splits a text at white space."""
    return text.split()


def convert_by_vocab(vocab: Mapping[Any, Any], items: Iterable[Any]) -> list[Any]:
    """Looks up every item.

    Raises:
      KeyError: if an item is not in the vocabulary.
    """
    return [vocab[item] for item in items]


def convert_tokens_to_ids(vocab: Mapping[str, int], tokens: Iterable[str]) -> list[int]:
    """Returns the ids of tokens."""
    return convert_by_vocab(vocab, tokens)


def convert_ids_to_tokens(inv_vocab: Mapping[int, str], ids: Iterable[int]) -> list[str]:
    """Returns the tokens of ids."""
    return convert_by_vocab(inv_vocab, ids)


class BasicTokenizer:
    """Splits a text into words, punctuation marks and CJK characters.

    Args:
      do_lower_case: whether to convert to lower case and remove accents.
      strip_accents: whether to remove accents; None for the value of `do_lower_case`, as in the original code.
      tokenize_chinese_chars: whether each CJK character is a separate word, as in the original code.
    """

    def __init__(
        self, do_lower_case: bool = True, strip_accents: bool | None = None, tokenize_chinese_chars: bool = True
    ) -> None:
        self.do_lower_case = do_lower_case
        self.strip_accents: bool = do_lower_case if strip_accents is None else strip_accents
        self.tokenize_chinese_chars = tokenize_chinese_chars

    def tokenize(self, text: str | bytes) -> list[str]:
        """Splits a text into words and punctuation marks."""
        text = convert_to_unicode(text)
        if text.isascii() and text.isprintable():
            return ASCII_TOKEN.findall(text.lower() if self.do_lower_case else text)
        return self._apply_rules(text, strip_accents)

    def tokenize_with_origins(self, text: str) -> list[TracedText]:
        """Splits a text like `tokenize`. Each character of a token also has a position in `text`."""
        traced = TracedText([TracedCharacter(char, i, i + 1) for i, char in enumerate(text)])
        return self._apply_rules(traced, TracedText.strip_accents)

    def _apply_rules(self, text: Text, strip: Callable[[Text], Text]) -> list[Text]:
        tokens: list[Text] = []
        for token in text.translate(CLEAN if self.tokenize_chinese_chars else CLEAN_ONLY).split():
            if self.do_lower_case:
                token = token.lower()
            if self.strip_accents:
                token = strip(token)
            tokens.extend(token.translate(SEPARATE_PUNCTUATION).split())
        return tokens


class WordpieceTokenizer:
    """Greedy longest-match-first WordPiece.

    Args:
      vocab: maps tokens to ids.
      unk_token: the token for a word that can't be split into tokens of the vocabulary.
      max_input_chars_per_word: longer words become `unk_token`.
    """

    def __init__(
        self, vocab: Mapping[str, int], unk_token: str = UNK, max_input_chars_per_word: int = MAX_CHARS_PER_WORD
    ) -> None:
        self.vocab = vocab
        self.unk_token = unk_token
        self.max_input_chars_per_word = max_input_chars_per_word
        # A match can't be longer than the longest token.
        self._longest = max(map(len, vocab), default=0)

    def tokenize(self, text: str | bytes) -> list[str]:
        """Splits whitespace-separated words into tokens, such as "unaffable" into "un", "##aff", "##able"."""
        return [piece for word in whitespace_tokenize(convert_to_unicode(text)) for piece in self.split_word(word)]

    def split_word(self, word: str) -> list[str]:
        """Returns the tokens of a word, or `[unk_token]`."""
        if len(word) > self.max_input_chars_per_word:
            return [self.unk_token]
        pieces: list[str] = []
        start = 0
        while start < len(word):
            prefix = CONTINUATION if start else ""
            for end in range(min(len(word), start + self._longest), start, -1):
                piece = prefix + word[start:end]
                if piece in self.vocab:
                    break
            else:
                return [self.unk_token]
            pieces.append(piece)
            start = end
        return pieces
