"""The release's tokenizer: basic tokenization, then greedy WordPiece.

All rules work inside one whitespace-separated word, so the pieces of a word don't depend on its neighbours and can be
remembered. Class names, arguments and results are the release's. `FullTokenizer.encode`, `encode_to_bytes`,
`tokenize_with_offsets` and `load_tokenizer` are additions.
"""

import itertools
import re
from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from bert_tf.tokenization.characters import (
    ASCII_TOKEN,
    CLEAN,
    CLEAN_ONLY,
    SEPARATE_PUNCTUATION,
    split_words,
    strip_accents,
)
from bert_tf.tokenization.memo import Memo
from bert_tf.tokenization.tokenizer_config import (
    read_tokenizer_config,
    unusual_rules,
    validate_case_matches_settings,
)
from bert_tf.tokenization.traced_text import TracedCharacter, TracedText
from bert_tf.tokenization.vocabulary import (
    CONTINUATION,
    MAX_CHARS_PER_WORD,
    SPECIAL_TOKENS,
    UNK,
    check_vocab_file,
    load_vocab,
    validate_case_matches_checkpoint,
    validate_case_matches_vocab,
)

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
    """Returns a text that can be printed: since Python 3 the same as `convert_to_unicode`."""
    return convert_to_unicode(text)


def whitespace_tokenize(text: str) -> list[str]:
    """Splits a text at white space."""
    return text.split()


def convert_by_vocab(vocab: Mapping, items: Iterable) -> list:
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
      strip_accents: whether to remove accents, if not for the same texts as `do_lower_case` says; the release has no
        such choice.
      tokenize_chinese_chars: whether each CJK character is a word of its own, as in the release.
    """

    def __init__(
        self, do_lower_case: bool = True, strip_accents: bool | None = None, tokenize_chinese_chars: bool = True
    ) -> None:
        self.do_lower_case = do_lower_case
        self.strip_accents = do_lower_case if strip_accents is None else strip_accents
        self.tokenize_chinese_chars = tokenize_chinese_chars

    def tokenize(self, text: str | bytes) -> list[str]:
        """Splits a text into words and punctuation marks."""
        text = convert_to_unicode(text)
        if text.isascii() and text.isprintable():
            return ASCII_TOKEN.findall(text.lower() if self.do_lower_case else text)
        return self._apply_rules(text, strip_accents)

    def tokenize_with_origins(self, text: str) -> list[TracedText]:
        """Does what `tokenize` does; each character of each token knows its place in `text`."""
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
      vocab: piece -> id.
      unk_token: the token for words that the vocabulary can't spell.
      max_input_chars_per_word: longer words become `unk_token` without a look at the vocabulary.
    """

    def __init__(
        self, vocab: Mapping[str, int], unk_token: str = UNK, max_input_chars_per_word: int = MAX_CHARS_PER_WORD
    ) -> None:
        self.vocab = vocab
        self.unk_token = unk_token
        self.max_input_chars_per_word = max_input_chars_per_word
        # Longer matches than the longest piece need not be tried.
        self._longest = max(map(len, vocab), default=0)

    def tokenize(self, text: str | bytes) -> list[str]:
        """Splits whitespace-separated words into pieces, such as "unaffable" into "un", "##aff", "##able"."""
        return [piece for word in whitespace_tokenize(convert_to_unicode(text)) for piece in self.split_word(word)]

    def split_word(self, word: str) -> list[str]:
        """Returns the pieces of a word, or `[unk_token]`."""
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


class FullTokenizer:
    """The end-to-end tokenizer of the release.

    Args:
      vocab_file: a file with one piece per line.
      do_lower_case: whether to convert to lower case and remove accents; False for cased models.
      keep_special_tokens: whether a special token in a text, such as "[MASK]", stays one token. The release splits it
        like any other text in brackets.
      rules: `strip_accents` and `tokenize_chinese_chars`; see `BasicTokenizer`.

    Raises:
      InputError: if the file is missing or empty, or not UTF-8.
    """

    def __init__(
        self, vocab_file: str, do_lower_case: bool = True, keep_special_tokens: bool = False, **rules: bool | None
    ) -> None:
        self.vocab_file = vocab_file
        self.do_lower_case = do_lower_case
        self.vocab = load_vocab(vocab_file)
        self.inv_vocab = {index: piece for piece, index in self.vocab.items()}
        self.basic_tokenizer = BasicTokenizer(do_lower_case=do_lower_case, **rules)
        self.wordpiece_tokenizer = WordpieceTokenizer(vocab=self.vocab)
        kept = [token for token in SPECIAL_TOKENS if token in self.vocab] if keep_special_tokens else []
        self._special = re.compile("(" + "|".join(map(re.escape, kept)) + ")") if kept else None
        # 16 bits if all ids fit, otherwise 32.
        self.id_typecode = "H" if max(self.vocab.values(), default=0) < 1 << 16 else "I"
        # "word", "Word" and "word," are different words with a common token, so words and tokens are remembered.
        self._token_pieces = Memo(self._pieces_of_token)
        self._token_bytes = Memo(self._bytes_of_token)
        self._pieces = Memo(self._pieces_of_word)
        self._ids = Memo(self._ids_of_word)
        self._bytes = Memo(self._bytes_of_word)
        self._traced = Memo(self._traced_pieces_of_word)

    @property
    def rules(self) -> dict[str, bool]:
        """The settings of the rules, which determine the pieces of a text as the vocabulary does."""
        return dict(vars(self.basic_tokenizer))

    def tokenize(self, text: str | bytes) -> list[str]:
        """Splits a text into pieces."""
        return list(itertools.chain.from_iterable(map(self._pieces.__getitem__, self._split(text))))

    def encode(self, text: str | bytes) -> list[int]:
        """Returns the ids of a text's pieces: `convert_tokens_to_ids(tokenize(text))`, but faster.

        Raises:
          KeyError: if the vocabulary lacks [UNK] and a word needs it.
        """
        return list(itertools.chain.from_iterable(map(self._ids.__getitem__, self._split(text))))

    def encode_to_bytes(self, text: str | bytes) -> bytes:
        """Returns the ids of `encode` as the bytes of an array of type `id_typecode`.

        Raises:
          KeyError: see `encode`.
        """
        return b"".join(map(self._bytes.__getitem__, self._split(text)))

    def tokenize_with_offsets(self, text: str) -> tuple[list[str], list[tuple[int, int]]]:
        """Splits a text into pieces and finds the place of each piece in the text.

        Returns:
          The pieces; and for each piece the span [start, end) of characters in the original text. The span of a letter
          includes its removed accents. A deleted control character belongs to a span only if it is inside the span.
          Spans don't overlap, except where one character became several pieces.
        """
        pieces: list[str] = []
        spans: list[tuple[int, int]] = []
        for word, begin in self._words_with_places(text):
            for piece, start, end in self._traced[word]:
                pieces.append(piece)
                spans.append((begin + start, begin + end))
        return pieces, spans

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """Returns the ids of tokens; raises a KeyError if one is not in the vocabulary."""
        return convert_by_vocab(self.vocab, tokens)

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Returns the tokens of ids; raises a KeyError if one is not in the vocabulary."""
        return convert_by_vocab(self.inv_vocab, ids)

    def _split(self, text: str | bytes) -> list[str]:
        """Returns words that can be tokenized alone; a special token that is kept is one word."""
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
                end = start + len(piece) - (len(CONTINUATION) if start else 0)
                traced.append((piece, *TracedText(token[start:end]).span()))
                start = end
        return tuple(traced)


Kind = TypeVar("Kind", bound=FullTokenizer)


def load_tokenizer(
    vocab_file: str, do_lower_case: bool, init_checkpoint: str | None = None, kind: type[Kind] = FullTokenizer
) -> Kind:
    """Checks the vocabulary and the casing, and creates a program's tokenizer.

    Settings in `tokenizer_config.json` beside the vocabulary are honoured; see `tokenizer_config`.

    Args:
      vocab_file: the vocabulary.
      do_lower_case: the casing.
      init_checkpoint: the checkpoint that the user named, the name of which may tell the casing.
      kind: the class of the tokenizer.

    Raises:
      InputError: see `check_vocab_file`, `validate_case_matches_checkpoint`, `validate_case_matches_vocab`,
        `read_tokenizer_config` and `validate_case_matches_settings`.
    """
    check_vocab_file(vocab_file)
    validate_case_matches_checkpoint(do_lower_case, init_checkpoint)
    settings = read_tokenizer_config(vocab_file)
    tokenizer = kind(vocab_file, do_lower_case=do_lower_case, **unusual_rules(settings))
    validate_case_matches_vocab(do_lower_case, tokenizer.vocab)
    validate_case_matches_settings(do_lower_case, settings, vocab_file)
    return tokenizer
