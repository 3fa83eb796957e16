"""Tests that all methods of the tokenizer, in Python and in the graph, give the same tokens and spans."""

import csv
import json
import random
from array import array

import pytest
import tensorflow as tf

from bert_tf.graphs.tokenization import GraphTokenizer
from bert_tf.text import FullTokenizer
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from tests.conftest import assert_refused, data_path, golden_json, golden_lines, golden_path

TRAPS = [
    "",
    " \t\n",
    "\0",
    "a\0b",
    "ΑΣ ΑΣ. ΑΣΑ Σ ΑΣ\u0301 Α.Σ\u200d ὈΔΥΣΣΕΎΣ",
    "İstanbul Iı ß ŉ ﬁ ǆ",
    "한국어 각\u302e \u1112\u1161\u11ab",
    "e\u0301e\u0323\u0302 \u0301x a\u302e\u0316b",
    "不\u0301中文abc，。 \uf900\U0002f800",
    "\u200b \u200d\u2028x\u3000y\u00a0z\u202f \x85",
    "\ufffd\ufeff\uffff\U0010ffff\ue000",
    "[MASK] [MASK[SEP]] [mask] x[CLS]y[UNK]",
    "x" * 200 + " " + "x" * 201 + " " + "é" * 200 + " " + "中" * 300,
]
BYTES = [b"\xff\xfea\xc3b", b"\xed\xa0\x80a", b"a\xe4\xb8 \xe4\xb8\xad\x80", b"\xf4\x90\x80\x80", b"caf\xc3\xa9\xc3"]


def assert_same(tokenizer, graph_tokenizer, texts):
    """Checks all modes on texts in bytes. Like the original code, Python drops bytes that aren't UTF-8."""
    for begin in range(0, len(texts), 2000):
        some = texts[begin : begin + 2000]
        ids = graph_tokenizer.tokenize(tf.constant(some, tf.string)).to_list()
        found = [values.to_list() for values in graph_tokenizer.tokenize_with_offsets(tf.constant(some, tf.string))]
        for i, raw in enumerate(some):
            text = raw.decode("utf-8", "ignore")
            pieces, spans = tokenizer.tokenize_with_offsets(text)
            expected = tokenizer.convert_tokens_to_ids(pieces)
            assert tokenizer.tokenize(raw) == pieces, raw
            ids_of_bytes = list(array(tokenizer.id_typecode, tokenizer.encode_to_bytes(raw)))
            for one in (tokenizer.encode(raw), ids_of_bytes, ids[i], found[0][i]):
                assert one == expected, raw
            assert list(zip(found[1][i], found[2][i], strict=True)) == spans, raw
            for (start, end), first, behind in zip(spans, found[3][i], found[4][i], strict=True):
                assert raw[first:behind].decode("utf-8", "ignore") == text[start:end], raw


def make_pair(vocab_file, do_lower_case, keep_special_tokens=False, **rules):
    tokenizer = FullTokenizer(str(vocab_file), do_lower_case, keep_special_tokens, **rules)
    return tokenizer, GraphTokenizer.of(tokenizer, SPECIAL_TOKENS if keep_special_tokens else ())


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_pieces_and_spans_are_those_of_python(do_lower_case):
    pair = make_pair(golden_path("tokenization/vocab.txt"), do_lower_case)
    inputs = golden_lines("tokenization/inputs.jsonl")[::4]  # the slow tests use many more texts
    assert_same(*pair, [text.encode() for text in inputs + TRAPS] + BYTES)


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    """Returns a vocabulary with the characters of the difficult texts, because [UNK] would hide differences."""
    found = {char for text in TRAPS for form in (text, text.lower()) for char in form if not char.isspace()}
    found |= set("αςσδυε\u0323\u0302\u0316\u1100\u11a8ᆫiıɉss") - {"\0"}
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    pieces = sorted(found - {"\0"})
    path.write_text("\n".join([*SPECIAL_TOKENS, *pieces, *(f"##{piece}" for piece in pieces)]) + "\n")
    return path


@pytest.mark.parametrize("keep_special_tokens", [False, True])
def test_every_rule_meets_every_other(letters, keep_special_tokens):
    rng = random.Random(1)
    pool = [*"aΣσI .-'éİ각中\uf900\u0301\u302e\u0316\u200d\0\u00a0[", "[MASK]"]
    texts = ["".join(rng.choices(pool, k=rng.randint(1, 9))) for _ in range(700)]
    assert_same(*make_pair(letters, True, keep_special_tokens), [text.encode() for text in texts + TRAPS] + BYTES)


@pytest.mark.parametrize(("do_lower_case", "chinese"), [(True, False), (False, True)])
def test_rules_of_other_tokenizers(letters, do_lower_case, chinese):
    """Tests lower case with accents, and cased text without accents. The original code has neither."""
    rules = {"strip_accents": not do_lower_case, "tokenize_chinese_chars": chinese}
    texts = [text.encode() for text in [*TRAPS, "ÉÄ中Ée\u0301"]]
    assert_same(*make_pair(letters, do_lower_case, **rules), texts + BYTES)


def test_quirky_vocabularies():
    tokenizer = FullTokenizer(str(golden_path("tokenization/vocab_quirk.txt")))
    graph_tokenizer = GraphTokenizer(tokenizer.vocab)
    cases = [case["input"] for case in golden_json("tokenization/expected_quirk.json")["cases"]]
    assert_same(tokenizer, graph_tokenizer, [text.encode() for text in cases + TRAPS])


def test_no_texts_and_a_very_long_one():
    tokenizer, graph_tokenizer = make_pair(golden_path("tokenization/vocab.txt"), True)
    assert graph_tokenizer.tokenize(tf.zeros([0], tf.string)).shape == [0, None]
    assert [x.dtype for x in graph_tokenizer.tokenize_with_offsets(tf.constant(["a b"]))] == [tf.int32] + [tf.int64] * 4
    text = "Some words, é and Σ. " * 50_000
    assert graph_tokenizer.tokenize(tf.constant([text])).to_list() == [tokenizer.encode(text)]


def test_a_vocabulary_needs_the_unknown_token():
    assert_refused(r"has no \[UNK\]", GraphTokenizer, {"a": 0})


def _strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)


@pytest.mark.slow  # two minutes
@pytest.mark.parametrize("do_lower_case", [True, False])
def test_all_real_texts(do_lower_case):
    """Tests every string of XQuAD and of the naughty strings, and every cell and line of GLUE."""
    texts = set()
    for path in [*data_path("xquad").glob("*.json"), data_path("unicode/blns.json")]:
        texts.update(_strings(json.loads(path.read_text())))
    for path in data_path("glue").glob("*/*.tsv"):
        with path.open(encoding="utf-8", newline="\n") as reader:
            for row in csv.reader(reader, delimiter="\t", quoting=csv.QUOTE_NONE):
                texts.update([*row, "\t".join(row)])
    encoded = sorted({text.encode("utf-8", "surrogatepass") for text in texts})
    assert len(encoded) > 20_000
    assert_same(*make_pair(golden_path("tokenization/vocab.txt"), do_lower_case), encoded)


@pytest.mark.slow  # five minutes
@pytest.mark.parametrize("do_lower_case", [True, False])
def test_every_code_point(tmp_path, do_lower_case):
    """Tests each code point alone and between other characters. In the vocabulary, every letter is a token."""
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    letters = [char for char in characters if char.isprintable() and not char.isspace()]
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join([*SPECIAL_TOKENS, *letters, *(f"##{char}" for char in letters)]) + "\n")
    pair = make_pair(vocab, do_lower_case)
    for around in ("{}", "a{}b", "aΣ{}", "e\u0301{}\u0316x", "中{} {}"):
        assert_same(*pair, [around.replace("{}", char).encode() for char in characters])
