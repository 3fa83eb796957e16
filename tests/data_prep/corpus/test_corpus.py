import bz2
import gzip
import itertools
import json

import pytest

from bert_tf.runtime.files import InputError
from data_prep.corpus import files
from data_prep.corpus.files import FileRange, cut_into_splits, find_input_files, read_lines
from data_prep.corpus.reader import BadLines, CorpusOptions, CorpusReader, describe_bad_lines


def documents(patterns, input_format="auto", pieces=None, bad_lines=None, **options):
    """Reads a corpus as lists of sentences; like the token store, it leaves out empty documents."""
    options = CorpusOptions(**options)
    reader = CorpusReader(options, bad_lines or BadLines(options.on_bad_line))
    inputs = find_input_files(str(patterns), input_format)
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
    return found


TEXT = "a b\r\nc\n\n\nd\re\r\n \u00a0\u200b\nf"


def test_blank_lines_separate_documents_and_any_line_end_ends_lines(write):
    assert documents(write("a.txt", TEXT)) == [["a b", "c"], ["d", "e"], ["f"]]
    assert documents(write("bom.txt", "\ufeffa\n")) == [["a"]]


@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
def test_cuts_change_nothing(write, monkeypatch, chunk):
    monkeypatch.setattr(files, "_CHUNK", chunk)
    path = write("a.txt", TEXT)
    (file,) = find_input_files(path)
    for options in ({"documents": "blank_line"}, {"documents": "record"}):
        whole = documents(path, **options)
        for first in range(1, file.size + 1):
            for second in range(first, file.size + 1):
                cuts = [0, first, second, file.size]
                pieces = [[FileRange(file, *cut) for cut in itertools.pairwise(cuts)]]
                assert documents(path, pieces=pieces, **options) == whole


def test_compressed_files(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    (tmp_path / "b.txt.bz2").write_bytes(bz2.compress(TEXT.encode()))
    expected = [["a b", "c"], ["d", "e"], ["f"]]
    assert documents(tmp_path / "a.txt.gz") == documents(tmp_path / "b.txt.bz2") == expected
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(TEXT.encode())[:-9])
    with pytest.raises(InputError, match=r"c\.txt\.gz can't be decompressed"):
        documents(tmp_path / "c.txt.gz")


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


def test_missing_empty_and_repeated_files(write, tmp_path):
    path = write("a.txt", "a\n")
    with pytest.raises(InputError, match="there twice"):
        find_input_files(f"{path},{tmp_path}/*.txt")
    with pytest.raises(InputError, match="matches no file"):
        find_input_files(f"{tmp_path}/*.text")
    with pytest.raises(InputError, match="is empty"):
        find_input_files(write("b.txt", ""))
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="holds no files"):
        find_input_files(str(tmp_path / "folder"))


BAD = b"fine\n\xc3\xa9t\xe9\nal\0so\n\nbell\a\nnext\x85line\nlast\n"


def test_bad_lines_stop_the_program_and_are_named(write):
    for bad, message in (
        (b"\xc3\xa9t\xe9", r"line 2: not UTF-8 \(byte 0xe9\)"),
        (b"al\0so", "line 2: a NUL character"),
        (b"bell\a", r"line 2: a control character \(U\+0007\)"),
    ):
        with pytest.raises(InputError, match=message):
            documents(write("a.txt", b"fine\n" + bad + b"\n"))
    with pytest.raises(InputError, match='line 2: not a JSON object with a "text"'):
        documents(write("a.jsonl", '{"text": "a"}\n{"txt": "b"}\n'), "jsonl")
    with pytest.raises(InputError, match="line 1: a NUL character"):
        documents(write("b.jsonl", '{"text": "a\\u0000"}\n'))


def test_bad_lines_are_left_out_and_counted_on_request(write):
    bad_lines = BadLines("skip")
    path = write("a.txt", BAD.replace(b"\x85", "\x85".encode()))
    assert documents(path, bad_lines=bad_lines, on_bad_line="skip") == [["fine"], ["last"]]
    assert bad_lines.counts == {"not UTF-8": 1, "a NUL character": 1, "a control character": 2}
    assert describe_bad_lines([bad_lines.result()])[-1] == (
        f"left out 2 lines (a control character): {path} line 5, {path} line 6"
    )
    result = bad_lines.result()
    messages = describe_bad_lines([result] * 4)
    assert messages[0].startswith("left out 4 lines (not UTF-8)") and messages[2].endswith(", ...")


def test_lines_that_are_too_long_are_bad(write, monkeypatch):
    monkeypatch.setattr(files, "_CHUNK", 16)
    monkeypatch.setattr(files, "LONGEST_LINE", 40)
    monkeypatch.setattr("data_prep.corpus.reader.LONGEST_LINE", 40)
    path = write("a.txt", "a\n" + "x" * 300 + "\nb\n" + "y" * 99)
    bad_lines = BadLines("skip")
    assert documents(path, bad_lines=bad_lines, on_bad_line="skip") == [["a", "b"]]
    assert sum(bad_lines.counts.values()) == 2
    assert [offset for offset, _ in read_lines(path)] == [0, 2, 303, 305]


def test_paragraphs_are_split_into_sentences(write):
    pytest.importorskip("sentencex")
    path = write("a.txt", "Dr. Watson came in. He sat down! It was 3.30 p.m. already.\n\nThe end.\n")
    found = [[sentence.strip() for sentence in document] for document in documents(path, split_sentences=True)]
    assert found == [["Dr. Watson came in.", "He sat down!", "It was 3.30 p.m. already."], ["The end."]]


def test_documents_without_text_end_too(write):
    def ends(path, **options):
        (file,) = find_input_files(path)
        reader = CorpusReader(CorpusOptions(on_bad_line="skip", **options), BadLines("skip"))
        return list(reader.sentences(FileRange(file, 0, file.size)))

    assert ends(write("a.txt", "\n\na\n\n\n\0\n\nb\n\n")) == ["a", None, None, "b", None]
    assert ends(write("b.jsonl", '{"text": ""}\n{"text": "a\\n\\n\\nb"}\n')) == [None, "a", "b", None]
    records = write("c.jsonl", '{"text": ""}\n{"text": "a\\n\\nb"}\n')
    assert ends(records, documents="blank_line") == ["a", None, "b", None]
    assert ends(write("d.txt", "\n \n"), documents="file") == [None]
    assert ends(write("e.txt", "a\n\0\nb"), documents="record") == ["a", None, None, "b", None]
