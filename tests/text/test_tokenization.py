import unicodedata

import pytest

from bert_tf import text as tokenization
from bert_tf.text import BasicTokenizer, FullTokenizer, WordpieceTokenizer, memo, vocabulary
from tests.conftest import assert_refused, golden_json, golden_lines, golden_path

SPECIAL = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"


@pytest.fixture(scope="module")
def inputs():
    return golden_lines("tokenization/inputs.jsonl")


@pytest.mark.golden
@pytest.mark.parametrize("casing", ["lower", "cased"])
@pytest.mark.parametrize(("name", "vocab"), [("real", "vocab.txt"), ("tiny", "vocab_tiny.txt")])
def test_tokens_are_the_releases(inputs, name, vocab, casing):
    tokenizer = FullTokenizer(str(golden_path(f"tokenization/{vocab}")), do_lower_case=casing == "lower")
    expected = golden_lines(f"tokenization/expected_{name}_{casing}.jsonl.gz")
    assert len(expected) == len(inputs)
    for text, row in zip(inputs, expected, strict=True):
        if "basic" in row:
            assert tokenizer.basic_tokenizer.tokenize(text) == row["basic"]
        assert tokenizer.tokenize(text) == row["tokens"]
        assert tokenizer.encode(text) == row["ids"]
        assert tokenizer.convert_tokens_to_ids(row["tokens"]) == row["ids"]


@pytest.mark.parametrize("casing", ["lower", "cased"])
def test_offsets_point_at_the_text_of_each_piece(inputs, casing):
    tokenizer = FullTokenizer(str(golden_path("tokenization/vocab.txt")), do_lower_case=casing == "lower")
    for text in inputs:
        pieces, spans = tokenizer.tokenize_with_offsets(text)
        assert pieces == tokenizer.tokenize(text)
        for piece, (start, end) in zip(pieces, spans, strict=True):
            assert 0 <= start < end <= len(text)
            covered = "".join(tokenizer.basic_tokenizer.tokenize(text[start:end]))
            if piece != "[UNK]":
                # The lower case of sigma depends on the adjacent characters; a Hangul syllable can be several tokens.
                bare = piece.removeprefix("##").replace("ς", "σ")
                assert bare in covered.replace("ς", "σ") or piece in covered
        assert [s for s, _ in spans] == sorted(s for s, _ in spans)


def test_offsets_of_changed_characters(write):
    letters = "\n".join([*"abceisz", *(f"##{c}" for c in "abceisz\u0307\u302e"), "?", "ss"])
    tokenizer = FullTokenizer(write("vocab.txt", SPECIAL + letters))
    # U+302E is a spacing mark. Canonical ordering moves it after a mark of a lower class.
    assert unicodedata.normalize("NFD", "a\u302e\u0316b") == "a\u0316\u302eb"
    for text, pieces, spans in (
        ("ce\u0301a \u200bé?", ["c", "##e", "##a", "e", "?"], [(0, 1), (1, 3), (3, 4), (6, 7), (7, 8)]),
        ("a\x00b İz", ["a", "##b", "i", "##z"], [(0, 1), (2, 3), (4, 5), (5, 6)]),
        ("a\u200db\u200d qq", ["a", "##b", "[UNK]"], [(0, 1), (2, 3), (5, 7)]),
        ("a\u302e\u0316b", ["a", "##\u302e", "##b"], [(0, 3), (1, 2), (3, 4)]),
    ):
        assert tokenizer.tokenize_with_offsets(text) == (pieces, spans)


@pytest.mark.golden
def test_quirks_of_vocabulary_files():
    expected = golden_json("tokenization/expected_quirk.json")
    path = str(golden_path("tokenization/vocab_quirk.txt"))
    tokenizer = FullTokenizer(path)
    assert [list(item) for item in tokenization.load_vocab(path).items()] == expected["vocab"]
    assert {str(k): v for k, v in tokenizer.inv_vocab.items()} == {str(k): v for k, v in expected["inv_vocab"]}


@pytest.mark.golden
def test_convert_to_unicode():
    for row in golden_json("tokenization/convert_to_unicode.json"):
        assert tokenization.convert_to_unicode(bytes.fromhex(row["hex"])) == row["text"]
    with pytest.raises(ValueError, match="Unsupported string type"):
        tokenization.convert_to_unicode(3)


@pytest.mark.golden
def test_casing_check_against_names():
    for row in golden_json("tokenization/casing_check.json"):
        if row["result"] == "ok":
            tokenization.validate_case_matches_checkpoint(row["do_lower_case"], row["init_checkpoint"])
        else:
            with pytest.raises(ValueError, match="Set --do_lower_case="):
                tokenization.validate_case_matches_checkpoint(row["do_lower_case"], row["init_checkpoint"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SPECIAL.replace("[SEP]\n", ""), r"has no \[SEP\]"),
        (
            SPECIAL + "a\nb\na\n",
            r"line 8: the token 'a' is already on line 6. Rename it there, for example to \[unused8\]",
        ),
        (SPECIAL + "a\n\nb\n", r"line 7: the line is blank. Write \[unused8\] there"),
        (SPECIAL + "a\n\n\n", "line 7: the line is blank. Remove the line"),
        ("a\n" + SPECIAL, r"\[PAD\] on line 2"),
        (SPECIAL + "a\rb\n", "carriage return inside"),
        (SPECIAL.encode() + b"\xff\n", "line 6: byte 0xff is not UTF-8"),
        (SPECIAL + "a b", "line 6: .*white space or a control character"),
        (SPECIAL + "a\0b", "line 6: .*control character"),
        (SPECIAL + "a" * 203, "line 6: .*has 203 characters"),
        ("", "is empty"),
    ],
)
def test_vocabularies_that_the_programs_refuse(write, tmp_path, text, message):
    assert_refused(message, vocabulary.check_vocab_file, write("x/vocab.txt", text))
    assert_refused(r"is a directory\. Pass a file", vocabulary.check_vocab_file, str(tmp_path / "x"))


@pytest.mark.parametrize("separator", ["\t", " ", ","])
def test_a_vocabulary_with_counts_is_refused(write, separator):
    path = write("vocab.txt", "".join(f"{token}{separator}7\n" for token in ("[PAD]", "[UNK]", "a")))
    assert_refused(r"line 1: '\[PAD\].+7' is not one token. Keep only the tokens", tokenization.FullTokenizer, path)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ((SPECIAL + "a\n").replace("\n", "\r\n"), 5),
        ("\ufeff" + SPECIAL + "a\n", 5),
        (SPECIAL + "\u2028\na\n", 6),  # as in the released Chinese vocabulary
    ],
)
def test_odd_vocabularies_that_are_fine(write, text, number):
    tokenizer = tokenization.Tokenizer.checked(write("vocab.txt", text), True)
    assert tokenizer.encode("a\u2028a") == [number, number]
    assert tokenizer.vocab["[PAD]"] == 0


def test_special_tokens_are_kept_only_when_asked_for(write):
    path = write("vocab.txt", SPECIAL + "[\n]\nmask\na\n")
    text = "a[MASK] [mask]"
    assert FullTokenizer(path).tokenize(text) == ["a", "[", "mask", "]", "[", "mask", "]"]
    keeping = FullTokenizer(path, keep_special_tokens=True)
    assert keeping.tokenize(text) == ["a", "[MASK]", "[", "mask", "]"]
    assert keeping.tokenize_with_offsets(text)[1] == [(0, 1), (1, 7), (8, 9), (9, 13), (13, 14)]


def test_memory_stays_bounded(write, monkeypatch):
    monkeypatch.setattr(memo, "_WORDS", 3)
    tokenizer = FullTokenizer(write("vocab.txt", SPECIAL + "a\n##a\n"))
    words = ["a" * n for n in range(1, 100)]
    assert [len(tokenizer.tokenize(word)) for word in words] == list(range(1, 100))
    assert len(tokenizer._pieces) <= 3
    assert max(map(len, tokenizer._pieces)) <= 64


def test_constructor_arguments_of_the_release():
    wordpiece = WordpieceTokenizer({"[UNK]": 0, "un": 1, "##able": 2}, unk_token="?", max_input_chars_per_word=6)
    assert wordpiece.tokenize("unable un xx") == ["un", "##able", "un", "?"]
    assert wordpiece.tokenize("ununable") == ["?"]
    assert BasicTokenizer(do_lower_case=False).tokenize("Ähm, ja") == ["Ähm", ",", "ja"]
    with pytest.raises(KeyError):
        tokenization.convert_tokens_to_ids({"a": 0}, ["b"])
