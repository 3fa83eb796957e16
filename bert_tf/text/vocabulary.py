"""Reads, checks and compares vocabulary files."""

import collections
import hashlib
import itertools
import re
from collections.abc import Mapping
from typing import Any

from bert_tf.runtime.files import InputError
from bert_tf.text import base_vocabulary as base
from bert_tf.text.added_tokens import added_tokens

PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS = base.SPECIAL_TOKENS
CONTINUATION, MAX_CHARS_PER_WORD = base.CONTINUATION, base.MAX_CHARS_PER_WORD
VOCAB_FILE, TOKENIZER_JSON, TOKENIZER_CONFIG_FILE = base.VOCAB_FILE, base.TOKENIZER_JSON, base.TOKENIZER_CONFIG_FILE
_ONE_TOKEN = "Use a vocab.txt with one token per line."
# Placeholders in released vocabularies, which users may replace by their own tokens.
_UNUSED = re.compile(r"\[unused\d+\]")


def vocabulary_text(vocab_file: str) -> str:
    """Reads the vocabulary in vocab.txt or `tokenizer.json`, and appends added tokens that it does not contain.

    Raises:
      InputError: if the file is missing, empty or not UTF-8, or a `tokenizer.json` has no WordPiece vocabulary. See
        also `added_tokens`.
    """
    text = base.base_text(vocab_file)
    size = len(base.lines_of(text))
    added = sorted((token.id, content) for content, token in added_tokens(vocab_file).items() if token.id >= size)
    if not added:
        return text
    return text.removesuffix("\n") + "\n" + "".join(f"{content}\n" for _, content in added)


def load_vocab(vocab_file: str) -> collections.OrderedDict[str, int]:
    """Reads a vocabulary with one token per line, like the original code.

    The id of a token is its 0-based line number. If a token occurs twice, it has the id of the last occurrence, and the
    position of the first occurrence in the dict. White space around tokens and all carriage returns are removed. A
    blank line is the token "".

    Raises:
      InputError: if the file is missing, empty or not UTF-8, or has several columns.
    """
    vocab: collections.OrderedDict[str, int] = collections.OrderedDict()
    for index, token in enumerate(base.lines_of(vocabulary_text(vocab_file))):
        vocab[token] = index
    if re.search(r"\S[ \t,;]\S", first := next(iter(vocab))):
        where = f"--vocab_file: {vocab_file}, line 1"
        raise InputError(f"{where}: {first!r} is not one token. Keep only the tokens' column.")
    return vocab


def check_vocab_file(vocab_file: str) -> None:
    """Checks that the programs can use a vocabulary.

    Raises:
      InputError: if a special token is missing, a token occurs twice, is too long or contains white space, a line is
        blank, or [PAD] is not the first token.
    """
    lines = vocabulary_text(vocab_file).replace("\r\n", "\n").removesuffix("\n").split("\n")
    unused = f"[unused{len(lines)}]"
    first_line: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        piece, problem = line.strip(), ""
        if "\r" in line:
            problem = f"a carriage return inside the line {line!r}. Save the file with \\n line ends."
        elif not line.strip(" \t"):  # a line separator in the released Chinese vocabulary becomes the token ""
            is_inside = any(map(str.strip, lines[number:]))
            remedy = f"Write {unused} there, to keep the ids of the other tokens." if is_inside else "Remove the line."
            problem = f"the line is blank. {remedy}"
        elif base.NOT_IN_PIECES.search(piece):
            problem = f"the token {piece[:40]!r} contains white space or a control character. {_ONE_TOKEN}"
        elif len(piece) > len(CONTINUATION) + MAX_CHARS_PER_WORD:
            problem = f"the token {piece[:40]!r}... has {len(piece)} characters; the limit is {MAX_CHARS_PER_WORD}. "
            problem += _ONE_TOKEN
        elif piece in first_line:
            remedy = f"Rename it there, for example to {unused}, because the id of a token is its last line"
            problem = f"the token {piece!r} is already on line {first_line[piece]}. {remedy}. "
            problem += "This keeps the ids of the other tokens."
        if problem:
            raise InputError(problem, f"--vocab_file: {vocab_file}, line {number}")
        first_line[piece] = number
    problem = ""
    if missing := [token for token in SPECIAL_TOKENS if token not in first_line]:
        known = ", ".join(SPECIAL_TOKENS)
        problem = f"no {', '.join(missing)}. Use the vocab.txt of a BERT model, with all of {known}."
    elif first_line[PAD] != 1:
        problem = f"[PAD] on line {first_line[PAD]}. The id of padding is 0. In a new vocabulary, move [PAD] to the "
        problem += "first line. Models that were trained with this vocabulary are not supported."
    if problem:
        raise InputError(f"--vocab_file: {vocab_file} has {problem}")


def vocabulary_hash(vocab_file: str) -> str:
    """Returns the SHA-256 digest of a vocabulary. Different line ends give the same digest."""
    return _digest(vocabulary_text(vocab_file).replace("\r\n", "\n").rstrip("\n").split("\n"))


def _digest(tokens: list[str]) -> str:
    return hashlib.sha256("\n".join(tokens).encode()).hexdigest()


def vocabulary_record(vocab_file: str) -> dict[str, Any]:
    """Returns a record that identifies a vocabulary; see `fits_record`.

    Returns:
      `vocab_sha256`, the digest of the vocabulary; `vocab_unused`, the ranges of the ids of [unusedN] tokens, which
      users may replace; and `vocab_used_sha256`, the digest without these tokens.
    """
    tokens = list(load_vocab(vocab_file))
    unused = [number for number, token in enumerate(tokens) if _UNUSED.fullmatch(token)]
    # In a run of consecutive ids, the difference between id and index is constant.
    groups = itertools.groupby(enumerate(unused), key=lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in group] for _, group in groups]
    ranges = [[run[0], run[-1] + 1] for run in runs]
    return {
        "vocab_sha256": vocabulary_hash(vocab_file),
        "vocab_unused": ranges,
        "vocab_used_sha256": _digest(_without(tokens, ranges)),
    }


def _without(tokens: list[str], ranges: list[list[int]]) -> list[str]:
    kept = list(tokens)
    for first, end in ranges:
        kept[first:end] = [""] * len(kept[first:end])
    return kept


def fits_record(record: Mapping[str, Any], vocab_file: str) -> bool:
    """Returns whether a vocabulary matches a record, except for replaced [unusedN] tokens. An empty record matches.

    Args:
      record: see `vocabulary_record`; old records have only `vocab_sha256`.
      vocab_file: the vocabulary.
    """
    if record.get("vocab_sha256") in (None, vocabulary_hash(vocab_file)):
        return True
    tokens, ranges = list(load_vocab(vocab_file)), record.get("vocab_unused")
    return ranges is not None and record.get("vocab_used_sha256") == _digest(_without(tokens, ranges))


def check_same_ids(vocab_file: str, other: str, is_complete: bool = False) -> None:
    """Checks that two vocabularies have the same token at each id. One may be longer, and [unusedN] may be replaced.

    Args:
      vocab_file: the vocabulary.
      other: the vocabulary of the model.
      is_complete: whether `vocab_file` must have all tokens of `other`.

    Raises:
      InputError: if two tokens differ; the message names the first difference.
    """
    tokens = itertools.chain(load_vocab(vocab_file), itertools.repeat("") if is_complete else ())
    for number, (token, expected) in enumerate(zip(tokens, load_vocab(other), strict=False)):
        if token != expected and not (_UNUSED.fullmatch(token) or _UNUSED.fullmatch(expected)):
            where = f"--vocab_file: {vocab_file}, line {number + 1}"
            problem = f"id {number} is {token!r}, but {expected!r} in the model's own {other}"
            raise InputError(f"{where}: {problem}. Use the vocabulary of the model.")
