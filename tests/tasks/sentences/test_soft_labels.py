import json

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.checkpoints.run_record import digest_of_rows
from bert_tf.finetuning.models import ClassifierModel
from bert_tf.runtime.files import InputError
from bert_tf.sequences.text_packer import TextPacker
from bert_tf.tasks.data_config import Columns, DataConfig, LossConfig
from bert_tf.tasks.registry import build_task
from bert_tf.tasks.sentences import soft_labels
from tests.conftest import assert_close, assert_refused, tiny_config

# Like a file of predictions. The columns are not in the sorted order of the classes, and a class has no examples.
TABLE = """id,text,label,probability_z,probability_x,probability_y
1,a,x,0.1,0.7,0.2
2,b,z,0.600001,0.1,0.3
3,c,z,0.333333,0.333333,0.333333
"""
SEVERAL = "text,probability_x,probability_y\na,0.9,0.6\nb,0.2,1\nc,0.25,0\n"


def task_of(write, text, name="train.csv", **options):
    return build_task(DataConfig("text", train_file=write(name, text), **options), "", do_train=True)


def targets(task, tokenizer):
    return task.featurize(task.split("train"), TextPacker(tokenizer, 8)).per_example


def test_columns_of_probabilities_are_matched_by_name(write, tokenizer, capsys):
    task = task_of(write, TABLE)
    assert [x.label for x in task.split("train")] == ["x", "z", "z"]
    assert "train.csv: training on the probabilities in probability_z, probability_x, prob" in capsys.readouterr().err
    assert task.labels == ("x", "y", "z")
    found = targets(task, tokenizer)
    assert found["label_ids"].tolist() == [0, 2, 2]
    expected = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.600001], [1, 1, 1]])
    assert_close(found["soft_labels"], expected / expected.sum(axis=1, keepdims=True), 1e-6)
    given = task_of(write, TABLE, labels=["z", "y", "x"])
    assert_close(targets(given, tokenizer)["soft_labels"], found["soft_labels"][:, ::-1], 1e-6)


def test_a_temperature_raises_probabilities_to_a_power(write, tokenizer):
    found = targets(task_of(write, TABLE, distillation_temperature=2.0), tokenizer)["soft_labels"]
    roots = np.sqrt([0.7, 0.2, 0.1])
    assert_close(found[0], roots / roots.sum(), 1e-6)
    cold = targets(task_of(write, TABLE, distillation_temperature=1e-3), tokenizer)["soft_labels"]
    assert_close(cold, [[1, 0, 0], [0, 0, 1], [1 / 3, 1 / 3, 1 / 3]], 1e-6)


def test_probabilities_in_other_files_and_with_weights(write, tokenizer):
    lines = [{"text": "a", "w": 2, "probability_1": 0.25, "probability_0": 0.75}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    found = targets(task_of(write, text, name="train.jsonl", columns=Columns(weight="w")), tokenizer)
    assert found["soft_labels"].tolist() == [[0.75, 0.25]]
    assert found["sample_weights"].tolist() == [2.0]


def test_other_splits_have_labels_or_the_most_probable_class(write):
    files = {"dev_file": write("dev.csv", TABLE.replace("1,a,x", "1,a,y")), "test_file": write("test.csv", TABLE)}
    task = task_of(write, TABLE, **files)
    assert [x.label for x in task.split("dev")] == ["y", "z", "z"]
    assert [x.label for x in task.split("test")] == ["x", "z", "z"]
    without = task_of(write, TABLE, dev_file=write("no.csv", SEVERAL))
    assert_refused(r"no\.csv, line 1: the column 'label' is missing", without.examples, "dev")
    rows = "".join(f"{i},a,x,0.2,0.7,0.1\n{i}0,b,x,0.2,0.1,0.7\n" for i in range(4, 9))
    drawn = task_of(write, TABLE + rows, dev_fraction=0.5)
    assert {x.label for x in drawn.split("dev")} == {"x", "y", "z"}


def test_probabilities_of_several_labels(write, tokenizer):
    task = task_of(write, SEVERAL, problem="multi_label", distillation_temperature=2.0)
    assert [x.label for x in task.split("train")] == [("x", "y"), ("y",), ()]
    p = np.array([[0.9, 0.6], [0.2, 1], [0.25, 0]])
    assert_close(targets(task, tokenizer)["soft_labels"], np.sqrt(p) / (np.sqrt(p) + np.sqrt(1 - p)), 1e-6)


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ("a,0.5,0.4,0.02", {}, r"train\.csv, line 2: probability_z \+ probability_x \+ probability_y is 0\.92"),
        ("a,0.6,-0.1,0.5", {}, r"train\.csv, line 2: probability_x is '-0\.1'"),
        ("a,nan,0.5,0.5", {}, "line 2: probability_z is 'nan'"),
        ("a,0.5,0.5,inf", {}, "line 2: probability_y is 'inf'"),
        ("a,0.5,0.5,", {}, "line 2: probability_y is ''"),
        ("a,0.5,0.5,0", {"labels": ["x", "y"]}, "line 2: the column probability_z is unknown. Use .*_x, probability_y"),
        ("a,0.5,0.5,0", {"labels": ["q", "x", "y", "z"]}, "line 2: the column probability_q is missing"),
        ("a,1.5,0.5,0", {"problem": "multi_label"}, r"line 2: probability_z is '1\.5'"),
    ],
)
def test_bad_probabilities_are_reported(write, row, options, message):
    task = task_of(write, f"text,probability_z,probability_x,probability_y\n{row}\n", **options)
    assert_refused(message, task.examples, "train")


def test_rows_of_json_with_other_classes_are_reported(write):
    first = {"text": "a", "probability_x": 0.5, "probability_y": 0.5}
    for other, message in (({"probability_z": 0.0}, "probability_z is unknown"), ({"probability_x": None}, "is None")):
        task = task_of(write, f"{json.dumps(first)}\n{json.dumps(first | other)}\n", name="train.jsonl")
        assert_refused(f"line 2: .*{message}", task.examples, "train")
    task = task_of(write, f'{json.dumps(first)}\n{{"text": "b", "label": "x"}}\n', name="train.jsonl")
    assert_refused("line 2: there is no column 'probability_x'", task.examples, "train")


def test_a_temperature_needs_probabilities_and_is_recorded(write):
    hard = task_of(write, "text,label\na,x\nb,y\n", distillation_temperature=2.0)
    with pytest.raises(InputError, match=r"--distillation_temperature: there are no probabilities in .*train\.csv"):
        hard.check_training_set(hard.split("train"))
    for options in ({"loss": LossConfig(0.1)}, {"class_weights": "balanced", "problem": "multi_label"}):
        refused = task_of(write, SEVERAL if "problem" in options else TABLE, **options)
        assert_refused("the labels in .* are probabilities", refused.check_training_set, refused.split("train"))
    plain, soft = task_of(write, TABLE), task_of(write, TABLE, distillation_temperature=2.0)
    soft.check_training_set(soft.split("train")[1:])  # z is the most probable class of both
    assert soft.resume_settings() == plain.resume_settings() | {"distillation_temperature": 2.0}
    other = task_of(write, TABLE.replace("0.7,0.2", "0.8,0.1"))
    assert digest_of_rows(plain.split("train")) != digest_of_rows(other.split("train"))


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_the_loss_is_the_cross_entropy_at_the_temperature(temperature):
    ids = np.arange(12, dtype=np.int32).reshape(3, 4) % 5 + 1
    batch = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
    teacher = np.array([[2.0, 0.5, -1.0], [-3.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    rows = [dict(zip("abc", np.exp(row), strict=True)) for row in log_softmax(teacher)]
    batch["soft_labels"] = soft_labels.soft_labels(rows, "abc", "classification", temperature)
    batch["label_ids"] = np.array([0, 2, 0], np.int32)
    # The tempered probabilities are the softmax of the teacher's divided logits.
    p = np.exp(log_softmax(teacher / temperature))
    assert_close(batch["soft_labels"], p, 1e-6)
    model = ClassifierModel(tiny_config(), 3, temperature=temperature)
    model.head.output_weights.assign(model.head.output_weights * 50)  # so that the logits differ
    logits = model.predict(batch)["logits"].numpy()
    log_q = log_softmax(logits / temperature)
    loss = model.loss(batch, model.totals(batch), None)[0]
    assert_close(loss, temperature**2 * -(p * log_q).sum(axis=1).mean(), 1e-5)


def test_the_loss_of_several_labels_and_of_weights():
    ids = np.ones((2, 4), np.int32)
    batch = {"input_ids": ids, "input_mask": ids, "segment_ids": ids, "label_ids": np.eye(2, dtype=np.float32)}
    model = ClassifierModel(tiny_config(), 2, "multi_label", temperature=2.0)
    p = batch["soft_labels"] = np.array([[0.75, 0.5], [0.0, 1.0]], np.float32)
    q = tf.sigmoid(model.predict(batch)["logits"] / 2).numpy()
    losses = -4 * (p * np.log(q) + (1 - p) * np.log(1 - q)).mean(axis=1)
    assert_close(model.loss(batch, model.totals(batch), None)[0], losses.mean(), 1e-5)
    batch["sample_weights"] = np.array([0.5, 3.0], np.float32)
    assert_close(model.loss(batch, model.totals(batch), None)[0], (losses * [0.5, 3]).mean(), 1e-5)
