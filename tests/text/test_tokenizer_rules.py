"""Tests the rules of a tokenizer, added tokens, and the digest of the vocabulary."""

import json

import pytest

from bert_tf.graphs.tokenization import GraphTokenizer
from bert_tf.text import FullTokenizer, Tokenizer
from bert_tf.text.tokenizer_config import find_rules, hf_tokenizer_config
from bert_tf.text.vocabulary import SPECIAL_TOKENS, check_same_ids, fits_record, vocabulary_record
from tests import finished_runs
from tests.conftest import assert_refused, tiny_config, tokenizer_json
from tests.graphs.test_modes import assert_same

WORDS = [f"w{number}" for number in range(60)]
PIECES = [*SPECIAL_TOKENS, "e", "é", "中", "##中", "文", "##文"]
UNCASED = [*SPECIAL_TOKENS, "[unused0]", "[unused1]", *WORDS, "schone", "schöne", "u", ".", "s", "中", "##国", "国"]
BERT = tokenizer_json(UNCASED)
TEMPLATE = BERT["post_processor"]
CLS, A, SEP, *SECOND = TEMPLATE["pair"]


@pytest.fixture
def vocab(write):
    """Writes a vocabulary and settings of Hugging Face in the same directory; returns the path of the vocabulary."""

    def write_both(tokens=UNCASED, name="vocab.txt", settings=None):
        if settings is not None:
            write("tokenizer_config.json", json.dumps(settings))
        return write(name, "\n".join(tokens) + "\n")

    return write_both


@pytest.mark.parametrize(
    ("words", "name", "is_uncased", "strips"),
    [
        ([*WORDS, "COVID"], "model", True, True),
        ([*WORDS, "COVID"], "uncased_L-12_H-768_A-12", True, True),
        (["The", "A", "b"], "model", False, False),
        (["हिन्दी", "में", "a"], "model", True, False),
        (["мой", "Мой"], "model", False, False),
        (["한국", "ไม่", "が"], "model", True, False),
        (["schön", "für", "und"], "model", True, False),
        (["schön", "für", "Und"], "model", False, False),
        (["中", "国"], "model", True, True),
        (WORDS, "cased_L-12_H-768_A-12", False, False),
        (WORDS, "wwm_cased_L-24_H-1024_A-16", False, False),
        (["The", "A"], "uncased_L-2_H-128_A-2", True, True),
        (["The", "A"], "multi_cased_L-12_H-768_A-12", False, False),
    ],
)
def test_casing_comes_from_the_name_and_then_from_the_vocabulary(vocab, words, name, is_uncased, strips):
    path = vocab([*SPECIAL_TOKENS, *words], f"{name}/vocab.txt")
    for asked in (None, is_uncased):
        rules = find_rules(path, do_lower_case=asked)
        assert (rules["do_lower_case"], rules["strip_accents"]) == (is_uncased, strips)
    assert find_rules(path, strip_accents=not strips)["strip_accents"] != strips


def test_a_guess_names_the_flag_that_overrides_it_and_a_name_does_not_give_way(vocab, capsys):
    path = vocab([*SPECIAL_TOKENS, "The"], "guessed/vocab.txt")
    find_rules(path)
    assert "so --do_lower_case=False is used" in capsys.readouterr().err
    assert all(find_rules(path, do_lower_case=True).values())
    named = vocab(name="uncased_L-12_H-768_A-12/vocab.txt")
    assert_refused("Set --do_lower_case=True", find_rules, named, do_lower_case=False)


def test_records_that_contradict_each_other_are_refused(vocab):
    path = vocab()
    records = [("run.json", {"do_lower_case": True}), ("data", {"do_lower_case": False})]
    assert_refused(r"data: do_lower_case is False, but run\.json has True", find_rules, path, records)
    record = vocabulary_record(path)
    other = vocab(["x", *UNCASED[1:]], "other/vocab.txt")
    assert find_rules(other, [("data", {})])
    assert_refused("recorded in data", find_rules, other, [("data", record)])
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
    assert_refused("id 74 is ''", check_same_ids, shorter, path, is_complete=True)
    assert not fits_record(vocabulary_record(path), shorter)


END = ["u", ".", "s", "."]


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({}, ["schone", "中", "国", *END]),
        ({"normalizer": BERT["normalizer"] | {"strip_accents": False}}, ["schöne", "中", "国", *END]),
        ({"normalizer": BERT["normalizer"] | {"handle_chinese_chars": False}}, ["schone", "中", "##国", *END]),
        ({"normalizer": {"type": "Lowercase"}}, "normalizer of type 'Lowercase'"),
        ({"normalizer": None}, "normalizer of type None"),
        ({"normalizer": BERT["normalizer"] | {"clean_text": False}}, "clean_text False"),
        ({"pre_tokenizer": {"type": "WhitespaceSplit"}}, "pre_tokenizer of type 'WhitespaceSplit'"),
        ({"normalizer": BERT["normalizer"] | {"lowercase": "no"}}, "lower_case: .*bool"),
        ({"model_changes": {"max_input_chars_per_word": 2}}, ["[UNK]", "中", "国", *END]),
        ({"model_changes": {"max_input_chars_per_word": 0}}, "max_input_chars_per_word"),
        (
            {"post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}},
            ["schone", "中", "国", *END],
        ),
        ({"post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 4], "cls": ["[CLS]", 2]}}, "BertProcessing"),
        ({"post_processor": {"type": "RobertaProcessing"}}, "RobertaProcessing"),
        ({"post_processor": None}, "post_processor of type None"),
        ({"post_processor": TEMPLATE | {"single": [CLS, A]}}, "post_processor .* does not make"),
        ({"post_processor": TEMPLATE | {"pair": [CLS, A, SEP, A, SEP]}}, "with segments 0 and 1"),
        ({"post_processor": TEMPLATE | {"pair": [CLS, A, SEP, SEP, *SECOND]}}, "TemplateProcessing"),
        ({"truncation": {"direction": "Left"}}, "truncation at the side 'Left'"),
        ({"padding": {"direction": "Left"}}, "padding at the side 'Left'"),
        ({"added_tokens": [{"id": 99, "content": "[URL]"}]}, r"'\[URL\]' has id 99"),
        ({"added_tokens": [{"id": len(UNCASED), "content": "a b"}]}, "white space"),
        ({"added_tokens": [{"id": len(UNCASED), "content": "x", "single_word": True}]}, "single_word"),
        ({"model": {"type": "BPE"}}, "is a tokenizer of type 'BPE'"),
        ({"model": {"type": "WordPiece", "vocab": {"a": 0, "b": 2}}}, "have gaps"),
        ({"model": {"type": "WordPiece", "vocab": {"a\nb": 0}}}, "has white space"),
        ({"model": {"type": "WordPiece", "vocab": {"a\u2028": 0}}}, "has white space"),
        ({"added_tokens": [{"id": 4, "content": "[MASK]", "normalized": True}]}, r"'\[MASK\]' has normalized=true"),
        ({"added_tokens": [{"id": 4, "content": "[MASK]", "single_word": True}]}, r"'\[MASK\]' has single_word=true"),
    ],
)
def test_tokenizer_json_is_followed_or_refused_by_name(write, changes, tokens):
    path = write("tokenizer.json", json.dumps(tokenizer_json(UNCASED, **changes)))
    if isinstance(tokens, list):
        tokenizer = Tokenizer.checked(path)
        assert tokenizer.tokenize("Schöne 中国 U.S.") == tokens
        assert_same(tokenizer, GraphTokenizer.of(tokenizer), ["Schöne 中国 U.S.".encode()])
        assert find_rules(path, [("run.json", tokenizer.record)]).items() >= tokenizer.rules.items()
    else:
        assert_refused(tokens, Tokenizer.checked, path)


def test_a_generic_class_has_the_rules_of_tokenizer_json(write):
    write("tokenizer_config.json", '{"tokenizer_class": "PreTrainedTokenizerFast", "strip_accents": true}')
    path = write("tokenizer.json", json.dumps(BERT | {"normalizer": BERT["normalizer"] | {"strip_accents": False}}))
    assert Tokenizer.checked(path).tokenize("Schöne") == ["schöne"]
    write("tokenizer_config.json", '{"tokenizer_class": "TokenizersBackend"}')
    assert_refused("without 'token_type_ids', so all segments are 0", Tokenizer.checked, path)


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_special_tokens_of_the_vocabulary_are_never_split(vocab, write, file):
    path = vocab([*UNCASED, "<e1>"])
    for name in ("additional_special_tokens", "extra_special_tokens"):
        write(file, json.dumps({name: ["<e1>", {"content": "<e2>"}, "<e3>"]}))
        tokenizer = Tokenizer.checked(path, True)
        assert tokenizer.tokenize("u<e1>s<e2>") == ["u", "<e1>", "s", "<e2>"]
        assert tokenizer.encode("<e3><e2>") == [len(UNCASED) + 2, len(UNCASED) + 1]  # the next ids
    for settings in ({"extra_special_tokens": {"entity": "<e1>"}}, {"eos_token": "<e1>", "bos_token": "[CLS]"}):
        write(file, json.dumps(settings))
        assert Tokenizer.checked(path, True).tokenize("<e1>") == ["<e1>"]


ADDED = {"[URL]": False, "covid19": True, "COV-2": True, "[unused1]": False, "ab": False, "bc": False, "ñ": True}


def test_added_tokens_are_never_split(vocab, write, capsys):
    path, ids = vocab(), {token: number for number, token in enumerate(UNCASED)}
    added = {str(ids.setdefault(token, len(ids))): token for token in ADDED}
    decoder = {number: {"content": token, "normalized": ADDED[token]} for number, token in added.items()}
    del decoder[str(ids["covid19"])]["normalized"]  # the default of tokens that are not special
    write("tokenizer_config.json", json.dumps({"do_lower_case": True, "added_tokens_decoder": decoder}))
    tokenizer = Tokenizer.checked(path)
    assert tokenizer.tokenize("u[URL]s Covid19.cov-2 [unused1] [url] abc") == [
        *("u", "[URL]", "s", "covid19", ".", "COV-2", "[unused1]"),
        *("[UNK]", "[UNK]", "[UNK]", "ab", "[UNK]"),
    ]
    assert tokenizer.tokenize_with_offsets("É COVID19.") == (["[UNK]", "covid19", "."], [(0, 1), (2, 9), (9, 10)])
    texts = ["u[URL]s Covid19.cov-2 [unused1] abc", "ΑΣcovid19\u0301 ΑΣab", "[[URL]]covid19covid1", "abcbc é[URL]é", ""]
    assert_same(tokenizer, GraphTokenizer.of(tokenizer), [text.encode() for text in texts])
    assert "the added token 'ñ' is found only with the same accents" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "pieces"),
    [
        ({}, ["é", "中", "文"]),
        ({"strip_accents": None, "tokenizer_class": "BertTokenizerFast"}, ["e", "中", "文"]),
        ({"strip_accents": True, "do_lower_case": True}, ["e", "中", "文"]),
        ({"strip_accents": False, "cls_token": {"content": "[CLS]", "lstrip": False}}, ["é", "中", "文"]),
        ({"tokenize_chinese_chars": False, "strip_accents": None}, ["e", "中", "##文"]),
    ],
)
def test_rules_are_honoured_and_stay_with_the_vocabulary(vocab, tmp_path, settings, pieces):
    path = vocab(PIECES, settings=settings)
    tokenizer = Tokenizer.checked(path, True)
    finished_runs.record(tmp_path / "run", path, tiny_config(), rules=tokenizer.rules)
    copy = Tokenizer.checked(str(tmp_path / "run" / "vocab.txt"))
    assert tokenizer.tokenize("É 中文") == copy.tokenize("É 中文") == pieces
    rules = {"strip_accents": pieces[0] == "e", "tokenize_chinese_chars": pieces[2] == "文"}
    assert copy.rules == {"do_lower_case": True, **rules}


def test_accents_can_be_removed_from_cased_text(vocab):
    basic = FullTokenizer(vocab(), do_lower_case=False, strip_accents=True).basic_tokenizer
    assert basic.tokenize("É e\u0301 İ") == ["E", "e", "I"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"word_tokenizer_type": "mecab"}, "word_tokenizer_type 'mecab', which may change"),
        ({"mecab_kwargs": {"mecab_dic": "unidic"}}, "mecab_kwargs"),
        ({"model_input_names": ["input_ids", "attention_mask"]}, "without 'token_type_ids'"),
        ({"truncation_side": "left"}, "truncation_side 'left'"),
        ({"padding_side": "left"}, "padding_side 'left'"),
        ({"split_special_tokens": True}, "split_special_tokens"),
        ({"max_input_chars_per_word": "9"}, "max_input_chars_per_word: .*int"),
        ({"tokenizer_class": "BertJapaneseTokenizer"}, "BertJapaneseTokenizer"),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, "tokenizer_class 'PreTrainedTokenizerFast'"),
        ({"do_basic_tokenize": False}, "do_basic_tokenize False"),
        ({"never_split": ["x"]}, "never_split"),
        ({"cls_token": "<s>"}, "cls_token '<s>'"),
        ({"strip_accents": "no"}, "strip_accents: .*bool"),
        ({"added_tokens_decoder": {"x": {"content": "w1"}}}, "added_tokens_decoder"),
        ({"additional_special_tokens": [{"content": "w1", "single_word": True}]}, "'w1' has single_word=true"),
        ({"cls_token": {"lstrip": True}}, "cls_token {'lstrip': True}"),
        ({"mask_token": {"content": "[MASK]", "single_word": True}}, r"'\[MASK\]' has single_word=true"),
        ({"do_lower_case": False}, "--do_lower_case is True, but .* has False"),
    ],
)
def test_other_tokenizers_are_refused_by_name(vocab, settings, message):
    assert_refused(message, Tokenizer.checked, vocab(settings=settings), True)


@pytest.mark.parametrize(
    ("file", "settings", "message"),
    [
        ("config.json", {"tokenizer_class": "BertJapaneseTokenizer"}, "config.json has tokenizer_class 'BertJapanese"),
        ("special_tokens_map.json", {"sep_token": "</s>"}, "special_tokens_map.json has sep_token '</s>'"),
        ("special_tokens_map.json", {"image_token": "<i>"}, "image_token '<i>', which may change"),
    ],
)
def test_other_files_of_another_tokenizer_are_refused(vocab, write, file, settings, message):
    write(file, json.dumps(settings))
    assert_refused(message, Tokenizer.checked, vocab(), True)


def test_two_vocabularies_of_one_directory_are_the_same(vocab, write):
    write("tokenizer.json", json.dumps(BERT))
    assert Tokenizer.checked(vocab()).tokenize("w1") == ["w1"]
    assert_refused("line 8: id 7 is 'x', but 'w0'", Tokenizer.checked, vocab([*UNCASED[:7], "x", *UNCASED[8:]]))


def test_known_settings_stay_when_they_are_written(vocab):
    path = vocab(settings={"model_max_length": 64, "strip_accents": False, "do_lower_case": True})
    written = hf_tokenizer_config(path, find_rules(path), 512)
    assert (written["model_max_length"], written["strip_accents"], written["do_lower_case"]) == (64, False, True)
    assert (written["tokenizer_class"], written["mask_token"]) == ("BertTokenizer", "[MASK]")
    for settings in ({}, {"model_max_length": 10**30}, {"model_max_length": None}):
        assert hf_tokenizer_config(vocab(settings=settings), {}, 512)["model_max_length"] == 512


def test_a_vocabulary_is_read_from_tokenizer_json(write, tmp_path):
    reverse = {piece: i for i, piece in reversed(list(enumerate(PIECES)))}
    path = write("tokenizer.json", json.dumps(tokenizer_json(PIECES, {"vocab": reverse})))
    assert list(Tokenizer.checked(path, True).vocab) == PIECES
    finished_runs.record(tmp_path / "run", path, tiny_config())
    assert (tmp_path / "run" / "vocab.txt").read_text() == "\n".join(PIECES) + "\n"
