"""Hugging Face's settings of a tokenizer are applied, or refused with their name."""

import json

import pytest

from bert_tf import text as tokenization
from bert_tf.checkpoints import run_directory
from bert_tf.runtime.files import InputError
from bert_tf.text.tokenizer_config import find_rules, hf_tokenizer_config
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from tests.conftest import assert_refused, tiny_config

PIECES = [*SPECIAL_TOKENS, "e", "é", "中", "##中", "文", "##文"]


@pytest.fixture
def vocab(write):
    """Writes a vocabulary, with settings in the same directory; returns the path of the vocabulary."""

    def write_both(**settings):
        write("tokenizer_config.json", json.dumps(settings))
        return write("vocab.txt", "\n".join(PIECES) + "\n")

    return write_both


@pytest.mark.parametrize(
    ("settings", "pieces"),
    [
        ({}, ["e", "中", "文"]),
        ({"strip_accents": None, "tokenizer_class": "BertTokenizerFast"}, ["e", "中", "文"]),
        ({"strip_accents": True, "do_lower_case": True}, ["e", "中", "文"]),
        ({"strip_accents": False, "cls_token": {"content": "[CLS]", "lstrip": False}}, ["é", "中", "文"]),
        ({"tokenize_chinese_chars": False}, ["e", "中", "##文"]),
    ],
)
def test_rules_are_honoured_and_stay_with_the_vocabulary(vocab, tmp_path, settings, pieces):
    path = vocab(**settings)
    assert tokenization.Tokenizer.checked(path, True).tokenize("É 中文") == pieces
    rules = tokenization.Tokenizer.checked(path, True).rules
    run_directory.prepare(str(tmp_path / "run"), tiny_config(), path, {}, {}, rules=rules)
    copied = str(tmp_path / "run" / "vocab.txt")
    assert tokenization.Tokenizer.checked(copied).tokenize("É 中文") == pieces
    rules = tokenization.Tokenizer.checked(copied).rules
    assert rules == {
        "do_lower_case": True,
        "strip_accents": pieces[0] == "e",
        "tokenize_chinese_chars": pieces[2] == "文",
    }


def test_accents_can_be_removed_from_cased_text(vocab):
    basic = tokenization.FullTokenizer(vocab(), do_lower_case=False, strip_accents=True).basic_tokenizer
    assert basic.tokenize("É e\u0301 İ") == ["E", "e", "I"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokenizer_class": "BertJapaneseTokenizer"}, "BertJapaneseTokenizer"),
        ({"tokenizer_class": "RobertaTokenizer"}, "RobertaTokenizer"),
        ({"do_basic_tokenize": False}, "do_basic_tokenize False"),
        ({"never_split": ["x"]}, "never_split"),
        ({"cls_token": "<s>"}, "cls_token '<s>'"),
        ({"strip_accents": "no"}, "strip_accents: .*bool"),
        ({"do_lower_case": False}, "--do_lower_case is True, but .* has False"),
        ([], "object"),
    ],
)
def test_other_tokenizers_are_refused_by_name(write, settings, message):
    write("tokenizer_config.json", json.dumps(settings))
    with pytest.raises(InputError, match=message):
        tokenization.Tokenizer.checked(write("vocab.txt", "\n".join(PIECES)), True)


def test_known_settings_stay_when_they_are_written(vocab):
    path = vocab(model_max_length=64, strip_accents=False, do_lower_case=True)
    written = hf_tokenizer_config(path, find_rules(path), 512)
    assert (written["model_max_length"], written["strip_accents"], written["do_lower_case"]) == (64, False, True)
    assert (written["tokenizer_class"], written["mask_token"]) == ("BertTokenizer", "[MASK]")
    for settings in ({}, {"model_max_length": 10**30}):
        assert hf_tokenizer_config(vocab(**settings), {}, 512)["model_max_length"] == 512


def test_a_vocabulary_is_read_from_tokenizer_json(write, tmp_path):
    model = {"type": "WordPiece", "vocab": {piece: i for i, piece in reversed(list(enumerate(PIECES)))}}
    path = write("tokenizer.json", json.dumps({"model": model}))
    assert list(tokenization.Tokenizer.checked(path, True).vocab) == PIECES
    run_directory.prepare(str(tmp_path / "run"), tiny_config(), path, {}, {})
    assert (tmp_path / "run" / "vocab.txt").read_text() == "\n".join(PIECES) + "\n"
    write("tokenizer.json", '{"model": {"type": "BPE"}}')
    assert_refused("is a tokenizer of type 'BPE'", tokenization.Tokenizer.checked, path, True)
    write("tokenizer.json", '{"model": {"type": "WordPiece", "vocab": {"a": 0, "b": 2}}}')
    assert_refused("have gaps", tokenization.Tokenizer.checked, path, True)
