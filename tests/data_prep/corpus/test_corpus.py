import bz2
import gzip
import itertools
import json
import lzma
import os

import pytest

from bert_tf.sequences.example_format import Metadata
from bert_tf.text import FullTokenizer
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from data_prep.corpus import lines
from data_prep.corpus.files import FileRange, cut_into_splits, find_input_files
from data_prep.corpus.lines import read_lines
from data_prep.corpus.reader import CorpusOptions, CorpusReader, bad_line_messages
from tests.conftest import assert_refused


def documents(patterns, input_format="auto", pieces=None, bad=None, **options):
    """Reads a corpus as lists of sentences, without empty documents, like the token store.

    The messages about lines that are not plain text are added to the list `bad`.
    """
    options = CorpusOptions(**options)
    reader = CorpusReader(options)
    inputs = find_input_files(str(patterns), input_format, may_be_empty=options.keeps_going)
    found, sentences = [], []
    for split in pieces or cut_into_splits(inputs, options.documents):
        for piece in split:
            for sentence in reader.sentences(piece):
                if sentence is not None:
                    sentences.append(sentence)
                elif sentences:
                    found.append(sentences)
                    sentences = []
    assert not sentences
    if bad is not None:
        directory = f"{os.path.dirname(inputs[0].path)}/"
        bad += [message.replace(directory, "") for message in bad_line_messages([reader.bad_lines])]
    return found


def divided(file, *places):
    """Returns the ranges of a file between the given positions, and from the last position to the end."""
    return [FileRange(file, *cut) for cut in itertools.pairwise([*places, file.size])]


TEXT = "a b\r\nc\n\n\nd\re\r\n \u00a0\u200b\nf"


def test_blank_lines_separate_documents_and_any_line_end_ends_lines(write):
    assert documents(write("a.txt", TEXT)) == [["a b", "c"], ["d", "e"], ["f"]]
    assert documents(write("bom.txt", "\ufeffa\n")) == [["a"]]


@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
def test_cuts_change_nothing(write, monkeypatch, chunk):
    monkeypatch.setattr(lines, "_CHUNK", chunk)
    path = write("a.txt", TEXT)
    (file,) = find_input_files(path)
    for options in ({"documents": "blank_line"}, {"documents": "record"}):
        whole = documents(path, **options)
        for first in range(1, file.size + 1):
            for second in range(first, file.size + 1):
                assert documents(path, pieces=[divided(file, 0, first, second)], **options) == whole


def zstandard(data):
    return pytest.importorskip("pyarrow").compress(data, "zstd", asbytes=True)


@pytest.mark.parametrize(
    ("suffix", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress), ("zst", zstandard)]
)
def test_compressed_files(write, suffix, compress):
    content = compress(TEXT.encode())
    expected = [["a b", "c"], ["d", "e"], ["f"]]
    assert documents(write(f"a.txt.{suffix}", content)) == expected
    assert documents(write(f"b.txt.{suffix}", content * 2)) == [*expected[:2], ["fa b", "c"], *expected[1:]]
    assert_refused(rf"c\.txt\.{suffix} can't be decompressed", documents, write(f"c.txt.{suffix}", content[:-9]))
    for other in (TEXT.encode(), gzip.compress(TEXT.encode())):  # the content decides how the file is read
        assert documents(write(f"d.txt.{suffix}", other)) == expected


def test_parquet(tmp_path):
    arrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    texts = ["a\nb", None, b"\xe9", "d\x92e", "", *(f"text {i}" for i in range(20))]
    texts = [text.encode() if isinstance(text, str) else text for text in texts]
    table = arrow.table({"id": list(range(25)), "body": arrow.array(texts, arrow.binary())})
    path, bad = tmp_path / "a.parquet", []
    parquet.write_table(table, path, row_group_size=3)
    expected = [["a", "b"], ["de"], *([f"text {i}"] for i in range(20))]
    assert documents(path, text_column="body", bad=bad) == expected
    assert bad == [
        "skipped 1 line (a row without text): a.parquet row 2",
        "skipped 1 line (not UTF-8): a.parquet row 3",
        "cleaned 1 line (a control character): a.parquet row 4",
    ]
    (file,) = find_input_files(str(path))
    for step in (7, 100):
        of_pieces = []
        pieces = [divided(file, *range(0, file.size, step))]
        assert documents(path, text_column="body", pieces=pieces, bad=of_pieces) == expected
        assert of_pieces == bad
    assert_refused(r"--text_column is 'text', but the columns of .* are id, body", documents, path)
    assert_refused(r"--text_column is 'id', whose type in .* is int64", documents, path, text_column="id")
    for kind in ("string", "large_string", "string_view", "binary", "large_binary", "binary_view"):
        if kind_of := getattr(arrow, kind, None):
            parquet.write_table(arrow.table({"text": arrow.array(["a", "b"]).cast(kind_of())}), path)
            assert documents(path) == [["a"], ["b"]]
    path.write_bytes(path.read_bytes()[:-20])
    assert_refused("can't be read as Parquet", documents, path)


def test_json_lines(write):
    records = [{"id": 1, "text": "a\nb\n\nc"}, {"text": ""}, {"title": "x", "text": "d\u2028e\r\nf"}]
    path = write("wiki_00", "".join(json.dumps(r) + "\n" for r in records))
    assert documents(path) == [["a", "b", "c"], ["d\u2028e", "f"]]
    assert documents(path, documents="blank_line") == [["a", "b"], ["c"], ["d\u2028e", "f"]]
    assert documents(path, documents="file") == [["a", "b", "c", "d\u2028e", "f"]]


def test_documents_are_files_or_lines_on_request(write, tmp_path):
    write("in/1.txt", "a\n\nb\n")
    write("in/2.txt", "c\n")
    write("in/.hidden", "x\n")
    assert documents(tmp_path / "in", documents="file") == [["a", "b"], ["c"]]
    assert documents(tmp_path / "in", documents="record") == [["a"], ["b"], ["c"]]
    # The end of a file ends a document.
    assert documents(f"{tmp_path}/in/1.txt,{tmp_path}/in/2*") == [["a"], ["b"], ["c"]]


def test_many_files_keep_their_order(write, tmp_path):
    for number in range(200):
        write(f"in/{number:03d}", str(number))
    found = {os.path.basename(file.path): file.size for file in find_input_files(str(tmp_path / "in"))}
    assert list(found.items()) == [(f"{number:03d}", len(str(number))) for number in range(200)]


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        ("{0}/a.txt,{0}/*.txt", "listed twice"),
        ("{0}/*.text", "matches no file"),
        ("{0}/empty", "is empty"),
        ("{0}/directory", "has no files"),
        ("{0}/utf-16", r"utf-16 is UTF-16\. Convert it to UTF-8: iconv"),
        ("{0}/utf-16-le", "is UTF-16"),
        ("{0}/utf-16-be", "is UTF-16"),
    ],
)
def test_files_that_can_not_be_read_are_named(write, tmp_path, patterns, found):
    write("a.txt", "a\n")
    write("empty", "")
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        write(encoding, "The cat sat.\nIt ran.\n".encode(encoding))
    (tmp_path / "directory").mkdir()
    assert_refused(found, documents, patterns.format(tmp_path), on_bad_line="fail")


def test_what_data_preparation_made_is_no_text(write, tmp_path, capsys):
    for name in ("a.txt", "sub/b.txt.meta.json", "sub/b.txt", "c.work/c.txt"):
        write(f"in/{name}", '{"a text": "of the user"}\n')
    texts = [str(tmp_path / "in" / name) for name in ("a.txt", "c.work/c.txt", "sub/b.txt", "sub/b.txt.meta.json")]
    write("in/vocab.txt", "ba\n")
    for name in ("x", "out/x"):
        write(f"in/{name}", "records")
        Metadata(1, 7, 9, 2, "", {}).write(Metadata.path_of(str(tmp_path / "in" / name)))
    hexadecimal = "0123456789abcdef"
    for name in ("x.work/work.lock", f"x.work/examples-{hexadecimal}/part", "v.work/vocabulary.lock"):
        write(f"in/{name}", "unfinished")
    write(f"in/any/tokens-{hexadecimal}/part-00000", "unfinished")
    directory, vocab = str(tmp_path / "in"), str(tmp_path / "sub" / ".." / "in" / "vocab.txt")
    (tmp_path / "sub").mkdir()
    assert [file.path for file in find_input_files(directory, no_text=[vocab])] == texts
    assert f"ignoring {directory}/any and 7 more in {directory}" in capsys.readouterr().err
    named = find_input_files(f"{directory}/x,{directory}/v*.txt")
    assert [file.path for file in named] == [f"{directory}/x", f"{directory}/vocab.txt"]
    assert_refused("has no text files", find_input_files, f"{directory}/out")


BAD = b"fine\n\xc3\xa9t\xe9\nal\0so\n\nbell\a\nnext\xc2\x85line\nlast\x0c word\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", b"fine\n\xc3\xa9t\xe9\n", r"line 2: not UTF-8 \(byte 0xe9\).*--on_bad_line=skip"),
        ("a.txt", b"fine\nal\0so\n", "line 2: a NUL character.*--on_bad_line=clean"),
        ("a.txt", b"fine\nbell\a\n", r"line 2: a control character \(U\+0007\)"),
        ("a.jsonl", '{"text": "a"}\n{"txt": "b"}\n', 'line 2: not a JSON object with a "text"'),
        ("a.jsonl", '{"text": null}\n', 'line 1: "text" is null'),
        ("a.jsonl", '{"text": "a\\u0000"}\n', "line 1: a NUL character"),
        ("a.txt", "", "is empty"),
    ],
)
def test_bad_lines_stop_the_program_on_request_and_are_named(write, name, text, message):
    input_format = "jsonl" if name == "a.jsonl" else "auto"
    for on_bad_line in ("fail", "error"):
        assert_refused(message, documents, write(name, text), input_format, on_bad_line=on_bad_line)


def test_control_characters_are_deleted_as_the_tokenizer_deletes_them(write):
    path, bad = write("a.txt", BAD), []
    assert documents(path, bad=bad) == [["fine", "also"], ["bell", "nextline", "last word"]]
    assert bad == [
        "skipped 1 line (not UTF-8): a.txt line 2",
        "cleaned 1 line (a NUL character): a.txt line 3",
        "cleaned 3 lines (a control character): a.txt line 5, a.txt line 6, a.txt line 7",
    ]
    tokenize = FullTokenizer(write("vocab.txt", "\n".join([*SPECIAL_TOKENS, "a", "b", "##a", "##b"]))).tokenize
    for number in (*range(32), *range(127, 160)):
        if chr(number) not in "\t\n\r":
            ((cleaned,),) = documents(write("b.txt", f"a{chr(number)}b a{chr(number)} b\n"))
            assert cleaned == "ab a b" and tokenize(cleaned) == tokenize(f"a{chr(number)}b a{chr(number)} b")


def test_lines_with_control_characters_are_left_out_on_request(write):
    bad = []
    assert documents(write("a.txt", BAD), bad=bad, on_bad_line="skip") == [["fine"]]
    assert [message.partition(" (")[0] for message in bad] == ["skipped 1 line", "skipped 1 line", "skipped 3 lines"]


def test_bad_lines_have_the_same_numbers_however_a_file_is_divided(write):
    path = write("a.txt", (BAD * 3).replace(b"\n", b"\r\n", 4))
    (file,) = find_input_files(path)
    whole = []
    documents(path, bad=whole)
    assert whole[0] == "skipped 3 lines (not UTF-8): a.txt line 2, a.txt line 9, a.txt line 16"
    assert whole[2].endswith("a.txt line 5, a.txt line 6, a.txt line 7, a.txt line 12, a.txt line 13, ...")
    for step in (1, 4, 17, 60):
        of_pieces = []
        documents(path, bad=of_pieces, pieces=[[piece] for piece in divided(file, *range(0, file.size, step))])
        assert of_pieces == whole


def test_dirty_records_are_cleaned_or_left_out(write):
    deep = '{"text": "x", "deep": ' + "[" * 20000 + "]" * 20000 + "}"
    records = ['{"text": "a\\u0092b\\ud800c"}', '{"text": "raw \x01 one"}', '{"text": "', deep]
    records += ['{"text": 5}', "[]", '{"text": "good"}']
    bad = []
    assert documents(write("a.jsonl", "\n".join(records)), "jsonl", bad=bad) == [["abc"], ["raw  one"], ["good"]]
    assert bad == [
        "cleaned 2 lines (a control character): a.jsonl line 1, a.jsonl line 2",
        'skipped 2 lines (not a JSON object with a "text"): a.jsonl line 3, a.jsonl line 6',
        "skipped 1 line (JSON that is nested too deeply): a.jsonl line 4",
        'skipped 1 line ("text" is not a string): a.jsonl line 5',
    ]
    assert documents(write("b.jsonl", '{"body": "b"}\n'), text_column="body") == [["b"]]


def test_empty_files_are_named(write):
    names = [write("1.txt", "a"), write("2.txt", ""), write("3.txt.gz", gzip.compress(b"")), write("4.txt", "b")]
    bad = []
    assert documents(",".join(names), bad=bad) == [["a"], ["b"]]
    assert bad == ["skipped 2 lines (an empty file): 2.txt, 3.txt.gz"]


def test_lines_that_are_too_long_are_bad(write, monkeypatch):
    monkeypatch.setattr(lines, "_CHUNK", 16)
    monkeypatch.setattr(lines, "LONGEST_LINE", 40)
    monkeypatch.setattr("data_prep.corpus.reader.LONGEST_LINE", 40)
    path = write("a.txt", "a\n" + "x" * 300 + "\nb\n" + "y" * 99)
    bad = []
    assert documents(path, bad=bad) == [["a", "b"]]
    assert [message.partition(": ")[2] for message in bad] == ["a.txt line 2, a.txt line 4"]
    assert [offset for offset, _ in read_lines(path)] == [0, 2, 303, 305]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_long_line_is_not_read_again_by_each_of_its_pieces(write, monkeypatch, end):
    monkeypatch.setattr(lines, "_CHUNK", 16)
    path = write("a.txt", b"a" + end + b"x" * 1000 + end + b"b" + end)
    for start in range(10, 900, 100):
        read = []
        assert list(read_lines(path, start, start + 100, read.append)) == []
        assert len(read) <= 8
    assert list(read_lines(path, 950, 1010)) == [(1001 + 2 * len(end), b"b")]


def test_paragraphs_are_split_into_sentences(write):
    pytest.importorskip("sentencex")
    path = write("a.txt", "Dr. Watson came in. He sat down! It was 3.30 p.m. already.\n\nThe end.\n")
    found = [[sentence.strip() for sentence in document] for document in documents(path, split_sentences=True)]
    assert found == [["Dr. Watson came in.", "He sat down!", "It was 3.30 p.m. already."], ["The end."]]


def test_documents_without_text_end_too(write):
    def ends(path, **options):
        (file,) = find_input_files(path)
        reader = CorpusReader(CorpusOptions(on_bad_line="skip", **options))
        return list(reader.sentences(FileRange(file, 0, file.size)))

    assert ends(write("a.txt", "\n\na\n\n\n\0\n\nb\n\n")) == ["a", None, None, "b", None]
    assert ends(write("b.jsonl", '{"text": ""}\n{"text": "a\\n\\n\\nb"}\n')) == [None, "a", "b", None]
    records = write("c.jsonl", '{"text": ""}\n{"text": "a\\n\\nb"}\n')
    assert ends(records, documents="blank_line") == ["a", None, "b", None]
    assert ends(write("d.txt", "\n \n"), documents="file") == [None]
    assert ends(write("e.txt", "a\n\0\nb"), documents="record") == ["a", None, None, "b", None]


def test_formats_are_found_by_more_than_the_first_line(write):
    def formats(text, **options):
        return [file.format for file in find_input_files(write("a", text), **options)]

    record = '{"text": "a"}\n'
    assert formats(record * 3) == formats("\n" + record) == formats('{"text": "cut\n') == ["jsonl"]
    assert formats("a\nb\n") == formats("{}\na\n") == formats('[1]\n{"a\n') == ["text"]
    for name in ("a.json", "a.jsonl", "a.jsonl.gz"):
        path = write(name, '[\n{"text": "a"},\n{"text": "b"},\n]\n')
        assert_refused(f"{name}: line 1 is not a JSON object", find_input_files, path)
    for mixed in ('xt": "cut"}\n' + record * 5, record * 20 + "a line of text\n"):
        assert_refused(r"is a JSON object, but line .* is not", formats, mixed)
        assert formats(mixed, input_format="jsonl") == ["jsonl"]


def test_files_of_different_formats_are_told(write, capsys):
    names = f"{write('1', 'a')},{write('2', json.dumps({'text': 'b'}))}"
    assert documents(names) == [["a"], ["b"]]
    assert "1 is read as text" in capsys.readouterr().err


def test_copies_of_a_file_are_the_same_content(write, tmp_path):
    content = "".join(f"{i}\n" for i in range(100_000))
    (one,) = find_input_files(write("1", content))
    (two,) = find_input_files(write("2", content))
    assert one.content == two.content and one.path != two.path
    for changed in ("x" + content[1:], content[:-2] + "x\n", content[:-1]):
        (other,) = find_input_files(write("3", changed))
        assert other.content != one.content
