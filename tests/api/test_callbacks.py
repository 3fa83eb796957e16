"""Tests Keras callbacks, loggers, and the output of `fit`."""

import csv
import sys
from unittest import mock

import keras
import numpy as np
import pytest

import bert_tf
from bert_tf.config import BertConfig
from bert_tf.distribution import hardware
from bert_tf.runtime.files import InputError
from bert_tf.training.callbacks import checked
from tests import programs
from tests.api.tiny import FIT, LABELS, TEXTS
from tests.conftest import assert_refused, tensors_of

pytestmark = [pytest.mark.eager, pytest.mark.plain]
DEV = {"validation_data": (TEXTS[:6], LABELS[:6])}


EVENTS = {
    "train_begin": "begin",
    "train_end": "end",
    "epoch_begin": "epoch {}",
    "epoch_end": "/epoch {}",
    "train_batch_begin": "batch {}",
    "train_batch_end": "/batch {}",
}


class Recorder(keras.callbacks.Callback):
    """Records all calls."""

    def __init__(self):
        super().__init__()
        self.calls = []
        for event, text in EVENTS.items():
            setattr(self, f"on_{event}", lambda *given, text=text, **_: self.calls.append(text.format(*given)))


def classifier(pretrained, directory):
    return bert_tf.Classifier.from_pretrained(pretrained, max_seq_length=16, output_dir=directory)


def test_callbacks_and_loggers_are_called_and_change_no_weight(pretrained, tmp_path, monkeypatch):
    mlflow = mock.MagicMock()
    mlflow.start_run.return_value.info.run_id = "run-1"
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    recorder, history, batches = Recorder(), keras.callbacks.History(), []
    on_batch = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: batches.append(logs))
    callbacks = [recorder, keras.callbacks.CSVLogger(tmp_path / "log.csv"), history, on_batch]
    estimator = classifier(pretrained, tmp_path / "with")
    scores = estimator.fit(TEXTS, LABELS, **FIT, **DEV, log_steps=1, report_to="mlflow", callbacks=callbacks)
    assert classifier(pretrained, tmp_path / "without").fit(TEXTS, LABELS, **FIT, **DEV) == scores
    np.testing.assert_equal(tensors_of(tmp_path / "with"), tensors_of(tmp_path / "without"))

    epochs = [
        [f"epoch {epoch}", *(call for i in range(3) for call in (f"batch {i}", f"/batch {i}")), f"/epoch {epoch}"]
        for epoch in range(2)
    ]
    assert recorder.calls == ["begin", *epochs[0], *epochs[1], "end"]
    assert recorder.params == {"epochs": 2, "steps": 3, "verbose": 0}
    losses = [line["loss"] for line in estimator.history() if line["kind"] == "train"]
    assert history.history["loss"] == pytest.approx([np.mean(losses[:3]), np.mean(losses[3:])])
    # As in Keras, the logs of a batch are means since the start of the epoch.
    assert batches[-1] == {name: history.history[name][-1] for name in ("loss", "accuracy")}
    assert set(history.history) >= {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert history.history["val_accuracy"][-1] == scores["eval_accuracy"]
    rows = list(csv.DictReader((tmp_path / "log.csv").open()))
    assert [float(row["val_loss"]) for row in rows] == pytest.approx(history.history["val_loss"])

    (settings,) = mlflow.log_params.call_args.args
    assert (settings["learning_rate"], settings["max_seq_length"]) == (FIT["learning_rate"], 16)
    sent = [call.args for call in mlflow.log_metrics.call_args_list]
    written = {line["step"]: line["accuracy"] for line in estimator.history() if line["kind"] == "eval"}
    assert {step: values["eval/accuracy"] for values, step in sent if "eval/accuracy" in values} == written
    mlflow.end_run.assert_called_once_with("FINISHED")

    again = Recorder()  # a run that is complete
    classifier(pretrained, tmp_path / "with").fit(TEXTS, LABELS, **FIT, **DEV, callbacks=again)
    assert again.calls == [call for call in recorder.calls if "batch" not in call]


@pytest.mark.graph
def test_a_device_loop_is_one_call(pretrained, tmp_path, monkeypatch):
    monkeypatch.setattr(hardware, "is_tpu", lambda strategy: True)  # several steps run in one call
    recorder = Recorder()
    estimator = classifier(pretrained, tmp_path / "run")
    estimator.fit(TEXTS, LABELS, **FIT, iterations_per_loop=2, callbacks=recorder)
    ends = [call for call in recorder.calls if call.startswith("/")]
    assert ends == ["/batch 1", "/batch 2", "/epoch 0", "/batch 1", "/batch 2", "/epoch 1"]


def test_early_stopping_survives_an_interruption(pretrained, tmp_path):
    settings = FIT | DEV | {"epochs": 12, "learning_rate": 1e-9, "save_checkpoints_steps": 1}

    def fit(name, further=()):
        stopping, history = keras.callbacks.EarlyStopping(patience=2, min_delta=1e-3), keras.callbacks.History()
        callbacks = [stopping, history, *further]
        estimator = classifier(pretrained, tmp_path / name)
        estimator.fit(TEXTS, LABELS, **settings, callbacks=callbacks)
        assert estimator.history()[-1]["step"] == 3 * 3
        return history.history

    def kill(epoch, logs):
        if epoch == 1:
            raise RuntimeError("killed")

    complete = fit("complete")
    assert len(complete["loss"]) == 3
    with pytest.raises(RuntimeError, match="killed"):
        fit("killed", [keras.callbacks.LambdaCallback(on_epoch_end=kill)])
    resumed = fit("killed")
    assert resumed["val_loss"] == complete["val_loss"]
    np.testing.assert_equal(tensors_of(tmp_path / "killed"), tensors_of(tmp_path / "complete"))
    assert fit("killed") == resumed  # the run is complete, so nothing is trained


def test_a_batch_stops_the_training(pretrained, tmp_path):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 1

    recorder = Recorder()
    estimator = classifier(pretrained, tmp_path / "run")
    scores = estimator.fit(TEXTS, LABELS, **FIT, **DEV, callbacks=[recorder, Stop()])
    assert scores["global_step"] == 2
    assert recorder.calls == ["begin", "epoch 0", "batch 0", "/batch 0", "batch 1", "/batch 1", "/epoch 0", "end"]
    assert classifier(pretrained, tmp_path / "run").fit(TEXTS, LABELS, **FIT, **DEV, callbacks=Stop()) == scores


def test_callbacks_that_need_a_keras_model_are_refused(pretrained, tmp_path):
    estimator = classifier(pretrained, tmp_path / "run")

    class Subclass(keras.callbacks.ReduceLROnPlateau):
        pass

    class ReadsOptimizer(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.optimizer.learning_rate.assign(0.0)

    for callback, message in (
        (keras.callbacks.ModelCheckpoint("a.keras"), "ModelCheckpoint .*use_best_checkpoint"),
        (keras.callbacks.BackupAndRestore("a"), "BackupAndRestore .*output_dir"),
        (Subclass(), "ReduceLROnPlateau .*learning_rate and warmup_proportion"),
        (keras.callbacks.LearningRateScheduler(lambda epoch: 1.0), "LearningRateScheduler .*learning_rate"),
        (keras.callbacks.TensorBoard("a"), "TensorBoard .*output_dir"),
        (keras.callbacks.EarlyStopping(restore_best_weights=True), r"EarlyStopping\(.*use_best_checkpoint=True"),
        (print, r"^callbacks\[0\] is a builtin_function.* keras\.callbacks\.Callback"),
        (ReadsOptimizer(), "the model of a callback has no 'optimizer'"),
    ):
        with pytest.raises((InputError, AttributeError), match=message):
            estimator.fit(TEXTS, LABELS, **FIT, callbacks=[callback])
    assert_refused("verbose is 3", estimator.fit, TEXTS, LABELS, **FIT, verbose=3)


def test_early_stopping_finds_the_direction_of_a_score():
    for increasing in ("val_accuracy", "f1_PER"):
        assert checked(keras.callbacks.EarlyStopping(increasing), verbose=1)[0].mode == "max"
        assert checked(keras.callbacks.EarlyStopping(increasing, mode="min"), verbose=1)[0].mode == "min"
    for decreasing in ("val_masked_lm_loss", "val_rmse", "loss"):
        assert checked(keras.callbacks.EarlyStopping(decreasing), verbose=1)[0].mode == "min"


@pytest.mark.parametrize("verbose", [0, 1, 2])
def test_what_is_printed(pretrained, tmp_path, verbose, capsys):
    model = classifier(pretrained, tmp_path / "run")
    capsys.readouterr()  # a message about the vocabulary is printed once per process
    model.fit(TEXTS, LABELS, **FIT, verbose=verbose)
    printed = capsys.readouterr()
    assert not printed.out
    assert ("Epoch 2: accuracy" in printed.err) == (verbose == 2)
    assert ("100%" in printed.err) == (verbose == 1)
    assert bool(printed.err) == (verbose > 0)


def test_callbacks_of_pretraining(tmp_path):
    data = programs.write_pretraining_data(tmp_path / "data")
    dev = programs.write_pretraining_data(tmp_path / "dev", records=8)
    recorder, history = Recorder(), keras.callbacks.History()
    config, vocab = programs.write_model_files(tmp_path)
    settings = {"batch_size": 4, "num_train_steps": 3, "evaluate_every": 2, "validation_data": dev}
    lengths = {"max_seq_length": 12, "max_predictions_per_seq": 3}
    for name, callbacks in (("with", [recorder, history]), ("without", None)):
        pretrainer = bert_tf.Pretrainer(BertConfig.from_json_file(config), vocab, output_dir=tmp_path / name)
        pretrainer.fit(data, **settings, **lengths, callbacks=callbacks)
    np.testing.assert_equal(tensors_of(tmp_path / "with"), tensors_of(tmp_path / "without"))
    calls = [call for call in recorder.calls if "batch" not in call]
    assert calls[1:-1] == ["epoch 0", "/epoch 0", "epoch 1", "/epoch 1"]
    assert len(history.history["val_masked_lm_loss"]) == 2
