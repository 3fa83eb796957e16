"""Tests the report of the text, before and after the data is made."""

import base64
import gzip
import lzma
import re
import struct
import tarfile

import pytest

from bert_tf.data_report import examples, findings
from data_prep.corpus import sample
from data_prep.corpus.files import FileRange, find_input_files
from data_prep.corpus.reader import CorpusOptions, CorpusReader
from tests import programs
from tests.conftest import ROOT, SHARED, assert_refused
from tests.data_prep.corpora import make, write_chinese, write_vocab
from tests.data_prep.test_one_machine import run_program

WRAPPED = """The ship had left the harbour early in the morning, and when the sun
rose over the water the crew could no longer see the coast. Nobody on
board spoke of the whale, although all of them had seen it. The cook
sang while he peeled potatoes for the evening.

In the afternoon the wind turned and the captain ordered the men to
take in the sails. It was a long night. The rain did not stop until
the next day, and the deck was white with salt. At last they saw an
island with two hills.
"""
# Texts, and the start of the error or of the warning.
ERRORS = {
    '<doc id="1" url="x" title="Whale">\nWhale\n\nIt swam.\n</doc>': "is output of WikiExtractor ... --json",
    '<mediawiki xml:lang="en">\n<page>': "is a Wikipedia dump ... WikiExtractor",
    "\n<!DOCTYPE html>\n<p>It swam.": "is HTML ... Convert it",
    '<?xml version="1.0"?>\n<TEI>': "is XML",
    "{\\rtf1\\ansi\n\\pard It swam.\\par": "is RTF",
    "WEBVTT\n\n00:01.000 --> 00:02.000\nIt swam.": "is subtitles",
    "00:00:01,000 --> 00:00:03,000\nIt swam.\n\n" * 9: "50% of the lines have timestamps",
    "[00:12.50]It swam.\n" * 9: "100% of the lines have timestamps",
    "<p>It swam &amp; dived.</p>\nIt was old.\n" * 9: "50% of the lines have HTML or XML",
    "It '''swam''' in the [[sea]].\n" * 9: "100% of the lines have wiki markup",
    "It \\emph{swam}.\n" * 9: "100% of the lines have commands of LaTeX",
    "哈 ##尔 ##滨\n" * 9: "100% of the lines have '##' before words ... --word_segmenter",
    "\0\1\2 ELF\n" * 9: "9 of 9 lines are not plain text",
    "From ann@x.org Mon Jan  1 00:00:00 2024\nIt swam.\n": "is e-mails ... Extract",
    "2024-01-02 12:33:44,123 INFO started\n" * 9: "100% of the lines have timestamps",
    "2024-01-02T12:33:44 INFO started\n" * 9: "100% of the lines have timestamps",
    "12:01 <ann> It swam.\n1/2/24, 9:05 PM - Ann B: It swam.\nann (12:05): It swam.\n" * 9: "100% ... have timestamps",
    "It/pps swam/vbd far/rb ./.\nIt_PRP swam_VBD far_RB ._.\n(S (NP (PRP It)))\n" * 9: "100% ... labels or tags",
    "__label__pos It swam.\nAnn NNP B-NP B-PER\nswam VBD B-VP O\n"
    * 9: "100% of the lines have labels or tags ... words",
    "L1 +++$+++ u0 +++$+++ It swam.\n1|It swam.|pos\nIt swam. ||| Il nage.\n" * 9: "100% ... have several columns",
    "nan\n[deleted]\n" * 9: "100% of the lines have missing values",
    "it &apos;s old &quot;\n" * 9: "100% of the lines have HTML or XML",
    "the low@@ er \u2581whale\n" * 9: "100% of the lines have marks of another tokenizer ... Join",
    "See [the sea](https://x.org).\n" * 9: "100% of the lines have markup of Markdown",
    "See :ref:`the sea`.\n" * 9: "100% of the lines have markup of Markdown or reStructuredText",
    "Der Fluss flie\u00c3\u0178t und KÃ¶nige.\n" * 9: "100% of the lines have wrongly decoded characters",
    "It is $x^2 \\alpha$.\n" * 9: "100% of the lines have commands of LaTeX",
    '["It swam.",\n "It was old."]\n': "is JSON ... --text_column",
    '1,"It swam, fast.",pos\n' * 9: "100% of the lines have several columns",
    "1\tIt swam.\n" * 9: "100% of the lines have several columns ... Keep only",
    f"{base64.b64encode(bytes(range(57))).decode()}\n" * 9: "100% of the lines have encoded data",
    f"{base64.b64encode(bytes(range(33))).decode()}\n101 1996 2911 102\n0.5,1.5;-2e\n00000000  b9 ec 54 2d 5d  |x|\n"
    * 9: "75% of the lines have encoded data or only numbers",
    "From: Ann <a@x.org>\nTo: Bo\n\nIt swam.\n": "is e-mails",
    "{'text': 'It swam.'}\n": "is JSON or Python data",
    "@article{x,\n  title = {Whales}\n": "is PostScript, LaTeX or BibTeX",
    "&eacute;t&eacute; &mdash; &rsquo;\n" * 9: "100% of the lines have HTML or XML",
    "ann  9:05 PM\n0:01\n{100}{200}It swam.\n" * 9: "100% of the lines have timestamps",
    "<ann> It swam.\n> It was old.\n>> Where?\n" * 9: "100% of the lines have names or quote marks of a chat",
    "the \u0120low \u0120whale\n" * 9: "100% of the lines have marks of another tokenizer",
    "[CLS] It swam. [SEP]\nIt was old.<|endoftext|>\n" * 9: "100% of the lines have special tokens",
    "| orca | 9 m |\nIt **swam** far.\n```python\n" * 9: "100% of the lines have markup of Markdown",
    **{
        f"{text.encode(right).decode(wrong, 'replace')}\n" * 9: "100% of the lines have wrongly decoded characters"
        for text, right, wrong in (
            ("Он плыл в море.", "utf-8", "cp1251"),
            ("Он плыл в море, но устал.", "cp1251", "latin-1"),
            ("été", "utf-8", "cp437"),
            ("鲸在海里游，它很大。", "gbk", "latin-1"),
            ("鯨の海", "shift-jis", "cp1252"),
        )
    },
    **{
        f"{text}\n" * 9: "100% of the lines have wrongly decoded characters"
        for text in (
            "\u043f\u041e \u0420\u041c\u0429\u041c \u0427 \u0418\u041f\u041c\u041f\u0414",  # KOI8-R as Windows-1251
            "\u00d4\u00ef \u00f0\u00eb\u00ef\u00df\u00ef",  # ISO-8859-7 as Latin-1
            "Za\u00bf\u00f3\u00b3\u00e6 g\u00eas\u00b9 mo\u00bfe",  # Windows-1250 as 1252
            "L'\u201at\u201a fut gar\u2021on",  # IBM 850 as Windows-1252
        )
    },
    "1700000000 INFO It swam.\n[1700000001.5] It dived.\nINFO:root:It rose.\n[0:05] It slept.\n"
    * 9: "100% of the lines have timestamps or levels of a log",
    "It swam -LRB- far -RRB- .\nWash\n\u0120it\n\u0120swam\n" * 9: "25% of the lines have marks of another tokenizer",
    "[INST] It swam? [/INST]\n" * 9: "100% of the lines have special tokens",
    "Der Flu+AN8-t\n(cid:12)(cid:4) swam\n" * 9: "100% of the lines have escapes",
    "\ufedb\ufe8e\ufee5 \ufe8d\ufedf\ufea0\ufeee\n" * 9: "100% of the lines have ligatures or presentation forms",
    "12\nIt swam.\n+1 555-1234\n" * 9: "67% of the lines have encoded data or only numbers",
    "https://x.org/a?b=c\n" * 9: "100% of the lines have names of files or web addresses",
    "T h e w h a l e s w a m\n" * 9: "100% of the lines have spaces between the letters ... Join",
    base64.b64encode(bytes(range(256)) * 9).decode(): "100% of the lines have encoded data",
    "Les gar?ons f?tent l'?t?\n?? ????? ?? ????\n" * 9: "100% of the lines have '?' in the place of letters",
    "gar\\u00e7on\nb'\\xc3\\xa7'\nIt swam.\\nIt dived.\nIt%20swam%20far\nf=C3=AAte\n"
    * 9: "100% of the lines have escapes",
    "The \ufb01rst o\ufb03cer.\n" * 9: "100% of the lines have ligatures ... NFKC",
    '"He said ""no""."\n' * 9: "100% of the lines have doubled quotes of CSV ... --delimiter=tab",
    "data/1.txt\nimages/a b.jpg\n" * 9: "50% of the lines have names of files",
}
WARNINGS = {
    "It swam.\n" * 99 + "It <i>swam</i>.\n" * 11: "10% of the lines have HTML or XML",
    WRAPPED: "6 of 8 lines end inside a sentence ... --join_lines and --split_sentences",
    "Whale\nsea NN\n\n" * 50: "lines have 1.5 words on average ... --join_lines",
    "अपने पोस्ट ऑफिस में\n" * 9: "the tokenizer removes accents ... 'अपने' becomes 'अपन' ... --nostrip_accents",
    "がっこうでべんきょうをする。\n" * 9: "'がっこうでべんきょうをする。' becomes 'かっこうてへんきょうをする。'",
    "Đây là một câu tiếng Việt.\n" * 9: "'một' becomes 'mot'",
    "".join(f"It swam {i % 80} miles to the south.\n" for i in range(100)): "20 of 100 lines are copies of other lines",
    "".join(f"It swam {i} miles to the south.\n" for i in range(100, 200)): "the lines are sorted",
    "It swam to the south and dived. " * 200: "lines have 1400 words on average ... --split_sentences",
    "\ufeff\nThe Project Gutenberg eBook of Whales\n\nIt swam.\n": "begins with the notice of Project Gutenberg",
    WRAPPED.replace("sun\n", "su-\n").replace("on\n", "o-\n").replace("to\n", "t-\n"): "3 lines end inside a word",
}
# Texts without a finding: accents of other languages, placeholders, comparisons, verses, texts without case.
USUAL = (
    "Où est l'école des garçons où l'été fut très gênant?\n" * 9,
    "Ёлка стоит и свой край.\n" * 9,
    "<s> the <unk> of a <user> is 3 < 4 and b > 2 </s>\n" * 9,
    "# a heading\n## of Markdown\nand a #hashtag at 12:30\n" * 9,
    "3:16 For so it was (John 3:16): he took an A/B test and/or 1/2 of A (NP) in PART O.\n" * 9,
    "鲸在海里游\n" * 150,
    "the whale swam in the cold and deep blue sea for a long day\n" * 9,
    "ACGT" * 17 + "\n" + "\tIt swam at 12:30, \u00abÉté\u00bb of SÃO (see [1]).\n" * 9,
    "ผู้ชายคนนั้นชอบอ่านหนังสือที่บ้านของเขาทุกวัน\n" * 9,
    "Whose woods these are I think I know,\nHis house is in the village though;\n" * 9,
    "".join(f"It swam {i} miles, then it slept\n" for i in range(12))
    + 'Is it? "No?" Why? no\n"No," he said. "Yes."\n' * 9,
    "«иРНК» в США и мРНК, R e d 25°C, ¿qué? nº 3, créée\n\u251c\u2500\u2500 src\n" * 9,
    "2.5 * 3 > 1; x = **p, C++ & R&D, 50% of 100%, AT&T; f(x).\nµm Ø÷ (http://x.org/a?b=c%20d)\n" * 9,
)


@pytest.fixture(autouse=True)
def nothing_reported(monkeypatch):
    monkeypatch.setattr(findings, "_reported", set())


def report(path, text="", strips_accents=True, allows_errors=False, input_format="text", **options):
    if text:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    sample.report_sample(
        find_input_files(str(path), input_format), CorpusOptions(), strips_accents, allows_errors, **options
    )


@pytest.mark.parametrize("text", ERRORS)
def test_a_text_in_another_form_is_an_error_that_can_be_allowed(text, tmp_path, capsys):
    path = tmp_path / "text.txt"
    expected = map(re.escape, (str(path), *ERRORS[text].split(" ... "), "--allow_unusual_data"))
    assert_refused("(?s)" + ".*".join(expected), report, path, text)
    report(path, text, allows_errors=True)
    assert capsys.readouterr().err.startswith(f"Warning: --input_file: {path}")


@pytest.mark.parametrize(("text", "input_format"), [('{"content": "It swam."}\n' * 9, "jsonl"), ("\xe4\xf6\n", "text")])
def test_a_file_without_a_usable_line_is_an_error(text, input_format, tmp_path):
    reason = {"jsonl": '9 of 9 lines .* not a JSON object with a "text". .* --text_column', "text": "1 of 1 .* UTF-8"}
    assert_refused(reason[input_format], report, tmp_path / "a", text.encode("latin-1"), input_format=input_format)


@pytest.mark.parametrize("text", WARNINGS)
def test_unusual_text_is_a_warning(text, tmp_path, capsys):
    report(tmp_path / "a.txt", text)
    printed = capsys.readouterr().err
    for part in WARNINGS[text].split(" ... "):
        assert part in printed
    report(tmp_path / "b.txt", text)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("text", USUAL)
def test_other_texts_have_no_warning(text, tmp_path, capsys):
    report(tmp_path / "text.txt", text, strips_accents="ผู้" not in text)
    assert not capsys.readouterr().err


def test_the_examples_and_the_shared_texts_have_no_warning(capsys):
    for directory in (ROOT / "examples" / "corpus", SHARED / "data" / "pretrain"):
        if directory.exists():
            report(directory)
    assert not capsys.readouterr().err


def tar(path):
    (path / "a.txt").write_text("It swam.\n")
    with tarfile.open(path / "x.tar", "w") as archive:
        archive.add(path / "a.txt")
    return (path / "x.tar").read_bytes()


@pytest.mark.parametrize("name", ["PDF", "tar", "tar in gzip", "lzma", "lz4", "Microsoft Office", "image", "7z"])
def test_binary_files_are_refused_by_name(name, tmp_path):
    data = {
        "PDF": lambda: b"%PDF-1.4\n%x\n1 0 obj\n",
        "tar": lambda: tar(tmp_path),
        "tar in gzip": lambda: gzip.compress(tar(tmp_path)),
        "lzma": lambda: lzma.compress(b"It swam.\n" * 99, format=lzma.FORMAT_ALONE),
        "lz4": lambda: struct.pack("<I", 0x184D2204) + b"x",
        "Microsoft Office": lambda: bytes.fromhex("d0cf11e0a1b11ae1") + b"x",
        "image": lambda: b"\x89PNG\r\n",
        "7z": lambda: b"7z\xbc\xaf\x27\x1c\0",
    }[name]()
    assert_refused(f"file is {name.removesuffix(' in gzip')} data", report, tmp_path / "file", data)


@pytest.mark.parametrize(("documents", "expected"), [("auto", 2), ("file", 1)])
def test_lines_are_joined_to_paragraphs(documents, expected, tmp_path):
    (tmp_path / "text.txt").write_text(WRAPPED)
    (file,) = find_input_files(str(tmp_path / "text.txt"))
    options = CorpusOptions(documents=documents, split_sentences=True, join_lines=True)
    sentences = list(CorpusReader(options).sentences(FileRange(file, 0, file.size)))
    assert sentences.count(None) == expected
    assert [text.strip() for text in sentences if text] == [
        "The ship had left the harbour early in the morning, and when the sun rose over the water the crew could no "
        "longer see the coast.",
        "Nobody on board spoke of the whale, although all of them had seen it.",
        "The cook sang while he peeled potatoes for the evening.",
        "In the afternoon the wind turned and the captain ordered the men to take in the sails.",
        "It was a long night.",
        "The rain did not stop until the next day, and the deck was white with salt.",
        "At last they saw an island with two hills.",
    ]


def test_unknown_tokens_are_counted_before_masking(tmp_path):
    write_vocab(tmp_path)
    (tmp_path / "text.txt").write_text("ba \u1234 co.\ndi \u1234.\n\n" * 30)
    for is_masked in (True, False):
        _, counts = make(tmp_path, tmp_path / "text.txt", is_masked=is_masked, output=f"{is_masked}", dupe_factor=1)
        assert counts["unknown"] / examples.text_tokens(counts) == pytest.approx(2 / 7, rel=0.05)


def test_data_of_unknown_tokens_is_an_error_from_1000_tokens_on(tmp_path):
    write_vocab(tmp_path)
    (tmp_path / "text.txt").write_text("\u1234 \u1235 ba.\n\u1234 \u1234.\n\n" * 20)
    assert "Warning: --input_file: 57% of the tokens are [UNK]" in run_program(tmp_path, "few")
    (tmp_path / "text.txt").write_text("\u1234 \u1235 ba.\n\u1234 \u1234.\n\n" * 200)
    printed = run_program(tmp_path, "many", expect=1)
    assert "error: --input_file: 57% of the tokens are [UNK]" in printed and "--allow_unusual_data" in printed
    assert "Warning: --input_file: 57% of" in run_program(tmp_path, "many", "--allow_unusual_data")


@pytest.mark.parametrize("segmenter", ["", "--word_segmenter=spaces"])
def test_whole_words_without_words_are_reported(segmenter, tmp_path):
    write_chinese(tmp_path)
    printed = run_program(tmp_path, "words", "--do_whole_word_mask", *filter(None, [segmenter]))
    assert ("words have only one token, so --do_whole_word_mask" in printed) == (not segmenter)


@pytest.mark.parametrize(("length", "most", "share"), [(512, 20, 0.15), (128, 20, 0.4)])
def test_fewer_masks_than_asked_are_reported(length, most, share):
    wanted = round(length * share)
    counts = {"records": 10, "tokens": 10 * length, "predictions": 10 * most}
    (found,) = examples.unusual_counts(counts, "x", "--most", length, most, share)
    assert f"{most / length:.1%} of the tokens are masked instead of {share:.0%}" in found.message
    assert f"Set --most={wanted}" in found.message
    enough = counts | {"tokens": 10 * most / share}  # short sequences
    assert not list(examples.unusual_counts(enough, "x", "--most", length, most, share))


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"corpus_tokens": 900}, "--split_sentences"),
        ({"documents_of_one_sentence": 9}, "9 of 10 documents are one sentence. Pass --documents=file"),
        ({}, "Set a larger --max_seq_length"),
        ({"random_next": 60}, ""),
        ({"records": 3, "random_next": 3}, ""),
        ({"length": 40}, ""),
    ],
)
def test_random_next_sentences_have_a_cause(counts, expected):
    counts = {"records": 100, "random_next": 90, "documents": 10, "sentences": 10, "corpus_tokens": 90} | counts
    found = examples.random_sentences(counts, counts.get("length", 128), splits_sentences=False)
    messages = [finding.message for finding in found]
    assert expected in messages[0] if expected else not messages


def test_the_text_of_a_vocabulary_is_looked_at(tmp_path):
    (tmp_path / "text.txt").write_text("<html>\nIt swam.\n")
    flags = [f"--input_file={tmp_path / 'text.txt'}", f"--output_file={tmp_path / 'v.txt'}", "--num_workers=1"]
    assert "is HTML" in programs.run("-m", "data_prep.build_vocab", *flags, expect=1)
