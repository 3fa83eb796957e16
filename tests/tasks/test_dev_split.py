import collections

import numpy as np

from bert_tf.tasks.data_config import DataConfig
from bert_tf.tasks.registry import build_task
from tests.conftest import assert_refused


def task_of(directory, name="text", **settings):
    return build_task(DataConfig(name, str(directory), **settings), "", do_train=True)


def test_the_dev_set_is_a_stratified_part_of_the_training_file(write, tmp_path):
    labels = ["a"] * 60 + ["b"] * 20 + ["c"]
    write("train.tsv", "text\tlabel\n" + "".join(f"t{i}\t{label}\n" for i, label in enumerate(labels)))
    write("test.tsv", "text\nx\n")
    task = task_of(tmp_path, dev_fraction=0.1, class_weights="balanced")
    train, dev = task.split("train"), task.split("dev")
    assert collections.Counter(example.label for example in dev) == {"a": 6, "b": 2}
    assert sorted(example.text_a for example in [*train, *dev]) == sorted(f"t{i}" for i in range(len(labels)))
    assert [example.guid for example in dev] != sorted(example.guid for example in train)[:8]
    assert task_of(tmp_path, dev_fraction=0.1).split("dev") == dev
    assert task.labels == ("a", "b", "c")  # the only row of c is trained on
    assert task.weights() == [73 / (3 * count) for count in (54, 18, 1)]  # the counts of the remaining rows
    assert len(task.split("test")) == 1


def test_every_label_and_type_stays_in_the_training_set(write, tmp_path):
    write("train.jsonl", "".join(f'{{"text": "t", "label": ["x", "{label}"]}}\n' for label in "aabbcdefgh"))
    task = task_of(tmp_path, dev_fraction=0.5, problem="multi_label")
    assert task.labels == tuple("abcdefghx")
    assert len(task.split("dev")) == 2  # rows of a and b
    documents = "".join(f"-DOCSTART- O\n\na B-{kind}\n\nb O\n\n" for kind in ("X", "Y", "Y", "Y"))
    write("tags/train.txt", documents)
    tagging = task_of(tmp_path / "tags", "ner", dev_fraction=0.5)
    assert [(sentence.document, sentence.words) for sentence in tagging.split("dev")] in (
        [(first, ("a",)), (first, ("b",)), (second, ("a",)), (second, ("b",))]
        for first, second in ((1, 2), (1, 3), (2, 3))
    )
    assert tagging.labels == ("X", "Y")


def test_scores_of_a_regression_are_no_classes(write, tmp_path):
    write("train.tsv", "text\tlabel\n" + "".join(f"t{i}\t{i / 10}\n" for i in range(10)))
    task = task_of(tmp_path, dev_fraction=0.2, problem="regression")
    assert [len(task.split(split)) for split in ("train", "dev")] == [8, 2]
    assert task.target_scale[0] == np.mean([float(example.label) for example in task.split("train")])


def test_a_share_of_too_few_examples_is_refused(write, tmp_path):
    write("train.tsv", "text\tlabel\na\tx\nb\ty\n")
    assert_refused(r"--dev_fraction=0\.5 of 2 examples", task_of(tmp_path, dev_fraction=0.5).split, "dev")
