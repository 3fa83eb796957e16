"""Tests MultiWorkerMirroredStrategy with two real processes on the loopback interface."""

import json
import signal
import socket
import time
from unittest import mock

import pytest
import tensorflow as tf

from bert_tf import checkpoints
from bert_tf.checkpoints import saver
from bert_tf.runtime import distribution
from bert_tf.runtime.distribution import DistributionConfig, build_strategy
from bert_tf.runtime.files import InputError
from tests import programs
from tests.conftest import assert_close
from tests.pretraining.test_run_pretraining import flags


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


def finish(workers, expect=0, expected_text=""):
    for worker in workers:
        output, _ = worker.communicate(timeout=240)
        assert worker.returncode == expect, output[-3000:]
        assert expected_text in output


def wait_for_step(folder, after=0):
    """Waits for a checkpoint of a later step than `after`, and returns its step."""
    deadline = time.time() + 200
    while time.time() < deadline:
        newest = saver.latest_checkpoint(str(folder))
        if newest and (step := int(newest.rpartition("-")[2])) > after:
            return step
        time.sleep(0.05)
    raise TimeoutError


def weights(folder):
    source = checkpoints.open_checkpoint(str(folder))
    return {name: source.read(name) for name in source.shapes}


def test_two_workers_equal_one_also_after_a_kill_and_a_signal(tmp_path):
    config, vocab = programs.write_model_files(tmp_path, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    files = (config, vocab, programs.write_pretraining_data(tmp_path / "data.tfrecord"))
    steps = {"num_train_steps": 200, "save_checkpoints_steps": 10, "log_steps": 10, "learning_rate": 1e-4}
    programs.run("run_pretraining.py", *flags(files, tmp_path / "one", **steps), "--do_train")

    together = [*flags(files, tmp_path / "two", **steps), "--do_train", "--distribution_strategy=multi_worker"]
    workers = start_workers(["run_pretraining.py", *together])
    wait_for_step(tmp_path / "two")
    for worker in workers[::-1]:  # if only one is killed, the other waits for it, until a cluster manager ends it
        worker.kill()
        worker.communicate()
    reached = wait_for_step(tmp_path / "two")

    workers = start_workers(["run_pretraining.py", *together])
    reached = wait_for_step(tmp_path / "two", after=reached)
    workers[1].send_signal(signal.SIGTERM)  # both stop after the same step, and the chief saves it
    finish(workers, expect=1, expected_text="which is saved")
    assert reached < wait_for_step(tmp_path / "two") < 200
    finish(start_workers(["run_pretraining.py", *together, "--do_eval"]))
    assert (tmp_path / "two" / "eval_results.txt").exists()

    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert two["global_step"] == 200
    for name, value in one.items():
        assert_close(two[name], value, 1e-5, name)
    steps_logged = [json.loads(line)["step"] for line in (tmp_path / "two" / "metrics.jsonl").read_text().splitlines()]
    assert steps_logged == list(range(10, 201, 10))


@pytest.mark.parametrize(
    ("jobs", "chiefs"), [({"worker": 2}, [("worker", 0)]), ({"chief": 1, "worker": 2}, [("chief", 0)])]
)
def test_one_process_of_a_cluster_is_the_chief(jobs, chiefs):
    cluster = tf.train.ClusterSpec({job: [f"{job}{i}:1" for i in range(count)] for job, count in jobs.items()})
    tasks = [(job, i) for job, count in jobs.items() for i in range(count)]
    found = []
    for job, i in tasks:
        strategy = mock.create_autospec(tf.distribute.MultiWorkerMirroredStrategy, instance=True)
        strategy.cluster_resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            cluster, task_type=job, task_id=i
        )
        found += [(job, i)] if distribution.is_chief(strategy) else []
    assert found == chiefs


def test_bad_cluster_descriptions_are_refused(monkeypatch):
    cluster = '"cluster": {"worker": ["a:1"]}'
    for text in ("", "{", '{"cluster": {}}', f'{{{cluster}, "task": {{"type": "worker", "index": "x"}}}}'):
        monkeypatch.setenv("TF_CONFIG", text)
        with pytest.raises(InputError, match="reads the cluster from TF_CONFIG"):
            build_strategy(DistributionConfig("multi_worker"))
    for task, message in (
        ('{"type": "worker", "index": 3}', "task index 3 is not one of the 1 tasks of type worker"),
        ('{"type": "chief", "index": 0}', "reads the cluster from TF_CONFIG"),
        ('{"type": "ps", "index": 0}', "the task's type is 'ps'"),
        ('{"index": 0}', "reads the cluster from TF_CONFIG"),
    ):
        monkeypatch.setenv("TF_CONFIG", f'{{{cluster}, "task": {task}}}')
        with pytest.raises(InputError, match=message):
            build_strategy(DistributionConfig("multi_worker"))
    with pytest.raises(InputError, match="--tpu_name is needed"):
        build_strategy(DistributionConfig("tpu"))
    with pytest.raises(InputError, match="--distribution_strategy is 'horovod'"):
        DistributionConfig("horovod")
