"""Tests tagged sentences in tables: lists, character spans, and one word per row."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet
import pytest

from bert_tf.tasks import tables
from bert_tf.tasks.data_config import DataConfig
from bert_tf.tasks.tagging import conll
from bert_tf.tasks.tagging.tagging_task import TaggingTask
from tests.conftest import assert_refused


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def read(path, has_tags=True, **options):
    return [(s.words, s.tags) for s in conll.read_sentences(path, has_tags, **options)]


ADA = (("Ada", "left", "Rome"), ("B-PER", "O", "B-LOC"))
TEXT, SPANS = "Ada left Rome", [[9, 13, "LOC"], [0, 3, "PER"]]
NAMED = [{"start": start, "end": end, "label": kind} for start, end, kind in SPANS]
STUDIO = [{"start": start, "end": end, "text": "", "labels": [kind]} for start, end, kind in SPANS]
# The same sentence in the files of several programs.
FILES = {
    "lists.jsonl": lines({"tokens": ADA[0], "ner_tags": ADA[1]}),
    "lists_without_a_suffix": lines({"id": 1, "words": ADA[0], "labels": ADA[1]}),
    "other_spelling.jsonl": lines({"tokens": ADA[0], "tags": ["PER_b", "o", "LOC_b"]}),
    "records.json": json.dumps([{"tokens": ADA[0], "ner_tags": ADA[1]}], indent=1),
    "doccano.jsonl": lines({"id": 1, "text": TEXT, "label": SPANS}),
    "doccano_1.jsonl": lines({"id": 1, "data": TEXT, "label": SPANS}),
    "doccano_2.jsonl": lines({"id": 1, "data": {"text": TEXT}, "label": SPANS}),
    "doccano_relations.jsonl": lines(
        {"text": TEXT, "entities": [{"id": 1, "start_offset": s, "end_offset": e, "label": k} for s, e, k in SPANS]}
    ),
    "prodigy.jsonl": lines({"text": TEXT, "spans": NAMED}),
    "prodigy_2.jsonl": lines({"text": TEXT, "tokens": [{"text": TEXT, "id": 0}], "spans": NAMED, "answer": "accept"}),
    "label_studio.json": json.dumps(
        [{"data": {"text": TEXT}, "annotations": [{"id": 3, "result": [{"value": value} for value in STUDIO]}]}]
    ),
    "label_studio_min.json": json.dumps([{"text": TEXT, "label": STUDIO}]),
    "words.csv": "sentence_id,words,labels\n0,Ada,B-PER\n0,left,O\n0,Rome,B-LOC\n",
    "words.tsv": "sent_id\ttoken\ttag\n0\tAda\tB-PER\n0\tleft\tO\n0\tRome\tB-LOC\n",
    "kaggle.csv": "Sentence #,Word,POS,Tag\nSentence: 1,Ada,N,B-PER\n,left,V,O\n,Rome,N,B-LOC\n",
}


@pytest.mark.parametrize("name", FILES)
def test_tables_of_many_programs_are_read(write, tmp_path, name):
    path = write(name, FILES[name])
    assert read(path) == [ADA]
    assert read(path, has_tags=False) == [(ADA[0], None)]
    (tmp_path / "packed.gz").write_bytes(gzip.compress(FILES[name].encode()))
    if name.endswith(".jsonl"):
        assert read(str(tmp_path / "packed.gz")) == [ADA]
    task = TaggingTask(DataConfig("ner"), {"train": path})
    assert (task.labels, len(task.examples("train"))) == (("LOC", "PER"), 1)
    (sentence,) = task.examples("train")
    conll.write_predictions(str(tmp_path / "out.conll"), tables.open_table(path), [sentence], ["xyz"])
    assert (tmp_path / "out.conll").read_text() == "Ada x\nleft y\nRome z\n\n"


def test_integers_are_named_by_the_parquet_file(tmp_path):
    kinds = {"ner_tags": {"feature": {"names": ["O", "B-PER", "B-LOC"]}, "_type": "List"}}
    table = pa.table({"tokens": [ADA[0]], "ner_tags": [[1, 0, 2]]})
    for metadata in ({"info": {"features": kinds}}, {}):
        path = str(tmp_path / "train.parquet")
        pa.parquet.write_table(table.replace_schema_metadata({"huggingface": json.dumps(metadata)}), path)
        if metadata:
            assert read(path) == [ADA]
        else:
            assert_refused(r"the tags \[1, 0, 2\] are not names", read, path)


def test_spans_are_aligned_to_words_and_those_that_cross_are_counted(write):
    rows = [
        {"text": "U.S.-based Bob", "label": [[0, 4, "LOC"], [11, 13, "PER"], [11, 14, "ORG"], [90, 99, "X"]]},
        {"text": "  Ada\u3000在罗马 ", "label": [[1, 5, "PER"], [7, 9, "LOC"]]},
        {"text": "none", "label": []},
        {"text": " ", "label": []},
    ]
    said = []
    assert read(write("a.jsonl", lines(*rows)), report=said.append) == [
        (("U", ".", "S", ".", "-", "based", "Bob"), ("B-LOC", "I-LOC", "I-LOC", "I-LOC", "O", "O", "B-PER")),
        (("Ada", "在", "罗", "马"), ("B-PER", "O", "B-LOC", "I-LOC")),
        (("none",), ("O",)),
    ]
    assert "1 of 6 spans cover a part of a word, and were extended to the word. 2 spans overlap another" in said[0]


def task(*annotations, text="Ada left", **data):
    """Returns a task of Label Studio. An annotation is a list of regions, or None if the task was skipped."""
    results = [{"id": 1, "result": regions or [], "was_cancelled": regions is None} for regions in annotations]
    return {"id": 1, "data": {"text": text, **data}, "annotations": results, "predictions": []}


def region(start, end, *labels, text="", to_name="text", **value):
    value |= {"start": start, "end": end, "text": text, "labels": list(labels)}
    return {"id": "a", "from_name": "label", "to_name": to_name, "type": "labels", "value": value}


PER, CHOICE = region(0, 3, "PER", text="Ada"), {"type": "choices", "value": {"choices": ["x"]}}
ONE = {"text": "Ada left", "spans": [[0, 3, "PER"]], "id": 1}


@pytest.mark.parametrize(
    ("rows", "result"),
    [
        ([task(None, [PER, CHOICE]), task(None), task()], 1),
        ([task([PER], [PER | {"id": "b"}])], 1),
        ([task([PER | {"to_name": "document"}])], 1),
        ([task([PER], [region(4, 8, "X")])], "line 1: 2 annotations of the task differ"),
        ([task() | {"annotations": [7]}], "line 1: 7 is not an object"),
        ([ONE | {"spans": [{"start": 0, "end": 3, "label": "X", "labels": ["Y"]}]}], "line 1: .* under two names"),
        ([task([region(0, 3)])], "line 1: .*at label: Expected `array` of length >= 1"),
        ([task([region(0, 3, "A", "B")])], "line 1: .*at label: Expected `array` of length <= 1"),
        ([task([region(4, 8, "PER", text="Ada")])], "line 1: the characters 4 to 8 are 'left', but .* text 'Ada'"),
        ([task([region(0, 3, "PER", to_name="title")], title="Ada")], "line 1: regions are in title"),
        ([task([PER | {"to_name": "a"}, PER | {"to_name": "b"}])], "line 1: regions are in a and b"),
        ([task([PER | {"type": "hypertextlabels"}])], "line 1: a result has the type 'hypertextlabels'"),
        ([task([region(0, 3, "PER", startOffset=1)])], "line 1: .*unknown field `startOffset`"),
        ([ONE, ONE | {"answer": "reject"}, ONE | {"answer": "ignore", "spans": []}], 1),
        ([ONE, ONE | {"status": "Discarded"}], 1),
        ([ONE, ONE, ONE | {"id": 2, "spans": []}], 3),
        ([ONE | {"spans": [[0, 9, "PER"]]}], "line 1: a span ends at 9 of 8 characters"),
        *(
            ([ONE | {"spans": [[start, end, "PER"]]}], f"line 1: a span is from {start} to {end}. Correct")
            for start, end in ((-1, 3), (-5, -2), (3, 0), (2, 2))
        ),
        ([ONE | {"spans": [[0, 3, " "]]}], "line 1: .*at label: "),
        ([{"tokens": ["Ada"], "tags": ["NN"], "ner_tags": ["B-PER"]}], "line 1: there are tags in tags and ner_tags"),
        ([{"tokens": ["Ada"], "tags": ["1"]}], "line 1: the tags .* are not names"),
        ([ONE | {"tokens": ["Ada", "left"]}], 1),
        ([ONE | {"tokens": ["Ada", "left"], "ner_tags": ["B-PER", "O"]}], 1),
        ([ONE, ONE | {"spans": [[4, 8, "PER"]]}], "line 2: the same text has other spans in .*line 1"),
        ([ONE | {"entities": [[0, 3, "X"]]}], "line 1: there are spans in spans and entities. .*--tag_column"),
        ([ONE | {"spans": [{"start": 0, "end": 3, "entity": "PER"}]}], "line 1: .*unknown field `entity`"),
        ([{"tokens": ["Ada", None], "tags": ["B-PER", "O"]}], "line 1: there is no text, no list of words"),
        ([{"tokens": ["Ada"], "tags": ["['O']"]}], "line 1: the tags .* are not names"),
        (
            [ONE | {"spans": [{"start_offset": i, "end_offset": 3, "label": "X", "user": i} for i in (0, 1)]}],
            "line 1: several users",
        ),
    ],
)
def test_only_valid_annotations_of_the_text_count(write, rows, result):
    path, said = write("a.json", json.dumps(rows)), []
    if isinstance(result, str):
        assert_refused(result, read, path)
        return
    sentences = read(path, report=said.append)
    assert len(sentences) == result
    assert sentences[0] == (("Ada", "left"), ("B-PER", "O"))
    assert [f": {len(rows) - result} rows were left out" in line for line in said] == [True] * (len(rows) > result)


def test_rows_that_cannot_be_used_are_skipped_on_request(write):
    rows = [ONE | {"spans": [[0, 3, 4]]}, ONE | {"spans": [["a"]]}, {"tokens": ["Ada"], "tags": [3]}, ONE]
    path = write("a.jsonl", lines(*rows) + "no JSON\n")
    assert [s.words for s in TaggingTask(DataConfig("ner", on_bad_row="skip"), {"train": path}).examples("train")] == [
        ("Ada", "left")
    ]
    assert_refused(
        "line 5: column 1: not valid JSON", TaggingTask(DataConfig("ner"), {"train": path}).examples, "train"
    )


def test_sentence_numbers_may_restart_in_each_document(write):
    path = write("a.csv", "file,sent_id,word,ner,sentiment\na,0,Ada,B-X,p\n,,left,O,n\nb,0,Bo,O,p\nb,1,Al,O,p\n")
    assert [words for words, _ in read(path)] == [("Ada", "left"), ("Bo",), ("Al",)]


def test_of_overlapping_spans_the_first_one_counts(write):
    rows = {"text": "New York City", "label": [[9, 13, "X"], [0, 13, "A"], [0, 8, "B"], [0, 8, "C"]]}
    assert read(write("a.jsonl", lines(rows))) == [(("New", "York", "City"), ("B-B", "I-B", "B-X"))]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", lines({"text": "Ada", "label": ["PER"]}), "line 1: 'PER' is not a span"),
        ("a.jsonl", lines({"text": "Ada", "label": [{"start": 0}]}), "line 1: .*missing required field `end`"),
        ("a.jsonl", lines({"text": "Ada"}), "line 1: there is no list of tags or spans.*--tag_column"),
        ("a.jsonl", lines({"text": "Ada", "label": "PER"}), "line 1: there is no list of tags or spans"),
        ("a.jsonl", lines({"sentence": "Ada", "label": []}), "line 1: there is no text, no list of words"),
        ("a.jsonl", lines({"tokens": ["Ada"], "tags": []}), r"line 1: there are 1 words, but 0 tags"),
        ("a.jsonl", lines({"tokens": ["Ada"], "tags": [3]}), r"line 1: the tags \[3\] are not names"),
        ("a.jsonl", '{"tokens"}\n', "line 1: column 10: not valid JSON"),
        ("a.csv", "word,tag,present\nAda,B-PER,1\n", "line 2: there is no text.* and no column sentence_id"),
        ("a.csv", "words,labels\nAda,B-PER\n", "line 2: there is no text.* and no column sentence_id"),
    ],
)
def test_tables_that_can_not_be_used_are_named(write, name, text, message):
    assert_refused(message, read, write(name, text))


def test_columns_may_be_named(write):
    path = write("a.jsonl", lines({"sentence": "Ada", "marks": [[0, 3, "PER"]], "label": [[0, 3, "X"]]}))
    assert read(path, columns=("sentence", "marks")) == [(("Ada",), ("B-PER",))]
