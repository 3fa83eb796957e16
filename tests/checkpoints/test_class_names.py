"""Classes of output layers from other libraries are matched by name, or the error explains what to do."""

import contextlib
import json

import numpy as np
import pytest

from bert_tf import checkpoints, convert_checkpoint
from bert_tf.checkpoints import class_names
from bert_tf.finetuning.models import ClassifierModel
from bert_tf.runtime.files import InputError
from bert_tf.tasks import hf_names
from bert_tf.training import resume
from tests.conftest import assert_close, assert_refused, tiny_config

NAMES = ("yes", "no", "maybe")
CONFIG = tiny_config(num_hidden_layers=1)


def model_of(classes):
    model = ClassifierModel(CONFIG, len(classes), classes=classes)
    model.head.output_bias.assign(np.arange(1.0, 1.0 + len(classes)))
    return model


@pytest.fixture(scope="module")
def their_weights():
    """Returns the weights of a model whose output layer has the bias 1, 2, 3."""
    return {variable.path: variable.numpy() for variable in model_of(NAMES).variables}


@pytest.fixture
def hugging_face(tmp_path, their_weights):
    """Writes a fine-tuned model with classes of the given names; returns the directory."""

    def write(id2label):
        convert_checkpoint.write_hf(str(tmp_path / "hf"), their_weights, CONFIG, {"id2label": id2label})
        return str(tmp_path / "hf")

    return write


def named(names):
    return {str(number): name for number, name in enumerate(names)}


def started(model, init_checkpoint, directory, fresh=""):
    return resume.restore_or_initialize(model, {}, str(directory), init_checkpoint, fresh)


@pytest.mark.parametrize(
    ("theirs", "ours", "bias", "said"),
    [
        (NAMES, NAMES, [1, 2, 3], "its classes yes, no, maybe matched by name"),
        (NAMES, ("maybe", "yes", "no"), [3, 1, 2], "matched by name"),
        (("No", "MAYBE", "Yes"), NAMES, [3, 1, 2], "matched by name"),
        (("a", "A", "b"), ("A", "b", "a"), [2, 3, 1], "matched by name"),
        (("LABEL_0", "LABEL_1", "LABEL_2"), NAMES, [1, 2, 3], "have no names and are used in the order yes, no"),
        (("LABEL_2", "LABEL_1", "LABEL_0"), ("LABEL_0", "LABEL_1", "LABEL_2"), [3, 2, 1], "matched by name"),
        ((), NAMES, [1, 2, 3], "have no names"),
    ],
)
def test_classes_are_matched_by_name(tmp_path, hugging_face, their_weights, capsys, theirs, ours, bias, said):
    path, model = hugging_face(named(theirs)), model_of(ours)
    started(model, path, tmp_path)
    order = [value - 1 for value in bias]
    assert_close(model.head.output_bias, bias, 0)
    assert_close(model.head.output_weights, their_weights["output_weights"][order], 0)
    assert said in capsys.readouterr().err
    model = model_of(ours)
    assert resume.restore_for_evaluation(model, str(tmp_path / "none"), path) == 0
    assert_close(model.head.output_bias, bias, 0)


@pytest.mark.parametrize(
    ("theirs", "ours", "message"),
    [
        (NAMES, ("yes", "no", "x"), r"3 outputs \(yes, no, maybe\), but .* 3 \(yes, no, x\).*--reset_head.*id2label"),
        (NAMES, ("yes", "no"), r"3 outputs \(yes, no, maybe\), but .* 2 \(yes, no\)\. Use --reset_head"),
        (("a", "A", "b"), ("a", "B", "b"), r"\(a, A, b\), but .* \(a, B, b\)"),
        (("yes", "no"), NAMES, r"has 3 outputs \(yes, no\), but .* 3 \(yes, no, maybe\)"),
    ],
)
def test_other_classes_are_an_error_unless_the_output_layer_is_new(tmp_path, hugging_face, theirs, ours, message):
    path, model = hugging_face(named(theirs)), model_of(ours)
    assert_refused(message, started, model, path, tmp_path)
    summary = started(model, path, tmp_path, class_names.HEAD_VARIABLES)
    assert summary.fresh == ("output_weights", "output_bias")
    assert_close(model.head.output_bias, np.arange(1, 1 + len(ours)), 0)


@pytest.mark.parametrize("numbers", ["025", ["0", "00", "1"], "123"])
def test_the_keys_of_the_classes_are_the_numbers_of_the_rows(tmp_path, hugging_face, numbers):
    path = hugging_face(dict(zip(numbers, NAMES, strict=True)))
    assert_refused("config.json: the keys of id2label are .* Use 0 to 2", started, model_of(NAMES), path, tmp_path)


def run_directory(directory, weights, settings):
    """Makes a run directory with a checkpoint; returns the checkpoint."""
    checkpoints.write_checkpoint(str(directory / "model.ckpt-1"), weights)
    (directory / "run.json").write_text(json.dumps({"resume_settings": settings}))
    return str(directory / "model.ckpt-1")


def test_the_classes_of_our_own_runs_are_matched_too(tmp_path, their_weights):
    path = run_directory(tmp_path, their_weights, {"task": "text", "labels": list(NAMES)})
    model = model_of(NAMES[::-1])
    started(model, path, tmp_path)
    assert_close(model.head.output_bias, [3, 2, 1], 0)
    tagger = run_directory(tmp_path, their_weights, {"task": "ner", "labels": ["LOC"]})
    assert class_names.recorded_classes(checkpoints.open_checkpoint(tagger)) == ("O", "B-LOC", "I-LOC")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "regression"),
        ({"architectures": None}, "regression"),
        ({"problem_type": "single_label_classification"}, "regression"),
        ({"problem_type": "multi_label_classification"}, "multi_label"),
        (None, "regression"),
    ],
)
def test_one_output_is_a_regression_or_one_of_several_labels(tmp_path, settings, expected):
    model = ClassifierModel(CONFIG, 1)
    weights = {variable.path: variable.numpy() for variable in model.variables}
    if settings is None:
        checkpoints.write_checkpoint(str(tmp_path / "model.ckpt"), weights)
    else:
        convert_checkpoint.write_hf(str(tmp_path), weights, CONFIG, settings)
    source = checkpoints.open_checkpoint(str(tmp_path))
    for problem, problem_type in hf_names.PROBLEM_TYPES.items():
        refused = pytest.raises(InputError, match=f"was trained for {hf_names.PROBLEM_TYPES[expected]}")
        with contextlib.nullcontext() if problem == expected else refused:
            hf_names.check(source, hf_names.SEQUENCE, problem_type)


GENERIC = ["LABEL_0", "LABEL_1", "LABEL_2"]


@pytest.mark.parametrize(
    ("task", "settings", "architecture", "names", "problem"),
    [
        ("mnli", {"labels": NAMES}, hf_names.SEQUENCE, NAMES, "single_label_classification"),
        ("text", {"problem": "multi_label", "labels": NAMES}, hf_names.SEQUENCE, NAMES, "multi_label_classification"),
        ("sts-b", {"labels": None}, hf_names.SEQUENCE, ["LABEL_0"], "regression"),
        ("ner", {"labels": ["LOC"]}, hf_names.TOKENS, ["O", "B-LOC", "I-LOC"], None),
        ("codah", {"labels": ["0", "1", "2", "3"]}, hf_names.CHOICE, GENERIC, None),
        (None, {}, hf_names.SEQUENCE, GENERIC, None),
    ],
)
def test_hugging_faces_config_says_what_a_run_has_trained(
    tmp_path, their_weights, task, settings, architecture, names, problem
):
    recorded = {"task": task, **settings} if task else {}
    source = checkpoints.open_checkpoint(run_directory(tmp_path, their_weights, recorded))
    convert_checkpoint.write_hf(str(tmp_path / "hf"), their_weights, CONFIG, hf_names.hf_settings(source))
    written = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert written["architectures"] == [architecture]
    assert written["id2label"] == named(names)
    assert written["label2id"] == {name: number for number, name in enumerate(names)}
    assert written.get("problem_type") == problem
    # A second conversion, from Hugging Face's format, loses nothing.
    again = hf_names.hf_settings(checkpoints.open_checkpoint(str(tmp_path / "hf")))
    assert again.items() <= written.items()
    assert {"architectures", "id2label", "label2id"} <= again.keys()
