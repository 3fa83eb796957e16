"""Tests the identity of a tokenizer: rules, added tokens, and the digest of the vocabulary."""

import json

import pytest
import tensorflow as tf

from bert_tf.runtime.files import InputError
from bert_tf.text import Tokenizer
from bert_tf.text.graph_tokenization import GraphTokenizer
from bert_tf.text.tokenizer_config import find_rules
from bert_tf.text.vocabulary import SPECIAL_TOKENS, check_same_ids, fits_record, vocabulary_record
from tests.conftest import assert_refused

WORDS = [f"w{number}" for number in range(60)]
UNCASED = [*SPECIAL_TOKENS, "[unused0]", "[unused1]", *WORDS, "schone", "schöne", "u", ".", "s", "中", "##国", "国"]
BERT = {"normalizer": {"type": "BertNormalizer", "lowercase": True}, "pre_tokenizer": {"type": "BertPreTokenizer"}}


@pytest.fixture
def vocab(write):
    return lambda tokens=UNCASED, name="vocab.txt": write(name, "\n".join(tokens) + "\n")


@pytest.mark.parametrize(
    ("words", "name", "is_uncased"),
    [
        ([*WORDS, "COVID"], "model", True),
        ([*WORDS, "COVID"], "uncased_L-12_H-768_A-12", True),
        (["The", "A", "b"], "model", False),
        (["हिन्दी", "में", "a"], "model", False),
        (["мой", "Мой"], "model", False),
        (["한국", "ไม่", "が"], "model", False),
        (["schön", "für", "und"], "model", False),
        (["中", "国"], "model", True),
        (WORDS, "cased_L-12_H-768_A-12", False),
        (WORDS, "wwm_cased_L-24_H-1024_A-16", False),
        (["The", "A"], "uncased_L-2_H-128_A-2", True),
        (["The", "A"], "multi_cased_L-12_H-768_A-12", False),
    ],
)
def test_casing_comes_from_the_name_and_then_from_the_vocabulary(vocab, words, name, is_uncased):
    path = vocab([*SPECIAL_TOKENS, *words], f"{name}/vocab.txt")
    assert find_rules(path)["do_lower_case"] == is_uncased
    assert find_rules(path, do_lower_case=is_uncased)["do_lower_case"] == is_uncased


def test_a_guess_names_the_flag_that_overrides_it_and_a_name_does_not_give_way(vocab, capsys):
    path = vocab([*SPECIAL_TOKENS, "The"], "guessed/vocab.txt")
    find_rules(path)
    assert "--do_lower_case=False" in capsys.readouterr().err
    assert find_rules(path, do_lower_case=True) == dict.fromkeys(
        ("do_lower_case", "strip_accents", "tokenize_chinese_chars"), True
    )
    with pytest.raises(InputError, match="Set --do_lower_case=True"):
        find_rules(vocab(name="uncased_L-12_H-768_A-12/vocab.txt"), do_lower_case=False)


def test_records_that_contradict_each_other_are_refused(vocab):
    path = vocab()
    with pytest.raises(InputError, match=r"data: do_lower_case is False, but run\.json has True"):
        find_rules(path, [("run.json", {"do_lower_case": True}), ("data", {"do_lower_case": False})])
    record = vocabulary_record(path)
    assert find_rules(vocab(["x", *UNCASED[1:]], "other/vocab.txt"), [("data", {})])
    with pytest.raises(InputError, match="recorded in data"):
        find_rules(path.replace("vocab.txt", "other/vocab.txt"), [("data", record)])
    assert find_rules(path, [("an old record", {"vocab_sha256": record["vocab_sha256"]})])


@pytest.mark.parametrize(
    ("change", "fits", "same_ids"),
    [({5: "COVID"}, True, True), ({7: "w1", 8: "w0"}, False, False), ({7: "other"}, False, False)],
)
def test_a_vocabulary_is_compared_with_a_record_and_with_another(vocab, change, fits, same_ids):
    path, tokens = vocab(), [change.get(number, token) for number, token in enumerate(UNCASED)]
    other = vocab(tokens, "other.txt")
    assert fits_record(vocabulary_record(path), other) == fits
    if same_ids:
        check_same_ids(other, path)
    else:
        assert_refused("line 8: id 7", check_same_ids, other, path)
    shorter = vocab(UNCASED[:-1], "shorter.txt")
    check_same_ids(shorter, path)
    assert not fits_record(vocabulary_record(path), shorter)


def tokenizer_json(**changes):
    model = {"type": "WordPiece", "vocab": {token: number for number, token in enumerate(UNCASED)}}
    return json.dumps({"model": model, **BERT, **changes})


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({}, ["schone", "中", "国", "u", ".", "s", "."]),
        ({"normalizer": BERT["normalizer"] | {"strip_accents": False}}, ["schöne", "中", "国", "u", ".", "s", "."]),
        (
            {"normalizer": BERT["normalizer"] | {"handle_chinese_chars": False}},
            ["schone", "中", "##国", "u", ".", "s", "."],
        ),
        ({"normalizer": {"type": "Lowercase"}}, "normalizer of type 'Lowercase'"),
        ({"normalizer": None}, "normalizer of type None"),
        ({"normalizer": BERT["normalizer"] | {"clean_text": False}}, "clean_text False"),
        ({"pre_tokenizer": {"type": "WhitespaceSplit"}}, "pre_tokenizer of type 'WhitespaceSplit'"),
        ({"post_processor": {"type": "RobertaProcessing"}}, "RobertaProcessing"),
        ({"added_tokens": [{"id": 99, "content": "[URL]"}]}, r"'\[URL\]' has id 99"),
        ({"added_tokens": [{"id": len(UNCASED), "content": "a b"}]}, "white space"),
        ({"added_tokens": [{"id": len(UNCASED), "content": "x", "single_word": True}]}, "single_word"),
    ],
)
def test_tokenizer_json_is_followed_or_refused_by_name(write, changes, tokens):
    path = write("tokenizer.json", tokenizer_json(**changes))
    if isinstance(tokens, list):
        assert Tokenizer.checked(path).tokenize("Schöne 中国 U.S.") == tokens
    else:
        assert_refused(tokens, Tokenizer.checked, path)


def test_a_generic_class_has_the_rules_of_tokenizer_json(write):
    write("tokenizer_config.json", '{"tokenizer_class": "PreTrainedTokenizerFast"}')
    path = write("tokenizer.json", tokenizer_json(normalizer=BERT["normalizer"] | {"strip_accents": False}))
    assert Tokenizer.checked(path).tokenize("Schöne") == ["schöne"]
    write("plain/tokenizer_config.json", '{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(InputError, match="tokenizer_class 'PreTrainedTokenizerFast'"):
        Tokenizer.checked(write("plain/vocab.txt", "\n".join(UNCASED)))


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_special_tokens_of_the_vocabulary_are_never_split(vocab, write, file):
    path = vocab([*UNCASED, "<e1>"])
    write(file, json.dumps({"additional_special_tokens": ["<e1>", {"content": "<e2>"}]}))
    assert Tokenizer.checked(path, True).tokenize("u<e1>s<e2>") == ["u", "<e1>", "s", "[UNK]", "[UNK]", "[UNK]"]


ADDED = {"[URL]": False, "covid19": True, "COV-2": True, "[unused1]": False, "ab": False, "bc": False}


def test_added_tokens_are_never_split(vocab, write):
    path, ids = vocab(), {token: number for number, token in enumerate(UNCASED)}
    decoder = {
        str(ids.setdefault(token, len(ids))): {"content": token, "normalized": normalized}
        for token, normalized in ADDED.items()
    }
    write("tokenizer_config.json", json.dumps({"do_lower_case": True, "added_tokens_decoder": decoder}))
    tokenizer = Tokenizer.checked(path)
    assert tokenizer.tokenize("u[URL]s Covid19.cov-2 [unused1] [url] abc") == [
        *("u", "[URL]", "s", "covid19", ".", "COV-2", "[unused1]"),
        *("[UNK]", "[UNK]", "[UNK]", "ab", "[UNK]"),
    ]
    assert tokenizer.tokenize_with_offsets("É COVID19.") == (["[UNK]", "covid19", "."], [(0, 1), (2, 9), (9, 10)])
    texts = ["u[URL]s Covid19.cov-2 [unused1] abc", "ΑΣcovid19\u0301 ΑΣab", "[[URL]]covid19covid1", "abcbc é[URL]é", ""]
    graph = GraphTokenizer.of(tokenizer)
    found = graph.tokenize_with_offsets(tf.constant(texts))
    assert graph.tokenize(tf.constant(texts)).to_list() == [tokenizer.encode(text) for text in texts]
    for text, starts, ends in zip(texts, found.starts.to_list(), found.ends.to_list(), strict=True):
        assert list(zip(starts, ends, strict=True)) == tokenizer.tokenize_with_offsets(text)[1], text
