import json

from bert_tf.training import log


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
