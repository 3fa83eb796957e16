import json
import struct

import numpy as np
import pytest

from bert_tf.finetuning import reports
from bert_tf.optimization import OptimizerConfig
from bert_tf.training.settings import TrainingConfig


def size_of(path):
    """Returns the width and height of a PNG in pixels."""
    return struct.unpack(">II", path.read_bytes()[16:24])


@pytest.mark.parametrize(("classes", "widest"), [(3, 450), (25, 1700), (60, 1700), (400, 1700)])
def test_the_picture_of_a_confusion_matrix_has_a_bound(tmp_path, classes, widest):
    labels = [f"class {i}" for i in range(classes)]
    reports.plot_confusion_matrix(np.eye(classes, dtype=int), labels, str(tmp_path / "a.png"))
    assert max(size_of(tmp_path / "a.png")) <= widest


def test_windows_are_counted_beside_the_examples(capsys):
    config = TrainingConfig("", OptimizerConfig(1e-3, 7, 0), 4)
    reports.announce_training(config, 28, 28)
    assert "Num examples = 28\n  Batch size = 4\n  Num steps = 7\n" in capsys.readouterr().err
    reports.announce_training(config, 28, 90)
    assert "Num examples = 28\n  Num windows = 90 (long texts" in capsys.readouterr().err


def test_results_are_written_before_the_picture(tmp_path, monkeypatch):
    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(reports, "plot_confusion_matrix", fail)
    with pytest.raises(MemoryError):
        reports.report_evaluation(str(tmp_path), "", {"eval_accuracy": 1.0}, (np.eye(2, dtype=int), ["a", "b"]))
    assert json.loads((tmp_path / "eval_results.json").read_text())["confusion_matrix"]["counts"] == [[1, 0], [0, 1]]
