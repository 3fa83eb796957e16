"""The rules of a model's tokenizer: finds them, checks that all files agree, and writes them.

The rules are recorded in `tokenizer_config.json` next to a vocabulary (Hugging Face's file), in `run.json`, and in the
metadata files of records. Rules that BERT's tokenizer does not have are errors.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bert_tf.runtime import files
from bert_tf.runtime.errors import InputError
from bert_tf.runtime.messages import say_once
from bert_tf.text import vocabulary
from bert_tf.text.added_tokens import AddedToken, added_tokens, added_tokens_decoder
from bert_tf.text.base_vocabulary import NAMED_TOKENS, base_text
from bert_tf.text.characters import strip_accents as without_accents
from bert_tf.text.hf_tokenizer import RULES, TOKENIZER_CLASSES, read_tokenizer_config

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
    settings = read_tokenizer_config(vocab_file)
    asked = {"do_lower_case": do_lower_case, "strip_accents": strip_accents}
    records = [*records, (f"the tokenizer's settings next to {vocab_file}", settings)]
    rules: dict[str, bool] = {}
    sources: dict[str, str] = {}
    for source, record in records:
        if not vocabulary.fits_record(record, vocab_file):
            problem = f"does not match the digest recorded in {source}. Use the vocabulary of the model."
            raise InputError(f"--vocab_file: {vocab_file} {problem}")
        for name, value in _complete(record).items():
            if rules.setdefault(name, value) != value:
                problem = f"{name} is {value}, but {sources[name]} has {rules[name]}. Use the files of one model."
                raise InputError(f"--vocab_file: {source}: {problem}")
            sources.setdefault(name, source)
    for name, value in asked.items():
        if value is not None and rules.get(name, value) != value:
            remedy = "Omit the flag. If the file is wrong, correct it."
            raise InputError(f"--{name} is {value}, but {sources[name]} has {rules[name]}. {remedy}")
    if "do_lower_case" not in rules:
        directories = [os.path.abspath(path) for path in (directory or "", os.path.dirname(vocab_file))]
        lowers, strips = _unrecorded_casing(vocab_file, directories, do_lower_case)
        rules["do_lower_case"] = lowers
        if "strip_accents" in settings:  # None: the same as the casing
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
    tokens = [token for token in vocabulary.load_vocab(vocab_file) if token[:1] + token[-1:] != "[]"]
    capitals = [token for token in tokens if token.lower() != token]
    accents = [token for token in tokens if without_accents(token) != token]
    guess = len(capitals) <= _FEW * len(tokens)
    lowers = guess if asked is None else asked
    strips = lowers and not (guess and len(accents) > _FEW * len(tokens))
    examples = "".join(f", such as {changed[0]!r}" for changed in (capitals or accents,) if changed)
    observation = (
        f"{vocab_file}: the model's casing is not recorded. {len(capitals)} of {len(tokens)} tokens have capitals and "
        f"{len(accents)} have accents{examples}"
    )
    if asked is None:
        accents_text = " and accents are kept" if lowers and not strips else ""
        say_once(f"{observation}, so --do_lower_case={guess} is used{accents_text}. Set this flag if it is wrong.")
    elif asked != guess and any(token != token.upper() for token in tokens):
        contradiction = f"--do_lower_case is {asked}. The model may have been trained on other tokens."
        say_once(f"Warning: {observation}, but {contradiction}")
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
        f"{found}, so the model is {kind}, but --do_lower_case is {do_lower_case}. The tokens would differ from the "
        f"tokens in training. Set --do_lower_case={fix}."
    )


def tokenizer_record(vocab_file: str, rules: Mapping[str, bool]) -> dict[str, Any]:
    """Returns the rules, the added tokens and the digest of a vocabulary, for the records of runs and data."""
    added = {token: token_added.normalized for token, token_added in added_tokens(vocab_file).items()}
    return {**rules, **({"added_tokens": added} if added else {}), **vocabulary.vocabulary_record(vocab_file)}


def settings_of(vocab_file: str, rules: Mapping[str, bool]) -> dict[str, Any]:
    """Returns the content of `tokenizer_config.json` for a vocabulary. Other known settings are kept."""
    decoder = added_tokens_decoder(added_tokens(vocab_file))
    known = read_tokenizer_config(vocab_file)
    if decoder:
        known["added_tokens_decoder"] = known.get("added_tokens_decoder", {}) | decoder
    return known | dict(rules) | vocabulary.vocabulary_record(vocab_file)


def hf_tokenizer_config(vocab_file: str, rules: Mapping[str, bool], max_positions: int) -> dict[str, Any]:
    """Returns the content of `tokenizer_config.json` with all settings for Hugging Face's tokenizers.

    Args:
      vocab_file: the vocabulary.
      rules: see `find_rules`.
      max_positions: the largest number of tokens in a sequence of the model.
    """
    known = settings_of(vocab_file, rules)
    # If no length was set, transformers writes a very large number.
    length = min(known.get("model_max_length") or max_positions, max_positions)
    return NAMED_TOKENS | known | {"tokenizer_class": TOKENIZER_CLASSES[0], "model_max_length": length}


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
    target = os.path.join(directory, vocabulary.VOCAB_FILE)
    if files.resolved(vocab_file) == files.resolved(target):
        return
    settings = hf_tokenizer_config(vocab_file, rules, max_length) if max_length else settings_of(vocab_file, rules)
    if os.path.basename(vocab_file) == vocabulary.TOKENIZER_JSON:
        with files.replacing(target) as writer:
            writer.write(base_text(vocab_file))
    else:
        files.copy(vocab_file, target)
    settings_file = os.path.join(directory, vocabulary.TOKENIZER_CONFIG_FILE)
    if added:
        ids = dict(vocabulary.load_vocab(vocab_file))
        decoder = added_tokens_decoder({token: AddedToken(ids.setdefault(token, len(ids))) for token in added})
        settings["added_tokens_decoder"] = settings.get("added_tokens_decoder", {}) | decoder
        files.write_json(settings_file, settings)
        settings |= vocabulary.vocabulary_record(target)
    files.write_json(settings_file, settings)
