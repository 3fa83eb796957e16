"""MultiWorkerMirroredStrategy with two real processes on the loopback interface."""

import json
import socket
import time

import pytest

from bert_tf import checkpoint_saver, checkpoints
from bert_tf.distribution import DistributionConfig, build_strategy
from bert_tf.files import InputError
from tests import programs
from tests.conftest import assert_close
from tests.test_run_pretraining import flags


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def start_workers(command):
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    return [
        programs.start(
            *command,
            environment={"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": i}})},
        )
        for i in range(2)
    ]


def finish(workers):
    for worker in workers:
        output, _ = worker.communicate(timeout=240)
        assert worker.returncode == 0, output[-3000:]


def weights(folder):
    source = checkpoints.open_checkpoint(str(folder))
    return {name: source.read(name) for name in source.shapes}


def test_two_workers_equal_one_and_survive_a_kill(tmp_path):
    config, vocab = programs.write_model_files(tmp_path, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    files = (config, vocab, programs.write_pretraining_data(tmp_path / "data.tfrecord"))
    steps = {"num_train_steps": 300, "save_checkpoints_steps": 10, "log_steps": 10, "learning_rate": 1e-4}
    programs.run("run_pretraining.py", *flags(files, tmp_path / "one", **steps), "--do_train")

    together = [*flags(files, tmp_path / "two", **steps), "--do_train", "--distribution_strategy=multi_worker"]
    workers = start_workers(["run_pretraining.py", *together])
    deadline = time.time() + 200
    while checkpoint_saver.latest_checkpoint(str(tmp_path / "two")) is None and time.time() < deadline:
        time.sleep(0.05)
    for worker in workers[::-1]:  # kill -9 of one leaves the other waiting for it; a cluster manager ends that one
        worker.kill()
        worker.communicate()
    reached = int(checkpoint_saver.latest_checkpoint(str(tmp_path / "two")).rpartition("-")[2])
    assert 10 <= reached < 300
    finish(start_workers(["run_pretraining.py", *together]))

    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert two["global_step"] == 300
    for name, value in one.items():
        assert_close(two[name], value, 1e-5, name)
    steps_logged = [json.loads(line)["step"] for line in (tmp_path / "two" / "metrics.jsonl").read_text().splitlines()]
    assert steps_logged == list(range(10, 301, 10))


def test_cluster_descriptions_that_cannot_be_used(monkeypatch):
    for text in ("", "{", '{"cluster": {}}'):
        monkeypatch.setenv("TF_CONFIG", text)
        with pytest.raises(InputError, match="reads the cluster from TF_CONFIG"):
            build_strategy(DistributionConfig("multi_worker"))
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 3}}')
    with pytest.raises(InputError, match="task index 3"):
        build_strategy(DistributionConfig("multi_worker"))
    with pytest.raises(InputError, match="--tpu_name is needed"):
        build_strategy(DistributionConfig("tpu"))
    with pytest.raises(InputError, match="--distribution_strategy is 'horovod'"):
        DistributionConfig("horovod")
