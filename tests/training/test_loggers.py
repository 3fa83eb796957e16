import json
import sys
import types

import pytest

from bert_tf.runtime.files import InputError
from bert_tf.training import log
from bert_tf.training.errors import Preempted
from bert_tf.training.loggers import Loggers
from bert_tf.training.settings import TrainingConfig
from tests.conftest import assert_refused

SETTINGS = {"learning_rate": 1e-4, "input_file": "a.tfrecord"}


class Recorder:
    """Substitute for both libraries and their runs. Records the calls, and fails for names in `broken`."""

    def __init__(self):
        self.calls, self.broken = [], ()
        self.info = types.SimpleNamespace(run_id="run-1")
        self.id = "run-1"

    def __getattr__(self, name):
        def call(*arguments, **named):
            self.calls.append((name, *arguments, named) if named else (name, *arguments))
            if name in self.broken:
                raise ConnectionError("no route to the server")
            return self

        return call


@pytest.fixture
def libraries(monkeypatch):
    """Returns the substitutes for both libraries by name."""
    found = {name: Recorder() for name in ("mlflow", "wandb")}
    for name, recorder in found.items():
        monkeypatch.setitem(sys.modules, name, recorder)
    return found


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"format": 2, "resume_settings": {}, "flags": SETTINGS}))
    return tmp_path


def logged(directory, start=0, error=None, names="mlflow,wandb", is_shown=True):
    """Logs training metrics and an evaluation. The run then ends, or raises an error."""
    config = TrainingConfig(str(directory), report_to=names, log_steps=2)
    with log.TrainingLog(config, start, is_shown=is_shown) as training:
        training.log_training(start + 2, {"loss": 0.5, "tokens": 3}, False)
        training.log_evaluation(start + 2, {"accuracy": 0.75})
        if error:
            raise error


def test_settings_metrics_and_the_status_are_sent(directory, libraries):
    logged(f"{directory}/")
    begin, settings, train, evaluation, end = libraries["mlflow"].calls
    assert begin == ("start_run", None, {"run_name": directory.name, "nested": True})
    assert settings == ("log_params", SETTINGS)
    assert (train[0], train[2], train[1]["train/loss"]) == ("log_metrics", 2, 0.5)
    assert "train/sequences_per_second" in train[1]
    assert evaluation == ("log_metrics", {"eval/accuracy": 0.75}, 2)
    assert end == ("end_run", "FINISHED")
    begin, train, evaluation, end = libraries["wandb"].calls
    assert begin == ("init", {"name": directory.name, "config": SETTINGS, "id": None, "resume": "allow"})
    assert (train[1]["train/loss"], evaluation[1:]) == (0.5, ({"eval/accuracy": 0.75}, 2))
    assert end == ("finish", {"exit_code": 0})
    for error, status in ((ValueError("a fault"), "FAILED"), (Preempted(2, []), "KILLED")):
        with pytest.raises(type(error)):
            logged(directory, error=error)
        assert libraries["mlflow"].calls[-1] == ("end_run", status)
        assert libraries["wandb"].calls[-1] == ("finish", {"exit_code": 1})


def test_a_resumed_run_is_continued_and_a_repeated_one_is_new(directory, libraries):
    logged(directory)
    for start, run_id in ((2, "run-1"), (0, None)):
        for recorder in libraries.values():
            recorder.calls.clear()
        logged(directory, start)
        assert libraries["mlflow"].calls[0][1] == run_id
        assert ("log_params", SETTINGS) not in libraries["mlflow"].calls[: 2 if start else 1]
        assert libraries["wandb"].calls[0][-1]["id"] == run_id


def test_a_failure_during_training_is_reported_once_and_ends_only_the_logging(directory, libraries, capsys):
    libraries["mlflow"].broken = ("log_metrics", "end_run")
    logged(directory)
    shown = capsys.readouterr().err
    assert shown.count("Warning: mlflow has failed, so metrics are no longer logged there (no route") == 1
    names = [name for name, *_ in libraries["mlflow"].calls]
    assert names == ["start_run", "log_params", "log_metrics", "end_run"]
    assert len(libraries["wandb"].calls) == 4
    assert len(log.read_metrics(str(directory))) == 2


def test_a_failure_at_the_start_ends_a_new_run_but_not_a_resumed_one(directory, libraries, capsys):
    libraries["mlflow"].broken = ("start_run",)
    assert_refused(r"--report_to=mlflow: no route to the server\. Correct", logged, directory)
    libraries["mlflow"].calls.clear()
    logged(directory, start=2)
    assert "Warning: mlflow can't continue the run" in capsys.readouterr().err
    assert [name for name, *_ in libraries["mlflow"].calls] == ["start_run"]


def test_only_the_first_worker_logs(directory, libraries):
    logged(directory, is_shown=False)
    assert not any(recorder.calls for recorder in libraries.values())
    assert not (directory / "loggers.json").exists()


def test_unknown_and_missing_libraries_are_errors_at_the_start(monkeypatch):
    assert_refused("--report_to is 'comet'", TrainingConfig, report_to="comet")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match=r"--report_to: wandb is not installed\. Install it with `pip install wandb`"):
        TrainingConfig(report_to="wandb")
    assert TrainingConfig().report_to == ""


def test_a_local_store_of_mlflow(directory, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((directory / "mlruns").as_uri())
    with pytest.raises(ValueError):
        logged(directory, names="mlflow", error=ValueError("a fault"))
    client, run_id = mlflow.MlflowClient(), json.loads((directory / "loggers.json").read_text())["mlflow"]
    assert client.get_run(run_id).info.status == "FAILED"
    logged(directory, start=2, names="mlflow")
    run = client.get_run(run_id)
    assert (run.info.status, run.info.run_name) == ("FINISHED", directory.name)
    assert run.data.params == {name: str(value) for name, value in SETTINGS.items()}
    assert [(x.step, x.value) for x in client.get_metric_history(run_id, "eval/accuracy")] == [(2, 0.75), (4, 0.75)]
    assert mlflow.active_run() is None
    # A run started by the caller becomes the parent.
    with mlflow.start_run() as parent:
        Loggers("mlflow", str(directory), 0).end("FINISHED")
        assert mlflow.active_run().info.run_id == parent.info.run_id
    child = client.get_run(json.loads((directory / "loggers.json").read_text())["mlflow"])
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
