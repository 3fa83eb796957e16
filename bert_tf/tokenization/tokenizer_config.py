"""`tokenizer_config.json`: Hugging Face's settings of a tokenizer, beside the vocabulary.

Settings that the tokenizers here have are honoured. Those with which another tokenizer would be needed are errors.
"""

import os
from collections.abc import Mapping
from typing import Any, TypedDict

from bert_tf.runtime import files, json_files
from bert_tf.runtime.files import InputError
from bert_tf.tokenization.vocabulary import CLS, MASK, PAD, SEP, UNK

TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
TOKENIZER_CLASSES = ("BertTokenizer", "BertTokenizerFast")

_SPECIAL_TOKENS = {"unk_token": UNK, "sep_token": SEP, "pad_token": PAD, "cls_token": CLS, "mask_token": MASK}
# The settings of the rules, besides `do_lower_case`, and their usual values.
_DEFAULTS = {"strip_accents": None, "tokenize_chinese_chars": True}
# Settings with which a text would become other pieces, and the values with which it doesn't.
_REQUIRED = {
    "tokenizer_class": (*TOKENIZER_CLASSES, None),
    "do_basic_tokenize": (True,),
    "never_split": (None, []),
    **{name: (token,) for name, token in _SPECIAL_TOKENS.items()},
}


class _Settings(TypedDict, total=False):
    do_lower_case: bool
    strip_accents: bool | None
    tokenize_chinese_chars: bool
    model_max_length: float


def read_tokenizer_config(vocab_file: str) -> dict[str, Any]:
    """Reads and checks the settings beside a vocabulary; empty if there are none.

    Raises:
      InputError: if they are those of another tokenizer than the release's; names the setting.
    """
    path = os.path.join(os.path.dirname(vocab_file), TOKENIZER_CONFIG_FILE)
    values = json_files.read(path, "--vocab_file", _Settings) if files.exists(path) else {}
    for name, allowed in _REQUIRED.items():
        value = values.get(name, allowed[0])
        value = value.get("content") if isinstance(value, dict) else value  # a token with its own settings
        if value not in allowed:
            raise InputError(
                f"--vocab_file: {path} says {name} {value!r}, but {allowed[0]!r} is expected. Texts would become other "
                "pieces than the model was trained with, so it can't be used."
            )
    return values


def unusual_rules(values: Mapping[str, Any]) -> dict[str, Any]:
    """The rules in a tokenizer's settings, besides `do_lower_case`, that differ from the release's.

    Args:
      values: what `read_tokenizer_config` returned.

    Returns:
      Arguments of `Tokenizer`: `strip_accents` and `tokenize_chinese_chars`, or none of them.
    """
    rules = {name: values.get(name, default) for name, default in _DEFAULTS.items()}
    if rules["strip_accents"] == values.get("do_lower_case"):
        rules["strip_accents"] = None
    return {name: value for name, value in rules.items() if value != _DEFAULTS[name]}


def validate_case_matches_settings(do_lower_case: bool, values: Mapping[str, Any], vocab_file: str) -> None:
    """Checks the casing flag against the settings beside a vocabulary.

    Args:
      do_lower_case: the casing.
      values: what `read_tokenizer_config` returned.
      vocab_file: the vocabulary, for the message.

    Raises:
      InputError: if they say another casing.
    """
    if values.get("do_lower_case", do_lower_case) != do_lower_case:
        raise InputError(
            f"--do_lower_case is {do_lower_case}, but {TOKENIZER_CONFIG_FILE} beside {vocab_file} says "
            f"{not do_lower_case}. Set --do_lower_case={not do_lower_case}; if the file is wrong, mend it."
        )


def hf_tokenizer_config(vocab_file: str, do_lower_case: bool, max_positions: int) -> dict[str, Any]:
    """The content of `tokenizer_config.json` for a vocabulary; what is known of it already stays.

    Args:
      vocab_file: the vocabulary.
      do_lower_case: whether the tokenizer converts to lower case.
      max_positions: the number of the model's positions, the longest input that the tokenizer shall make.
    """
    known = read_tokenizer_config(vocab_file)
    ours = {"do_lower_case": do_lower_case, "tokenizer_class": TOKENIZER_CLASSES[0]}
    # Where no length was set, transformers writes a very large one.
    ours["model_max_length"] = min(known.get("model_max_length", max_positions), max_positions)
    return _DEFAULTS | _SPECIAL_TOKENS | known | ours
