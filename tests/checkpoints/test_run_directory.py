import importlib.metadata
import json
import subprocess

import pytest
import tensorflow as tf

from bert_tf.checkpoints import run_record, saver
from bert_tf.checkpoints.saver import CheckpointSaver
from bert_tf.runtime.files import InputError
from tests import finished_runs
from tests.conftest import ROOT, assert_refused, tiny_config


def prepare(directory, vocab_file, rate=0.1, config=None, **options):
    finished_runs.record(directory, vocab_file, config or tiny_config(), {"flag": 1}, learning_rate=rate, **options)


def test_a_run_is_recorded_with_the_tpu_build_of_tensorflow(tmp_path, write, monkeypatch):
    def version(package):
        if package == "tensorflow":
            raise importlib.metadata.PackageNotFoundError(package)
        return "1.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    prepare(tmp_path, write("v.txt", "[PAD]\na\n"))
    assert run_record.read(str(tmp_path))["versions"]["tensorflow"] == tf.__version__


def test_a_run_directory_contains_settings_versions_and_vocabulary(tmp_path, write):
    vocab = write("v.txt", "[PAD]\na\n")
    prepare(tmp_path / "run", vocab)
    recorded = run_record.read(str(tmp_path / "run"))
    assert recorded["flags"] == {"flag": 1}
    assert recorded["resume_settings"]["learning_rate"] == 0.1
    assert recorded["resume_settings"]["bert_config"]["vocab_size"] == 41
    assert len(recorded["resume_settings"]["vocab_sha256"]) == 64
    assert {"python", "tensorflow", "keras"} <= recorded["versions"].keys()
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    assert recorded["git_commit"].removesuffix("+changes") == commit.stdout.strip()
    prepare(tmp_path / "run", str(tmp_path / "run" / "vocab.txt"))  # the source is the target
    assert (tmp_path / "run" / "vocab.txt").read_text() == "[PAD]\na\n"
    assert_refused("--output_dir", prepare, "", vocab)
    assert json.loads((tmp_path / "run" / "bert_config.json").read_text())["hidden_size"] == 12


def test_changed_settings_are_refused_once_there_is_a_checkpoint(tmp_path, write):
    vocab = write("v.txt", "[PAD]\na\n")
    directory = tmp_path / "run"
    prepare(directory, vocab)
    prepare(directory, vocab, rate=0.2)  # nothing has been trained yet
    CheckpointSaver(str(directory), 1).save(1, {"x": 1.0})
    prepare(directory, vocab, rate=0.2)
    before = (directory / "run.json").read_text()
    message = r"learning_rate was 0\.2, and is 0\.3 now(.|\n)*--allow_changed_settings"
    assert_refused(message, prepare, directory, vocab, rate=0.3)
    assert_refused("vocab_sha256 was", prepare, directory, write("w.txt", "[PAD]\nb\n"), rate=0.2)
    larger = tiny_config(vocab_size=43)
    assert_refused("bert_config: vocab_size was 41, and is 43 now", prepare, directory, vocab, rate=0.2, config=larger)
    assert (directory / "run.json").read_text() == before
    prepare(directory, vocab, rate=0.3, allow_changed_settings=True)
    assert run_record.read(str(directory))["resume_settings"]["learning_rate"] == 0.3
    assert saver.latest_checkpoint(str(directory))


@pytest.mark.parametrize(
    ("content", "message"),
    [({}, "'max_seq_length' is missing"), ({"format": 3}, "unknown format 3"), ({"format": "2"}, "at format")],
)
def test_an_incomplete_record_is_named(tmp_path, write, content, message):
    path = write("run/run.json", json.dumps({"resume_settings": {}} | content))
    with pytest.raises(InputError, match=f"{path}.*{message}"):
        run_record.read(str(tmp_path / "run"))["resume_settings"]["max_seq_length"]


def test_a_run_goes_on_without_the_checkpoint_that_it_began_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def prepare(start):
        finished_runs.record("run", "", tiny_config(), init_checkpoint=start)

    prepare(str(tmp_path / "init"))  # recorded while the checkpoint existed
    CheckpointSaver("run", 1).save(1, {"x": 1.0})
    prepare("init")
    assert run_record.recorded("run")["init_checkpoint"] == str(tmp_path / "init")
    assert_refused(r"init_checkpoint was '.*init', and is 'other' now", prepare, "other")


def test_a_changed_number_of_replicas_is_said_but_not_refused(tmp_path, capsys):
    two, three = {"replicas": 2, "device": "CPU"}, {"replicas": 3, "device": "CPU"}
    prepare(tmp_path, "", devices=two)
    prepare(tmp_path, "", devices=three)  # nothing has been trained yet
    CheckpointSaver(str(tmp_path), 1).save(1, {"x": 1.0})
    prepare(tmp_path, "", devices=three)
    assert capsys.readouterr().err == ""
    prepare(tmp_path, "", devices=two)
    assert "Warning: replicas was 3, and is 2 now. The batches stay the same" in capsys.readouterr().err
    assert run_record.read(str(tmp_path))["devices"] == two
    prepare(tmp_path, "", devices=two | {"device": "GPU"}, rate=0.3, allow_changed_settings=True)
    assert "Warning: device was 'CPU', and is 'GPU' now." in capsys.readouterr().err


def test_the_best_checkpoint_of_a_run_has_the_settings_of_the_run(tmp_path, write):
    write("run/run.json", '{"resume_settings": {"causal": true}}')
    write("run/best/checkpoint", "")
    best = tmp_path / "run" / "best"
    for checkpoint in (best, best / "model.ckpt-5", tmp_path / "run", tmp_path / "run" / "model.ckpt-7"):
        assert run_record.is_causal(str(checkpoint))
    assert not run_record.is_causal(str(tmp_path / "other" / "best"))
    write("run/best/run.json", '{"resume_settings": {"causal": false}}')  # now `best` is a run directory, too
    assert not run_record.is_causal(str(best))
