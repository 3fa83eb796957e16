import dataclasses
import json
import os

import numpy as np
import pytest

from bert_tf.checkpoints.run_record import digest_of_rows
from bert_tf.finetuning.feature_sets import FeatureSet
from bert_tf.finetuning.task import SplitOutputs
from bert_tf.runtime.files import InputError
from bert_tf.sequences.text_packer import TextPacker
from bert_tf.tasks.data_config import Columns, DataConfig
from bert_tf.tasks.registry import build_task
from tests.conftest import assert_refused


def task_of(write, text, name="train.tsv", columns=None, others=None, **options):
    """Returns a task with a training file, and with files of other splits if given."""
    paths = {"train": write(name, text)} | {
        split: write(f"{split}.{name.rpartition('.')[2]}", text) for split, text in (others or {}).items()
    }
    files = {f"{split}_file": path for split, path in paths.items()}
    return build_task(DataConfig("text", columns=columns or Columns(), **files, **options), "", do_train=True)


def predicted(task, directory, outputs, **options):
    """Returns the names and contents of the files with predictions for the test set."""
    outputs = {name: np.array(values) for name, values in outputs.items()}
    assert task.labels is None or len(task.labels) > 1
    test = SplitOutputs("test", task.split("test"), outputs, None)
    return {os.path.basename(path): open(path).read() for path in task.write_predictions(directory, test, **options)}


ONE_ROW = {"logits": [[2.0, 1.0]], "probabilities": [[0.75, 0.25]]}


def test_columns_are_found_by_name_and_classes_in_the_training_file(write):
    columns = Columns(text="q", text_b="a", label="verdict", id="key")
    text = "verdict\tkey\ta\tq\n10\tk1\tb b\ta\n9\tk2\td\tc\n"
    task = task_of(write, text, columns=columns, others={"test": "q\ta\tkey\ne\tf\tk3\n"})
    first = task.split("train")[0]
    assert (first.guid, first.text_a, first.text_b, first.label) == ("k1", "a", "b b", "10")
    assert task.labels == ("9", "10")  # as numbers
    assert task.split("test")[0].label is None


def test_test_sets_have_labels_only_if_all_are_valid(write, capsys):
    train = "text\tlabel\na\tx\nb\ty\n"

    def labels_of_test(text):
        task = task_of(write, train, others={"test": text})
        examples = task.split("test")
        assert task.has_labels(examples) == (examples[0].label is not None)
        return [example.label for example in examples]

    assert labels_of_test(train) == ["x", "y"]
    assert "not scored" not in capsys.readouterr().err
    assert labels_of_test("text\tlabel\na\tx\nb\t?\n") == [None, None]
    assert "not scored, because 1 rows have no known label" in capsys.readouterr().err
    assert labels_of_test("text\tlabel\na\tx\nb\tx\n") == [None, None]
    assert "because all rows have the same label" in capsys.readouterr().err
    assert labels_of_test("text\tlabel\na\t\nb\t\n") == [None, None]


@pytest.mark.parametrize(
    ("problem", "names"),
    [
        ("classification", ["accuracy", "macro_f1"]),
        ("regression", ["pearson", "spearman"]),
        ("multi_label", ["micro_f1", "macro_f1", "accuracy"]),
    ],
)
def test_metrics_for_selection(write, problem, names):
    assert task_of(write, "text\tlabel\na\t1\nb\t2\n", problem=problem).metric_names == names


def test_a_classification_has_two_classes_or_more(write):
    for labels, message in ((["x"], "--labels has only 'x'"), (None, "every row has the label 'x'")):
        with pytest.raises(InputError, match=message):
            _ = task_of(write, "text\tlabel\na\tx\nb\tx\n", labels=labels).labels
    assert task_of(write, "text\tlabel\na\tx\nb\t\n", labels=["x"], problem="multi_label").labels == ("x",)


def test_classes_that_are_numbers_are_ordered_and_matched_by_value(write):
    train = "text,label\n" + "".join(f"a,{label}\n" for label in ("10", "-1.0", "2", "-1", "x", "+3"))
    task = task_of(write, train, name="train.csv", others={"dev": "text,label\na,2.0\nb,-1\nc,10.00\n"})
    assert task.labels == ("-1", "2", "+3", "10", "x")
    assert [example.label for example in task.split("dev")] == ["2", "-1", "10"]
    task = task_of(write, "text\tlabel\na\t1\nb\t2.0\n", labels=["2", "1.0"], class_weights="1=3,2.0=4")
    assert [example.label for example in task.split("train")] == ["1.0", "2"]
    assert (task.labels, task.weights()) == (("2", "1.0"), [4.0, 3.0])  # in the given order
    task = task_of(write, "text\tlabel\na\t1.0,2\nb\t3\n", problem="multi_label")
    assert task.labels == ("1", "2", "3")


def test_classes_with_tabs_do_not_break_the_header(write, tmp_path):
    task = task_of(write, 'text,label\na,"x\ty"\nb,"z\nw"\n', name="train.csv", others={"test": "text\na\n"})
    assert predicted(task, tmp_path, ONE_ROW)["test_results.tsv"] == "x y\tz w\n0.75\t0.25\n"
    assert task.labels == ("x\ty", "z\nw")


def test_predictions_of_other_tables_are_json_lines(write, tmp_path):
    test = write("march.json.gz", '[{"text": "a", "n": 1}]')
    task = task_of(write, "text,label\na,x\nb,y\n", name="train.csv", test_file=test)
    assert json.loads(predicted(task, tmp_path, ONE_ROW)["march_predictions.jsonl"])["label"] == "x"


def test_predicted_labels_are_a_list_in_json_lines(write, tmp_path):
    train = "".join(f'{{"text": "a", "label": {labels}}}\n' for labels in ('["z", "x, y"]', '["z"]'))
    files = {"jsonl": '{"text": "a"}\n', "csv": "text,n\na,1\n"}
    for suffix, labels in (("jsonl", '["x, y", "z"]'), ("csv", '"x, y,z"')):
        options = {"problem": "multi_label", "test_file": write(f"test.{suffix}", files[suffix])}
        task = task_of(write, train, name="train.jsonl", **options)
        written = predicted(task, tmp_path, {"probabilities": [[0.75, 0.5]]})[f"test_predictions.{suffix}"]
        assert labels in written


def test_another_separator_of_labels_is_found(write):
    def check(*cells, **options):
        text = "text\tlabel\n" + "".join(f"a\t{cell}\n" for cell in cells)
        task = task_of(write, text, problem="multi_label", **options)
        task.check_training_set(task.split("train"))

    assert_refused(r"'x;y' may be several labels.*--label_separator", check, "x;y", "z", "")
    check("x;y", "z, x")
    check("x", "y")
    check("x;y", "z", labels=["x;y", "z"])


def test_several_labels(write, tokenizer):
    lines = [{"text": "a", "label": ["x", "z"]}, {"text": "b", "label": []}, {"text": "c", "label": "y, x"}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    task = task_of(write, text, name="train.jsonl", problem="multi_label")
    assert task.labels == ("x", "y", "z")
    features = task.featurize(task.split("train"), TextPacker(tokenizer, 8))
    assert features.per_example["label_ids"].tolist() == [[1, 0, 1], [0, 0, 0], [1, 1, 0]]
    outputs = {"probabilities": np.array([[0.9, 0.1, 0.5], [0.2, 0.2, 0.2], [0.9, 0.9, 0.1]])}
    scores = task.scores(outputs | {"per_example_loss": np.zeros(3)}, features)
    assert (scores["micro_f1"], scores["accuracy"]) == (1.0, 1.0)


def test_columns_of_0_and_1_are_labels(write, tokenizer):
    text = "text,x,y\na,1,0\nb,0.0,1.0\nc,False,False\n"
    task = task_of(write, text, name="train.csv", columns=Columns(label="y,x"), problem="multi_label")
    assert task.labels == ("y", "x")
    features = task.featurize(task.split("train"), TextPacker(tokenizer, 8))
    assert features.per_example["label_ids"].tolist() == [[0, 1], [1, 0], [0, 0]]
    bad = task_of(write, "text,x,y\na,1,2\n", name="bad.csv", columns=Columns(label="y,x"), problem="multi_label")
    assert_refused(r"bad.csv, line 2: the label \('y'\) is '2'. Use 0 or 1", bad.examples, "train")


def test_the_threshold_of_labels_is_fixed_or_tuned(write, tokenizer):
    text = "text\tlabel\na\tx\nb\ty\n"
    outputs = {"probabilities": np.array([[0.3, 0.1], [0.2, 0.4]])}
    labels = np.array([[1, 0], [0, 1]])
    for threshold, chosen in (("", [[0, 0], [0, 0]]), ("0.35", [[0, 0], [0, 1]]), ("tune", labels.tolist())):
        task = task_of(write, text, problem="multi_label", label_threshold=threshold)
        if task.tunes:
            tuned = task.tune(outputs, features_with(labels))
            assert tuned == {"label_threshold": pytest.approx(0.25)}
            assert task.label_threshold == 0.5
            vars(task).update(tuned)
        assert task.predictions(outputs).tolist() == chosen


def features_with(label_ids):
    """Returns features that have only labels."""
    return FeatureSet.from_sequences([([1], [0])] * len(label_ids), {"label_ids": label_ids})


@pytest.mark.parametrize(
    ("class_weights", "expected"),
    [
        ("balanced", [4 / 6, 4 / 2]),
        ("y=2.5", [1.0, 2.5]),
        ("", None),
        ("z=2", "'z=2.0' is not class=weight.*x, y"),
        ({"y": -1.0}, "'y=-1.0' is not class=weight.*x, y"),
        ("y", "'y' is not class=weight"),
        ("x=1,y=-1", "'y=-1' is not class=weight"),
        ("y=high", "'y=high' is not class=weight"),
    ],
)
def test_class_weights(write, class_weights, expected):
    def weights():
        text = "text\tlabel\n" + "a\tx\n" * 3 + "b\ty\n"
        return task_of(write, text, class_weights=class_weights).weights()

    if isinstance(expected, str):
        assert_refused(f"--class_weights: {expected}", weights)
    else:
        assert weights() == pytest.approx(expected)
    if class_weights == "balanced":
        rows = "text,label\n" + "a,x\n" * 3 + 'b,"x,y"\n' * 2 + "c,\n"
        several = task_of(write, rows, name="several.csv", problem="multi_label", class_weights=class_weights)
        assert several.weights() == pytest.approx([1 / 5, 4 / 2])


def test_rejected_rows_are_left_out(write, capsys):
    rows = [("a", "x", "accept"), ("b", "y", "reject"), ("c", "y", "ignore"), ("d", "y", "accept")]
    text = "text\tlabel\tanswer\n" + "".join("\t".join(row) + "\n" for row in rows)
    assert [example.text_a for example in task_of(write, text).split("train")] == ["a", "d"]
    assert "2 rows skipped (rejected or discarded by an annotator)" in capsys.readouterr().err
    answers = task_of(write, text, name="answers.tsv", columns=Columns(label="answer")).split("train")
    assert [example.label for example in answers] == ["accept", "reject", "ignore", "accept"]


@pytest.mark.parametrize(
    ("header", "columns", "warning"),
    [
        ("text\ttext_pair\tlabel", Columns(), "the column 'text_pair' is not used. For pairs, pass --text_b_column"),
        ("sentence1\tsentence2\tlabel", Columns(text="sentence1"), "the column 'sentence2' is not used"),
        ("text\ttext_b\tlabel", Columns(text_b="text_b"), ""),
        ("text\ttitle\tlabel", Columns(), ""),
    ],
)
@pytest.mark.parametrize("problem", ["classification", "regression"])
def test_second_texts_and_equal_scores_are_reported(write, capsys, header, columns, warning, problem):
    task = task_of(write, f"{header}\na\tb\t1\nc\td\t{2 - (not warning)}\n", columns=columns, problem=problem)
    examples = task.split("train")
    if problem == "regression":
        task.check_training_set(examples)
    printed = capsys.readouterr().err
    assert warning in printed if warning else "is not used" not in printed
    assert ("every row has the score 1" in printed) == (problem == "regression" and not warning)


def test_rows_have_weights_in_training_only(write, tokenizer):
    columns = Columns(weight="w")
    train, dev = "text\tlabel\tw\na\tx\t0.5\nb\ty\t2\n", "text\tlabel\na\tx\n"
    task = task_of(write, train, columns=columns, others={"dev": dev})
    plain = task_of(write, train, name="plain.tsv")
    weighted, even = task.split("train"), plain.split("train")
    packer = TextPacker(tokenizer, 8)
    found = task.featurize(weighted, packer).per_example
    assert found["sample_weights"].tolist() == [0.5, 2.0]
    for features in (task.featurize(task.split("dev"), packer), plain.featurize(even, packer)):
        assert features.per_example.keys() == {"label_ids"}
    assert task.resume_settings() == plain.resume_settings() | {"weight_column": "w"}
    assert digest_of_rows(weighted) != digest_of_rows(even)
    # In run.json, the rows have the same fingerprint as rows without weights, for compatibility with older runs.
    assert repr(even[0]) == "InputExample(guid='2', text_a='a', text_b=None, label='x')"
    with pytest.raises(InputError, match="every row has weight 0"):
        task.check_training_set([dataclasses.replace(row, weight=0.0) for row in weighted])


HEADER = "text\tlabel\n"
WITH_NUMBERS = "text\tlabel\tn\na\tx\t1\nb\ty\t1\n"


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (HEADER + "a\t0.5\nb\t1.5\n", {}, "line 2: the label '0.5'.*--problem=regression"),
        (HEADER + "a\tx\nb\tx\n", {}, "every row has the label 'x'"),
        (HEADER + "a\tx\nb\ty\n", {"labels": ["x", "z"]}, "line 3: the label 'y' .* 'x', 'z'"),
        (HEADER + "a\thigh\n", {"problem": "regression"}, "line 2: the score 'high'"),
        (HEADER + "a\tnan\n", {"problem": "regression"}, "line 2: the score 'nan'"),
        (HEADER + "a\t1e39\n", {"problem": "regression"}, "line 2: the score '1e39'"),
        (HEADER + "a\t\nb\t\n", {"problem": "multi_label"}, "no row has a label"),
        (HEADER + "a\tx\nb\tnan\n", {}, "line 3: the label 'nan'"),
        (HEADER + "a\tx,NaN\n", {"problem": "multi_label"}, "line 2: the label 'NaN'"),
        (HEADER + "a\tx,x\n", {"problem": "multi_label"}, "line 2: a label occurs twice in x, x"),
        (HEADER + "a\t['x', 'y']\n", {"problem": "multi_label"}, "line 2: .* is a list in Python's notation"),
        *(
            (f"{HEADER}a\t{cell}\n", {"problem": problem}, "line 2: .* is a list in Python's notation")
            for cell in (
                "('g',)",
                "[x, y]",
                "[1 0]",
                "[1. 0.]",
                "['x' 'y']",
                "{'x'}",
                "set()",
                "[]",
                "array(['x', 'y'])",
            )
            for problem in ("multi_label", "classification")
        ),
        (HEADER + "a\t[x]\n", {"problem": "multi_label"}, "line 2: .* is a list in Python's notation"),
        ("text\tgold_label\na\t-\n", {"columns": Columns(label="gold_label")}, "line 2: the label is '-'"),
        (HEADER + "a\t1,0\nb\t0,1\n", {"problem": "multi_label"}, "every row has the labels '1, 0'"),
        (HEADER + " \tx\n", {}, "line 2: the text is empty"),
        (HEADER + "a\t\n", {}, "line 2: the label is empty"),
        (HEADER + "a\n", {}, "line 2: the row has 1 columns"),
        (HEADER, {}, "there are no rows"),
        (HEADER + "a\tx\n", {"columns": Columns(text_b="other")}, "line 1: the column 'other'"),
        (WITH_NUMBERS, {"columns": Columns(id="n")}, "line 3: the id '1' .* line 2"),
        (WITH_NUMBERS.replace("1", "-1"), {"columns": Columns(weight="n")}, r"line 2: the weight \('n'\) is '-1'"),
    ],
)
def test_bad_rows_are_reported(write, text, options, message):
    task = task_of(write, text, **options)
    with pytest.raises(InputError, match=message):
        examples = task.split("train")
        assert len(task.labels) > 1
        task.check_training_set(examples)


def test_labels_of_dev_must_be_known_from_training(write):
    task = task_of(write, "text\tlabel\na\tx\nb\ty\n", others={"dev": "text\tlabel\na\tz\nb\ty\n"}, on_bad_row="skip")
    assert [example.label for example in task.split("dev")] == ["y"]


def test_predictions_have_ids_texts_and_probabilities(write, tmp_path):
    test = 'text,key,label,source\n"a, b",k1,x,"p, q"\nc,k2,y,r\n'
    options = {"name": "train.csv", "columns": Columns(id="key")}
    train = "text,label,key\na,x,1\nb,y,2\n"
    task = task_of(write, train, **options, others={"test": test})
    outputs = {"logits": [[2.0, 1.0], [0.0, 1.0]], "probabilities": [[0.75, 0.25], [0.3, 0.7]]}
    expected = [
        "id,text,given_label,source,label,probability_x,probability_y",
        'k1,"a, b",x,"p, q",x,0.75,0.25',
        "k2,c,y,r,y,0.3,0.7",
    ]
    files = predicted(task, tmp_path, outputs)
    assert files.pop("test_predictions.csv").splitlines() == expected
    assert files == {"test_results.tsv": "x\ty\n0.75\t0.25\n0.3\t0.7\n"}
    files = predicted(task, tmp_path, outputs, original_format=True)
    assert files["test_results.tsv"] == "0.75\t0.25\n0.3\t0.7\n"
    task = task_of(write, train, **options, test_file=write("march.csv", test))
    assert [*predicted(task, tmp_path, outputs)] == ["march_results.tsv", "march_predictions.csv"]


@pytest.mark.parametrize(
    ("name", "train", "test", "expected"),
    [
        (  # rows with the same id keep their own cells
            "train.csv",
            "text,label\na,1\nb,2\n",
            "id,text,date\n7,a,monday\n7,b,tuesday\n,c,friday\n",
            "id,text,date,score\n7,a,monday,0.5\n7,b,tuesday,2.0\n4,c,friday,1.0\n",
        ),
        (  # lines of JSON may have different fields
            "train.jsonl",
            '{"text": "c", "label": 1}\n',
            '{"text": "a", "n": 1, "tags": ["p"]}\n{"m": null, "text": "b"}\n{"text": "c"}\n',
            '{"id": "1", "text": "a", "n": "1", "tags": ["p"], "score": 0.5}\n'
            '{"id": "2", "text": "b", "m": null, "score": 2.0}\n{"id": "3", "text": "c", "score": 1.0}\n',
        ),
    ],
)
def test_predictions_have_the_cells_of_each_row(write, tmp_path, name, train, test, expected):
    task = task_of(write, train, name=name, others={"test": test}, problem="regression")
    found = predicted(task, tmp_path, {"score": [0.5, 2.0, 1.0]})
    assert found[name.replace("train", "test_predictions")] == expected
