"""The tokenizer: converts texts to tokens, ids and batches, and ids to texts.

All rules work inside one whitespace-separated word, so the tokens of a word do not depend on the neighbouring words and
can be cached. `FullTokenizer` is the original name of `Tokenizer`, with the original arguments and methods.
"""

import itertools
import re
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from bert_tf.runtime.errors import InputError
from bert_tf.sequences import packing
from bert_tf.text.added_tokens import added_tokens, kept_forms
from bert_tf.text.base_vocabulary import CLS, CONTINUATION, MAX_CHARS_PER_WORD, SEP, SPECIAL_TOKENS
from bert_tf.text.characters import split_words
from bert_tf.text.memo import Memo
from bert_tf.text.splitting import BasicTokenizer, WordpieceTokenizer, convert_by_vocab, convert_to_unicode
from bert_tf.text.tokenizer_config import find_rules, tokenizer_record
from bert_tf.text.traced_text import TracedText
from bert_tf.text.vocabulary import check_vocab_file, load_vocab

if TYPE_CHECKING:
    import tensorflow as tf

# The number of positions of the released models.
_MAX_LENGTH = 512


class Tokenizer:
    """The original end-to-end tokenizer, which can also make batches for the model and decode ids.

    Examples:
      >>> tokenizer = bert_tf.Tokenizer("build/quickstart/vocab.txt")
      >>> batch = tokenizer(["The whale was great.", ("Who was he?", "A sailor.")], max_length=128)
      >>> {name: ids.shape for name, ids in batch.items()}
      {'input_ids': (2, 10), 'input_mask': (2, 10), 'segment_ids': (2, 10)}
      >>> tokenizer.decode(batch["input_ids"][0], skip_special_tokens=True)
      'the whale was great .'

    Args:
      vocab_file: a file with one token per line.
      do_lower_case: whether to convert to lower case and remove accents; False for cased models.
      keep_special_tokens: whether a special token in a text, such as "[MASK]", is kept as one token. The original code
        splits it like any other text in brackets.
      max_input_chars_per_word: see `WordpieceTokenizer`.
      rules: `strip_accents` and `tokenize_chinese_chars`; see `BasicTokenizer`.

    Raises:
      InputError: if the file is missing or empty, or not UTF-8.
    """

    def __init__(
        self,
        vocab_file: str,
        do_lower_case: bool = True,
        keep_special_tokens: bool = False,
        max_input_chars_per_word: int = MAX_CHARS_PER_WORD,
        **rules: bool | None,
    ) -> None:
        self.vocab_file = vocab_file
        self.do_lower_case = do_lower_case
        self.vocab: OrderedDict[str, int] = load_vocab(vocab_file)
        self.inv_vocab: dict[int, str] = {index: piece for piece, index in self.vocab.items()}
        self.basic_tokenizer: BasicTokenizer = BasicTokenizer(do_lower_case=do_lower_case, **rules)
        self.wordpiece_tokenizer: WordpieceTokenizer = WordpieceTokenizer(
            vocab=self.vocab, max_input_chars_per_word=max_input_chars_per_word
        )
        self.added_tokens: dict[str, bool] = {
            token: added.normalized for token, added in added_tokens(vocab_file).items()
        }
        special = [token for token in SPECIAL_TOKENS if token in self.vocab] if keep_special_tokens else []
        self._never_split: dict[str, tuple[str, str]] = kept_forms(special, self.added_tokens, do_lower_case)
        # The longest token is tried first.
        patterns = [
            "".join(f"[{re.escape(a)}{re.escape(b)}]" for a, b in zip(*forms, strict=True))
            for _, forms in sorted(self._never_split.items(), key=lambda item: -len(item[0]))
        ]
        self._special = re.compile("(" + "|".join(patterns) + ")") if patterns else None
        # 16 bits if all ids fit, otherwise 32.
        self.id_typecode = "H" if max(self.vocab.values(), default=0) < 1 << 16 else "I"
        # "word", "Word" and "word," are different words with a common token, so both words and tokens are cached.
        self._token_pieces = Memo(self._pieces_of_token)
        self._token_bytes = Memo(self._bytes_of_token)
        self._pieces = Memo(self._pieces_of_word)
        self._ids = Memo(self._ids_of_word)
        self._bytes = Memo(self._bytes_of_word)
        self._traced = Memo(self._traced_pieces_of_word)

    @classmethod
    def checked(cls, vocab_file: str, do_lower_case: bool | None = None, **options: Any) -> Self:
        """Checks the vocabulary, finds the rules, and returns the tokenizer.

        Args:
          vocab_file: the vocabulary.
          do_lower_case: the casing; None for the casing of the model.
          options: further arguments of `find_rules`.

        Raises:
          InputError: see `check_vocab_file` and `find_rules`.
        """
        check_vocab_file(vocab_file)
        return cls(vocab_file, **find_rules(vocab_file, do_lower_case=do_lower_case, **options))

    @property
    def rules(self) -> dict[str, Any]:
        """The settings of the rules. Together with the vocabulary, they determine the tokens of a text.

        `max_input_chars_per_word` is included if it is not the original value.
        """
        limit = self.wordpiece_tokenizer.max_input_chars_per_word
        limits = {} if limit == MAX_CHARS_PER_WORD else {"max_input_chars_per_word": limit}
        return vars(self.basic_tokenizer) | limits

    @property
    def record(self) -> dict[str, Any]:
        """The rules and the digest of the vocabulary, for run.json and the metadata of records."""
        return tokenizer_record(self.vocab_file, self.rules)

    def tokenize(self, text: str | bytes) -> list[str]:
        """Splits a text into tokens."""
        return list(itertools.chain.from_iterable(map(self._pieces.__getitem__, self._split(text))))

    def encode(self, text: str | bytes) -> list[int]:
        """Returns the ids of a text's tokens: `convert_tokens_to_ids(tokenize(text))`, but faster.

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
        """Splits a text into tokens and finds the span of each token in the text.

        Returns:
          The tokens, and the span [start, end) of each token in characters of the original text. The span of a letter
          includes its removed accents. A deleted control character belongs to a span only if it is inside the span.
          Spans do not overlap, unless one character became several tokens.
        """
        pieces: list[str] = []
        spans: list[tuple[int, int]] = []
        for word, begin in self._words_with_positions(text):
            for piece, start, end in self._traced[word]:
                pieces.append(piece)
                spans.append((begin + start, begin + end))
        return pieces, spans

    def encode_words(self, text: str | Sequence[str]) -> list[tuple[str, int, Sequence[int]]]:
        """Returns the words of a text, each with the position of its first character and the ids of its tokens.

        A word of control characters has no tokens.

        Args:
          text: a text, which is split at white space, or a list of words. In a list, positions are counted in the words
            joined by spaces.
        """
        if isinstance(text, str):
            return [(word, begin, self._ids[word]) for word, begin in self._words_with_positions(text)]
        begins = itertools.accumulate((len(word) + 1 for word in text), initial=0)
        return [(word, begin, self.encode(word)) for word, begin in zip(text, begins, strict=False)]

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """Returns the ids of tokens. Raises a KeyError if a token is not in the vocabulary."""
        return convert_by_vocab(self.vocab, tokens)

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Returns the tokens of ids. Raises a KeyError if an id is not in the vocabulary."""
        return convert_by_vocab(self.inv_vocab, ids)

    @property
    def ends(self) -> tuple[int, int]:
        """The ids of [CLS] and [SEP]."""
        return self.vocab[CLS], self.vocab[SEP]

    def pack(self, text_a: str, text_b: str | None, max_seq_length: int, keeps_ends: bool = False) -> packing.Packed:
        """Returns [CLS] A [SEP] B [SEP] without padding. See `packing.fitting_lengths` and `packing.pack`."""
        segments = self.encode(text_a), self.encode(text_b) if text_b else []
        lengths = packing.fitting_lengths(*map(len, segments), max_seq_length)
        return packing.pack(segments, lengths, self.ends, keeps_ends)

    def __call__(
        self,
        texts: str | tuple[str, str] | Sequence[str | tuple[str, str]],
        text_pair: str | Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        padding: bool | str = True,
        truncation: bool | str = True,
        return_tensors: str = "np",
    ) -> "dict[str, np.ndarray | tf.Tensor]":
        """Makes a batch of B sequences: [CLS] A [SEP], or [CLS] A [SEP] B [SEP] for a pair of texts.

        Args:
          texts: a text, a pair (a tuple), or a list of texts and pairs.
          text_pair: the second texts, if `texts` has only the first texts.
          max_length: largest number of tokens in a sequence; None for 512.
          padding: True or "longest" to pad with zeros to the longest sequence of the batch; "max_length" to pad to
            `max_length`.
          truncation: True or "longest_first" to remove tokens from the end of the longer text of a pair; with False or
            "do_not_truncate", a sequence that is too long is an error.
          return_tensors: "np" or "tf".

        Returns:
          `input_ids`, `input_mask` and `segment_ids`, int32 [B, T], the inputs of `BertEncoder`.

        Raises:
          InputError: if there are no texts, an input is not a text, or a sequence is too long and `truncation` is off.
        """
        max_length = _MAX_LENGTH if max_length is None else max_length
        packing.check_max_seq_length(max_length)
        for name, value, choices in (
            ("padding", padding, (True, "longest", "max_length")),
            ("truncation", truncation, (True, "longest_first", False, "do_not_truncate")),
            ("return_tensors", return_tensors, ("np", "tf")),
        ):
            if value not in choices:
                raise InputError(f"{name} is {value!r}. Use one of {', '.join(map(repr, choices))}.", name)
        is_cut = truncation in (True, "longest_first")
        pairs = _pairs(texts, text_pair)
        packed = [self.pack(*pair, max_length) for pair in pairs]
        too_long = [number for number, (_, _, is_truncated) in enumerate(packed) if is_truncated]
        if too_long and not is_cut:
            raise InputError(f"text {too_long[0]} has more than {max_length} tokens, but truncation is {truncation!r}.")
        sequences = [(ids, segment_ids) for ids, segment_ids, _ in packed]
        batch = packing.pad_all(sequences, max_length if padding == "max_length" else 0)
        if return_tensors == "np":
            return batch
        import tensorflow as tf  # imported here, because tokenizing needs no TensorFlow

        return {name: tf.constant(column) for name, column in batch.items()}

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Returns the text of ids, with spaces between words. Capitals and accents that were removed are not restored.

        Args:
          ids: the ids of one sequence; a list, an array or a tensor.
          skip_special_tokens: if True, skip [CLS], [SEP], [PAD], [MASK] and [UNK].

        Raises:
          InputError: if `ids` has several sequences; see `batch_decode`.
          KeyError: if an id is not in the vocabulary.
        """
        ids = np.asarray(ids if hasattr(ids, "__len__") else list(ids))
        if ids.ndim != 1:
            raise InputError(f"ids of shape {list(ids.shape)} are not one sequence. Use batch_decode() for several.")
        tokens = self.convert_ids_to_tokens(map(int, ids))
        shown = [token for token in tokens if not (skip_special_tokens and token in SPECIAL_TOKENS)]
        return " ".join(shown).replace(f" {CONTINUATION}", "")

    def batch_decode(self, sequences: Iterable[Iterable[int]], skip_special_tokens: bool = False) -> list[str]:
        """Returns the texts of several sequences, such as a batch's `input_ids`. See `decode`."""
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def _split(self, text: str | bytes) -> list[str]:
        """Splits a text into words that can be tokenized alone. A token that is never split is one word."""
        text = convert_to_unicode(text)
        if self._special is None:
            return split_words(text)
        return [
            word
            for i, section in enumerate(self._special.split(text))
            for word in ([section] if i % 2 else split_words(section))
        ]

    def _words_with_positions(self, text: str) -> Iterable[tuple[str, int]]:
        begin = 0
        for word in self._split(text):
            begin = text.index(word, begin)
            yield word, begin
            begin += len(word)

    def _never_split_token(self, word: str) -> str | None:
        """Returns the never-split token that equals a word, or None."""
        if self._special is None or not self._special.fullmatch(word):
            return None
        forms = ((token, forms) for token, forms in self._never_split.items() if len(token) == len(word))
        return next(
            token for token, (a, b) in forms if all(char in chars for char, *chars in zip(word, a, b, strict=True))
        )

    def _tokens_of_word(self, word: str) -> list[str]:
        token = self._never_split_token(word)
        return self.basic_tokenizer.tokenize(word) if token is None else [token]

    def _pieces_of_token(self, token: str) -> list[str]:
        return [token] if token in self._never_split else self.wordpiece_tokenizer.split_word(token)

    def _bytes_of_token(self, token: str) -> bytes:
        return array(self.id_typecode, self.convert_tokens_to_ids(self._pieces_of_token(token))).tobytes()

    def _pieces_of_word(self, word: str) -> tuple[str, ...]:
        return tuple(itertools.chain.from_iterable(map(self._token_pieces.__getitem__, self._tokens_of_word(word))))

    def _ids_of_word(self, word: str) -> tuple[int, ...]:
        return tuple(self.convert_tokens_to_ids(self._pieces_of_word(word)))

    def _bytes_of_word(self, word: str) -> bytes:
        return b"".join(map(self._token_bytes.__getitem__, self._tokens_of_word(word)))

    def _traced_pieces_of_word(self, word: str) -> tuple[tuple[str, int, int], ...]:
        if token := self._never_split_token(word):
            return ((token, 0, len(word)),)
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


FullTokenizer = Tokenizer


def _pairs(texts: object, text_pair: object) -> list[tuple[str, str | None]]:
    """Returns pairs of texts. The second text is None for a single text."""
    inputs = list(texts) if isinstance(texts, list | np.ndarray) else [texts]
    if text_pair is not None:
        second = list(text_pair) if isinstance(text_pair, list | np.ndarray) else [text_pair]
        if len(inputs) != len(second):
            raise InputError(f"text_pair has {len(second)} texts for {len(inputs)} first texts. Pass one for each.")
        inputs = list(zip(inputs, second, strict=True))
    if not inputs:
        raise InputError("texts is empty. Pass at least one text.")
    pairs = []
    for text in inputs:
        pair = (text,) if isinstance(text, str) else text
        if not (isinstance(pair, tuple) and len(pair) in (1, 2) and all(isinstance(string, str) for string in pair)):
            remedy = "Pass a text, a pair of texts or a list of them."
            raise InputError(f"texts: {str(text)[:60]!r} is not a text. {remedy}")
        pairs.append((pair[0], pair[1] if len(pair) == 2 else None))
    return pairs
