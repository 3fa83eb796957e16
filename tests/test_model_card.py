"""The README.md of a converted model has the metadata of the Hugging Face Hub."""

import json

import pytest
from huggingface_hub import ModelCard

from bert_tf import convert_checkpoint
from bert_tf.finetuning.models import ClassifierModel, SpanModel
from tests.finished_runs import config, write_run

pytestmark = pytest.mark.plain
NAME = "google-bert/bert-base-uncased"
CACHED = "/private/hub/models--google-bert--bert-base-uncased/snapshots/0a1b"
RESULTS = {"global_step": 7, "eval_f1": 0.5, "eval_pearson": float("nan"), "loss": 1.0, "confusion_matrix": {}}
ANSWERED = {"f1": 0.5, "total": 9, "model": "step 7 (0a1b)"}
# The task, the initial model, flags and results of a run; the base model, the data set and the score in the card.
RUNS = [
    ("mrpc", f"hf://{NAME}@main", {"data_dir": "/private/x"}, RESULTS, (NAME, "GLUE mrpc", 0.5)),
    ("text", CACHED, {"train_file": "/private/films: new.csv"}, RESULTS, (NAME, "films: new.csv", 0.5)),
    ("text", "/private/model", {}, RESULTS | {"global_step": 6}, (None, "unknown", None)),
    ("squad", None, {"train_file": ["a/train.json", "b.json"]}, ANSWERED, (None, "train.json, b.json", 0.5)),
]


@pytest.mark.parametrize(("task", "start", "flags", "results", "expected"), RUNS)
def test_a_card_has_the_records_of_the_run(tmp_path, task, start, flags, results, expected):
    model = SpanModel(config()) if task == "squad" else ClassifierModel(config(), 2)
    write_run(tmp_path / "run", model, flags, task=task, init_checkpoint=start, num_examples=9, seed=3)
    (tmp_path / "run" / "eval_results.json").write_text(json.dumps(results))
    convert_checkpoint.convert(tmp_path / "run", tmp_path / "hf", "hf")
    text = (tmp_path / "hf" / "README.md").read_text()
    card = ModelCard(text, ignore_metadata_errors=False).data
    pipeline = "question-answering" if task == "squad" else "text-classification"
    assert (card.library_name, card.pipeline_tag, card.base_model) == ("transformers", pipeline, expected[0])
    scores = [(pipeline, expected[1], "f1", 0.5)] if expected[2] else []
    assert [(x.task_type, x.dataset_name, x.metric_type, x.metric_value) for x in card.eval_results or []] == scores
    assert f"{expected[1]}, 9 training examples" in text and "| seed | 3 |" in text
    assert "## Licence" in text and "private" not in text
    (tmp_path / "run" / "README.md").write_text("mine")
    convert_checkpoint.convert(tmp_path / "run", tmp_path / "again", "hf")
    assert (tmp_path / "again" / "README.md").read_text() == "mine"
