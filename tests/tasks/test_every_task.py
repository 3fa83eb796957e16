"""Every task is read, trained, resumed, predicted and exported. The exported model and Python give the same answers.

The test module of a task contains only what is special about the task.
"""

import json
import os

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import export
from bert_tf.checkpoints import run_directory
from bert_tf.finetuning.finetune import finetune
from bert_tf.finetuning.finetuning_config import FinetuningConfig
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.finetuning.task import SplitOutputs
from bert_tf.optimization import OptimizerConfig
from bert_tf.runtime import files, json_files
from bert_tf.serving.export_config import ExportConfig
from bert_tf.tasks.data_config import Columns, DataConfig, SimilarityConfig
from bert_tf.tasks.registry import TASKS as CLASSES, build_task
from bert_tf.tasks.sentences.glue import DEFINITIONS
from bert_tf.tasks.squad.rules import SquadConfig
from bert_tf.tasks.squad.squad_task import N_BEST_FILE, PREDICTIONS_FILE, SquadTask
from bert_tf.tasks.tagging import conll
from bert_tf.training.settings import TrainingConfig
from tests.conftest import assert_close, tiny_config
from tests.programs import PIECES

pytestmark = [pytest.mark.eager, pytest.mark.plain]
LENGTH = 16
TEXTS = [
    "a",
    "b c d",
    "a d e f g h",
    "“c” (b,a)",
    "b e f g h i j k l m n o p q r",
    "é  Dad. x!?",
    "c b \u200b e",
    "zz a",
]
# One table for all tasks. Each task reads its own columns.
ROWS = [
    {
        "id": str(number),
        "text": text,
        "other": f"x {number % 3}",
        "label": "yes" if "a" in text else "no",
        "number": number / 2,
        "several": ["x", "y"][: 1 + number % 2],
        "prompt": text,
        "endings": ["m", "n n", "o"][: 2 + number % 2],
        "choice": number % 2,
        "tokens": text.split(),
        "tags": ["B-X" if word in "ab" else "O" for word in text.split()],
        "question": "a",
        "context": text,
        "answers": [{"text": text[-1], "answer_start": len(text) - 1}] if number else [],
    }
    for number, text in enumerate(TEXTS)
]
QUESTIONS, VERSION_2 = SquadConfig(LENGTH, 4, 4, answer_text="offsets"), {"version_2_with_negative": True}
PARTS_OF_SPEECH = [row | {"tags": ["DET" if tag == "O" else "NOUN" for tag in row["tags"]]} for row in ROWS]
CHOICES = [{"prompt": row["prompt"], "endings": row["endings"], "label": row["choice"]} for row in ROWS]
PAIRS = [{"anchor": row["text"], "positive": row["other"]} for row in ROWS]
TRIPLETS = [row | {"negative": "zz"} for row in PAIRS]
SCORED = [{"sentence1": row["text"], "sentence2": row["other"], "score": row["number"] / 4} for row in ROWS]
SENTENCES = [{"index": row["id"], "sentence": row["text"], "label": str(len(row["text"]) % 2)} for row in ROWS]
# Name -> the task's settings, the rows, and the inputs of the exported model.
TASKS = {
    "classes": (DataConfig("text"), ROWS, ["text"]),
    "GLUE": (DataConfig("sst-2"), SENTENCES, ["sentence"]),
    "pairs": (DataConfig("text", columns=Columns(text_b="other")), ROWS, ["text", "other"]),
    "several labels": (DataConfig("text", columns=Columns(label="several"), problem="multi_label"), ROWS, ["text"]),
    "numbers": (DataConfig("text", columns=Columns(label="number"), problem="regression"), ROWS, ["text"]),
    "choices": (DataConfig("multiple_choice"), CHOICES, ["prompt", "endings"]),
    "entities": (DataConfig("ner"), ROWS, ["tokens"]),
    "parts of speech": (DataConfig("ner"), PARTS_OF_SPEECH, ["tokens"]),
    "similar pairs": (DataConfig("similarity"), PAIRS, ["anchor"]),
    "triplets": (DataConfig("similarity", similarity=SimilarityConfig("cls")), TRIPLETS, ["anchor"]),
    "scored pairs": (DataConfig("similarity", similarity=SimilarityConfig("pooled")), SCORED, ["sentence1"]),
    "questions": (QUESTIONS, ROWS[1:], ["question", "context"]),
    "questions without answers": (QUESTIONS.replace(**VERSION_2), ROWS, ["question", "context"]),
}


def task_of(config, path):
    if isinstance(config, SquadConfig):
        return SquadTask(config, [path], path)
    if config.task_name in DEFINITIONS:
        return build_task(config.replace(data_dir=os.path.dirname(path)), "", do_train=True)
    return build_task(config.replace(train_file=path, dev_file=path, test_file=path), "", do_train=True)


@pytest.fixture
def run_of(write, tmp_path, tokenizer):
    """Returns a function that makes a run of two steps."""

    def make(config, rows, **options):
        lines = ["\t".join(rows[0]), *("\t".join(map(str, row.values())) for row in rows)]
        for split in ("train", "dev", "test"):  # the names and the format of GLUE's files
            write(f"{split}.tsv", "\n".join(lines) + "\n")
        task = task_of(config, write("rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows)))
        training = TrainingConfig(str(tmp_path / "run"), OptimizerConfig(2e-2), 4, seed=1)
        settings = FinetuningConfig(max_seq_length=LENGTH, num_train_steps=2, training=training, **options)
        return FinetuningRun(task, settings, (tiny_config(vocab_size=len(PIECES), num_hidden_layers=1), tokenizer))

    return make


def served(directory, names, rows):
    """Returns the outputs of the exported model for the rows."""
    signatures = export.build(directory, ExportConfig()).served.signatures()
    columns = [[row[name] for row in rows] for name in names]
    padded = [tf.ragged.constant(x).to_tensor("") if isinstance(x[0], list) else tf.constant(x) for x in columns]
    signature = {"tokens": "words", "anchor": "sentence_vectors", "sentence1": "sentence_vectors"}.get(names[0])
    found = signatures[signature or "serving_default"](*padded)
    return {name: values.numpy() for name, values in found.items()}


def outputs_for_any_padding(run, features):
    """Returns the outputs of a run. Checks that the loss and the outputs do not depend on padding."""
    short, full = (features.batch(np.arange(len(features)), length) for length in (features.max_length, 2 * LENGTH))
    losses, sums = zip(*(run.model.loss(batch, run.model.totals(batch), None) for batch in (short, full)), strict=True)
    if not isinstance(run.task, SquadTask):  # as in the original, the loss of answers depends on padding
        assert_close(losses[0], losses[1], 1e-6)
        for key, counts in sums[0].items():
            assert_close(counts, sums[1][key], 1e-5, key)
    outputs, expected = run.predict(features, 3), run.model.predict(full)
    is_token = np.arange(features.max_length) < features.lengths[:, np.newaxis]
    for key, values in outputs.items():
        same = expected[key].numpy()
        if key in ("tags", "tag_probabilities", "start_logits", "end_logits"):
            values, same = values[is_token], same[:, : features.max_length][is_token]
        assert_close(values, same, 1e-5, key)
    return outputs


def check_answers(answers, directory):
    """Checks the outputs of an exported question-answering model with the files of the run."""
    predicted, n_best = (json_files.read(f"{directory}/{name}", "") for name in (PREDICTIONS_FILE, N_BEST_FILE))
    assert [answer.decode() for answer in answers["answer"]] == list(predicted.values())
    for number, entries in enumerate(n_best.values()):
        listed, count = [entry for entry in entries if entry["text"]], answers["num_answers"][number]
        assert [text.decode() for text in answers["answers"][number, :count]] == [entry["text"] for entry in listed]
        probabilities = [entry["probability"] for entry in listed]
        assert_close(answers["answer_probabilities"][number, :count], probabilities, 1e-4)
        for entry in entries:
            if not entry["text"]:
                assert_close(answers["null_probability"][number], entry["probability"], 1e-4)
    if "null_threshold" in answers:
        tuned = run_directory.tuned(directory)["null_score_diff_threshold"]
        assert set(answers["null_threshold"]) == {np.float32(tuned)}


def check_compared(run, split, directory):
    """Checks the file that compares predictions with labels. The wrong and most confident predictions are first."""
    examples, features = run.task.split(split), run.data.features(split)
    rows = run.task.compared(SplitOutputs(split, examples, run.predict(features, 3), features))
    if not rows:
        assert not os.path.exists(f"{directory}/{split}_predictions.tsv")
        return
    with open(f"{directory}/{split}_predictions.tsv") as lines:
        header, *cells = (line.strip("\n").split("\t") for line in lines)
    assert (header, len(cells)) == (list(rows[0]), len(rows))
    if "correct" in rows[0]:
        names = [name for name in rows[0] if name.startswith("probability_")]
        assert len(rows) == len(examples)
        assert [row["correct"] for row in rows] == [row["label"] == row["prediction"] for row in rows]
        orders = [(row["correct"], -min(max(row[x], 1 - row[x]) for x in names)) for row in rows]
        if len(names) == 2 or run.task.problem == "multi_label":
            assert orders == sorted(orders)
    else:
        order = [row.get("probability", row.get("error")) for row in rows]
        assert order == sorted(order, reverse=True)


def test_every_exportable_task_is_compared_with_its_exported_model():
    names = {"squad" if isinstance(config, SquadConfig) else config.task_name for config, *_ in TASKS.values()}
    assert {CLASSES[name] for name in names} == export.exportables().keys()


@pytest.mark.parametrize("name", TASKS)
def test_the_file_of_a_split_is_read_once(run_of, tmp_path, monkeypatch, name):
    read_bytes, reads = files.read_bytes, []
    monkeypatch.setattr(files, "read_bytes", lambda path, flag: reads.append(path) or read_bytes(path, flag))
    task = run_of(*TASKS[name][:2], do_train=True, do_eval=True, do_predict=True).task
    splits = [*task.train_splits, *task.dev_splits, *task.test_splits]
    for split in splits:
        task.split(split)
    if name == "entities":
        sentences = task.split("test")
        conll.write_predictions(str(tmp_path / "out"), task._test_file, sentences, [s.tags for s in sentences])
    assert len(reads) == len(set(splits))


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_trained_resumed_predicted_and_exported(run_of, tmp_path, capsys, name):
    config, rows, inputs = TASKS[name]
    for steps in ({"do_eval": True}, {}):
        explains = not isinstance(config, SquadConfig) and config.task_name not in ("multiple_choice", "similarity")
        run = run_of(config, rows, do_train=True, do_predict=True, explain=explains and bool(steps), **steps)
        finetune(run.task, run.settings, run=run)
    assert "is already complete (step 2 of 2)" in capsys.readouterr().err
    assert run.restore() == 2

    task, split, directory = run.task, run.task.test_splits[0], str(tmp_path / "run")
    check_compared(run, task.dev_splits[0], directory)
    if explains:
        name = task.output_names.get(split, split)
        with open(f"{directory}/{name}_explanations.jsonl", encoding="utf-8") as lines:
            explained = list(map(json.loads, lines))
        assert all(line.keys() == {"example", "label", "difference", "words", "index"} for line in explained)
        assert explained or "tokens" in inputs  # all tags may be O
    features = run.data.features(split)
    assert len(task.split(split)) == len(rows)
    outputs = outputs_for_any_padding(run, features)
    decoded = task.decode(task.split(split), features, outputs)
    answers = served(directory, inputs, rows)
    if "answer" in answers:
        assert ("null_threshold" in answers) == config.version_2_with_negative
        check_answers(answers, directory)
    elif "tags" in answers:
        assert [[tag.decode() for tag in row if tag] for row in answers["tags"]] == [tags for tags, _ in decoded]
        for scores, (tags, probabilities) in zip(answers["scores"], decoded, strict=True):
            assert_close(scores[: len(tags)], probabilities.max(axis=-1), 1e-4)
    else:
        assert answers.keys() & {"score", "probabilities", "vectors"} <= outputs.keys()
        for key in (answers.keys() & outputs.keys()) - {"vectors"}:
            assert_close(answers[key], outputs[key], 1e-5, key)
        if "vectors" in answers:
            assert_close(answers["vectors"], outputs["vectors"][:, 0], 1e-5)
        if "label" in answers:
            assert [label.decode() for label in answers["label"]] == [task.labels[number] for number in decoded]


@pytest.mark.parametrize("name", ["choices", "entities"])
def test_padding_changes_nothing_with_a_bilstm(run_of, name):
    config, rows, _ = TASKS[name]
    run = run_of(config, rows, bilstm_layers=1, bilstm_units=3)
    outputs_for_any_padding(run, run.data.features("test"))
