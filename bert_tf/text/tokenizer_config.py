"""The rules of a model's tokenizer: finds them, checks that all files agree, and writes them.

The rules are recorded in `tokenizer_config.json` next to a vocabulary (Hugging Face's file), in `run.json`, and in the
metadata files of records. Rules that BERT's tokenizer does not have are errors.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypedDict

from msgspec import Meta

from bert_tf.runtime import files, json_files
from bert_tf.runtime.errors import InputError, check
from bert_tf.runtime.messages import say_once
from bert_tf.text.characters import strip_accents as without_accents
from bert_tf.text.vocabulary import (
    CLS,
    CONTINUATION,
    MASK,
    PAD,
    SEP,
    SPECIAL_TOKENS_MAP,
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_JSON,
    UNK,
    VOCAB_FILE,
    AddedToken,
    TokenizerJson,
    added_tokens,
    added_tokens_decoder,
    base_text,
    check_same_ids,
    fits_record,
    load_vocab,
    vocabulary_record,
)

SENTENCE_CONFIG_FILE = "sentence_bert_config.json"
CONFIG_FILE = "config.json"
TOKENIZER_CLASSES = ("BertTokenizer", "BertTokenizerFast")
# Generic classes. The type of their tokenizer is in `tokenizer.json`.
_GENERIC_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
_CLASS = ("tokenizer_class",)

_SPECIAL_TOKENS = {"unk_token": UNK, "sep_token": SEP, "pad_token": PAD, "cls_token": CLS, "mask_token": MASK}
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
    **{name: (token, None) for name, token in _SPECIAL_TOKENS.items()},
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
# The parts of `tokenizer.json` and their supported types.
_PARTS = {"normalizer": ("BertNormalizer",), "pre_tokenizer": ("BertPreTokenizer",)}
# The rules in the normalizer of `tokenizer.json`.
_NORMALIZER = {"lowercase": "do_lower_case", "strip_accents": "strip_accents", "handle_chinese_chars": RULES[2]}
# The sequences of the post-processor in `tokenizer.json`: tokens and texts with their segment ids.
_SINGLE = (("SpecialToken", CLS, 0), ("Sequence", "A", 0), ("SpecialToken", SEP, 0))
_PAIR = (*_SINGLE, ("Sequence", "B", 1), ("SpecialToken", SEP, 1))
# A model is taken as uncased if at most this fraction of its tokens have capitals or accents. Users of an uncased model
# may have replaced some unused tokens by words with capitals.
_FEW = 0.02

_LOWER_MODELS = (
    "uncased_L-24_H-1024_A-16",
    "uncased_L-12_H-768_A-12",
    "multilingual_L-12_H-768_A-12",
    "chinese_L-12_H-768_A-12",
)
_CASED_MODELS = ("cased_L-12_H-768_A-12", "cased_L-24_H-1024_A-16", "multi_cased_L-12_H-768_A-12")
_RELEASED_NAME = re.compile(r"(?:.*_)?(uncased|multilingual|chinese|cased)_L-\d+_H-\d+_A-\d+")


class _Settings(TypedDict, total=False):
    do_lower_case: bool
    strip_accents: bool | None
    tokenize_chinese_chars: bool
    max_input_chars_per_word: Annotated[int, Meta(ge=1)]
    model_input_names: list[str] | None
    added_tokens_decoder: dict[str, Any]
    additional_special_tokens: list[Any] | None
    extra_special_tokens: list[Any] | dict[str, Any] | None
    model_max_length: float
    vocab_sha256: str
    vocab_unused: list[tuple[int, int]]
    vocab_used_sha256: str


def read_tokenizer_config(vocab_file: str) -> dict[str, Any]:
    """Reads and checks Hugging Face's settings next to a vocabulary. Without such files, returns an empty dict.

    `tokenizer_config.json` takes precedence over `tokenizer.json`.

    Raises:
      InputError: if a BERT tokenizer does not support a setting; the message names the setting.
    """
    directory = os.path.dirname(vocab_file)
    path, tokens_map, config, tokenizer_json, sentence_config = (
        os.path.join(directory, name)
        for name in (TOKENIZER_CONFIG_FILE, SPECIAL_TOKENS_MAP, CONFIG_FILE, TOKENIZER_JSON, SENTENCE_CONFIG_FILE)
    )
    values = json_files.read(path, "--vocab_file", _Settings) if files.exists(path) else {}
    has_json = os.path.basename(vocab_file) in (VOCAB_FILE, TOKENIZER_JSON) and files.exists(tokenizer_json)
    is_generic = has_json and values.get("tokenizer_class") in _GENERIC_CLASSES
    _check_settings(path, {name: value for name, value in values.items() if not (is_generic and name in _CLASS)})
    if files.exists(tokens_map):
        _check_settings(tokens_map, json_files.read(tokens_map, "--vocab_file", _Settings))
    if files.exists(config) and "tokenizer_class" not in values:
        model = json_files.read(config, "--vocab_file", dict[str, Any])
        _check_settings(config, {name: model[name] for name in _CLASS if name in model})
    recorded = _rules_of_tokenizer_json(tokenizer_json) if has_json else {}
    if has_json and os.path.basename(vocab_file) != TOKENIZER_JSON:
        check_same_ids(vocab_file, tokenizer_json)
    rules = values | recorded if is_generic else recorded | values
    if rules.get("do_lower_case") is False and files.exists(sentence_config):
        # sentence-transformers converts texts to lower case before it calls this tokenizer, and keeps accents.
        lowers = json_files.read(sentence_config, "--vocab_file", _Settings).get("do_lower_case", False)
        rules |= {"do_lower_case": lowers, "strip_accents": bool(rules.get("strip_accents"))}
    return rules


def _check_settings(path: str, values: Mapping[str, Any]) -> None:
    """Checks the settings in a file of Hugging Face. Settings of unknown effect must be empty."""
    for name, value in values.items():
        value = value.get("content") if isinstance(value, dict) and name in _SPECIAL_TOKENS else value
        if name in _REQUIRED:
            _require(path, name, value, _REQUIRED[name])
        elif name not in _WITHOUT_EFFECT | _Settings.__annotations__.keys() and value not in (None, False, "", [], {}):
            raise _other_tokens(path, f"{name} {str(value)[:60]!r}, which may change the tokens")
    names = values.get("model_input_names")
    if names is not None and "token_type_ids" not in names:
        raise _other_tokens(path, f"model_input_names {names!r} without 'token_type_ids', so all segments are 0")


def _rules_of_tokenizer_json(path: str) -> dict[str, Any]:
    values = json_files.read(path, "--vocab_file", TokenizerJson)
    for part, allowed in _PARTS.items():
        _require(path, f"{part} of type", (values.get(part) or {}).get("type"), allowed)
    for part in ("truncation", "padding"):
        _require(path, f"{part} at the side", (values.get(part) or {}).get("direction", "Right"), ("Right",))
    model = values.get("model", {})
    post_processor = values.get("post_processor") or {}
    if post_processor not in _post_processors(model.get("vocab", {})):
        kind = post_processor.get("type")
        raise _other_tokens(
            path, f"post_processor of type {kind!r} that does not make {CLS} A {SEP} B {SEP} with segments 0 and 1"
        )
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
        raise _other_tokens(path, f"{name} {value!r} instead of {allowed[0]!r}")


def _other_tokens(path: str, setting: str) -> InputError:
    return InputError(
        f"--vocab_file: {path} has {setting}. Such a tokenizer is not supported, because it would produce other "
        "tokens. Use the tokenizer of a BERT model."
    )


def find_rules(
    vocab_file: str,
    records: Iterable[tuple[str, Mapping[str, Any]]] = (),
    do_lower_case: bool | None = None,
    strip_accents: bool | None = None,
    directory: str | None = None,
) -> dict[str, bool]:
    """Finds the rules of a tokenizer.

    Recorded rules are used first. Otherwise, the casing is determined by the name of a released model, or else by the
    vocabulary.

    Args:
      vocab_file: the vocabulary. Tokenizer files in the same directory are read too.
      records: pairs of a location, for messages, and a record of rules and the vocabulary digest. Any field of a record
        may be missing.
      do_lower_case: the casing requested by the user, or None.
      strip_accents: whether the user requested to remove accents, or None.
      directory: the directory of the model, if it is not the directory of the vocabulary.

    Returns:
      The arguments of `BasicTokenizer`.

    Raises:
      InputError: if records, files and arguments contradict each other, or the vocabulary does not match a record.
    """
    own = read_tokenizer_config(vocab_file)
    asked = {"do_lower_case": do_lower_case, "strip_accents": strip_accents}
    records = [*records, (f"the tokenizer's settings next to {vocab_file}", own)]
    rules: dict[str, bool] = {}
    places: dict[str, str] = {}
    for place, record in records:
        if not fits_record(record, vocab_file):
            raise InputError(
                f"--vocab_file: {vocab_file} does not match the digest recorded in {place}. Use the vocabulary of the "
                "model."
            )
        for name, value in _complete(record).items():
            if rules.setdefault(name, value) != value:
                raise InputError(
                    f"--vocab_file: {place}: {name} is {value}, but {places[name]} has {rules[name]}. Use the files of "
                    "one model."
                )
            places.setdefault(name, place)
    for name, value in asked.items():
        if value is not None and rules.get(name, value) != value:
            raise InputError(
                f"--{name} is {value}, but {places[name]} has {rules[name]}. Omit the flag. If the file is wrong, "
                "correct it."
            )
    if "do_lower_case" not in rules:
        directories = [os.path.abspath(path) for path in (directory or "", os.path.dirname(vocab_file))]
        lowers, strips = _unrecorded_casing(vocab_file, directories, do_lower_case)
        rules["do_lower_case"] = lowers
        if "strip_accents" in own:  # None follows the casing
            strips = lowers
        rules.setdefault("strip_accents", strips if strip_accents is None else strip_accents)
    return {"tokenize_chinese_chars": True} | rules


def _complete(record: Mapping[str, Any]) -> dict[str, bool]:
    """Returns the rules in a record. By default, a lower-casing tokenizer also removes accents."""
    rules = {name: record[name] for name in RULES if record.get(name) is not None}
    if "do_lower_case" in rules:
        rules.setdefault("strip_accents", rules["do_lower_case"])
    return rules


def _unrecorded_casing(vocab_file: str, directories: Iterable[str], asked: bool | None) -> tuple[bool, bool]:
    """Returns whether a model without a record converts to lower case, and whether it removes accents.

    If the casing is guessed from the vocabulary, reports it.
    """
    for directory in directories:
        released = _RELEASED_NAME.fullmatch(os.path.basename(directory))
        named = bool(released) and released.group(1) != "cased"
        if released and asked not in (None, named):
            raise _casing_error(asked, f"{directory} has the name of a released model")
        if released:
            return named, named
    tokens = [token for token in load_vocab(vocab_file) if not (token.startswith("[") and token.endswith("]"))]
    capitals = [token for token in tokens if token.lower() != token]
    accents = [token for token in tokens if without_accents(token) != token]
    guess = len(capitals) <= _FEW * len(tokens)
    lowers = guess if asked is None else asked
    strips = lowers and not (guess and len(accents) > _FEW * len(tokens))
    examples = "".join(f", such as {changed[0]!r}" for changed in (capitals or accents,) if changed)
    found = (
        f"{vocab_file}: the model's casing is not recorded. {len(capitals)} of {len(tokens)} tokens have capitals and "
        f"{len(accents)} have accents{examples}"
    )
    if asked is None:
        kept = " and accents are kept" if lowers and not strips else ""
        say_once(f"{found}, so --do_lower_case={guess} is used{kept}. Set this flag if it is wrong.")
    elif asked != guess and any(token != token.upper() for token in tokens):
        say_once(f"Warning: {found}, but --do_lower_case is {asked}. The model may have been trained on other tokens.")
    return lowers, strips


def validate_case_matches_checkpoint(do_lower_case: bool, init_checkpoint: str | None) -> None:
    """Checks the casing flag against the names of the released models, as the original code does.

    Raises:
      InputError: if the directory of the checkpoint has the name of a released model with the other casing. An
        InputError is a ValueError, which the original code raises.
    """
    match = re.match(r"^.*?([A-Za-z0-9_-]+)/bert_model.ckpt", init_checkpoint or "")
    if match is None:
        return
    name = match.group(1)
    if name in (_CASED_MODELS if do_lower_case else _LOWER_MODELS):
        raise _casing_error(do_lower_case, f"--init_checkpoint ({init_checkpoint}) is the released model {name}")


def _casing_error(do_lower_case: bool, found: str) -> InputError:
    kind, fix = ("cased", "False") if do_lower_case else ("uncased", "True")
    return InputError(
        f"{found}, so the model is {kind}, but --do_lower_case is {do_lower_case}. The tokens would not match those in "
        f"training. Set --do_lower_case={fix}."
    )


def tokenizer_record(vocab_file: str, rules: Mapping[str, bool]) -> dict[str, Any]:
    """Returns the rules, the added tokens and the digest of a vocabulary, for the records of runs and data."""
    added = {token: token_added.normalized for token, token_added in added_tokens(vocab_file).items()}
    return {**rules, **({"added_tokens": added} if added else {}), **vocabulary_record(vocab_file)}


def settings_of(vocab_file: str, rules: Mapping[str, bool]) -> dict[str, Any]:
    """Returns the content of `tokenizer_config.json` for a vocabulary. Other known settings are kept."""
    decoder = added_tokens_decoder(added_tokens(vocab_file))
    known = read_tokenizer_config(vocab_file)
    if decoder:
        known["added_tokens_decoder"] = known.get("added_tokens_decoder", {}) | decoder
    return known | dict(rules) | vocabulary_record(vocab_file)


def hf_tokenizer_config(vocab_file: str, rules: Mapping[str, bool], max_positions: int) -> dict[str, Any]:
    """Returns the content of `tokenizer_config.json` with all settings for Hugging Face's tokenizers.

    Args:
      vocab_file: the vocabulary.
      rules: see `find_rules`.
      max_positions: the largest number of tokens in a sequence of the model.
    """
    known = settings_of(vocab_file, rules)
    # If no length was set, transformers writes a very large number.
    length = min(known.get("model_max_length", max_positions), max_positions)
    return _SPECIAL_TOKENS | known | {"tokenizer_class": TOKENIZER_CLASSES[0], "model_max_length": length}


def copy_tokenizer(
    vocab_file: str,
    directory: str,
    rules: Mapping[str, bool],
    max_length: int | None = None,
    added: Sequence[str] = (),
) -> None:
    """Writes a vocabulary to a directory, and `tokenizer_config.json` with the rules and the vocabulary's digest.

    Args:
      vocab_file: the vocabulary.
      directory: the directory.
      rules: see `find_rules`. Missing rules are not recorded.
      max_length: if given, writes all settings for Hugging Face's tokenizers, with this maximum length.
      added: additional tokens, which are never split. If they are not in the vocabulary, they get the next ids.
    """
    target = os.path.join(directory, VOCAB_FILE)
    if files.resolved(vocab_file) == files.resolved(target):
        return
    settings = hf_tokenizer_config(vocab_file, rules, max_length) if max_length else settings_of(vocab_file, rules)
    if os.path.basename(vocab_file) == TOKENIZER_JSON:
        with files.replacing(target) as writer:
            writer.write(base_text(vocab_file))
    else:
        files.copy(vocab_file, target)
    settings_file = os.path.join(directory, TOKENIZER_CONFIG_FILE)
    if added:
        ids = dict(load_vocab(vocab_file))
        decoder = added_tokens_decoder({token: AddedToken(ids.setdefault(token, len(ids))) for token in added})
        settings["added_tokens_decoder"] = settings.get("added_tokens_decoder", {}) | decoder
        files.write_json(settings_file, settings)
        settings |= vocabulary_record(target)
    files.write_json(settings_file, settings)
