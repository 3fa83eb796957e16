"""Tests data in memory of many types, and the errors for unsupported data."""

import decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import tensorflow as tf

import bert_tf
from bert_tf.api import in_memory
from bert_tf.api.arguments import as_arguments
from tests.api.tiny import LABELS, TEXTS
from tests.conftest import assert_refused

FRAME = pd.DataFrame({"text": TEXTS, "class": LABELS})


def test_inputs_of_all_kinds_are_the_same(pretrained):
    numbers = [label == "pos" for label in LABELS]
    dataset = tf.data.Dataset.from_tensor_slices((TEXTS, np.array(numbers, np.int64)))
    inputs = {
        "list": (TEXTS, [int(number) for number in numbers]),
        "numpy": (np.array(TEXTS), np.array(numbers, np.int64)),
        "columns": (np.array(TEXTS)[:, np.newaxis], np.array(numbers, np.int64)[:, np.newaxis]),
        "pandas": (pd.Series(TEXTS), pd.DataFrame({"label": np.array(numbers, np.int64)})),
        "dataset": (dataset, None),
        "batches": (dataset.batch(2), None),
        "tensors": (tf.constant(TEXTS), tf.constant(numbers, tf.int64)),
    }
    written = set()
    for x, y in inputs.values():
        estimator = bert_tf.Classifier.from_pretrained(pretrained, max_seq_length=16)
        written.add(tuple(estimator._examples(*in_memory.labelled(x, y, "x")[:2])))
    assert len(written) == 1
    assert in_memory.labelled(dataset.batch(5), None, "x") == in_memory.labelled(TEXTS, numbers, "x")
    words = tf.data.Dataset.from_generator(lambda: [["a", "day"]], output_signature=tf.TensorSpec([None], tf.string))
    assert in_memory.as_list(words, "x", rank=1) == [["a", "day"]]
    assert in_memory.as_list(tf.ragged.constant([["a", "day"], ["a"]]), "x", rank=1) == [["a", "day"], ["a"]]
    column = in_memory.as_list(np.array(TEXTS)[:, np.newaxis], "x")
    assert [in_memory.texts(text, "") for text in column] == [(text, None) for text in TEXTS]
    pairs = pd.DataFrame({"question": TEXTS, "answer": TEXTS})
    assert in_memory.as_list(pairs, "x") == [{"question": text, "answer": text} for text in TEXTS]
    assert in_memory.as_list(list(pairs.itertuples()), "x")[0] == (0, TEXTS[0], TEXTS[0])  # a named tuple


def test_batches_of_two_are_no_pairs():
    def read(elements, rank=0, batch=True):
        dataset = tf.data.Dataset.from_tensor_slices(elements)
        return in_memory.as_list(dataset.batch(2, drop_remainder=True) if batch else dataset, "x", rank)

    texts, labels, pairs = ["a", "b", "c", "d"], [0, 1, 0, 1], [["a", "b"], ["c", "d"]]
    assert read((texts, labels)) == list(zip(texts, labels, strict=True))
    assert read((texts, labels, np.ones(4))) == [(*pair, 1.0) for pair in read((texts, labels))]
    assert read((texts, [[0, 1, 1]] * 4)) == [(text, [0, 1, 1]) for text in texts]
    assert read((texts, texts)) == [(text, text) for text in texts]
    for batch in (True, False):
        assert read((pairs, labels[:2]), batch=batch) == list(zip(pairs, labels, strict=False))
    assert read(pairs) == read(pairs, rank=1) == pairs
    for elements, batch in ((texts, True), (pairs, False)):
        assert_refused("x: a tensor of two texts", read, elements, batch=batch)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ("one text", ["pos"], "x is 'one text'"),
        (np.array("one text"), ["pos"], "x is 'one text'"),
        (tf.data.Dataset.from_tensor_slices((TEXTS, LABELS)).repeat(), None, "x is a data set without an end"),
        (TEXTS, np.eye(24), "example 0 has several labels"),
        ({"text": TEXTS}, LABELS, r"x is .*\(dict\)"),
        (set(TEXTS), LABELS, r"x is .*\(set\)"),
        (TEXTS, LABELS[1:], "24 examples, but 23 labels"),
        (TEXTS, None, "labels are needed"),
        ([], [], "no examples"),
        (
            [{"text": "a", "label": "pos"}, {"text": "b", "label": "neg", "answer": "reject"}],
            None,
            "rejected 1 examples",
        ),
        ([{"text": "a", "answer": "reject"}, {"text": "b", "answer": "accept"}], ["pos", "neg"], "rejected 1 examples"),
        ([*TEXTS[:3], 5], LABELS[:4], r"example 3 is '5' \(int\)"),
        ([*TEXTS[:3], ("a", "b", "c")], LABELS[:4], "example 3 has 3 texts"),
        ([*TEXTS[:3], ("a", "b")], LABELS[:4], "example 0 is one text, but others are pairs"),
        ([*TEXTS[:3], "\ud800"], LABELS[:4], "example 3 has a lone surrogate"),
        (TEXTS[:4], [*LABELS[:3], float("nan")], "example 3 has no label"),
        ([*TEXTS[:3], " "], LABELS[:4], "example 3: the text is empty"),
        (TEXTS[:4], [*LABELS[:3], "other"], "the label 'other' is unknown"),
        ([*TEXTS[:3], b"\xff"], LABELS[:4], r"bytes\) is not UTF-8 at byte 0"),
    ],
)
def test_bad_data_are_named(pretrained, x, y, message):
    estimator = bert_tf.Classifier.from_pretrained(pretrained, labels=["pos", "neg"], max_seq_length=16)
    assert_refused(message, estimator.fit, x, y)


# Reader -> the class, and data with a value in the second example.
READERS = {
    "text": (bert_tf.Classifier, lambda value: (["a", value], ["x", "y"])),
    "second text": (bert_tf.Classifier, lambda value: ([("a", "a"), ("a", value)], ["x", "y"])),
    "class": (bert_tf.Classifier, lambda value: (["a", "a", "a"], ["x", value, "y"])),
    "number": (bert_tf.Regressor, lambda value: (["a", "a"], [1.0, value])),
    "word": (bert_tf.TokenClassifier, lambda value: ([["a"], [value]], [["O"], ["B-X"]])),
    "tag": (bert_tf.TokenClassifier, lambda value: ([["a"], ["a"]], [["B-X"], [value]])),
    "prompt": (bert_tf.MultipleChoice, lambda value: ([("a", ["a", "b"]), (value, ["a", "b"])], [0, 1])),
    "ending": (bert_tf.MultipleChoice, lambda value: ([("a", ["a", "b"]), ("a", ["a", value])], [0, 1])),
    "ending's number": (bert_tf.MultipleChoice, lambda value: ([("a", ["a", "b"])] * 2, [0, value])),
    "question": (bert_tf.QuestionAnswerer, lambda value: ([("a", "a"), (value, "a")], ["a", "a"])),
    "context": (bert_tf.QuestionAnswerer, lambda value: ([("a", "a"), ("a", value)], ["a", "a"])),
    "answer": (bert_tf.QuestionAnswerer, lambda value: ([("a", "a")] * 2, ["a", value])),
}
VALUES = {
    "None": None,
    "NaN": float("nan"),
    "pandas.NA": pd.NA,
    "number": 5,
    "list": ["a", "b", "c"],
    "empty": "",
    "bytes": b"\xff",
    "surrogate": "\ud800",
}


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("reader", READERS)
def test_values_that_are_no_text_are_named(pretrained, tasks, reader, value):
    kind, data = READERS[reader]
    options = {"max_query_length": 4} if kind is bert_tf.QuestionAnswerer else {}
    estimator = kind.from_pretrained(pretrained, max_seq_length=16, **options)

    def read():
        estimator.fit(*data(VALUES[value]), num_train_steps=1)
        return tasks[0].examples(tasks[0].train_splits[0])

    if (reader, value) in (("number", "number"), ("answer", "list"), ("question", "empty")):
        assert len(read()) == 2
    else:
        assert_refused(r"(example|sentence) 1|is not UTF-8|have the types int and str", read)


@pytest.mark.parametrize("frame", [FRAME.set_axis(["a", "b"], axis=1).assign(c="x"), {"text": TEXTS}])
def test_sentences_are_no_tables(pretrained, frame):
    encoder = bert_tf.SentenceEncoder.from_pretrained(pretrained)
    assert_refused(r"text 0 has the columns 'a', 'b', 'c'. Name them|x is ", encoder.encode, frame)


class Polars:
    """A substitute for a polars table, so that polars need not be installed."""

    def __init__(self, rows):
        self._rows = rows

    def to_dicts(self):
        return self._rows


def tables_of(rows):
    """Returns the rows as a table of each library and as a TensorFlow data set."""
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return [rows, pd.DataFrame(rows), pa.table(columns), Polars(rows)]


def test_columns_of_tables_are_matched_by_name(read):
    def texts(x, y=None):
        return [(x.text_a, x.text_b, x.label) for x in read(bert_tf.Classifier, x, y).examples("train")]

    rows = [{"label": "pos", "text_b": "b", "text": "a"}, {"label": "neg", "text_b": "c", "text": "a"}]
    for table in tables_of(rows):
        assert texts(table) == [("a", "b", "pos"), ("a", "c", "neg")]
    for x, y in ((FRAME, FRAME["class"]), (FRAME.assign(label=LABELS), LABELS)):
        assert texts(x, y)[:1] == [(TEXTS[0], None, "pos")]
    for columns in (["premise", "hypothesis"], ["sentence", "label", "id"], ["text_b", "label", "other"]):
        row = dict.fromkeys(columns, "a")
        assert_refused("Name them 'text' and, for pairs, 'text_b'", in_memory.texts, row, "example 0")
    assert in_memory.texts({"sentence": "a", "label": "x"}, "") == ("a", None)


CHOICE = ("prompt", "endings", "label")


@pytest.mark.parametrize(
    ("kind", "row", "fields", "expected"),
    [
        ("TokenClassifier", {"tags": ["B-X"], "tokens": ["a"]}, ("words", "tags"), (("a",), ("B-X",))),
        ("MultipleChoice", {"label": 1, "endings": ["a", "b"], "prompt": "p"}, CHOICE, ("p", ("a", "b"), "1")),
        ("MultipleChoice", {"label": 1, "ending1": "b", "ending0": "a", "prompt": "p"}, CHOICE, ("p", ("a", "b"), "1")),
        ("Regressor", {"label": 2.5, "text": "a"}, ("text_a", "label"), ("a", 2.5)),
        ("Classifier", {"label": "x", "text": "a", "text_pair": "b"}, ("text_a", "text_b"), ("a", "b")),
        (
            "TokenClassifier",
            {"text": "a b", "spans": [{"start": 2, "end": 3, "label": "X"}]},
            ("words", "tags"),
            (("a", "b"), ("O", "B-X")),
        ),
        ("TokenClassifier", {"sentence_id": 1, "word": "a", "tag": "B-X"}, ("words", "tags"), (("a",), ("B-X",))),
    ],
)
def test_tables_of_every_task_have_names(read, kind, row, fields, expected):
    for table in tables_of([row]):
        (example,) = read(getattr(bert_tf, kind), table).examples("train")
        assert tuple(getattr(example, field) for field in fields) == expected


TAGS = {"tokens": ["a"], "tags": ["NN"], "ner_tags": ["B-X"]}


@pytest.mark.parametrize(
    ("kind", "rows", "message"),
    [
        ("Classifier", [{"Text": "a", "Label": "b"}], "the columns are 'Text', 'Label'.*'label' or 'labels'"),
        ("Regressor", [{"text": "a", "score": 1.5}], "the columns are 'text', 'score'"),
        (
            "QuestionAnswerer",
            [{"question": "a", "context": "a", "answer": "a"}],
            "'answer'.*or name the labels 'answers'",
        ),
        ("TokenClassifier", [TAGS], "x has the columns 'tags' and 'ner_tags'"),
        ("Classifier", [], "x has no examples"),
        ("Classifier", [{"text": "a", "label": 0.5}], "'0.5' is a number"),
        ("Classifier", [{"text": "a", "label": "0,5"}], "'0,5' is a number"),
        ("TokenClassifier", [{"tokens": ["a"], "tags": [1]}], "tag 0 of sentence 0 is '1'"),
        ("TokenClassifier", [{"text": "a", "spans": [{"start": 0}]}], "x, line 0: .*end"),
    ],
)
def test_columns_that_cannot_be_used_are_named(read, kind, rows, message):
    options = {"max_query_length": 4} if kind == "QuestionAnswerer" else {}
    assert_refused(message, lambda: read(getattr(bert_tf, kind), pd.DataFrame(rows), **options).examples("train"))


def test_words_of_a_table_are_joined_to_sentences(read):
    words = pd.DataFrame({"Sentence #": ["1", None, "2"], "Word": ["a", "b", "c"], "Tag": ["B-X", "I-X", "O"]})
    tagged = read(bert_tf.TokenClassifier, words).examples("train")
    assert [(sentence.words, sentence.tags) for sentence in tagged] == [(("a", "b"), ("B-X", "I-X")), (("c",), ("O",))]


def test_a_process_that_was_forked_after_tensorflow_was_used_is_refused(pretrained, monkeypatch):
    loaded = bert_tf.Classifier.from_pretrained(pretrained, labels=["a", "b"])
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert_refused("forked after TensorFlow was used", loaded.predict, ["a"])


def test_numbers_of_tables_mean_labels(read):
    assert as_arguments("Pass --problem=regression, or --labels.") == "Use a Regressor, or pass labels."
    tags = read(bert_tf.TokenClassifier, [TAGS | {"tags": [1]}], [[1]], labels=["O", "B-X"]).examples("train")
    assert list(tags[0].tags) == ["B-X"]
    scores = read(bert_tf.Regressor, TEXTS[:2], [decimal.Decimal("1.5"), decimal.Decimal(2)]).examples("train")
    assert [example.label for example in scores] == [1.5, 2]
    table = pd.DataFrame({"text": TEXTS[:2], "label": "x", "probability_10": [0.0, 1.0], "probability_9": [1.0, 0.0]})
    task = read(bert_tf.Classifier, table)
    assert [example.probabilities["9"] for example in task.examples("train")] == [1.0, 0.0]
    assert task.labels == ("10", "9")


FLAGS = pd.DataFrame({"bad": [0, 1, 1], "good": [1.0, 0.0, 1.0]})


def test_columns_of_flags_are_the_classes_by_name(read):
    def labels(y, labels=("good", "bad")):
        task = read(bert_tf.Classifier, TEXTS[:3], y, multi_label=True, labels=labels)
        return [set(example.label) for example in task.examples("train")], task.labels

    right, reordered = [{"good"}, {"bad"}, {"good", "bad"}], FLAGS[["good", "bad"]]
    assert labels(FLAGS, None) == (right, ("bad", "good"))
    for table in (FLAGS, reordered, pa.Table.from_pandas(FLAGS), FLAGS == 1, reordered.set_axis(range(2), axis=1)):
        assert labels(table)[0] == right
    for table, message in ((FLAGS.set_axis(["x", "y"], axis=1), "'x', 'y'. Use"), (FLAGS * 2, "columns of 0 and 1")):
        assert_refused(message, labels, table)


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        ([-1, 1, 0], ["-1", "0", "1"]),
        ([10.0, -2.0, 3.0], ["-2", "3", "10"]),
        (np.array([True, False, True]), ["False", "True"]),
        (np.array([2.0, 1.0, 2.0], np.float32), ["1", "2"]),
        (pd.Series([1, 0, 1], dtype="Int64"), ["0", "1"]),
        (["10", "9", "x"], ["10", "9", "x"]),
    ],
)
def test_classes_are_in_the_order_of_numpy_unique(read, y, expected):
    assert list(read(bert_tf.Classifier, TEXTS[:3], y).labels) == expected


@pytest.mark.parametrize(
    ("labels", "weights", "y"),
    [
        (None, {0: 1, 1: 3}, [0, 1, 0]),
        (None, {np.int64(0): np.float32(1), np.int64(1): np.float32(3)}, np.array([0, 1, 0])),
        (None, {0.0: 1, 1.0: 3}, [0.0, 1.0, 0.0]),
        (None, {-1: 1, 1: 3}, [-1, 1, -1]),
        (None, {False: 1, True: 3}, [False, True, False]),
        (None, {"a,=b": 1, "b": 3}, ["a,=b", "b", "b"]),
        (["neg", "pos"], {0: 1, 1: 3}, ["neg", "pos", "neg"]),
        ([0.0, 1.0], {0: 1, 1: 3}, [0, 1, 0]),
        (pd.Index([0, 1]), {"0": 1, "1": 3}, [0, 1, 0]),
        (None, [1, 3], ["10", "9", "10"]),
        (["pos", "neg"], np.array([1.0, 3.0]), ["pos", "neg", "pos"]),
        (None, pd.Series([3.0, 1.0], index=["b", "a"]), ["a", "b", "a"]),
    ],
)
def test_class_weights_accept_what_labels_accept(read, labels, weights, y):
    assert read(bert_tf.Classifier, TEXTS[:3], y, labels=labels, class_weights=weights).weights() == [1.0, 3.0]


@pytest.mark.parametrize("threshold", [0.25, np.float32(0.25), np.float64(0.25), "0.25"])
def test_the_threshold_may_be_any_number(read, threshold):
    options = {"multi_label": True, "label_threshold": threshold}
    assert read(bert_tf.Classifier, TEXTS[:2], [["a"], ["b"]], **options).label_threshold == 0.25


def test_equal_scores_have_no_scale(read):
    assert read(bert_tf.Regressor, TEXTS[:2], [7, 7]).target_scale == (7.0, 1.0)


def test_settings_of_the_model_are_no_settings_of_a_training(pretrained):
    with pytest.raises(TypeError, match=r"fit\(\) has no argument 'class_weights'. Use from_pretrained\(\)"):
        bert_tf.Classifier.from_pretrained(pretrained).fit(TEXTS, LABELS, class_weights=3)


@pytest.mark.parametrize(("order", "is_reported"), [([0, 1, 2], False), ([2, 0, 1], True), ([7, 8, 9], False)])
def test_labels_with_another_order_of_the_index_are_reported(capsys, order, is_reported):
    in_memory.labelled(pd.Series(TEXTS[:3]), pd.Series(LABELS[:3], index=order), "x")
    assert ("same index in another order" in capsys.readouterr().err) == is_reported
