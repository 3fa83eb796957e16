import json
import struct

import numpy as np
import pytest

from bert_tf.finetuning import reports


def size_of(path):
    """Width and height of a PNG in pixels."""
    return struct.unpack(">II", path.read_bytes()[16:24])


@pytest.mark.parametrize(("classes", "widest"), [(3, 450), (25, 1700), (60, 1700), (400, 1700)])
def test_the_picture_of_a_confusion_matrix_has_a_bound(tmp_path, classes, widest):
    labels = [f"class {i}" for i in range(classes)]
    reports.plot_confusion_matrix(np.eye(classes, dtype=int), labels, str(tmp_path / "a.png"))
    assert max(size_of(tmp_path / "a.png")) <= widest


def test_results_are_written_before_the_picture(tmp_path, monkeypatch):
    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(reports, "plot_confusion_matrix", fail)
    with pytest.raises(MemoryError):
        reports.report_evaluation(str(tmp_path), "", {"eval_accuracy": 1.0}, (np.eye(2, dtype=int), ["a", "b"]))
    assert json.loads((tmp_path / "eval_results.json").read_text())["confusion_matrix"]["counts"] == [[1, 0], [0, 1]]
