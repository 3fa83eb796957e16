"""Tests calibrated probabilities, answers below the lowest probability, and their exports."""

import json

import numpy as np
import pytest
from scipy import optimize

import bert_tf
from bert_tf import convert_checkpoint, export
from bert_tf.runtime.files import InputError
from bert_tf.tasks.data_config import ConfidenceConfig
from bert_tf.tasks.sentences import calibration
from tests.api.tiny import FIT, LABELS, LEARN, TEXTS
from tests.conftest import assert_close, assert_refused
from tests.tasks.sentences.test_own_files import features_with, task_of

pytestmark = pytest.mark.plain


def error_by_bins(confidences, is_right):
    """Returns the expected calibration error, computed bin by bin."""
    total = 0.0
    for low in range(calibration.BINS):
        inside = (confidences > low / calibration.BINS) & (confidences <= (low + 1) / calibration.BINS)
        total += inside.sum() * abs(is_right[inside].mean() - confidences[inside].mean()) if inside.any() else 0.0
    return total / len(confidences)


@pytest.mark.parametrize("is_binary", [False, True])
def test_errors_and_temperatures_are_those_of_the_paper(is_binary):
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(400, 3)) * 3
    labels = rng.integers(0, 3, 400)
    if is_binary:
        labels = (rng.random((400, 3)) < 1 / (1 + np.exp(-logits / 2))).astype(np.float32)
    else:
        labels = np.where(rng.random(400) < 0.6, logits.argmax(axis=-1), labels)

    def loss(temperature):
        z = logits / temperature
        if is_binary:
            p = 1 / (1 + np.exp(-z))
            return -np.mean(np.where(labels == 1, np.log(p), np.log(1 - p)))
        p = np.exp(z) / np.exp(z).sum(axis=-1, keepdims=True)
        return -np.mean(np.log(p[np.arange(400), labels]))

    temperature = calibration.best_temperature(logits, labels)
    assert temperature > 1.2  # the logits are too large
    assert temperature == pytest.approx(optimize.minimize_scalar(loss, (1.0, 3.0)).x, rel=1e-4)
    assert np.mean(calibration.losses(logits, labels)) == pytest.approx(loss(1.0))
    p = calibration.probabilities_of(logits, labels)
    pairs = (p.ravel(), labels.ravel()) if is_binary else (p.max(axis=-1), p.argmax(axis=-1) == labels)
    assert calibration.expected_error(p, labels) == pytest.approx(error_by_bins(*pairs))
    never_wrong = calibration.best_temperature(np.eye(3) - 0.5, np.eye(3) if is_binary else np.arange(3))
    assert never_wrong == pytest.approx(calibration._LOWEST, rel=1e-2)


ROWS = "text\tlabel\na\tx\nb\ty\n"
LOGITS = np.array([[3.0, 0.0], [0.4, 0.0], [0.0, 2.0], [0.0, 6.0]], np.float32)


def test_a_threshold_is_tuned_after_the_temperature_and_tuned_values_are_kept(write):
    labels = np.array([[1, 0], [1, 0], [0, 1], [0, 0]], np.float32)
    settings = {"problem": "multi_label", "confidence": ConfidenceConfig(calibrate=True)}
    task = task_of(write, ROWS, **settings, label_threshold="tune")
    outputs = {"logits": LOGITS, "probabilities": 1 / (1 + np.exp(-LOGITS)), "per_example_loss": np.zeros(4)}
    tuned = task.tune(outputs, features_with(labels))
    calibrated = task.replace(**tuned).calibrated(outputs, features_with(labels))
    assert_close(calibrated["logits"] * tuned["temperature"], LOGITS, 1e-5)
    assert_close(calibrated["per_example_loss"], calibration.losses(calibrated["logits"], labels), 1e-6)
    chosen = task.replace(**tuned).predictions(calibrated)
    assert chosen.tolist() == task.replace(label_threshold=tuned["label_threshold"]).predictions(calibrated).tolist()
    later = task_of(write, ROWS, problem="multi_label", label_threshold="tune").replace(temperature=2.0)
    assert later.tune(outputs, features_with(labels))["temperature"] == 2.0
    assert task.calibrated(outputs, features_with(labels)) is outputs


@pytest.mark.parametrize(
    ("problem", "expected", "names"),
    [
        ("classification", [0, -1, 1, 1], ["x", "none", "y", "y"]),
        ("multi_label", [[-1, -1], [-1, -1], [-1, -1], [0, 1]], [["none"], ["none"], ["none"], ["y"]]),
    ],
)
def test_an_answer_that_is_not_sure_enough_is_not_given(write, tmp_path, problem, expected, names):
    labels = np.array([0, 0, 1, 0]) if problem == "classification" else np.array([[1, 0]] * 3 + [[0, 1]], np.float32)
    confidence = ConfidenceConfig(min_probability=0.8, abstain_label="none")
    settings = {"problem": problem, "confidence": confidence, "label_threshold": "0.45" if labels.ndim == 2 else ""}
    task, logits = task_of(write, ROWS, **settings), np.array([*LOGITS[:3], [-6.0, 6.0]], np.float32)
    probabilities = calibration.probabilities_of(logits, labels)
    outputs = {"logits": logits, "probabilities": probabilities, "per_example_loss": np.zeros(4)}
    answers = task.decode([], None, outputs)
    assert answers.tolist() == expected
    assert [task.name_of(answer) for answer in answers] == names
    scores = task.scores(outputs, features_with(labels))
    assert scores["abstained"] == sum("none" in name for name in names)
    assert scores["answered_accuracy"] == pytest.approx(1.0 if labels.ndim == 2 else 2 / 3)
    refused = task_of(write, ROWS, problem=problem, confidence=ConfidenceConfig(min_probability=0.8, abstain_label="y"))
    with pytest.raises(InputError, match="--abstain_label is ''"):
        ConfidenceConfig(min_probability=0.8, abstain_label="")
    with pytest.raises(InputError, match="--abstain_label: 'y' is also a class"):
        _ = refused.labels


@pytest.mark.parametrize("is_binary", [False, True])
def test_every_prediction_and_export_has_the_temperature_and_the_lowest_probability(pretrained, tmp_path, is_binary):
    labels = [[label] for label in LABELS] if is_binary else LABELS
    options = {"multi_label": is_binary, "max_seq_length": 16}
    model = bert_tf.Classifier.from_pretrained(
        pretrained, output_dir=tmp_path / "run", calibrate=True, min_probability=0.5, **options
    )
    message = "calibrate need a dev set"
    assert_refused(message, model.fit, TEXTS, labels, **FIT)
    scores = model.fit(TEXTS, labels, validation_data=(TEXTS, labels), **LEARN | {"epochs": 8})
    assert {"eval_calibration_error", "eval_uncalibrated_error", "eval_abstained"} <= scores.keys()
    tuned = tmp_path / "run" / "tuned.json"
    assert json.loads(tuned.read_text()).keys() == {"temperature"}
    wrong = [[[], ["neg", "pos"], ["pos"]][len(answer) % 2] if is_binary else "pos" for answer in model.predict(TEXTS)]
    pairs = dict(zip(TEXTS, zip(wrong, model.predict(TEXTS), strict=True), strict=True))
    rows = {row["text"]: (row["label"], row["prediction"]) for row in model.errors(TEXTS, wrong)}
    assert rows == {text: pair for text, pair in pairs.items() if pair[0] != pair[1]}
    tuned.write_text('{"temperature": 1.0}')
    plain = bert_tf.Classifier.load(tmp_path / "run").predict_proba(TEXTS[:4])
    tuned.write_text('{"temperature": 0.5}')
    read = [bert_tf.Classifier.load(tmp_path / "run")]
    read.append(bert_tf.Classifier.from_pretrained(tmp_path / "run", **options))
    convert_checkpoint.convert(tmp_path / "run", tmp_path / "hf", "hf")
    read.append(bert_tf.Classifier.from_pretrained(tmp_path / "hf", **options, min_probability=0.5))
    logits = np.log(plain) - (np.log(1 - plain) if is_binary else 0)
    expected = calibration.probabilities_of(logits / 0.5, np.zeros((4, 2)) if is_binary else np.zeros(4))
    for other in read:
        assert_close(other.predict_proba(TEXTS[:4]), expected, 1e-5)
        assert other.predict(TEXTS[:4]) == read[0].predict(TEXTS[:4])
    lowest = float(np.sort(np.abs(expected - 0.5).min(axis=-1) + 0.5)[1:3].mean())
    read[0].set_params(min_probability=lowest, abstain_label="unsure")
    read[0].export(tmp_path / "served", min_probability=lowest, abstain_label="unsure", litert=True)
    answers = read[0].predict(TEXTS[:4])
    assert any("unsure" in answer for answer in answers)
    for engine in ("tensorflow", "litert"):
        served = export.load(tmp_path / "served", engine=engine).predict(TEXTS[:4])
        assert_close([answer["probabilities"] for answer in served], expected, 1e-5)
        assert [answer["abstained"] for answer in served] == ["unsure" in answer for answer in answers]
        if is_binary:
            chosen = [sum(answer["chosen"]) for answer in served]
            assert chosen == [0 if "unsure" in answer else len(answer) for answer in answers]
        else:
            assert [answer["label"] for answer in served] == answers
    assert_refused(
        "abstain_label: 'pos' is also a class", read[0].export, tmp_path / "x", min_probability=0.5, abstain_label="pos"
    )
