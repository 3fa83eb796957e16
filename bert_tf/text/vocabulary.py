"""Reads, checks and compares vocabulary files. Reads added tokens from Hugging Face's files."""

import collections
import hashlib
import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict

from msgspec import Meta

from bert_tf.runtime import files, json_files
from bert_tf.runtime.files import InputError

SPECIAL_TOKENS = PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
VOCAB_FILE = "vocab.txt"
# Hugging Face's file with the vocabulary and all settings of a tokenizer.
TOKENIZER_JSON = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
_FILES_OF_ADDED_TOKENS = (TOKENIZER_JSON, "added_tokens.json", TOKENIZER_CONFIG_FILE)
# Placeholders in released vocabularies, which users may replace by their own tokens.
_UNUSED = re.compile(r"\[unused\d+\]")
# A token with this prefix continues a word.
CONTINUATION = "##"
# Longer words become [UNK].
MAX_CHARS_PER_WORD = 200
# A file whose tokens contain these characters is not a vocabulary.
_NOT_IN_PIECES = re.compile(r"[ \t\x00-\x1f]")


class _Model(TypedDict, total=False):
    type: str
    vocab: dict[str, int] | list[Any]  # a list in models other than WordPiece
    continuing_subword_prefix: str
    unk_token: str
    max_input_chars_per_word: int


class _AddedTokenFields(TypedDict):
    content: str
    id: NotRequired[int]
    normalized: NotRequired[bool]
    single_word: NotRequired[bool]


class TokenizerJson(TypedDict, total=False):
    """The parts of `tokenizer.json` that this project reads."""

    model: _Model
    normalizer: dict[str, Any] | None
    pre_tokenizer: dict[str, Any] | None
    truncation: dict[str, Any] | None
    padding: dict[str, Any] | None
    post_processor: dict[str, Any] | None
    added_tokens: list[_AddedTokenFields]


class _AddedTokensConfig(TypedDict, total=False):
    added_tokens_decoder: dict[Annotated[str, Meta(pattern=r"^[0-9]{1,9}$")], _AddedTokenFields]
    additional_special_tokens: list[str | _AddedTokenFields] | None
    extra_special_tokens: list[str | _AddedTokenFields] | dict[str, str | _AddedTokenFields] | None


class AddedToken(NamedTuple):
    """A token that is never split.

    Attributes:
      id: the id of the token.
      normalized: if True and the tokenizer converts to lower case, the token matches in upper and lower case. This is
        Hugging Face's setting `normalized`, except that accents must match.
    """

    id: int
    normalized: bool = False


def base_text(vocab_file: str) -> str:
    """Reads vocab.txt, or the vocabulary in `tokenizer.json`, without the added tokens.

    Raises:
      InputError: if `tokenizer.json` is not a WordPiece tokenizer of BERT.
    """
    if os.path.basename(vocab_file) != TOKENIZER_JSON:
        return files.read_text(vocab_file, "--vocab_file")
    model = json_files.read(vocab_file, "--vocab_file", TokenizerJson).get("model", {})
    if model.get("type") != "WordPiece" or not isinstance(model.get("vocab"), dict):
        raise InputError(
            f"--vocab_file: {vocab_file} is a tokenizer of type {model.get('type')!r}. Use a WordPiece tokenizer."
        )
    for name, expected in (("continuing_subword_prefix", CONTINUATION), ("unk_token", UNK)):
        if model.get(name, expected) != expected:
            raise InputError(f"--vocab_file: {vocab_file}: {name} is {model[name]!r}. Only {expected!r} is supported.")
    pieces = sorted(model["vocab"], key=model["vocab"].get)
    if [model["vocab"][piece] for piece in pieces] != list(range(len(pieces))):
        raise InputError(f"--vocab_file: the ids in {vocab_file} have gaps. Use the ids 0 to {len(pieces) - 1}.")
    if broken := [piece for piece in pieces if "\n" in piece]:
        raise InputError(
            f"--vocab_file: {vocab_file}: the token {broken[0]!r:.60} has a line end. Use another tokenizer."
        )
    return "".join(f"{piece}\n" for piece in pieces)


def _lines(text: str) -> list[str]:
    """Splits a vocabulary into tokens, like the original code. The id of a token is its index."""
    lines = [line.strip() for line in text.replace("\r", "").split("\n")]
    return lines if lines[-1] else lines[:-1]


def added_tokens(vocab_file: str) -> dict[str, AddedToken]:
    """Reads the added tokens from Hugging Face's files next to a vocabulary, without the special tokens.

    The files are `tokenizer.json`, `special_tokens_map.json`, `added_tokens.json` and `tokenizer_config.json`. If they
    differ, `tokenizer_config.json` is used.

    Raises:
      InputError: if the tokenizer would split a token, or the id of a token differs from its id in the vocabulary.
    """
    where, fields = {}, {}

    def add(path: str, token: _AddedTokenFields, number: int) -> None:
        where[token["content"]], fields[token["content"]] = path, {**token, "id": number}

    directory = os.path.dirname(vocab_file)
    tokenizer_json, added_json, config_json = (os.path.join(directory, name) for name in _FILES_OF_ADDED_TOKENS)
    config: _AddedTokensConfig = {}
    if files.exists(config_json):
        config = json_files.read(config_json, "--vocab_file", _AddedTokensConfig)
    if os.path.basename(vocab_file) in (VOCAB_FILE, TOKENIZER_JSON) and files.exists(tokenizer_json):
        for token in json_files.read(tokenizer_json, "--vocab_file", TokenizerJson).get("added_tokens", []):
            add(tokenizer_json, token, token.get("id", -1))
    special: dict[str, tuple[str, _AddedTokenFields]] = {}
    for path in filter(files.exists, (os.path.join(directory, SPECIAL_TOKENS_MAP), config_json)):
        settings = json_files.read(path, "--vocab_file", _AddedTokensConfig)
        extra = settings.get("extra_special_tokens") or []
        named = list(extra.values()) if isinstance(extra, dict) else extra
        for token in [*(settings.get("additional_special_tokens") or []), *named]:
            token_fields = token if isinstance(token, dict) else {"content": token}
            special[token_fields["content"]] = path, token_fields
    if files.exists(added_json):
        for content, number in json_files.read(added_json, "--vocab_file", dict[str, int]).items():
            add(added_json, {"content": content, "normalized": content not in special}, number)
    for number, token in config.get("added_tokens_decoder", {}).items():
        add(config_json, token, int(number))
    if not fields and not special:
        return {}
    ids = {token: number for number, token in enumerate(_lines(base_text(vocab_file)))}
    next_id = max(len(ids), *(token["id"] + 1 for token in fields.values()), 0)
    for content, (path, token) in special.items():
        if content not in fields:  # as in transformers, new tokens have the next ids
            add(path, token, ids.get(content, next_id))
            next_id += content not in ids
    for content, token in sorted(fields.items(), key=lambda item: item[1]["id"]):
        number = ids.setdefault(content, len(ids))
        problem = ""
        if number != token["id"]:
            problem = f"has id {token['id']}, but {number} is its id in {vocab_file}. Use the files of one tokenizer."
        elif content not in SPECIAL_TOKENS and (not content or _NOT_IN_PIECES.search(content)):
            problem = "is empty or contains white space, so it can't be kept whole. Remove it."
        elif token.get("single_word") and content not in SPECIAL_TOKENS:
            problem = "has single_word=true, which BERT's tokenizer does not have. Remove this setting."
        if problem:
            raise InputError(f"--vocab_file: {where[content]}: the added token {content!r} {problem}")
    return {
        content: AddedToken(token["id"], token.get("normalized", False))
        for content, token in fields.items()
        if content not in SPECIAL_TOKENS
    }


def token_list(value: str | os.PathLike[str] | Sequence[str], flag_name: str) -> list[str]:
    """Returns the tokens in the value of a flag: one token, several tokens, or a file with one token per line."""
    values = [os.fspath(value)] if isinstance(value, str | os.PathLike) else value
    if len(values) == 1 and files.exists(values[0]):
        return files.read_text(values[0], flag_name).split()
    return list(values)


def added_tokens_decoder(tokens: Mapping[str, AddedToken]) -> dict[str, dict[str, Any]]:
    """Returns added tokens in the format of `tokenizer_config.json`."""
    return {
        str(token.id): {"content": content, "normalized": token.normalized, "special": not token.normalized}
        | dict.fromkeys(("lstrip", "rstrip", "single_word"), False)
        for content, token in tokens.items()
    }


def kept_forms(exact: Iterable[str], added: Mapping[str, bool], do_lower_case: bool) -> dict[str, tuple[str, str]]:
    """Returns the spellings of tokens that are never split.

    Args:
      exact: tokens with only one spelling.
      added: maps each added token to `AddedToken.normalized`.
      do_lower_case: whether the tokenizer converts to lower case.

    Returns:
      Maps each token to two strings of the same length as the token. A text matches the token if each character equals
      the character at this position in one of the two strings.
    """
    forms = {token: (token, token) for token in exact}
    for token, is_normalized in added.items():
        lower = upper = token
        if is_normalized and do_lower_case:
            lower = "".join(char.lower() if len(char.lower()) == 1 else char for char in token)
            upper = "".join(char.upper() if char.upper().lower() == char else char for char in lower)
        forms[token] = lower, upper if len(upper) == len(lower) else lower
    return forms


def vocabulary_text(vocab_file: str) -> str:
    """Reads the vocabulary in vocab.txt or `tokenizer.json`, and appends added tokens that it does not contain.

    Raises:
      InputError: if the file is missing, empty or not UTF-8, or a `tokenizer.json` has no WordPiece vocabulary. See
        also `added_tokens`.
    """
    text = base_text(vocab_file)
    size = len(_lines(text))
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
    for index, token in enumerate(_lines(vocabulary_text(vocab_file))):
        vocab[token] = index
    if re.search(r"\S[ \t,;]\S", first := next(iter(vocab))):
        raise InputError(
            f"--vocab_file: {vocab_file}, line 1: {first!r} is not one token. Keep only the tokens' column."
        )
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
        where = f"--vocab_file: {vocab_file}, line {number}"
        if "\r" in line:
            raise InputError(f"{where}: a carriage return inside the line {line!r}. Save the file with \\n line ends.")
        piece = line.strip()
        if not line.strip(" \t"):  # a line separator in the released Chinese vocabulary becomes the token ""
            is_inside = any(map(str.strip, lines[number:]))
            remedy = f"Write {unused} there, to keep the ids of the other tokens." if is_inside else "Remove the line."
            raise InputError(f"{where}: the line is blank. {remedy}")
        if _NOT_IN_PIECES.search(piece):
            raise InputError(
                f"{where}: the token {piece[:40]!r} contains white space or a control character. Use a vocab.txt with "
                "one token per line."
            )
        if len(piece) > len(CONTINUATION) + MAX_CHARS_PER_WORD:
            raise InputError(
                f"{where}: the token {piece[:40]!r}... has {len(piece)} characters; the limit is {MAX_CHARS_PER_WORD}. "
                "Use a vocab.txt with one token per line."
            )
        if piece in first_line:
            raise InputError(
                f"{where}: the token {piece!r} is already on line {first_line[piece]}. Rename it there, for example to "
                f"{unused}, because the id of a token is its last line. This keeps the ids of the other tokens."
            )
        first_line[piece] = number
    missing = [token for token in SPECIAL_TOKENS if token not in first_line]
    if missing:
        raise InputError(
            f"--vocab_file: {vocab_file} has no {', '.join(missing)}. Use the vocab.txt of a BERT model, with all of "
            f"{', '.join(SPECIAL_TOKENS)}."
        )
    if first_line[PAD] != 1:
        raise InputError(
            f"--vocab_file: {vocab_file} has [PAD] on line {first_line[PAD]}. The id of padding is 0. In a new "
            "vocabulary, move [PAD] to the first line. Models that were trained with this vocabulary are not supported."
        )


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


def check_same_ids(vocab_file: str, other: str) -> None:
    """Checks that two vocabularies have the same token at each id. One may be longer, and [unusedN] may be replaced.

    Raises:
      InputError: if two tokens differ; the message names the first difference.
    """
    pairs = zip(load_vocab(vocab_file), load_vocab(other), strict=False)
    for number, (token, expected) in enumerate(pairs):
        if token != expected and not (_UNUSED.fullmatch(token) or _UNUSED.fullmatch(expected)):
            raise InputError(
                f"--vocab_file: {vocab_file}, line {number + 1}: id {number} is {token!r}, but {expected!r} in the "
                f"model's own {other}. Use the vocabulary of the model."
            )
