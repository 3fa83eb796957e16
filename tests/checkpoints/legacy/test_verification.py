"""Tests the comparison of a converted model with the original model, which runs in the original library."""

import contextlib
import json
import sys

import numpy as np
import pytest

from bert_tf import convert_checkpoint, verification
from bert_tf.runtime.errors import InputError
from tests import command_server
from tests.checkpoints.legacy import writers
from tests.checkpoints.legacy.writers import CONFIG, PIECES


@pytest.fixture
def texts(write):
    return write("texts.txt", "a b c !\nb as ||| c\n\n")


@pytest.fixture
def verified(tmp_path, texts, write, monkeypatch):
    """Returns a function that converts the SavedModel in m, and returns the report of the comparison."""
    for name, value in command_server.running().environment.items():
        monkeypatch.setenv(name, value)

    def convert(error=None, python=None):
        python = python or command_server.running().python
        write("m/vocab.txt", "\n".join(PIECES) + "\n")
        with pytest.raises(InputError, match=error) if error else contextlib.nullcontext():
            convert_checkpoint.convert(tmp_path / "m", tmp_path / "hf", "hf", verify=texts, verify_python=python)
        return json.loads((tmp_path / "hf/verification.json").read_text())

    return convert


def test_a_saved_model(tmp_path, verified, capsys):
    writers.write_saved_model(tmp_path / "m", writers.Garden(writers.arrays(heads=("classifier",))))
    report = verified(python=sys.executable)
    assert report["texts"] == 2 and set(report["outputs"]) == {"sequence_output", "pooled_output", "logits"}
    logits = report["outputs"]["logits"]
    assert logits["compared_with"] == "logits of pooled_output" and logits["changed_labels"] == 0
    assert 0 <= logits["mean_difference"] <= logits["largest_difference"] < 1e-5 < logits["limit"]
    assert {"python", "tensorflow"} <= set(report["versions"]["old"]) and "bert-tf" in report["versions"]["new"]
    assert report["sha256"]["old"] == verification._digest(str(tmp_path / "m")) != report["sha256"]["new"]
    found = capsys.readouterr().err
    assert "The outputs agree on 2 texts" in found and "Only names and shapes" not in found


def test_an_estimators_probabilities(tmp_path, verified):
    writers.write_v1(tmp_path / "m", writers.arrays(heads=("classifier",)))
    assert verified()["outputs"]["probabilities"]["compared_with"] == "softmax of logits of pooled_output"


def test_a_model_that_differs_is_an_error(tmp_path, verified):
    writers.write_saved_model(tmp_path / "m", writers.Garden(writers.arrays()))
    (tmp_path / "m/bert_config.json").write_text(CONFIG.replace(hidden_act="gelu").to_json_string())
    states = verified(error=r"^--verify: the outputs differ \(\w+, \w+\)\. Do not use")["outputs"]["sequence_output"]
    assert states["largest_difference"] > states["limit"]


def test_without_the_original_software(tmp_path, texts, write, capsys):
    writers.write_files(tmp_path / "m")
    writers.write_h5(tmp_path / "m/tf_model.h5", writers.arrays())
    convert_checkpoint.convert(tmp_path / "m", tmp_path / "a", "hf", verify=texts)
    assert "Only names and shapes were checked" in capsys.readouterr().err
    assert not (tmp_path / "a/verification.json").exists()
    python = write("python", "#!/bin/sh\necho 'ModuleNotFoundError: No module named x' >&2\nexit 1\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(InputError, match=r"tf_model\.h5 can't be run: ModuleNotFoundError: No module named x"):
        convert_checkpoint.convert(tmp_path / "m", tmp_path / "b", "hf", verify=texts, verify_python=python)
    with pytest.raises(InputError, match="has no texts"):
        blank = write("blank.txt", "\n")
        convert_checkpoint.convert(tmp_path / "m", tmp_path / "c", "hf", verify=blank, verify_python=python)


def test_padding_is_not_compared_and_other_values_are():
    mask = np.array([[True, False]])
    old, new = np.array([[[1.0, 2.0], [np.nan, 9.0]]]), np.array([[[1.0, 3.0], [0.0, 0.0]]])
    found = verification._compared(old, {"far": new + 5, "logits": new, "shape": new[0]}, mask)
    assert found["compared_with"] == "logits" and found["largest_difference"] == 1 and found["changed_labels"] == 0
    assert verification._compared(old, {"shape": new[0]}, mask) == {}
    assert not verification._compared(old * np.nan, {"x": new}, mask)["largest_difference"] <= 1
