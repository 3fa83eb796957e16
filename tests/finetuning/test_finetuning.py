"""Tests training, evaluation and prediction of tasks with tiny models, in this process."""

import functools
import json
import re
import types

import numpy as np
import pytest

from bert_tf import convert_checkpoint, export
from bert_tf.checkpoints import run_directory, run_record, saver
from bert_tf.config import BiLstmConfig, ModelFiles
from bert_tf.distribution import strategies
from bert_tf.distribution.devices import DistributionConfig
from bert_tf.encoder import BertEncoder
from bert_tf.finetuning import finetune as steps, run as finetuning_run
from bert_tf.finetuning.finetuning_config import FinetuningConfig, SelectionConfig, TrialsConfig
from bert_tf.finetuning.models import NO_TAG, TokenModel
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.finetuning.selection import DevSelection
from bert_tf.model import heads
from bert_tf.optimization import OptimizerConfig
from bert_tf.runtime.files import InputError
from bert_tf.serving.export_config import ExportConfig
from bert_tf.tasks.data_config import Columns, DataConfig
from bert_tf.tasks.registry import build_task
from bert_tf.text import FullTokenizer
from bert_tf.training.settings import TrainingConfig
from tests.conftest import assert_close, assert_refused, tiny_config
from tests.finished_runs import write_model
from tests.programs import PIECES

pytestmark = [pytest.mark.eager, pytest.mark.plain]
LONGEST = 14
CONFIG = tiny_config(vocab_size=len(PIECES), num_hidden_layers=1)


def run_of(directory, write, batch_size=4, learning_rate=1e-3, **settings):
    """Returns a run on texts of different lengths. Texts that contain "a" have the label "yes"."""
    rng = np.random.default_rng(0)
    words = [" ".join(rng.choice(list("abcdefgh"), rng.integers(1, 9))) for _ in range(36)]
    rows = [f"{text}\t{'yes' if 'a' in text else 'no'}\n" for text in words]
    parts = {"train": rows[:24], "dev": rows[24:], "test": rows[30:]}
    paths = {split: write(f"{split}.tsv", "text\tlabel\n" + "".join(part)) for split, part in parts.items()}
    tokenizer = FullTokenizer(write("vocab.txt", "\n".join(PIECES) + "\n"), do_lower_case=True)
    training = TrainingConfig(str(directory), OptimizerConfig(learning_rate), batch_size, seed=1)
    return FinetuningRun(text_task(paths), settings_of(training, **settings), (CONFIG, tokenizer))


def text_task(paths, **settings):
    files = {f"{split}_file": path for split, path in paths.items()}
    return build_task(DataConfig("text", **files, **settings), "", do_train=True)


def settings_of(training, init_checkpoint=None, num_train_epochs=1, **others):
    model = ModelFiles(init_checkpoint)
    return FinetuningConfig(
        model=model, max_seq_length=LONGEST, training=training, num_train_epochs=num_train_epochs, **others
    )


def finetune(run):
    return steps.finetune(run.task, run.settings, run=run)


def lines_of(directory, kind):
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def test_trials_train_evaluate_and_predict_and_continue_after_an_interruption(tmp_path, write, monkeypatch, capsys):
    out = tmp_path / "out"
    settings = {
        **dict.fromkeys(("do_train", "do_eval", "do_predict"), True),
        "trials": TrialsConfig(True, (4,), (1e-3,), (1, 2)),
        "selection": SelectionConfig(use_best_checkpoint=True),
    }
    selected_evaluation = DevSelection.selected_evaluation

    def fail_in_the_second(self):
        if self.run.training_config.num_train_steps == 12:
            raise KeyboardInterrupt
        return selected_evaluation(self)

    monkeypatch.setattr(DevSelection, "selected_evaluation", fail_in_the_second)
    with pytest.raises(KeyboardInterrupt):
        finetune(run_of(out, write, **settings))
    monkeypatch.undo()
    capsys.readouterr()
    done = finetune(run_of(out, write, **settings))
    resumed = capsys.readouterr().err  # the second trial was interrupted after its last step
    assert "is already complete (step 12 of 12)" in resumed
    assert "from randomly" not in resumed

    rows = [json.loads(line) for line in (out / "trials.jsonl").read_text().splitlines()]
    assert [row["num_train_epochs"] for row in rows] == [1, 2]
    trials = [out / "trials" / row["trial"] for row in rows]
    assert [line["step"] for line in lines_of(trials[1], "eval")] == [6, 12]
    for row, trial in zip(rows, trials, strict=True):
        assert row["accuracy"] == max(line["accuracy"] for line in lines_of(trial, "eval"))
    assert done["eval"]["dev"]["eval_accuracy"] == max(row["accuracy"] for row in rows)
    kept = [any(trial.glob("best/*.index")) for trial in trials]
    assert sorted(kept) == [False, True]  # only the best trial still has weights
    assert [run_directory.recorded_labels(str(directory)) for directory in (out, *trials)] == [["no", "yes"]] * 3

    results = dict(line.split(" = ") for line in (out / "eval_results.txt").read_text().splitlines())
    names = ["accuracy", "calibration_error", "loss", "macro_f1"]
    assert list(results) == [*(f"eval_{name}" for name in names), "global_step", "loss"]
    written = json.loads((out / "eval_results.json").read_text())
    assert written["confusion_matrix"]["labels"] == ["no", "yes"]
    assert np.sum(written["confusion_matrix"]["counts"]) == 12
    assert (out / "confusion_matrix.png").read_bytes().startswith(b"\x89PNG")
    assert (trials[0] / "learning_curves.png").read_bytes().startswith(b"\x89PNG")
    assert len((out / "test_predictions.tsv").read_text().splitlines()) == 7
    assert (
        done["eval"]["test"]["eval_accuracy"]
        == json.loads((out / "eval_results_test.json").read_text())["eval_accuracy"]
    )

    assert finetune(run_of(out, write, **settings | {"do_train": False}))["eval"] == done["eval"]
    with pytest.raises(InputError, match="has trials with other settings or data"):
        finetune(run_of(out, write, **settings, warmup_proportion=0.5))
    corrected = run_of(out, write, **settings)
    optimizer = corrected.training_config.optimizer.replace(bias_correction=True)
    training = corrected.training_config.replace(optimizer=optimizer)
    with pytest.raises(InputError, match="has trials with other settings or data"):
        finetune(corrected.with_settings(corrected.settings.replace(training=training)))


def test_only_the_first_model_of_a_run_starts_with_a_fresh_output_layer(tmp_path, write):
    run = run_of(tmp_path / "out", write, reset_head=True, reinit_layers=1)
    found = re.compile(run.new_variables)
    for name in ("output_weights", "cls/squad/output_bias", "bert/pooler/x", "bert/encoder/layer_0/output/dense/bias"):
        assert found.fullmatch(name)
    assert not found.fullmatch("cls/predictions/output_bias")
    assert run.with_settings(run.settings.starting_from("stage_1", "out")).new_variables == ""
    assert_refused("--reinit_layers=2: ", run_of, tmp_path / "out", write, reinit_layers=2)


def test_a_run_on_other_data_or_another_model_is_not_resumed(tmp_path, write):
    out = tmp_path / "out"
    run = run_of(out, write)
    run_with = functools.partial(FinetuningRun, settings=run.settings, model=(run.config, run.tokenizer))
    run.record()
    saver.CheckpointSaver(str(out), 1).save(1, {"x": 1.0})
    record = json.loads((out / "run.json").read_text())
    record["resume_settings"]["group_by_length"] = "auto"  # as earlier versions recorded
    (out / "run.json").write_text(json.dumps(record))
    run.with_settings(run.settings).record()
    elsewhere = run.settings.replace(model=ModelFiles("elsewhere"))
    assert_refused("init_checkpoint was None, and is 'elsewhere' now", run.with_settings(elsewhere).record)
    text = (tmp_path / "train.tsv").read_text()
    write("train.tsv", text.replace("yes", "no", 1))
    assert_refused("training_rows_sha256 was ", run_with(text_task(run.task.sources)).record)
    write("train.tsv", text.replace("text", "review"))
    other = run_with(text_task(run.task.sources, columns=Columns(text="review")))
    assert_refused("text_column was 'text', and is 'review' now", other.record)
    other.with_settings(other.settings.replace(allow_changed_settings=True)).record()


def test_a_model_is_evaluated_only_on_what_it_was_trained_to_read(tmp_path, write, capsys):
    out = tmp_path / "out"
    run = run_of(out, write)
    run.record()
    saver.CheckpointSaver(str(out), 1).save(1, {"output_weights": 1.0})
    run.check_model()
    run.with_settings(run.settings.replace(max_seq_length=9)).check_model()
    assert "have changed: max_seq_length was 14, and is 9 now.\n" in capsys.readouterr().err
    classes = text_task(run.task.sources, labels=["no", "maybe"], on_bad_row="skip")
    uncased = FullTokenizer(run.tokenizer.vocab_file, do_lower_case=False)
    accents = FullTokenizer(run.tokenizer.vocab_file, do_lower_case=True, strip_accents=False)
    vocabulary = FullTokenizer(write("other.txt", "\n".join([*PIECES[:-2], *PIECES[:-3:-1]])), do_lower_case=True)
    for changes, message in (
        ({"tokenizer": uncased}, "do_lower_case was True, and is False now"),
        ({"tokenizer": accents}, "strip_accents was True, and is False now"),
        ({"tokenizer": vocabulary}, "vocab_sha256 was .*vocab.txt in its directory"),
        ({"task": classes}, "labels 2 was 'yes', and is 'maybe' now.*pass --allow_changed_settings"),
    ):
        other = run_of(out, write, do_eval=True)
        model = other.config, changes.get("tokenizer", other.tokenizer)
        other = FinetuningRun(changes.get("task", other.task), other.settings, model)
        assert_refused("(?s)trained with other settings.*" + message, other.check_model)
        assert_refused("(?s)" + message, finetune, other)
        other.with_settings(other.settings.replace(allow_changed_settings=True)).check_model()


def test_several_workers_are_refused_at_the_start_unless_they_only_train(tmp_path, write):
    settings = {
        **dict.fromkeys(("do_train", "do_eval", "do_predict"), True),
        "selection": SelectionConfig(use_best_checkpoint=True, early_stopping_patience=1),
        "trials": TrialsConfig(num_restarts=2),
    }
    flags = ["--do_eval", "--do_predict", "--use_best_checkpoint", "--early_stopping_patience"]
    assert FinetuningConfig(**settings).flags_for_one_worker == [*flags, "--sweep and --num_restarts"]
    assert not FinetuningConfig(do_train=True).flags_for_one_worker
    distribution = DistributionConfig("multi_worker")
    run = run_of(tmp_path / "out", write, do_train=True, do_predict=True, distribution=distribution)
    run.task.examples = None  # refused before it is called
    assert_refused("--do_predict can't be used with several workers", finetune, run)


@pytest.mark.parametrize("flag", ["eval_batch_size", "predict_batch_size"])
def test_batches_of_all_devices_together_must_be_divisible(tmp_path, write, monkeypatch, flag):
    steps = {"do_train": True, "do_eval": True, "do_predict": True, "eval_batch_size": 6, "predict_batch_size": 6}
    run = run_of(tmp_path / "out", write, **steps | {flag: 8})
    strategy = types.SimpleNamespace(num_replicas_in_sync=3)
    monkeypatch.setattr(strategies, "build_strategy", lambda config, several_hosts: strategy)
    assert_refused(f"--{flag} is 8. Use a multiple of the 3 replicas", finetune, run)


def test_training_stops_early_and_the_best_weights_are_kept(tmp_path, write):
    out = tmp_path / "out"
    settings = {"do_train": True, "num_train_epochs": 2, "selection": SelectionConfig("2", 2)}
    run = run_of(out, write, **settings)
    scored = iter([0.5, 0.75, 0.7, 0.75, 0.9])
    run.task.scores = lambda outputs, features: {"accuracy": next(scored), "loss": 1.0}
    finetune(run)
    assert [line["step"] for line in lines_of(out, "eval")] == [2, 4, 6, 8]
    assert [path.name for path in out.glob("*.index")] == ["model.ckpt-8.index"]
    assert [path.name for path in (out / "best").glob("*.index")] == ["model.ckpt-4.index"]
    trained = run.with_settings(run.settings)
    assert trained.restore() == 4
    assert DevSelection(trained).selected_evaluation()["step"] == 4
    finetune(run_of(out, write, **settings))  # the run has already stopped
    assert len(lines_of(out, "eval")) == 4


@pytest.mark.parametrize("keeps_best", [False, True])
def test_the_evaluated_weights_predict_the_dev_set_once(tmp_path, write, monkeypatch, keeps_best):
    predicted, predict = [], FinetuningRun.predict

    def count(run, features, batch_size, description="predict", shown=True):
        predicted.append(description)
        return predict(run, features, batch_size, description, shown)

    monkeypatch.setattr(FinetuningRun, "predict", count)
    monkeypatch.setattr(DevSelection, "history", lambda selection: [{"step": 1, "accuracy": 2.0}])
    selection = SelectionConfig("1", use_best_checkpoint=keeps_best)
    settings = {"do_eval": True, "num_train_steps": 2, "selection": selection}
    results = finetune(run_of(tmp_path / "out", write, do_train=True, **settings))["eval"]
    assert predicted == ["dev"] * (3 if keeps_best else 2)  # step 1 is the best
    assert finetune(run_of(tmp_path / "out", write, **settings))["eval"] == results
    assert results["dev"]["global_step"] == (1 if keeps_best else 2)


def test_a_missing_last_evaluation_is_repeated(tmp_path, write, capsys):
    settings = {"do_train": True, "do_eval": True}
    finetune(run_of(tmp_path / "out", write, **settings))
    assert "Training starts from randomly initialised weights" in capsys.readouterr().err
    metrics = tmp_path / "out" / "metrics.jsonl"
    whole = lines_of(tmp_path / "out", "eval")
    metrics.write_text("".join(line + "\n" for line in metrics.read_text().splitlines() if '"eval"' not in line))
    finetune(run_of(tmp_path / "out", write, **settings))
    (repeated,) = lines_of(tmp_path / "out", "eval")
    assert {k: v for k, v in repeated.items() if k != "time"} == {k: v for k, v in whole[0].items() if k != "time"}


@pytest.mark.graph
def test_a_graph_for_each_length_computes_what_one_graph_for_all_does(tmp_path, write, monkeypatch):
    monkeypatch.setattr(heads, "CLASSIFIER_DROPOUT", 0.0)  # the dropout implementations drop different elements
    losses = {}
    for work in (float("inf"), 0):
        monkeypatch.setattr(finetuning_run, "WORK_FOR_FAST_GRAPHS", work)
        run = run_of(tmp_path / str(work), write, batch_size=8, do_train=True)
        run.config = run.config.replace(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        finetune(run)
        assert run.with_settings(run.settings).is_short == (work > 0)
        losses[work] = lines_of(tmp_path / str(work), "train")[-1]["loss"]
    assert_close(losses[0], losses[float("inf")], atol=1e-6)


def test_a_left_to_right_model_is_fine_tuned_as_one(tmp_path, write):
    write_model(tmp_path / "pretrained", BertEncoder(CONFIG))
    write("pretrained/run.json", '{"resume_settings": {"objective": "ltr"}}')
    finetune(run_of(tmp_path / "out", write, init_checkpoint=str(tmp_path / "pretrained"), do_train=True))
    assert run_record.recorded(str(tmp_path / "out"))["causal"]
    later = run_of(tmp_path / "out", write)  # evaluates without the pre-trained model
    assert later.model.encoder.causal
    with pytest.raises(InputError, match=r"model\.ckpt-6 is a left-to-right model"):
        convert_checkpoint.convert(str(tmp_path / "out"), str(tmp_path / "hf"), "hf")


def test_a_finished_run_is_restored_with_its_bilstm(tmp_path, write):
    out = str(tmp_path / "out")
    settings = {"do_train": True, "bilstm_layers": 1}
    write_model(tmp_path / "pretrained", BertEncoder(CONFIG))
    finetune(run_of(out, write, init_checkpoint=str(tmp_path / "pretrained"), **settings, bilstm_units=3))
    assert [run_record.recorded(out)[f"bilstm_{name}"] for name in ("layers", "units")] == [1, 3]
    later = run_of(out, write)  # evaluates without the flag
    assert later.restore() == 6  # every variable is in the checkpoint
    assert later.model.bilstm.config == BiLstmConfig(1, 3)
    later = run_of(out, write, **settings, bilstm_units=4)
    task = text_task(later.task.sources, labels=["yes", "no"])
    later = FinetuningRun(task, later.settings, (later.config, later.tokenizer))
    assert_refused("bilstm_units was 3, and is 4 now", finetune, later)
    assert run_directory.recorded_labels(out) == ["no", "yes"]
    assert_refused("BiLSTM can't be exported", export.build, out, ExportConfig())
    with pytest.raises(InputError, match="bilstm/layer_0/forward_lstm/lstm_cell/kernel"):
        convert_checkpoint.convert(out, str(tmp_path / "hf"), "hf")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SelectionConfig("0"), "--evaluate_every is '0'"),
        (lambda: SelectionConfig(early_stopping_patience=-1), "--early_stopping_patience is -1"),
        (lambda: SelectionConfig("end", early_stopping_patience=1), "--evaluate_every=end"),
        (lambda: TrialsConfig(sweep_epochs=[]), "--sweep_epochs"),
        (lambda: FinetuningConfig(warmup_proportion=2.0), "--warmup_proportion is 2.0"),
        (lambda: FinetuningConfig(num_train_epochs="3"), "--num_train_epochs is '3'"),
        (lambda: FinetuningConfig(num_train_steps=-1), "--num_train_steps is -1"),
    ],
)
def test_invalid_settings_are_refused(make, message):
    assert_refused(message, make)


@pytest.mark.parametrize(
    ("patience", "scores", "stops"),
    [
        (0, [0.5, 0.4, 0.3, 0.2], False),
        (1, [0.5], False),
        (1, [0.5, 0.5], True),  # an equal score is not better
        (2, [0.5, 0.4], False),
        (2, [0.4, 0.5, 0.3, 0.5], True),
        (2, [0.4, 0.5, 0.3, 0.6], False),
    ],
)
def test_training_stops_early_after_evaluations_that_bring_nothing(monkeypatch, patience, scores, stops):
    settings = FinetuningConfig(selection=SelectionConfig(early_stopping_patience=patience))
    run = types.SimpleNamespace(task=types.SimpleNamespace(metric_that_selects="f1"), settings=settings)
    selection = DevSelection(run)
    monkeypatch.setattr(selection, "history", lambda: [{"kind": "eval", "f1": score} for score in scores])
    assert selection.stops() == stops


def test_the_loss_and_accuracy_of_tags_count_tokens_with_a_tag_only():
    model = TokenModel(tiny_config(), 3)
    ids = np.array([[5, 6, 7, 8], [9, 10, 11, 12]], np.int32)
    batch = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
    logits = model.logits(batch).numpy()
    best = logits.argmax(axis=-1)
    tags = np.array([[best[0, 0], (best[0, 1] + 1) % 3, NO_TAG, best[0, 3]], [NO_TAG] * 4], np.int32)
    batch["tag_ids"] = tags
    loss, sums = model.loss(batch, model.totals(batch), None)
    assert [float(value) for value in sums["accuracy"]] == [2, 3]
    log_p = logits[0] - np.log(np.exp(logits[0]).sum(axis=-1, keepdims=True))
    assert_close(loss, -np.mean([log_p[i, tags[0, i]] for i in (0, 1, 3)]), 1e-5)
