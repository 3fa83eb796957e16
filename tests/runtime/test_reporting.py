import json

from bert_tf.runtime import reporting


def test_tables_are_aligned():
    text = reporting.table([{"name": "a", "score": 0.123456}, {"name": "longer", "score": 12}])
    assert text.splitlines() == ["  name   score", "------  ------", "     a  0.1235", "longer      12"]


def test_log_drops_what_came_after_the_checkpoint_and_half_lines(tmp_path):
    log = reporting.MetricsLog(str(tmp_path), 0)
    for step in (1, 2, 3):
        log.write("train", step, {"loss": step / 2})
    with open(tmp_path / "metrics.jsonl", "a") as writer:
        writer.write('{"kind": "train", "st')
    assert [line["step"] for line in reporting.read_metrics(str(tmp_path))] == [1, 2, 3]
    reporting.MetricsLog(str(tmp_path), 2).write("eval", 3, {"loss": 9})
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["kind"], line["step"], line["loss"]) for line in lines] == [
        ("train", 1, 0.5),
        ("train", 2, 1.0),
        ("eval", 3, 9),
    ]


def test_plots_are_png_files(tmp_path):
    log = reporting.MetricsLog(str(tmp_path), 0)
    for step in (1, 2):
        log.write("train", step, {"loss": 2.0 - step, "masked_lm_accuracy": 0.1})
    reporting.plot_metrics(str(tmp_path), ["loss", "masked_lm_accuracy"], str(tmp_path / "curves.png"))
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_results_are_written_as_the_release_writes_them(tmp_path, capsys):
    path = tmp_path / "eval_results.txt"
    reporting.report_results({"loss": 0.5, "eval_accuracy": 1.0, "global_step": 3}, str(path))
    assert path.read_text() == "eval_accuracy = 1.0\nglobal_step = 3\nloss = 0.5\n"
    assert "eval_accuracy = 1.0" in capsys.readouterr().err
