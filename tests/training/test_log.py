import json

from bert_tf.optimization import OptimizerConfig
from bert_tf.training import log
from bert_tf.training.settings import TrainingConfig


def test_log_drops_lines_after_the_checkpoint_and_incomplete_lines(tmp_path):
    metrics = log.MetricsLog(str(tmp_path), 0)
    for step in (1, 2, 3):
        metrics.write("train", step, {"loss": step / 2})
    with open(tmp_path / "metrics.jsonl", "a") as writer:
        writer.write('{"kind": "train", "st')
    assert [line["step"] for line in log.read_metrics(str(tmp_path))] == [1, 2, 3]
    log.MetricsLog(str(tmp_path), 2).write("eval", 3, {"loss": 9})
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["kind"], line["step"], line["loss"]) for line in lines] == [
        ("train", 1, 0.5),
        ("train", 2, 1.0),
        ("eval", 3, 9),
    ]


def test_loss_spikes_are_reported(tmp_path, capsys):
    config = TrainingConfig(str(tmp_path), OptimizerConfig(1e-3, 50), 8, log_steps=10)
    with log.TrainingLog(config, 0, is_shown=True) as training_log:
        for step, mean, largest in ((10, 4.0, 7.0), (20, 3.0, 4.9), (30, 3.0, 4.1), (40, 2.5, 3.5)):
            means = {"loss": mean, "largest_loss": largest, "input_seconds": 0.0, "tokens": 1.0}
            training_log.log_training(step, means, is_due=False)
    spikes = [line[line.index("Warning") :] for line in capsys.readouterr().err.splitlines() if "spike" in line]
    assert spikes == ["Warning: loss spike of 4.1 in the 10 steps before step 30 (mean loss before: 3)."]
    assert [line["input_wait_share"] for line in log.read_metrics(str(tmp_path))] == [0.0] * 4


def test_plots_are_png_files(tmp_path):
    metrics = log.MetricsLog(str(tmp_path), 0)
    for step in (1, 2):
        metrics.write("train", step, {"loss": 2.0 - step, "masked_lm_accuracy": 0.1})
    log.plot_metrics(str(tmp_path), ["loss", "masked_lm_accuracy"], str(tmp_path / "curves.png"))
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
