"""Work that writes files. Whatever happens to it, what was whole stays whole, and a second run completes it."""

import hashlib
import json
import os
import pathlib
from collections.abc import Callable

import numpy as np

from bert_tf import checkpoints, convert_checkpoint
from bert_tf.checkpoints import saver
from bert_tf.encoder import BertEncoder
from bert_tf.finetuning.trials import TrialTable
from bert_tf.runtime import files
from bert_tf.serving import line_predictions
from bert_tf.training.log import MetricsLog, read_metrics
from tests.conftest import tiny_config
from tests.data_prep import corpora

Job = Callable[[pathlib.Path], None]


def replace_json(folder: pathlib.Path) -> None:
    for value in range(3):
        path = folder / "x.json"
        if path.exists():
            json.loads(path.read_text())
        files.write_json(str(path), [value] * 500)


def log_metrics(folder: pathlib.Path) -> None:
    """The lines of a run that goes on where the last one was."""
    done = max((line["step"] for line in read_metrics(str(folder))), default=0)
    log = MetricsLog(str(folder), done)
    for step in range(done + 1, 6):
        log.write("train", step, {"loss": step / 4})
    assert [line["step"] for line in read_metrics(str(folder))] == [1, 2, 3, 4, 5]
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        assert json.loads(line)["loss"]


def add_trials(folder: pathlib.Path) -> None:
    table = TrialTable(str(folder), "accuracy")
    for number in range(len(table.rows()), 4):
        table.add({"trial": str(number), "settings": "x", "accuracy": number / 4})
    assert [row["trial"] for row in table.rows()] == ["0", "1", "2", "3"]


def save_checkpoints(folder: pathlib.Path) -> None:
    newest = saver.latest_checkpoint(str(folder))
    done = int(checkpoints.open_checkpoint(newest).read("step")) if newest else 0
    assert newest is None or newest.endswith(f"-{done}")
    # The one before is never lost: there is always one, as soon as the first was there.
    seen = folder / "seen"
    assert done >= (int(seen.read_text() or 0) if seen.exists() else 0)
    with saver.CheckpointSaver(str(folder), 2) as writer:
        for step in range(min(done, 3) + 1, 5):  # the last one again, which removes what is left
            writer.save(step, {"step": np.int64(step), "x": np.full(50, step, np.float32)})
            os.open(str(seen), os.O_CREAT)
            seen.write_text(str(step))
    seen.unlink(missing_ok=True)


def answer_lines(folder: pathlib.Path) -> None:
    with line_predictions.answers_file(str(folder / "answers.jsonl")) as writer:
        writer.writelines(f"{number}\n" for number in range(9))


def prepare_data(folder: pathlib.Path) -> None:
    text = folder / "text.txt"
    if not text.exists():
        corpora.write_corpus(folder / "new.txt", documents=4)
        corpora.write_vocab(folder)
        os.rename(folder / "new.txt", text)
    corpora.make(folder, text, num_shards=2)


def convert(folder: pathlib.Path) -> None:
    """Writes Hugging Face's format from a checkpoint that was made before."""
    target = folder / "hf"
    if not target.exists():
        convert_checkpoint.convert(str(folder / "original"), str(target), "hf")
    assert sorted(os.listdir(target)) == ["config.json", "model.safetensors"]


def make_original(folder: pathlib.Path) -> None:
    config = tiny_config(num_hidden_layers=1)
    (folder / "original").mkdir()
    (folder / "original" / "bert_config.json").write_text(config.to_json_string())
    shapes = {variable.path: variable.shape for variable in BertEncoder(config, seed=0).weights}
    weights = {name: np.full(shape, len(name) / 50, np.float32) for name, shape in shapes.items()}
    saver.write_checkpoint(str(folder / "original" / "bert_model.ckpt"), weights)


JOBS: dict[str, tuple[Job, Job]] = {
    "json": (lambda folder: None, replace_json),
    "metrics": (lambda folder: None, log_metrics),
    "trials": (lambda folder: None, add_trials),
    "checkpoints": (lambda folder: None, save_checkpoints),
    "answers": (lambda folder: None, answer_lines),
    "preparation": (lambda folder: None, prepare_data),
    "conversion": (make_original, convert),
}
# Files of which a part may differ, as the time in metrics.jsonl, or that say what a kill has left.
_NOT_COMPARED = ("metrics.jsonl", "answers.jsonl.incomplete")


def content(folder: pathlib.Path) -> dict[str, str]:
    """The files below a folder, with a checksum of each."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and not name.endswith(".lock") and not name.startswith("work"):
            is_compared = not name.endswith(_NOT_COMPARED)
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()[:8] if is_compared else ""
    found.pop("answers.jsonl.incomplete", None)
    return found
