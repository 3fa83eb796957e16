import pytest

from bert_tf.runtime import messages, reporting


def test_tables_are_aligned():
    rows = [{"name": "a", "score": 0.123456}, {"name": "longer", "score": 123456}, {"name": "none", "other": 1}]
    text = reporting.table(rows)
    lines = ["  name   score", "------  ------", "     a  0.1235", "longer  123456", "  none        "]
    assert text.splitlines() == lines


def test_a_process_without_standard_error_prints_nothing(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr", None)
    messages.say("a")
    reporting.progress_bar(1, "b").update()
    assert capsys.readouterr().out == ""


def test_results_are_written_as_the_release_writes_them(tmp_path, capsys):
    path = tmp_path / "eval_results.txt"
    results = {"loss": 0.5, "eval_accuracy": 1.0, "global_step": 3}
    reporting.report_results(results, str(path))
    assert path.read_text() == "eval_accuracy = 1.0\nglobal_step = 3\nloss = 0.5\n"
    assert "eval_accuracy = 1.0\n  global_step = 3\n  loss = 0.5\n" in capsys.readouterr().err
    reporting.report_results(results | {"eval_loss": 0.4}, str(path), model="step 3")
    assert "loss = 0.5\n" in path.read_text()
    printed = capsys.readouterr().err
    assert "  of the model at step 3\n  eval_accuracy = 1.0\n  eval_loss = 0.4\n  global_step = 3\n" in printed
    assert "loss = 0.5" not in printed


def test_a_picture_is_written_when_it_is_drawn(tmp_path):
    path = tmp_path / "x.png"
    with reporting.picture(str(path), 2, 1) as figure:
        figure.add_subplot().plot([1, 2])
        assert not path.exists()
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ZeroDivisionError), reporting.picture(str(tmp_path / "y.png"), 2, 1):
        _ = 1 / 0
    assert not (tmp_path / "y.png").exists()
