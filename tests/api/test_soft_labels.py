"""Tests classifiers that are trained on probabilities."""

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import bert_tf
from bert_tf.checkpoints import run_record
from bert_tf.runtime.files import InputError
from bert_tf.tasks.sentences.examples import InputExample
from tests.api.tiny import FIT, LABELS, TEXTS
from tests.conftest import assert_refused

pytestmark = [pytest.mark.plain, pytest.mark.eager]
GOOD = np.array([0.9, 0.8, 0.25, 0.0] * 6)  # the probability of "pos"
MATRIX = np.stack([GOOD, 1 - GOOD], axis=1)
COLUMNS = pd.DataFrame({"probability_neg": 1 - GOOD, "probability_pos": GOOD})


def trained_on(read, x, y=None, labels=None, **options):
    """Returns the classes and the examples that a classifier would train on."""
    task = read(bert_tf.Classifier, x, y, labels=labels, **options)
    return task.labels, [(x.text_a, x.label, x.probabilities) for x in task.examples("train")]


def test_probabilities_of_matrices_and_tables_are_the_same(read):
    frame = COLUMNS.assign(text=TEXTS, label="other")
    labels, expected = trained_on(read, TEXTS, MATRIX, ["pos", "neg"])
    assert labels == ("pos", "neg")
    assert expected[:2] == [
        (TEXTS[0], "pos", {"pos": 0.9, "neg": pytest.approx(0.1)}),
        (TEXTS[1], "pos", pytest.approx({"pos": 0.8, "neg": 0.2})),
    ]
    pairs = tf.data.Dataset.from_tensor_slices((TEXTS, MATRIX)).batch(5)
    for x, y in ((TEXTS, tf.constant(MATRIX)), (TEXTS, COLUMNS), (frame, None), (pairs, None)):
        assert trained_on(read, x, y, ["pos", "neg"]) == (labels, expected)
    labels, found = trained_on(read, frame)
    assert (labels, found) == (("neg", "pos"), expected)


def test_probabilities_of_several_labels(read):
    several = {"labels": ["pos", "neg"], "multi_label": True}
    _, found = trained_on(read, TEXTS, MATRIX * [1, 0.5], **several)
    assert [label for _, label, _ in found[:4]] == [("pos",), ("pos",), (), ("neg",)]
    assert found[2][2] == {"pos": 0.25, "neg": 0.375}
    task = read(bert_tf.Classifier, TEXTS, np.round(MATRIX), **several)  # numbers 0 and 1 are labels
    assert task.examples("train")[0] == InputExample("1", TEXTS[0], None, ("pos",))


@pytest.mark.parametrize(
    ("y", "labels", "message"),
    [
        (MATRIX, None, r"example 0 has the label \[0\.9, .*a probability for each class of labels=\[\]"),
        (MATRIX, ["a", "b", "c"], r"labels=\['a', 'b', 'c'\]"),
        (COLUMNS, ["neg", "other"], "example 0: the column probability_other is missing"),
        ([*MATRIX[:-1].tolist(), "pos"], ["pos", "neg"], "example 23 has the label 'pos'"),
        (np.where(GOOD[:, None] > 0.85, np.nan, MATRIX), ["pos", "neg"], "example 0: probability_pos is nan"),
    ],
)
def test_bad_probabilities_are_reported(read, y, labels, message):
    assert_refused(message, trained_on, read, TEXTS, y, labels)


def test_a_classifier_trains_on_probabilities_and_is_evaluated_on_labels(pretrained, tmp_path):
    student = bert_tf.Classifier.from_pretrained(
        pretrained, ["neg", "pos"], output_dir=tmp_path / "student", max_seq_length=16, distillation_temperature=2.0
    )
    scores = student.fit(COLUMNS.assign(text=TEXTS), validation_data=(TEXTS, LABELS), **FIT)
    assert scores["eval_accuracy"] == student.score(TEXTS, LABELS) == student.score(TEXTS, MATRIX[:, ::-1])
    assert run_record.recorded(str(tmp_path / "student"))["distillation_temperature"] == 2.0
    with pytest.raises(InputError, match=r"^distillation_temperature: there are no probabilities in the examples"):
        student.fit(TEXTS, LABELS, **FIT)
    bert_tf.Classifier.load(tmp_path / "student").fit(TEXTS, LABELS, **FIT)
