"""Reads added tokens, which are never split, from Hugging Face's files."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypedDict

from msgspec import Meta

from bert_tf.runtime import files
from bert_tf.runtime.errors import InputError
from bert_tf.runtime.messages import say_once
from bert_tf.text import base_vocabulary as base
from bert_tf.text.characters import clean_only, strip_accents

_FILES_OF_ADDED_TOKENS = (base.TOKENIZER_JSON, base.SPECIAL_TOKENS_MAP, "added_tokens.json", base.TOKENIZER_CONFIG_FILE)
# BERT does not use these special tokens, but keeps them whole.
_END_TOKENS = ("bos_token", "eos_token")


class _AddedTokensConfig(TypedDict, total=False):
    added_tokens_decoder: dict[Annotated[str, Meta(pattern=r"^[0-9]{1,9}$")], base.AddedTokenFields]
    additional_special_tokens: list[str | base.AddedTokenFields] | None
    extra_special_tokens: list[str | base.AddedTokenFields] | dict[str, str | base.AddedTokenFields] | None
    bos_token: str | base.AddedTokenFields | None
    eos_token: str | base.AddedTokenFields | None


class AddedToken(NamedTuple):
    """A token that is never split.

    Attributes:
      id: the id of the token.
      normalized: if True and the tokenizer converts to lower case, the token matches in upper and lower case. This is
        Hugging Face's setting `normalized`, except that accents must match.
    """

    id: int
    normalized: bool = False


def added_tokens(vocab_file: str) -> dict[str, AddedToken]:
    """Reads the added tokens from Hugging Face's files next to a vocabulary, without the special tokens.

    The files are `tokenizer.json`, `special_tokens_map.json`, `added_tokens.json` and `tokenizer_config.json`. If they
    differ, `tokenizer_config.json` is used.

    Raises:
      InputError: if the tokenizer would split a token, or the id of a token differs from its id in the vocabulary.
    """
    where, fields = {}, {}

    def add(path: str, token: base.AddedTokenFields, number: int) -> None:
        where[token["content"]], fields[token["content"]] = path, {**token, "id": number}

    paths = (os.path.join(os.path.dirname(vocab_file), name) for name in _FILES_OF_ADDED_TOKENS)
    tokenizer_json, tokens_map, added_json, config_json = paths
    if os.path.basename(vocab_file) in (base.VOCAB_FILE, base.TOKENIZER_JSON):
        for token in base.read_json(tokenizer_json, base.TokenizerJson).get("added_tokens", []):
            add(tokenizer_json, token, token.get("id", -1))
    special: dict[str, tuple[str, base.AddedTokenFields]] = {}
    for path in (tokens_map, config_json):
        settings = base.read_json(path, _AddedTokensConfig)
        extra = settings.get("extra_special_tokens") or []
        tokens = [*(settings.get("additional_special_tokens") or []), *(settings.get(name) for name in _END_TOKENS)]
        tokens += extra.values() if isinstance(extra, dict) else extra
        tokens += (token for name in base.NAMED_TOKENS if isinstance(token := settings.get(name), dict))
        for token in filter(None, tokens):
            token_fields = token if isinstance(token, dict) else {"content": token}
            if isinstance(content := token_fields.get("content"), str):
                special[content] = path, token_fields
    for content, number in base.read_json(added_json, dict[str, int]).items():
        add(added_json, {"content": content, "normalized": content not in special}, number)
    for number, token in settings.get("added_tokens_decoder", {}).items():
        add(config_json, token, int(number))
    if not fields and not special:
        return {}
    ids = {token: number for number, token in enumerate(base.lines_of(base.base_text(vocab_file)))}
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
        elif content not in base.SPECIAL_TOKENS and (not content or base.NOT_IN_PIECES.search(content)):
            problem = "is empty or contains white space, so it can't be kept whole. Remove it."
        elif token.get("single_word") or (content in base.SPECIAL_TOKENS and token.get("normalized")):
            name = "single_word" if token.get("single_word") else "normalized"
            problem = f"has {name}=true, which BERT's tokenizer does not have. Remove this setting."
        if problem:
            raise InputError(f"--vocab_file: {where[content]}: the added token {content!r} {problem}")
    added = {
        content: AddedToken(token["id"], token.get("normalized", not token.get("special", content in special)))
        for content, token in fields.items()
        if content not in base.SPECIAL_TOKENS
    }
    for content in (content for content, token in added.items() if token.normalized):
        if "".join(map(clean_only, strip_accents(content))) != content:
            say_once(f"{where[content]}: the added token {content!r} is found only with the same accents and marks.")
    return added


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
