"""Tests the report of the data in fine-tuning, prediction and pre-training."""

import collections
import json
import re
import types

import pytest

import bert_tf
from bert_tf.data_report import findings, rows
from bert_tf.pretraining.example_sets import ExampleSet
from bert_tf.pretraining.pretraining_config import PretrainingData
from bert_tf.pretraining.record_shards import Shard
from bert_tf.sequences.example_format import Metadata, pretraining_features
from bert_tf.serving import line_predictions
from bert_tf.serving.answering import Input, Predictor
from tests import programs
from tests.api.tiny import LABELS, TEXTS
from tests.conftest import assert_refused

STRANGE = "\u12a0\u12f2\u1235 \u12a0\u1260\u1263 "


@pytest.fixture(autouse=True)
def nothing_reported(monkeypatch):
    monkeypatch.setattr(findings, "_reported", set())


@pytest.fixture
def classifier(pretrained, tmp_path):
    return bert_tf.Classifier.from_pretrained(pretrained, max_seq_length=16, output_dir=tmp_path / "run")


def test_training_describes_the_data_and_records_the_counts(classifier, tmp_path, capsys):
    classifier.fit(TEXTS, LABELS, num_train_steps=1, validation_data=(["a fine day here"], ["pos"]))
    printed = capsys.readouterr().err
    assert "train: 24 examples, 5.0 tokens on average, 5 at most; classes: pos 12, neg 12." in printed
    assert "train, first example: [CLS] a fine day [SEP] -> 'pos'" in printed
    assert "dev: 1 examples, 6.0 tokens on average" in printed and "Warning: train" not in printed
    recorded = json.loads((tmp_path / "run" / "run.json").read_text())
    assert recorded["data"]["train"] == {
        "examples": 24, "classes": {"pos": 12, "neg": 12}, "tokens": 72, "unknown": 0, "truncated": 0,
    }  # fmt: skip
    assert "data" not in recorded["resume_settings"]


def test_rows_in_two_splits_are_reported(classifier, capsys):
    classifier.fit(TEXTS, LABELS, num_train_steps=1, validation_data=(TEXTS[:3], LABELS[:3]))
    assert "Warning: dev: 3 of 3 different rows are also in train" in capsys.readouterr().err


def test_training_on_unknown_tokens_is_an_error(classifier, capsys):
    texts = [f"{STRANGE * 6} {number}" for number in range(120)]
    assert_refused("100% of the tokens are .UNK.,.* pass allow_unusual_data", classifier.fit, texts, LABELS * 5)
    classifier.fit(texts[:96], LABELS * 4, num_train_steps=1, allow_unusual_data=True)
    assert "Warning: train: 100% of the tokens are [UNK]" in capsys.readouterr().err
    classifier.predict(texts[:3])
    assert "Warning: x: 100% of the tokens are [UNK]" in capsys.readouterr().err
    classifier.predict(texts[:3])
    assert "Warning" not in capsys.readouterr().err


def test_encoding_unknown_tokens_and_markup_is_reported_once(pretrained, capsys):
    encoder = bert_tf.SentenceEncoder.from_pretrained(pretrained, max_seq_length=16)
    for expected in (True, False):
        encoder.encode([STRANGE * 5, "<p>a fine day</p>", "<p>a day</p>", "<b>a</b> day"])
        printed = capsys.readouterr().err
        assert ("Warning: x: " in printed and "of the tokens are [UNK]" in printed) == expected
        assert ("Warning: x: 75% of the lines have HTML or XML" in printed) == expected


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"a": 50, "b": 50, "-1": 9}, ""),
        ({"none": 50, "FAVOR": 50}, ""),
        ({"a": 50, "None": 3}, "3 rows have the class 'None'"),
        ({"0": 50, "NaN": 3}, "3 rows have the class 'NaN'"),
        ({"a": 50, "label": 1}, "the class 'label' is the name of a column"),
        ({"a": 50, "stars": 1}, "the class 'stars' is the name of a column"),
        ({"a": 50, "class": 40}, ""),
        ({"Note": 1, "a": 50, "b": 50}, "only the first row has the class 'Note'. If it is a header line"),
        ({"x": 1, "a": 50, "b": 1}, ""),
        ({"Pos": 9, "a": 50, "pos": 9}, "the class 'pos' may be another spelling of 'Pos'. Use one"),
        *(
            ({"very good": 9, "a": 50, other: 9}, "may be another spelling of 'very good'")
            for other in ("very_good", "Very  good.", "very\xa0good", "very\u200b-good", "'very good'")
        ),
        ({"cafe\u0301": 9, "caf\xe9": 9}, "may be another spelling"),
        *(
            ({first: 9, "x": 50, other: 9}, f"the class '{other}' may be another spelling of '{first}'")
            for first, other in (
                ("positive", "p\u043esitive"),
                ("\u0410", "A"),
                ("yes", "Y"),
                ("True", "1"),
                ("01", "1"),
                ("2", "\u0662"),
                ("LOC", "LOCATION"),
            )
        ),
        ({"PERSON": 9, "PERCENT": 9, "LOC": 9, "LOCderiv": 9, "NN": 9, "NNP": 9, "N": 9, "\u043d\u043e": 9}, ""),
        ({"a": 50, "#REF!": 3}, "3 rows have the class '#REF!'"),
        ({"a": 50, "b": 50, "60": 1}, "only the last row has the class '60'. If it is a header line or a sum"),
        ({"0": 9, "1": 9, "2": 9, "999": 4}, "4 rows have the class '999'"),
        ({str(number): 9 for number in range(100)}, ""),
        ({"C": 9, "C++": 9, "C#": 9, "PRP": 9, "PRP$": 9, ",": 9, ".": 9, "''": 9, "1": 9, "-2": 9, "-1": 9}, ""),
        ({'"pos"': 9, '"neg"': 9}, "the class '\"pos\"' is in quotes. Remove them"),
        ({"a": 50, "a b": 9, "b": 9}, "the class 'a b' consists of other classes"),
        ({"0": 9, "1": 9, "-1": 9}, ""),
        ({"0": 9, "1": 9, "2": 9, "-1": 1}, "1 rows have the class '-1'. If it is a missing value"),
        ({"0": 9, "1": 9, "2": 9, "-1": 9, "-2": 9}, ""),
        ({"a": 50, "_": 3}, "3 rows have the class '_'"),
        ({"a": 50, "a; b": 9, "b": 9}, "the class 'a; b' consists of other classes. .* --problem=multi_label"),
        ({"a": 50, "a; c": 9, "b": 9}, ""),
        ({str(number): 1 for number in range(60)} | {"a": 9}, "60 classes have only one row"),
        ({str(number): 1 for number in range(10)}, "10 classes have only one row"),
    ],
)
def test_classes_that_are_no_classes(counts, expected):
    messages = [found.message for found in rows.unusual_classes(collections.Counter(counts).elements(), "x", "stars")]
    assert re.search(expected, messages[0]) if expected else not messages


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([1, 1, 1], "every row has the score 1"),
        ([1, 2.5, 3, 4, 999, 999], "2 rows have the score 999. If it is a missing value"),
        ([0, 2, 3, -1], "1 rows have the score -1"),
        ([-1, 0, 0.5, 1], ""),
        ([*range(101)], ""),
    ],
)
def test_scores_that_are_no_scores(scores, expected):
    messages = [found.message for found in rows.unusual_scores(scores, "x")]
    assert expected in messages[0] if expected else not messages


@pytest.mark.parametrize(("different", "expected"), [(3, "3 of 20 repeated texts have different labels"), (1, "")])
def test_repeated_texts_with_different_labels(different, expected):
    labels = ["xy" if number < different else "xx" for number in range(20)]
    examples = [types.SimpleNamespace(text_a=str(i), label=label) for i, row in enumerate(labels) for label in row]
    messages = [found.message for found in rows.contradictions(examples, "x")]
    assert expected in messages[0] if expected else not messages


def test_a_row_is_its_complete_input():
    def pairs(*texts):
        return [types.SimpleNamespace(text_a=a, text_b=b, label="x") for a, b in texts]

    def messages(**splits):
        return [found.message for found in rows.shared_rows(splits)]

    train = pairs(("a", "b"), ("a", "b"), ("a", "c"))
    assert not messages(train=train, dev=pairs(("a", "d"), ("b", "a")))
    assert messages(train=train, dev=pairs(("a", "d"), ("a", "b"))) == [
        "dev: 1 of 2 different rows are also in train, so scores are too high. Remove them from one file."
    ]
    assert not messages(train=[{"x": 1}], dev=[{"x": 1}])  # examples of a task of your own


def test_a_file_for_prediction_is_looked_at(pretrained, tmp_path, capsys):
    class Model(Predictor):
        def _answer(self, examples):
            return list(examples)

    path = tmp_path / "lines.jsonl"
    path.write_text(f"{json.dumps({'text': STRANGE * 9})}\nno JSON\n" * 9)
    line_predictions.report_file(Model({"text": Input(str)}), str(path), pretrained)
    assert "Warning: --input_file: 100% of the tokens are [UNK]" in capsys.readouterr().err


def test_features_of_unknown_tokens_are_reported(pretrained, tmp_path):
    (tmp_path / "lines.txt").write_text(f"{STRANGE * 9}\n" * 3)
    flags = [f"--input_file={tmp_path / 'lines.txt'}", f"--output_file={tmp_path / 'out.jsonl'}", "--pooling=mean"]
    printed = programs.run("extract_features.py", *flags, f"--init_checkpoint={pretrained}", "--max_seq_length=16")
    assert "Warning: --input_file: 100% of the tokens are [UNK]" in printed


def test_pretraining_reads_the_counts_of_the_metadata(capsys):
    counts = {"records": 100, "tokens": 51200, "predictions": 2000, "unknown": 45000}
    settings = {"masking_policy": {"masked_lm_prob": 0.15}}
    metadata = Metadata(100, 1, 512, 20, "", settings, counts=counts)
    data, features = PretrainingData("x", 512, 20), pretraining_features(512, 20)
    examples = ExampleSet([Shard("x", 100, metadata, features)], features, None)
    assert_refused("--input_file: 88% of the tokens are .UNK.", examples.report, data, False)
    examples.report(data, allows_errors=True)
    printed = capsys.readouterr().err
    assert "3.9% of the tokens are masked instead of 15%" in printed and "--max_predictions_per_seq=77" in printed
    # A file of the original program has no metadata.
    ExampleSet([Shard("x", 100, None, features)], features, None).report(data, allows_errors=False)
