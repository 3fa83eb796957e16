"""The original tokenizer as TensorFlow operations, for exported models that take raw strings.

It produces the same tokens and spans as `Tokenizer` for any bytes. All texts are joined into one flat stream of
characters, and each character is looked up in the tables of `characters`, which are stored in the model. The
normalized stream is split into words. TensorFlow Text's FastWordpieceTokenizer splits the words into tokens. A separate
branch processes characters that become several characters or depend on their neighbours. Other texts skip this branch.

Axis letters: B texts, C characters of all texts, N characters after normalization, W words, P pieces.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

import tensorflow as tf
import tensorflow_text as tf_text

from bert_tf.graphs import characters as tables
from bert_tf.runtime.files import InputError
from bert_tf.text.added_tokens import kept_forms
from bert_tf.text.splitting import BasicTokenizer
from bert_tf.text.tokenizers import Tokenizer
from bert_tf.text.vocabulary import MAX_CHARS_PER_WORD, UNK

# The first code points that take one, two, three and four bytes in UTF-8.
_UTF8_STEPS = (0, 0x80, 0x800, 0x10000)
_FINAL_SIGMA = ord("ς")


class TokenizedText(NamedTuple):
    """Tokens and their spans in the original texts. All fields are [B, (tokens)].

    Attributes:
      ids: int32.
      starts: int64, index of the first character of each token, in code points without invalid bytes.
      ends: int64, index of the last character plus 1.
      byte_starts: int64, index of the first byte of each token, among all bytes.
      byte_ends: int64, index of the last byte plus 1.
    """

    ids: tf.RaggedTensor
    starts: tf.RaggedTensor
    ends: tf.RaggedTensor
    byte_starts: tf.RaggedTensor
    byte_ends: tf.RaggedTensor


class _Characters(NamedTuple):
    """A flat stream of characters. Each text ends with white space, which separates it from the next text.

    Attributes:
      codes: [N] int32, code points.
      rules: [N] int32, see `characters`.
      sources: [N] int64, the index of the original character that each character comes from.
    """

    codes: tf.Tensor
    rules: tf.Tensor
    sources: tf.Tensor

    def take(self, indices: tf.Tensor) -> "_Characters":
        return _Characters(*(tf.gather(values, indices) for values in self))


class GraphTokenizer(tf.Module):
    """Tokenizes inside a graph. A SavedModel that contains it needs tensorflow_text to run.

    Args:
      vocab: maps tokens to ids, such as `Tokenizer.vocab`.
      do_lower_case: whether to convert to lower case and remove accents.
      kept_tokens: tokens in brackets, such as "[MASK]", that are not split. `SPECIAL_TOKENS` corresponds to
        `Tokenizer(keep_special_tokens=True)`.
      added_tokens: see `kept_forms`.
      max_input_chars_per_word: see `WordpieceTokenizer`.
      rules: `strip_accents` and `tokenize_chinese_chars`; see `BasicTokenizer`.

    Raises:
      InputError: if the vocabulary has no [UNK].
    """

    def __init__(
        self,
        vocab: Mapping[str, int],
        do_lower_case: bool = True,
        kept_tokens: Sequence[str] = (),
        added_tokens: Mapping[str, bool] | None = None,
        max_input_chars_per_word: int = MAX_CHARS_PER_WORD,
        **rules: bool | None,
    ) -> None:
        super().__init__(name="graph_tokenizer")
        if UNK not in vocab:
            raise InputError(f"The vocabulary has no {UNK}, the token for unknown words. Use the model's vocabulary.")
        basic = BasicTokenizer(do_lower_case, **rules)
        self._strips_accents = basic.strip_accents
        self._rewrites = basic.do_lower_case or basic.strip_accents
        self._max_chars = max_input_chars_per_word
        self._wordpiece = tf_text.FastWordpieceTokenizer(
            _pieces_by_id(vocab),
            max_bytes_per_word=4 * self._max_chars,
            token_out_type=tf.int32,
            unknown_token=UNK,
            no_pretokenization=True,
        )
        self._pages, self._rules, self._contexts, self._spellings = map(
            tf.constant, tables.character_rules(**vars(basic))
        )
        self._kept_tokens = None
        forms_of_token = kept_forms(kept_tokens, added_tokens or {}, do_lower_case)
        if forms_of_token:  # three tables [tokens, longest], padded with -1: the tokens, and two spellings of each
            rows = [(token, *forms) for token, forms in forms_of_token.items()]
            tables_of_codes = [[[*map(ord, text)] for text in column] for column in zip(*rows, strict=True)]
            self._kept_tokens = [tf.ragged.constant(table, tf.int32).to_tensor(-1) for table in tables_of_codes]
            self._first_codes = sorted({ord(text[0]) for row in rows for text in row[1:]})

    @classmethod
    def of(cls, tokenizer: Tokenizer, kept_tokens: Sequence[str] = ()) -> Self:
        """Returns a graph tokenizer with the vocabulary and the rules of a Python tokenizer."""
        return cls(tokenizer.vocab, kept_tokens=kept_tokens, added_tokens=tokenizer.added_tokens, **tokenizer.rules)

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids [B, (tokens)] int32 of UTF-8 texts [B], like `Tokenizer.encode`; drops invalid bytes."""
        decoded, _ = _decode(texts)
        characters = self._spell_out(self._characters(decoded.flat_values))
        splits, words = _words(characters)
        pieces = self._wordpiece.tokenize(self._without_long(words))
        return _by_text(pieces.flat_values, _piece_splits(decoded, characters, splits, pieces))

    def _without_long(self, words: tf.Tensor) -> tf.Tensor:
        """Replaces words with too many characters by a word with too many bytes, which becomes [UNK]."""
        too_long = "x" * (4 * self._max_chars + 1)
        return tf.where(tf.strings.length(words, unit="UTF8_CHAR") > self._max_chars, too_long, words)

    def tokenize_with_offsets(self, texts: tf.Tensor) -> TokenizedText:
        """Returns ids and spans of UTF-8 texts [B], like `Tokenizer.tokenize_with_offsets`."""
        decoded, byte_starts = _decode(texts)
        characters = self._spell_out(self._characters(decoded.flat_values))
        splits, words = _words(characters)
        pieces, starts_in_words, _ = self._wordpiece.tokenize_with_offsets(self._without_long(words))
        starts, ends = _spans(characters, splits[:-1], starts_in_words, self._strips_accents)

        row_starts = tf.gather(decoded.row_splits, tf.searchsorted(decoded.row_splits, starts, side="right") - 1)
        last = ends - 1
        last_bytes = _utf8_lengths(tf.gather(decoded.flat_values, last))
        piece_splits = _piece_splits(decoded, characters, splits, pieces)
        return TokenizedText(
            ids=_by_text(pieces.flat_values, piece_splits),
            starts=_by_text(starts - row_starts, piece_splits),
            ends=_by_text(ends - row_starts, piece_splits),
            byte_starts=_by_text(tf.gather(byte_starts.flat_values, starts), piece_splits),
            byte_ends=_by_text(tf.gather(byte_starts.flat_values, last) + last_bytes, piece_splits),
        )

    def _characters(self, codes: tf.Tensor) -> _Characters:
        rules = tf.gather(self._rules, self._table_indices(codes))
        if self._kept_tokens is not None:
            codes, rules = self._keep_tokens(codes, rules)
        return _Characters(codes, rules, tf.range(tf.size(codes, out_type=tf.int64)))

    def _table_indices(self, codes: tf.Tensor) -> tf.Tensor:
        page = tf.gather(self._pages, tf.bitwise.right_shift(codes, tables.PAGE_BITS))
        return page + tf.bitwise.bitwise_and(codes, (1 << tables.PAGE_BITS) - 1)

    def _keep_tokens(self, codes: tf.Tensor, rules: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Marks each token in `kept_tokens` as a single word, and exempts its characters from all other rules."""
        tokens, *forms = self._kept_tokens
        lengths = tf.reduce_sum(tf.cast(tokens >= 0, tf.int64), axis=1)
        longest = tokens.shape[1]
        begins = tf.reduce_any(codes[:, tf.newaxis] == self._first_codes, axis=1)

        def keep() -> tuple[tf.Tensor, tf.Tensor]:
            candidates = tf.where(begins)  # [candidates, 1]
            padded = tf.concat([codes, tf.zeros([longest], tf.int32)], axis=0)
            next_codes = tf.gather(padded, candidates + tf.range(longest, dtype=tf.int64))[:, tf.newaxis]
            is_equal = (next_codes == forms[0]) | (next_codes == forms[1]) | (tokens < 0)
            matches = tf.where(tf.reduce_all(is_equal, axis=-1), lengths, 0)  # [candidates, tokens]
            length = tf.reduce_max(matches, axis=-1)
            first, number = (tf.boolean_mask(x, length > 0) for x in (candidates[:, 0], tf.argmax(matches, axis=-1)))
            behind = first + tf.boolean_mask(length, length > 0)
            # A token that begins inside the previous one is ignored.
            ends = tf.scan(
                lambda end, span: tf.where(span[0] >= end, span[1], end), (first, behind), tf.zeros([], tf.int64)
            )
            is_found = first >= tf.concat([tf.zeros([1], tf.int64), ends], axis=0)[:-1]
            first, behind, number = (tf.boolean_mask(x, is_found) for x in (first, behind, number))
            inside = tf.ragged.range(first, behind).flat_values[:, tf.newaxis]
            written = tf.gather(tokens, number)
            written = tf.tensor_scatter_nd_update(codes, inside, tf.boolean_mask(written, written >= 0))
            new_rules = tf.tensor_scatter_nd_update(rules, inside, tf.fill(tf.shape(inside)[:1], tables.LITERAL))
            last = tf.fill(tf.shape(first), tables.WORD_BEHIND | tables.TOKEN_ENDS)
            new_rules = tf.tensor_scatter_nd_add(new_rules, behind[:, tf.newaxis] - 1, last)
            begin = tf.fill(tf.shape(first), tables.WORD_BEFORE)
            return written, tf.tensor_scatter_nd_add(new_rules, first[:, tf.newaxis], begin)

        return tf.cond(tf.reduce_any(begins), keep, lambda: (codes, rules))

    def _spell_out(self, characters: _Characters) -> _Characters:
        """Applies the rules for several characters: final sigmas, spelled-out characters, canonical order."""
        if not self._rewrites:
            return characters

        def rewrite() -> _Characters:
            expanded = self._expand(self._settle_sigmas(characters))
            moving = tf.reduce_any(_has(expanded.rules, tables.COMBINING))
            return tf.cond(moving, lambda: self._put_in_canonical_order(expanded), lambda: expanded)

        return tf.cond(
            tf.reduce_any(_has(characters.rules, tables.SIGMA | tables.SPELLED_OUT | tables.COMBINING)),
            rewrite,
            lambda: characters,
        )

    def _contexts_of(self, characters: _Characters) -> tf.Tensor:
        contexts = tf.gather(self._contexts, self._table_indices(characters.codes))
        return tf.where(_has(characters.rules, tables.LITERAL), 0, contexts)

    def _settle_sigmas(self, characters: _Characters) -> _Characters:
        """Replaces a capital sigma at the end of a word by a final sigma, like `str.lower`."""
        contexts = self._contexts_of(characters)
        ignored = _has(contexts, tables.CASE_IGNORABLE) | _has(characters.rules, tables.DELETED)
        seen = tf.where(~ignored)[:, 0]
        cased = tf.pad(_has(tf.gather(contexts, seen), tables.CASED), [[1, 1]])
        sigma = _has(tf.gather(characters.rules, seen), tables.SIGMA)
        final = tf.boolean_mask(seen, sigma & cased[:-2] & ~cased[2:])
        settled = tf.fill(tf.shape(final), _FINAL_SIGMA)
        return characters._replace(codes=tf.tensor_scatter_nd_update(characters.codes, final[:, tf.newaxis], settled))

    def _expand(self, characters: _Characters) -> _Characters:
        """Replaces spelled-out characters by several characters, and removes deleted characters."""
        several = _has(characters.rules, tables.SPELLED_OUT)
        row = tf.where(several, tf.bitwise.right_shift(characters.rules, tables.SHIFT), 0)
        only = tf.where(_has(characters.rules, tables.DELETED), -1, characters.codes)
        single = tf.pad(only[:, tf.newaxis], [[0, 0], [0, self._spellings.shape[1] - 1]], constant_values=-1)
        spelled = tf.where(several[:, tf.newaxis], tf.gather(self._spellings, row), single)
        present = tf.where(spelled >= 0)
        expanded = characters.take(present[:, 0])
        codes = tf.gather_nd(spelled, present)
        rules = tf.gather(self._rules, self._table_indices(codes))
        return _Characters(
            codes, tf.where(_has(expanded.rules, tables.LITERAL), expanded.rules, rules), expanded.sources
        )

    def _put_in_canonical_order(self, characters: _Characters) -> _Characters:
        """Sorts each run of combining characters by combining class, in a stable order."""
        contexts = self._contexts_of(characters)
        classes = tf.cast(tf.bitwise.bitwise_and(contexts, tables.COMBINING_CLASS), tf.int64)
        run = tf.cumsum(tf.cast(classes == 0, tf.int64))
        return characters.take(tf.argsort(run * (tables.COMBINING_CLASS + 1) + classes, stable=True))


def _pieces_by_id(vocab: Mapping[str, int]) -> list[str]:
    """Returns the tokens in the order of their ids. A token that can't be in a word is replaced by a placeholder."""
    pieces = [f" {number}" for number in range(max(vocab.values()) + 1)]
    for piece, number in vocab.items():
        # No word contains a space or NUL, and FastWordpieceTokenizer fails at NUL.
        if " " not in piece and "\0" not in piece:
            pieces[number] = piece
    return pieces


def _has(rules: tf.Tensor, flags: int) -> tf.Tensor:
    return tf.bitwise.bitwise_and(rules, flags) != 0


def _utf8_lengths(codes: tf.Tensor) -> tf.Tensor:
    """Returns the number of UTF-8 bytes of each code point; 0 for a negative number."""
    return tf.searchsorted(tf.constant(_UTF8_STEPS), codes, side="right", out_type=tf.int64)


def _decode(texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Appends a line end to each text. Returns the code points and their byte offsets, both [B, (characters)]."""
    closed = tf.strings.join([texts, "\n"])
    return tf.strings.unicode_decode_with_offsets(closed, "UTF-8", errors="ignore")


def valid_utf8(texts: tf.Tensor) -> tf.Tensor:
    """Removes bytes that are not valid UTF-8."""
    codes = tf.strings.unicode_decode(texts, "UTF-8", errors="ignore")
    return tf.strings.unicode_encode(codes, "UTF-8", errors="ignore")


def _words(characters: _Characters) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the boundaries [W + 1] of the words, and the normalized words [W], which may be empty.

    A boundary is the index of the first character of a word. The last boundary is the number of characters.
    """
    begins = tf.bitwise.bitwise_and(characters.rules, tables.WORD_BEFORE)
    behind = tf.bitwise.bitwise_and(characters.rules, tables.WORD_BEHIND)
    begins |= tf.concat([[tables.WORD_BEHIND], behind], axis=0)[:-1]
    splits = tf.concat([tf.where(begins)[:, 0], tf.shape(begins, out_type=tf.int64)], axis=0)
    codes = tf.RaggedTensor.from_row_splits(_normalized(characters), splits, validate=False)
    # Deleted characters have negative codes, which are dropped.
    return splits, tf.strings.unicode_encode(codes, "UTF-8", errors="ignore")


def _normalized(characters: _Characters) -> tf.Tensor:
    return characters.codes + tf.bitwise.right_shift(characters.rules, tables.SHIFT)


def _piece_splits(
    decoded: tf.RaggedTensor, characters: _Characters, splits: tf.Tensor, pieces: tf.RaggedTensor
) -> tf.Tensor:
    """Returns the boundaries [B + 1] of the texts in the flat tokens: the index of the first token, and the end."""
    first_word = tf.searchsorted(tf.gather(characters.sources, splits[:-1]), decoded.row_splits)
    return tf.gather(pieces.row_splits, first_word)


def _by_text(values: tf.Tensor, piece_splits: tf.Tensor) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_row_splits(values, piece_splits, validate=False)


def _spans(
    characters: _Characters, word_starts: tf.Tensor, starts_in_words: tf.RaggedTensor, with_accents: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the span [start, end) of each token in the original characters: starts [P] and ends [P].

    The ends of characters and the starts of tokens are compared as byte offsets in the joined words. A token ends at
    the first byte of the next token.
    """
    behind = tf.cumsum(_utf8_lengths(_normalized(characters)))  # [N], the end of each character in the joined words
    word_bytes = tf.gather(tf.concat([[0], behind], axis=0), word_starts)
    number = tf.range(tf.size(starts_in_words.flat_values, out_type=tf.int64))
    word = tf.searchsorted(starts_in_words.row_splits, number, side="right") - 1
    first_bytes = tf.gather(word_bytes, word) + starts_in_words.flat_values
    last_bytes = tf.concat([first_bytes, behind[-1:]], axis=0)[1:] - 1
    starts = tf.gather(characters.sources, tf.searchsorted(behind, first_bytes, side="right"))
    ends = tf.gather(characters.sources, tf.searchsorted(behind, last_bytes, side="right")) + 1
    if not with_accents:
        return starts, ends
    return tf.cond(
        tf.reduce_any(_has(characters.rules, tables.ACCENT | tables.COMBINING)),
        lambda: _widened(starts, ends, first_bytes, characters, behind),
        lambda: (starts, ends),
    )


def _widened(
    starts: tf.Tensor, ends: tf.Tensor, first_bytes: tf.Tensor, characters: _Characters, behind: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Extends spans to removed accents and to combining characters moved by canonical ordering."""
    marks = tf.where(_has(characters.rules, tables.ACCENT | tables.COMBINING))[:, 0]
    # An accent belongs to the previous character in the same token, if there is one.
    closing = tf.where(_has(characters.rules, tables.TOKEN_ENDS))[:, 0]
    token_bytes = tf.gather(tf.concat([[0], tf.gather(behind, closing)], axis=0), tf.searchsorted(closing, marks))
    marks = tf.boolean_mask(marks, tf.gather(behind, marks) > token_bytes)
    piece = tf.searchsorted(first_bytes, tf.gather(behind, marks) - 1, side="right")[:, tf.newaxis] - 1
    sources = tf.gather(characters.sources, marks)
    ends = tf.tensor_scatter_nd_max(ends, piece, sources + 1)
    # Only a character that is kept can be the first character of a token.
    combining = _has(tf.gather(characters.rules, marks), tables.COMBINING)
    starts = tf.tensor_scatter_nd_min(starts, tf.boolean_mask(piece, combining), tf.boolean_mask(sources, combining))
    return starts, ends
