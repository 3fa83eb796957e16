"""Reads the vocabulary in a file, without the added tokens. Has the names of special tokens and of tokenizer files."""

import os
import re
from typing import Any, NotRequired, TypedDict

from bert_tf.runtime import files, json_files
from bert_tf.runtime.files import InputError

SPECIAL_TOKENS = PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
# The names of the special tokens in Hugging Face's files.
NAMED_TOKENS = {"unk_token": UNK, "sep_token": SEP, "pad_token": PAD, "cls_token": CLS, "mask_token": MASK}
VOCAB_FILE = "vocab.txt"
# Hugging Face's file with the vocabulary and all settings of a tokenizer.
TOKENIZER_JSON = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
# A token with this prefix continues a word.
CONTINUATION = "##"
# Longer words become [UNK].
MAX_CHARS_PER_WORD = 200
# A file whose tokens contain these characters is not a vocabulary.
NOT_IN_PIECES = re.compile(r"[ \t\x00-\x1f]")


class _Model(TypedDict, total=False):
    type: str
    vocab: dict[str, int] | list[Any]  # a list in models other than WordPiece
    continuing_subword_prefix: str
    unk_token: str
    max_input_chars_per_word: int


class AddedTokenFields(TypedDict):
    """The fields of an added token that this project reads."""

    content: str
    id: NotRequired[int]
    normalized: NotRequired[bool]
    special: NotRequired[bool]
    single_word: NotRequired[bool]


class TokenizerJson(TypedDict, total=False):
    """The parts of `tokenizer.json` that this project reads."""

    model: _Model
    normalizer: dict[str, Any] | None
    pre_tokenizer: dict[str, Any] | None
    truncation: dict[str, Any] | None
    padding: dict[str, Any] | None
    post_processor: dict[str, Any] | None
    added_tokens: list[AddedTokenFields]


def read_json(path: str, kind: Any) -> Any:
    """Reads a JSON file of a tokenizer. Returns an empty dict if there is no such file."""
    return json_files.read(path, "--vocab_file", kind) if files.exists(path) else {}


def base_text(vocab_file: str) -> str:
    """Reads vocab.txt, or the vocabulary in `tokenizer.json`, without the added tokens.

    Raises:
      InputError: if `tokenizer.json` is not a WordPiece tokenizer of BERT.
    """
    if os.path.basename(vocab_file) != TOKENIZER_JSON:
        return files.read_text(vocab_file, "--vocab_file")
    where = f"--vocab_file: {vocab_file}"
    model = json_files.read(vocab_file, "--vocab_file", TokenizerJson).get("model", {})
    if model.get("type") != "WordPiece" or not isinstance(model.get("vocab"), dict):
        raise InputError(f"{where} is a tokenizer of type {model.get('type')!r}. Use a WordPiece tokenizer.")
    for name, expected in (("continuing_subword_prefix", CONTINUATION), ("unk_token", UNK)):
        if model.get(name, expected) != expected:
            raise InputError(f"{where}: {name} is {model[name]!r}. Only {expected!r} is supported.")
    pieces = sorted(model["vocab"], key=model["vocab"].get)
    if [model["vocab"][piece] for piece in pieces] != list(range(len(pieces))):
        raise InputError(f"--vocab_file: the ids in {vocab_file} have gaps. Use the ids 0 to {len(pieces) - 1}.")
    # A token of white space never occurs. The released Chinese vocabulary has U+2028.
    if broken := [piece for piece in pieces if "\n" in piece or piece.strip() not in ("", piece)]:
        raise InputError(f"{where}: the token {broken[0]!r:.60} has white space. Use another tokenizer.")
    return "".join(f"{piece}\n" for piece in pieces)


def lines_of(text: str) -> list[str]:
    """Splits a vocabulary into tokens, like the original code. The id of a token is its index."""
    lines = [line.strip() for line in text.replace("\r", "").split("\n")]
    return lines if lines[-1] else lines[:-1]
