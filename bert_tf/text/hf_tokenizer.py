"""Reads the tokenizer's settings in Hugging Face's files. Rules that BERT's tokenizer does not have are errors."""

import functools
import os
from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

from msgspec import Meta

from bert_tf.runtime import files
from bert_tf.runtime.errors import InputError, check
from bert_tf.text import base_vocabulary as base
from bert_tf.text.base_vocabulary import CLS, CONTINUATION, NAMED_TOKENS, SEP, TOKENIZER_JSON, read_json
from bert_tf.text.vocabulary import check_same_ids

SENTENCE_CONFIG_FILE = "sentence_bert_config.json"
CONFIG_FILE = "config.json"
TOKENIZER_CLASSES = ("BertTokenizer", "BertTokenizerFast")
# Generic classes of transformers 4 and 5. The type of their tokenizer is in `tokenizer.json`.
_GENERIC_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")

RULES = ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "max_input_chars_per_word")
# Settings that would change the ids of a text or a pair, and the values that do not.
_REQUIRED = {
    "tokenizer_class": (*TOKENIZER_CLASSES, None),
    "do_basic_tokenize": (True, None),
    "never_split": (None, []),
    "clean_text": (True, None),
    "wordpieces_prefix": (CONTINUATION, None),
    "split_special_tokens": (False, None),
    "padding_side": ("right", None),
    "truncation_side": ("right", None),
    "model_type": ("bert", None),
    **{name: (token, None) for name, token in NAMED_TOKENS.items()},
}
# Settings that change no ids, or only the length of sequences, which the caller sets.
_WITHOUT_EFFECT = frozenset(
    {
        *("backend", "chat_template", "clean_up_tokenization_spaces", "fast_tokenizer_files", "files_loaded"),
        *("full_tokenizer_file", "init_inputs", "is_local", "local_files_only", "max_len", "max_length"),
        *("name_or_path", "pad_to_multiple_of", "pad_token_type_id", "processor_class", "special_tokens_map_file"),
        *("stride", "tokenizer_file", "transformers_version", "truncation_strategy", "use_fast", "vocab_size"),
        *("bos_token", "eos_token"),
    }
)
# The rules in the normalizer of `tokenizer.json`.
_NORMALIZER = {"lowercase": "do_lower_case", "strip_accents": "strip_accents", "handle_chinese_chars": RULES[2]}
# The sequences of the post-processor in `tokenizer.json`: tokens and texts with their segment ids.
_SINGLE = (("SpecialToken", CLS, 0), ("Sequence", "A", 0), ("SpecialToken", SEP, 0))
_PAIR = (*_SINGLE, ("Sequence", "B", 1), ("SpecialToken", SEP, 1))


class _Settings(TypedDict, total=False):
    do_lower_case: bool
    strip_accents: bool | None
    tokenize_chinese_chars: bool
    max_input_chars_per_word: Annotated[int, Meta(ge=1)]
    model_input_names: list[str] | None
    added_tokens_decoder: dict[str, Any]
    additional_special_tokens: list[Any] | None
    extra_special_tokens: list[Any] | dict[str, Any] | None
    model_max_length: float | None
    vocab_sha256: str
    vocab_unused: list[tuple[int, int]]
    vocab_used_sha256: str


def read_tokenizer_config(vocab_file: str) -> dict[str, Any]:
    """Reads and checks Hugging Face's settings next to a vocabulary. Without such files, returns an empty dict.

    `tokenizer_config.json` takes precedence over `tokenizer.json`.

    Raises:
      InputError: if a BERT tokenizer does not support a setting; the message names the setting.
    """
    directory = functools.partial(os.path.join, os.path.dirname(vocab_file))
    path, tokens_map, tokenizer_json = map(
        directory, (base.TOKENIZER_CONFIG_FILE, base.SPECIAL_TOKENS_MAP, TOKENIZER_JSON)
    )
    values = read_json(path, _Settings)
    has_json = os.path.basename(vocab_file) in (base.VOCAB_FILE, TOKENIZER_JSON) and files.exists(tokenizer_json)
    is_generic = has_json and values.get("tokenizer_class") in _GENERIC_CLASSES
    if values.get("tokenizer_class") == _GENERIC_CLASSES[1]:  # the default of this class
        values = {"model_input_names": ["input_ids", "attention_mask"]} | values
    _check_settings(path, values | {"tokenizer_class": None} if is_generic else values)
    _check_settings(tokens_map, read_json(tokens_map, _Settings))
    if "tokenizer_class" not in values:
        config = directory(CONFIG_FILE)
        _check_settings(config, {"tokenizer_class": read_json(config, dict[str, Any]).get("tokenizer_class")})
    recorded = _rules_of_tokenizer_json(tokenizer_json) if has_json else {}
    if has_json and os.path.basename(vocab_file) != TOKENIZER_JSON:
        check_same_ids(vocab_file, tokenizer_json, is_complete=True)
    rules = values | recorded if is_generic else recorded | values
    sentence_config = directory(SENTENCE_CONFIG_FILE)
    if rules.get("do_lower_case") is False and files.exists(sentence_config):
        # sentence-transformers converts texts to lower case before it calls this tokenizer, and keeps accents.
        lowers = read_json(sentence_config, _Settings).get("do_lower_case", False)
        rules |= {"do_lower_case": lowers, "strip_accents": bool(rules.get("strip_accents"))}
    return rules


def _check_settings(path: str, values: Mapping[str, Any]) -> None:
    """Checks the settings in a file of Hugging Face. Settings of unknown effect must be empty."""
    for name, value in values.items():
        value = value.get("content", value) if isinstance(value, dict) and name in NAMED_TOKENS else value
        if name in _REQUIRED:
            _require(path, name, value, _REQUIRED[name])
        elif name not in _WITHOUT_EFFECT | _Settings.__annotations__.keys() and value not in (None, False, "", [], {}):
            raise _other_tokens(path, f"{name} {str(value)[:60]!r}, which may change the tokens")
    names = values.get("model_input_names")
    if names is not None and "token_type_ids" not in names:
        raise _other_tokens(path, f"model_input_names {names!r:.60} without 'token_type_ids', so all segments are 0")


def _rules_of_tokenizer_json(path: str) -> dict[str, Any]:
    values = read_json(path, base.TokenizerJson)
    for part, kind in (("normalizer", "BertNormalizer"), ("pre_tokenizer", "BertPreTokenizer")):
        _require(path, f"{part} of type", (values.get(part) or {}).get("type"), (kind,))
    for part in ("truncation", "padding"):
        _require(path, f"{part} at the side", (values.get(part) or {}).get("direction", "Right"), ("Right",))
    model = values.get("model", {})
    post_processor = values.get("post_processor") or {}
    if post_processor not in _post_processors(model.get("vocab", {})):
        kind = post_processor.get("type")
        tokens = f"{CLS} A {SEP} B {SEP} with segments 0 and 1"
        raise _other_tokens(path, f"post_processor of type {kind!r} that does not make {tokens}")
    normalizer = values.get("normalizer") or {}
    _require(path, "clean_text", normalizer.get("clean_text", True), (True,))
    rules = {rule: normalizer[name] for name, rule in _NORMALIZER.items() if name in normalizer}
    rules |= {name: model[name] for name in RULES if name in model}
    check(rules, _Settings, f"--vocab_file: {path}")
    return rules


def _post_processors(vocab: Mapping[str, int]) -> list[dict[str, Any]]:
    """Returns the two forms of BERT's post-processor in `tokenizer.json`."""
    single, pair = (
        [{kind: {"id": name, "type_id": segment}} for kind, name, segment in parts] for parts in (_SINGLE, _PAIR)
    )
    ids = {token: vocab.get(token) for token in (CLS, SEP)}
    special = {token: {"id": token, "ids": [number], "tokens": [token]} for token, number in ids.items()}
    return [
        {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special},
        {"type": "BertProcessing", "sep": [SEP, ids[SEP]], "cls": [CLS, ids[CLS]]},
    ]


def _require(path: str, name: str, value: Any, allowed: tuple) -> None:
    if value not in allowed:
        raise _other_tokens(path, f"{name} {value!r:.60} instead of {allowed[0]!r}")


def _other_tokens(path: str, setting: str) -> InputError:
    return InputError(
        f"--vocab_file: {path} has {setting}. Such a tokenizer is not supported, because it would produce other "
        "tokens. Use the tokenizer of a BERT model."
    )
