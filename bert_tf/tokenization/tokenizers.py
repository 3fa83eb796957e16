"""The released tokenizer: basic tokenization, then greedy WordPiece; token for token, and memoised.

Every released rule works inside one whitespace-separated word, so a word's pieces never depend on its
neighbours and can be remembered. The classes keep the release's names, arguments and quirks; what is new is
`FullTokenizer.encode`, `tokenize_with_offsets`, and `load_tokenizer`, which checks a program's flags first.

All of it is in one file, though a long one, because the release's tokenization.py is: code written for that one imports
its names from here.
"""

import itertools
import re
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Mapping

from bert_tf.tokenization.traced_text import TracedCharacter, TracedText
from bert_tf.tokenization.vocabulary import (
    SPECIAL_TOKENS,
    check_vocab_file,
    load_vocab,
    validate_case_matches_checkpoint,
    validate_case_matches_vocab,
)

# What code written for the release imports from here.
__all__ = [
    "BasicTokenizer",
    "FullTokenizer",
    "WordpieceTokenizer",
    "convert_by_vocab",
    "convert_ids_to_tokens",
    "convert_to_unicode",
    "convert_tokens_to_ids",
    "load_tokenizer",
    "load_vocab",
    "printable_text",
    "split_words",
    "validate_case_matches_checkpoint",
    "whitespace_tokenize",
]

# A word's pieces are remembered until this many words are, and then the memory starts anew. Longer words
# (addresses, base64) hardly recur, and would only fill it.
_MEMO_WORDS = 1 << 18
_MEMO_WORD_LENGTH = 64

# The eight blocks that the release calls CJK; each of their characters is a word of its own.
_CJK_BLOCKS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
# Every printable ASCII character that is neither letter, digit nor space counts as punctuation, though Unicode
# files some of them ("$", "+", "^"...) elsewhere.
_ASCII_PUNCTUATION = ((33, 47), (58, 64), (91, 96), (123, 126))

# Most words are printable ASCII, where the released rules come down to this: letters and digits stay together.
_ASCII_TOKEN = re.compile("[0-9A-Za-z]+|[^0-9A-Za-z ]")

# str.split() also splits at these control characters, which the release deletes first.
_DELETED_WHITE_SPACE = re.compile("[\x0b\x0c\x1c-\x1f\x85]")
# What separates words once they are deleted: the release's white space (space, tab, line ends, category Zs) and
# the two separators that its own call of str.split() adds.
_WORD_BREAKS = re.compile("[ \t\n\r\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")


def _within(code: int, blocks: Iterable[tuple[int, int]]) -> bool:
    return any(first <= code <= last for first, last in blocks)


def _is_whitespace(char: str) -> bool:
    return char in " \t\n\r" or unicodedata.category(char) == "Zs"


def _is_control(char: str) -> bool:
    return char not in "\t\n\r" and unicodedata.category(char) in ("Cc", "Cf")


def _is_punctuation(char: str) -> bool:
    return _within(ord(char), _ASCII_PUNCTUATION) or unicodedata.category(char).startswith("P")


class _Memo(dict):
    """What was computed of each word; words are looked up at the speed of a dict, without a call of Python code."""

    def __init__(self, compute: Callable) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, word: str) -> object:
        computed = self._compute(word)
        if len(word) <= _MEMO_WORD_LENGTH:
            if len(self) >= _MEMO_WORDS:
                self.clear()
            self[word] = computed
        return computed


class _CharacterTable(dict):
    """A table for `str.translate` that works a character out when it is first met."""

    def __init__(self, rule: Callable[[str], str]) -> None:
        super().__init__()
        self._rule = rule

    def __missing__(self, code: int) -> str:
        replacement = self[code] = self._rule(chr(code))
        return replacement


def _clean(char: str) -> str:
    """Deletes what the release deletes, makes white space a space, and sets CJK characters apart."""
    if char in "\0\ufffd" or _is_control(char):
        return ""
    if _is_whitespace(char):
        return " "
    return f" {char} " if _within(ord(char), _CJK_BLOCKS) else char


def _set_punctuation_apart(char: str) -> str:
    return f" {char} " if _is_punctuation(char) else char


_CLEAN = _CharacterTable(_clean)
_SET_PUNCTUATION_APART = _CharacterTable(_set_punctuation_apart)


def convert_to_unicode(text: str | bytes) -> str:
    """Text as `str`; bytes are read as UTF-8, and those that are not UTF-8 are dropped.

    Raises:
      ValueError: if `text` is neither.
    """
    if isinstance(text, str):
        return text
    if isinstance(text, bytes):
        return text.decode("utf-8", "ignore")
    raise ValueError(f"Unsupported string type: {type(text)}")


def printable_text(text: str | bytes) -> str:
    """Text in a form that can be printed (the same as `convert_to_unicode` since Python 3)."""
    return convert_to_unicode(text)


def whitespace_tokenize(text: str) -> list[str]:
    """Splits at white space."""
    return text.split()


def split_words(text: str) -> list[str]:
    """Splits a raw text where, and only where, the release starts a new word whatever stands around.

    Each of the words can be tokenized alone; the results, joined, are those of the whole text.
    """
    if _DELETED_WHITE_SPACE.search(text) is None:
        return text.split()
    return [word for word in _WORD_BREAKS.split(text) if word]


def convert_by_vocab(vocab: Mapping, items: Iterable) -> list:
    """Looks every item up.

    Raises:
      KeyError: if an item is not in the vocabulary.
    """
    return [vocab[item] for item in items]


def convert_tokens_to_ids(vocab: Mapping[str, int], tokens: Iterable[str]) -> list[int]:
    """The tokens' ids."""
    return convert_by_vocab(vocab, tokens)


def convert_ids_to_tokens(inv_vocab: Mapping[int, str], ids: Iterable[int]) -> list[str]:
    """The ids' tokens."""
    return convert_by_vocab(inv_vocab, ids)


class BasicTokenizer:
    """Cleaning, white space, CJK characters, lower case and accents, punctuation.

    Args:
      do_lower_case: whether to lower-case and to strip accents.
    """

    def __init__(self, do_lower_case: bool = True) -> None:
        self.do_lower_case = do_lower_case

    def tokenize(self, text: str | bytes) -> list[str]:
        """Splits a text into words and punctuation marks."""
        text = convert_to_unicode(text)
        if text.isascii() and text.isprintable():
            return _ASCII_TOKEN.findall(text.lower() if self.do_lower_case else text)
        tokens: list[str] = []
        for token in text.translate(_CLEAN).split():
            if self.do_lower_case:
                token = _strip_accents(token.lower())
            tokens.extend(token.translate(_SET_PUNCTUATION_APART).split())
        return tokens

    def tokenize_with_origins(self, text: str) -> list[TracedText]:
        """`tokenize`, with the place in `text` that each character of each token came from."""
        traced = TracedText([TracedCharacter(char, i, i + 1) for i, char in enumerate(text)])
        tokens: list[TracedText] = []
        for token in traced.translate(_CLEAN).split():
            if self.do_lower_case:
                token = token.lower().strip_accents()
            tokens.extend(token.translate(_SET_PUNCTUATION_APART).split())
        return tokens


def _strip_accents(text: str) -> str:
    if text.isascii():
        return text
    return "".join(char for char in unicodedata.normalize("NFD", text) if unicodedata.category(char) != "Mn")


class WordpieceTokenizer:
    """Greedy longest-match-first WordPiece.

    Args:
      vocab: piece -> id.
      unk_token: what a word becomes that can't be made of pieces.
      max_input_chars_per_word: longer words become `unk_token` unseen.
    """

    def __init__(self, vocab: Mapping[str, int], unk_token: str = "[UNK]", max_input_chars_per_word: int = 200) -> None:
        self.vocab = vocab
        self.unk_token = unk_token
        self.max_input_chars_per_word = max_input_chars_per_word
        # No piece is longer than the longest, so no longer match need be tried.
        self._longest = max(map(len, vocab), default=0)

    def tokenize(self, text: str | bytes) -> list[str]:
        """Splits words (white space between them) into pieces; "unaffable" -> "un", "##aff", "##able"."""
        return [piece for word in whitespace_tokenize(convert_to_unicode(text)) for piece in self.split_word(word)]

    def split_word(self, word: str) -> list[str]:
        """One word's pieces, or `[unk_token]`."""
        if len(word) > self.max_input_chars_per_word:
            return [self.unk_token]
        pieces: list[str] = []
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            for end in range(min(len(word), start + self._longest), start, -1):
                piece = prefix + word[start:end]
                if piece in self.vocab:
                    break
            else:
                return [self.unk_token]
            pieces.append(piece)
            start = end
        return pieces


class FullTokenizer:
    """The end-to-end tokenizer of the release.

    Args:
      vocab_file: one piece a line.
      do_lower_case: whether to lower-case and to strip accents; False for cased models.
      keep_special_tokens: whether "[MASK]", "[SEP]"... standing in a text are kept whole, as the tokens they
        name. The release splits them as it does any text in brackets.

    Raises:
      InputError: if the file is missing or empty, or not UTF-8.
    """

    def __init__(self, vocab_file: str, do_lower_case: bool = True, keep_special_tokens: bool = False) -> None:
        self.vocab_file = vocab_file
        self.do_lower_case = do_lower_case
        self.vocab = load_vocab(vocab_file)
        self.inv_vocab = {index: piece for piece, index in self.vocab.items()}
        self.basic_tokenizer = BasicTokenizer(do_lower_case=do_lower_case)
        self.wordpiece_tokenizer = WordpieceTokenizer(vocab=self.vocab)
        kept = [token for token in SPECIAL_TOKENS if token in self.vocab] if keep_special_tokens else []
        self._special = re.compile("(" + "|".join(map(re.escape, kept)) + ")") if kept else None
        # What fits every id: 16 bits, or 32.
        self.id_typecode = "H" if max(self.vocab.values(), default=0) < 1 << 16 else "I"
        # "word", "Word" and "word," are different words, but share a token; so both are remembered.
        self._token_pieces = _Memo(self._pieces_of_token)
        self._token_bytes = _Memo(self._bytes_of_token)
        self._pieces = _Memo(self._pieces_of_word)
        self._ids = _Memo(self._ids_of_word)
        self._bytes = _Memo(self._bytes_of_word)
        self._traced = _Memo(self._traced_pieces_of_word)

    def tokenize(self, text: str | bytes) -> list[str]:
        """Splits a text into pieces."""
        return list(itertools.chain.from_iterable(map(self._pieces.__getitem__, self._split(text))))

    def encode(self, text: str | bytes) -> list[int]:
        """The ids of a text's pieces: `convert_tokens_to_ids(tokenize(text))`, faster.

        Raises:
          KeyError: as `convert_tokens_to_ids`, if the vocabulary lacks [UNK] and a word needs it.
        """
        return list(itertools.chain.from_iterable(map(self._ids.__getitem__, self._split(text))))

    def encode_to_bytes(self, text: str | bytes) -> bytes:
        """`encode`, as the bytes of an array of type `id_typecode`: what a large corpus is kept as.

        Raises:
          KeyError: as `encode`.
        """
        return b"".join(map(self._bytes.__getitem__, self._split(text)))

    def tokenize_with_offsets(self, text: str) -> tuple[list[str], list[tuple[int, int]]]:
        """`tokenize`, with each piece's place in `text`.

        Returns:
          The pieces, and for each the span [start, end) of the characters of the original text that it stands
          for. An accent that was stripped belongs to its letter's span; a deleted control character belongs to a
          span only where it stands inside one. Spans don't overlap, except where one character became several
          pieces.
        """
        pieces: list[str] = []
        spans: list[tuple[int, int]] = []
        for word, begin in self._words_with_places(text):
            for piece, start, end in self._traced[word]:
                pieces.append(piece)
                spans.append((begin + start, begin + end))
        return pieces, spans

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """The tokens' ids. Raises a KeyError for one that is not in the vocabulary."""
        return convert_by_vocab(self.vocab, tokens)

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """The ids' tokens. Raises a KeyError for one that is not in the vocabulary."""
        return convert_by_vocab(self.inv_vocab, ids)

    def _split(self, text: str | bytes) -> list[str]:
        """Words that can be tokenized alone; special tokens are words of their own where they are kept."""
        text = convert_to_unicode(text)
        if self._special is None:
            return split_words(text)
        return [
            word
            for i, part in enumerate(self._special.split(text))
            for word in ([part] if i % 2 else split_words(part))
        ]

    def _words_with_places(self, text: str) -> Iterable[tuple[str, int]]:
        begin = 0
        for word in self._split(text):
            begin = text.index(word, begin)
            yield word, begin
            begin += len(word)

    def _tokens_of_word(self, word: str) -> list[str]:
        if self._special is not None and self._special.fullmatch(word):
            return [word]
        return self.basic_tokenizer.tokenize(word)

    def _pieces_of_token(self, token: str) -> list[str]:
        # No token but a special one that is kept has brackets around letters.
        if self._special is not None and self._special.fullmatch(token):
            return [token]
        return self.wordpiece_tokenizer.split_word(token)

    def _bytes_of_token(self, token: str) -> bytes:
        return array(self.id_typecode, self.convert_tokens_to_ids(self._pieces_of_token(token))).tobytes()

    def _pieces_of_word(self, word: str) -> tuple[str, ...]:
        return tuple(itertools.chain.from_iterable(map(self._token_pieces.__getitem__, self._tokens_of_word(word))))

    def _ids_of_word(self, word: str) -> tuple[int, ...]:
        return tuple(self.convert_tokens_to_ids(self._pieces_of_word(word)))

    def _bytes_of_word(self, word: str) -> bytes:
        return b"".join(map(self._token_bytes.__getitem__, self._tokens_of_word(word)))

    def _traced_pieces_of_word(self, word: str) -> tuple[tuple[str, int, int], ...]:
        if self._special is not None and self._special.fullmatch(word):
            return ((word, 0, len(word)),)
        traced: list[tuple[str, int, int]] = []
        for token in self.basic_tokenizer.tokenize_with_origins(word):
            pieces = self.wordpiece_tokenizer.split_word(token.text())
            if pieces == [self.wordpiece_tokenizer.unk_token]:
                traced.append((pieces[0], *token.span()))
                continue
            start = 0
            for piece in pieces:
                end = start + len(piece) - (2 if start else 0)
                traced.append((piece, *TracedText(token[start:end]).span()))
                start = end
        return tuple(traced)


def load_tokenizer(vocab_file: str, do_lower_case: bool, init_checkpoint: str | None = None) -> FullTokenizer:
    """The tokenizer of a program: the vocabulary and the casing are checked first.

    Raises:
      InputError: see `check_vocab_file`, `validate_case_matches_checkpoint` and `validate_case_matches_vocab`.
    """
    check_vocab_file(vocab_file)
    validate_case_matches_checkpoint(do_lower_case, init_checkpoint)
    tokenizer = FullTokenizer(vocab_file, do_lower_case=do_lower_case)
    validate_case_matches_vocab(do_lower_case, tokenizer.vocab)
    return tokenizer
