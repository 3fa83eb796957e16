import bz2
import datetime
import decimal
import gzip
import json
import lzma

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from bert_tf.runtime.files import InputError
from bert_tf.tasks import example_rows, tables
from bert_tf.tasks.example_rows import SkippedRow
from tests.conftest import assert_refused


def test_one_table_in_three_formats(write):
    tsv = write("a.tsv", '\ufefftext\tlabel\r\nsay "hi\tx\r\n\r\nb\ty')
    csv = write("a.csv", 'text,label\n"say ""hi",x\n\nb,y\n')
    jsonl = write("a.jsonl", '{"text": "say \\"hi", "label": "x"}\n\n{"label": "y", "text": "b"}\n')
    for path, lines in ((tsv, (2, 4)), (csv, (2, 4)), (jsonl, (1, 3))):
        rows = list(tables.read_table(path, ("text", "label")))
        assert [(row["text"], row["label"]) for row in rows] == [('say "hi', "x"), ("b", "y")]
        assert tuple(row.line for row in rows) == lines


COLUMNS = {"text": ["a", "b"], "label": [1, 0], "words": [["x", "y"], []], "none": [None, "z"]}
RECORDS = [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)]


def arrow_stream(path, table):
    with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


FORMATS = {
    "a.parquet": lambda path, table: pa.parquet.write_table(table, path),
    "a.arrow": arrow_stream,
    "a.feather": lambda path, table: pa.feather.write_feather(table, path, compression="uncompressed"),
    "parquet_without_a_name": lambda path, table: pa.parquet.write_table(table, path),
}


@pytest.mark.parametrize("name", FORMATS)
def test_tables_of_arrow_have_the_cells_of_json(tmp_path, name):
    path = str(tmp_path / name)
    described = {"label": {"names": ["neg", "pos"]}, "words": {"feature": {"dtype": "string"}}}
    text, names = {"dtype": "string", "_type": "Value"}, ["neg", "pos"]
    others = {"x": [text], "none": [{"a": text}], "text": {"names": text}, "words": {"feature": {"names": names}}}
    without = (
        {},
        {"info": None},
        [1],
        {"info": {"features": None}},
        {"info": {"features": {"label": {"names": None}}}},
    )
    with_names = [
        {"info": {"features": described | more, "x": 1}, "fingerprint": "f"}
        for more in ({}, others, {"label": [{"names": names}]})
    ]
    for metadata, labels in ((x, ["pos", "neg"] if x in with_names else ["1", "0"]) for x in (*without, *with_names)):
        FORMATS[name](path, pa.table(COLUMNS).replace_schema_metadata({"huggingface": json.dumps(metadata)}))
        rows = list(tables.read_table(path, ()))
        assert [row["label"] for row in rows] == labels
        cells = [[row[name] for name in ("text", "words", "none")] for row in rows]
        assert cells == [["a", ("x", "y"), None], ["b", (), "z"]]
    metadata = {"huggingface": json.dumps(with_names[0])}
    FORMATS[name](path, pa.table({"label": [1, -1], "words": [["a"], None]}).replace_schema_metadata(metadata))
    assert [row["label"] for row in tables.read_table(path, ())] == ["pos", None]
    FORMATS[name](path, pa.table([["a"], ["b"]], names=["text", "text"]))
    assert_refused(r"several columns have the same name|\(Multiple matches.*\)", tables.read_table, path, ())
    FORMATS[name](path, pa.table({"day": [datetime.date(2020, 1, 2)], "number": [decimal.Decimal("1.50")]}))
    (row,) = tables.read_table(path, ())
    assert (row["day"], row["number"]) == ("2020-01-02", "1.50")
    image = {"image": b"\xff", "text": [b"a"]}
    FORMATS[name](path, pa.table({"text": [b"\xc3\xa4"], "words": [[b"x", b"y"]], "image": [b"\xff"], "more": [image]}))
    (row,) = tables.read_table(path, ())
    assert (row["text"], row["words"]) == ("\xe4", ("x", "y"))
    assert_refused("line 1: the column 'image' is not UTF-8", row.__getitem__, "image")
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: len(content) // 2])
    assert_refused(r"can't be read as (Parquet|Arrow)", tables.read_table, path, ())


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.txt"])
@pytest.mark.parametrize("indent", [None, 1])
def test_lists_of_records_are_read(write, name, indent):
    rows = list(tables.read_table(write(name, json.dumps(RECORDS, indent=indent)), ("text",)))
    cells = [(row["text"], row["label"], row["words"], row.line) for row in rows]
    assert cells == [("a", "1", ("x", "y"), 1), ("b", "0", (), 2)]


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("name", ["a.csv.gz", "a.tsv.bz2", "a.jsonl.xz", "a.csv"])
def test_compressed_tables_are_read(tmp_path, compress, name):
    text = {"csv": "text,label\na,x\n", "tsv": "text\tlabel\na\tx\n", "jsonl": '{"text": "a", "label": "x"}\n'}
    (tmp_path / name).write_bytes(compress(text[name.split(".")[1]].encode()))
    (row,) = tables.read_table(str(tmp_path / name), ("text", "label"))
    assert (row["text"], row["label"]) == ("a", "x")


def test_the_delimiter_is_what_the_header_shows_or_the_user_says(write):
    def cells(name, text, delimiter=tables.AUTO, encoding="utf-8"):
        path = write(name, "")
        with open(path, "wb") as file:
            file.write(text.encode(encoding))
        return [(row["text"], row["label"]) for row in tables.read_table(path, ("text", "label"), delimiter)]

    for mark in ",;\t|":
        text = mark.join(("text", "n", "label")) + "\n" + mark.join(('"a, b; c\t| d"', "1", "x")) + "\n"
        assert cells("a.csv", text) == cells("a.tsv", text, mark) == [("a, b; c\t| d", "x")]
    assert cells("a.csv", "text:label\na:x\n", ":") == [("a", "x")]
    assert cells("a.txt", "text;label\na;x\n", "semicolon") == [("a", "x")]
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"):  # as spreadsheets write it
        assert cells("a.tsv", "text\tlabel\r\n\xe4\u4e2d\tx\r\n", encoding=encoding) == [("\xe4\u4e2d", "x")]
    for delimiter in ("", "::", "\n", '"'):
        assert_refused("--delimiter is ", cells, "a.csv", "text;label\na;x\n", delimiter)
    assert_refused(r"--delimiter is ';', but .*a\.jsonl has no cells with delimiters", cells, "a.jsonl", "{}\n", ";")
    with pytest.raises(InputError, match=r"line 1: the column 'text' is missing. Found: 'text;label'.*--delimiter"):
        cells("a.tsv", "text;label\na;x\n")


def test_csv_cells_may_span_lines_and_several_columns_may_have_no_name(write):
    rows = list(tables.read_table(write("a.csv", 'text,label\n"one\ntwo",x\nb,y\n'), ()))
    assert [(row["text"], row.line) for row in rows] == [("one\ntwo", 2), ("b", 4)]
    for path in (write("a.csv", "text,label,,\na,x,,\n"), write("a.tsv", "text\tlabel\t\t\na\tx\t\t\n")):
        (row,) = tables.read_table(path, ("text",))
        assert (row["text"], row["label"], row.problem) == ("a", "x", "")
        with pytest.raises(InputError, match=f"{path}: several columns have the same name, or no name. Rename"):
            row.values  # noqa: B018


def test_cells_of_json_are_converted_to_text(write):
    (row,) = tables.read_table(write("a.jsonl", '{"a": 1, "b": true, "c": null, "d": ["x", 2]}\n'), ())
    assert [row[name] for name in "abcd"] == ["1", "true", None, ("x", "2")]


@pytest.mark.parametrize("form", [list, lambda rows: {"data": rows}, lambda rows: {"version": "0.1", "data": rows}])
def test_a_list_of_objects_may_be_wrapped(write, form):
    rows = tables.read_table(write("a.json", json.dumps(form([{"a": 1}, {"a": 2}]), indent=1)), ())
    assert [(row.line, row["a"]) for row in rows] == [(1, "1"), (2, "2")]


def test_texts_of_a_million_characters_are_read(write):
    long = "word " * 200_000
    for name in ("a.tsv", "a.csv", "a.jsonl"):
        line = f'{{"text": "{long}"}}' if name == "a.jsonl" else f"text\n{long}"
        (row,) = tables.read_table(write(name, line + "\n"), ("text",))
        assert row["text"] == long


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "text\tlabel\na\tx\nb\n", "line 3: the row has 1 columns, but the header has 2"),
        ("a.csv", "text,label\na,x,z\n", "line 2: the row has 3 columns, but the header has 2"),
        ("a.csv", 'text,label\na,x\n"b,y\n', r"line 3: not valid CSV \("),
        ("a.csv", "words,label\n", "line 1: the column 'text' is missing. Found: 'words', 'label'"),
        ("a.jsonl", '{"text": "a"}\n{"text"}\n', "line 2: column 8: not valid JSON"),
        ("a.jsonl", '["a"]\n', "line 1: the line is not a JSON object"),
        ("a.jsonl", '{"label": "x"}\n', "line 1: there is no column 'text'. Found: 'label'"),
        ("a.txt", "a\n", "a.txt: unknown file format"),
        ("a.tsv", "text\tlabel\n", "there are no rows"),
    ],
)
def test_problems_of_tables_are_reported_with_their_line(write, name, text, message):
    path = write(name, text)
    with pytest.raises(InputError, match=message):
        example_rows.convert_rows(tables.read_table(path, ("text",)), lambda row: row["text"], path, "error")


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ('"a\nb,x\nc,y\nd",x\n', "line 2: a cell in quotes has 2 lines like rows"),
        ('"whose woods, these\nare, I think,\nI know\nhis house,\nis",x\n', ""),
        ('"a\nb,x\nc",x\n', ""),
    ],
)
def test_rows_inside_quotes_are_reported(write, capsys, text, warning):
    assert len(list(tables.read_table(write("a.csv", f"text,label\n{text}"), ("text",)))) == 1
    printed = capsys.readouterr().err
    assert warning in printed if warning else not printed


def test_bad_rows_are_skipped_printed_and_counted_on_request(write, capsys):
    path = write("a.tsv", "text\n" + "bad\n" * 12 + "known\ngood\n")

    def convert(row):
        if row["text"] == "bad":
            raise InputError(f"{row.where}: bad")
        if row["text"] == "known":
            raise SkippedRow("as published")
        return row["text"]

    assert example_rows.convert_rows(tables.read_table(path, ()), convert, path, "skip") == ["good"]
    printed = capsys.readouterr().err
    assert printed.count("Skipped: ") == 10
    assert "12 rows skipped (bad rows)" in printed
    assert "1 rows skipped (as published)" in printed


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl"])
def test_written_tables_are_read_again(tmp_path, name):
    path = str(tmp_path / name)
    tables.write_table(path, [{"text": 'say "hi", you', "score": 0.5}, {"text": "b\tc\nd", "score": 1}])
    rows = list(tables.read_table(path, ("text", "score")))
    assert rows[0]["text"] == 'say "hi", you'
    assert rows[1]["text"] == ("b c d" if name == "a.tsv" else "b\tc\nd")
    assert [row["score"] for row in rows] == ["0.5", "1"]


def test_half_a_surrogate_pair_is_a_bad_row(write):
    path = write("a.jsonl", r'{"t": "\ud83d\ude00"}' + "\n" + r'{"t": "a \ud83d"}' + "\n" + r'{"t": ["\udc00"]}' + "\n")
    whole, *bad = tables.read_table(path, ())
    assert (whole["t"], whole.problem) == ("\U0001f600", "")
    assert all("a text has half of a surrogate pair" in row.problem for row in bad)
