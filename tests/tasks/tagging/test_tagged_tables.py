"""Tests tagged sentences in tables: lists, character spans, and one word per row."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet
import pytest

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
    "doccano_2.jsonl": lines({"id": 1, "data": {"text": TEXT}, "label": SPANS}),
    "doccano_relations.jsonl": lines(
        {"text": TEXT, "entities": [{"id": 1, "start_offset": s, "end_offset": e, "label": k} for s, e, k in SPANS]}
    ),
    "prodigy.jsonl": lines({"text": TEXT, "spans": NAMED}),
    "label_studio.json": json.dumps(
        [{"data": {"text": TEXT}, "annotations": [{"id": 3, "result": [{"value": value} for value in STUDIO]}]}]
    ),
    "label_studio_min.json": json.dumps([{"text": TEXT, "label": STUDIO}]),
    "words.csv": "sentence_id,words,labels\n0,Ada,B-PER\n0,left,O\n0,Rome,B-LOC\n",
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
    conll.write_predictions(str(tmp_path / "out.conll"), path, {sentence.line: "xyz"})
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
    assert (
        "of 6 spans, 1 cross a word and were extended to its ends, and 2 overlap another one or have no word" in said[0]
    )


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", lines({"text": "Ada", "label": ["PER"]}), "line 1: 'PER' is not a span"),
        ("a.jsonl", lines({"text": "Ada", "label": [{"start": 0}]}), "is not a span"),
        ("a.jsonl", lines({"text": "Ada"}), "line 1: there is no list of tags or spans.*--tag_column"),
        ("a.jsonl", lines({"text": "Ada", "label": "PER"}), "line 1: there is no list of tags or spans"),
        ("a.jsonl", lines({"sentence": "Ada", "label": []}), "line 1: there is no text, no list of words"),
        ("a.jsonl", lines({"tokens": ["Ada"], "tags": []}), r"line 1: the tags \[\] are not names, one for each word"),
        ("a.jsonl", lines({"tokens": ["Ada"], "tags": [3]}), r"line 1: the tags \[3\] are not names"),
        ("a.jsonl", '{"tokens"}\n', "line 1: column 10: not valid JSON"),
        ("a.csv", "words,labels\nAda,B-PER\n", "line 2: there is no text.* and no column sentence_id"),
    ],
)
def test_tables_that_can_not_be_used_are_named(write, name, text, message):
    assert_refused(message, read, write(name, text))


def test_columns_may_be_named(write):
    path = write("a.jsonl", lines({"sentence": "Ada", "marks": [[0, 3, "PER"]], "label": [[0, 3, "X"]]}))
    assert read(path, columns=("sentence", "marks")) == [(("Ada",), ("B-PER",))]
