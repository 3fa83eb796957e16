"""Tests workers that wait for each other, as threads on the loopback interface, and the checks of TF_CONFIG."""

import concurrent.futures
import contextlib
import json
import socket
import time

import pytest

from benchmarks.local_cluster import worker_configs
from bert_tf.distribution import cluster
from bert_tf.distribution.devices import DistributionConfig
from bert_tf.runtime.files import InputError
from tests.conftest import assert_refused

NO_CLUSTER = "the cluster in the environment variable TF_CONFIG"


def outcomes(*workers, seconds=20):
    """Returns the error message of each worker, or "". A worker is a pair of cluster and name."""

    def outcome(worker):
        try:
            cluster.wait_for_all(*worker, seconds)
        except InputError as error:
            return str(error)
        return ""

    with concurrent.futures.ThreadPoolExecutor(len(workers)) as pool:
        return list(pool.map(outcome, workers))


@pytest.fixture
def three(monkeypatch):
    monkeypatch.setattr(cluster, "_SECONDS_TO_GREET", 1.0)
    return json.loads(worker_configs(3)[0])["cluster"]


def say(address, text):
    """Connects as soon as a process listens at the address, and sends a text."""
    for _ in range(200):
        with contextlib.suppress(ConnectionRefusedError):
            connection = socket.create_connection(address)
            connection.sendall(text)
            return connection
        time.sleep(0.02)
    raise TimeoutError


def test_all_go_on_when_all_are_there_whoever_else_looks(three):
    host, port = three["worker"][0].split(":")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(outcomes, (three, "worker 0"), (three, "worker 1"))
        for text in (b"", b"GET / HTTP/1.1\r\n", b"[]\n"):
            say((host, int(port)), text).close()
        assert not waiting.done()
        assert outcomes((three, "worker 2")) == [""]
        assert waiting.result() == ["", ""]
    assert outcomes(({"worker": three["worker"][:1]}, "worker 0")) == [""]


@pytest.mark.parametrize("counted", [False, True])
def test_a_worker_may_be_killed_while_it_waits_and_started_again(three, counted):
    host, port = three["worker"][0].split(":")
    address, greeting = (host, int(port)), json.dumps(["worker 2", three]).encode() + b"\n"
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(outcomes, (three, "worker 0"))
        if counted:  # the leader waits for others
            with say(address, greeting):
                time.sleep(0.5)
        else:  # the leader waits for a client that sends nothing
            with say(address, b""), say(address, greeting):
                pass
        assert outcomes((three, "worker 2"), (three, "worker 1")) == ["", ""]
        assert waiting.result() == [""]


@pytest.mark.parametrize("doubled", [0, 1])
def test_two_workers_with_one_index_end_all(three, doubled):
    names = ["worker 0", "worker 1", f"worker {doubled}"]
    message = f"TF_CONFIG: two processes are worker {doubled}. Give each worker a different index."
    assert outcomes(*((three, name) for name in names)) == [message] * 3


def test_workers_with_other_clusters_end_all(three, monkeypatch):
    monkeypatch.setattr(cluster, "_SECONDS_TO_GREET", 0.3)  # for worker 2, which never connects
    two = {"worker": three["worker"][:2]}
    message = f"the cluster is {json.dumps(three)} on worker 0, but {json.dumps(two)} on worker 1"
    found = outcomes((three, "worker 0"), (two, "worker 1"))
    assert found[0] == found[1] and message in found[0]


def test_who_is_missing_is_named(three, monkeypatch):
    first, second = outcomes((three, "worker 0"), (three, "worker 2"), seconds=1)
    assert first == second and first.startswith("TF_CONFIG: worker 1 has not started within 1 seconds")
    monkeypatch.setattr(cluster, "_SECONDS_TO_GREET", 0.1)
    (waiting,) = outcomes((three, "worker 1"), seconds=0.3)
    assert waiting.startswith("TF_CONFIG: worker 1 waited 0.3 seconds (ten times --worker_timeout) for worker 0 at")


def test_an_address_that_another_program_uses_is_named(three, monkeypatch):
    monkeypatch.setattr(cluster, "_SECONDS_TO_GREET", 0.1)  # for an answer from the other program
    port = int(three["worker"][0].rpartition(":")[2])
    with socket.create_server(("", port)):
        (told,) = outcomes((three, "worker 0"))
    assert f"worker 0 can't listen on port {port} (Address already in use)" in told


@pytest.mark.parametrize("strategy", ["one_device", "mirrored"])
def test_a_worker_that_would_keep_others_waiting_is_refused(strategy, monkeypatch):
    config = DistributionConfig(strategy)
    for task, count in (("evaluator", 2), ("worker", 1)):
        tf_config = {"cluster": {"worker": [f"a:{i}" for i in range(count)]}, "task": {"type": task, "index": 0}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(tf_config))
        config.check_tf_config()
    monkeypatch.setenv("TF_CONFIG", worker_configs(2)[1])
    message = f"--distribution_strategy is {strategy}, but .* TF_CONFIG, this process is worker 1 of 2 workers"
    assert_refused(message, config.check_tf_config)
    DistributionConfig("multi_worker").check_tf_config()
    monkeypatch.setenv("TF_CONFIG", "{")
    config.check_tf_config()
    assert_refused(NO_CLUSTER, DistributionConfig("multi_worker").check_tf_config)


BAD_ADDRESS = "a different address of the form host:port"
FIRST = {"type": "worker", "index": 0}


@pytest.mark.parametrize(
    ("workers", "task", "message"),
    [
        (None, None, NO_CLUSTER),
        ([], FIRST, NO_CLUSTER),
        *((["a:1"], task, NO_CLUSTER) for task in (FIRST | {"index": "x"}, FIRST | {"type": "chief"}, {"index": 0})),
        (["a:1"], FIRST | {"index": 3}, "task index 3 is not one of the 1 tasks of type worker"),
        (["a:1"], FIRST | {"type": "ps"}, "the task's type is 'ps'"),
        *(
            ({"worker": ["a:1"], "master": ["b:1"]}, FIRST | {"type": job}, "Rename it to 'chief'")
            for job in ("worker", "master")
        ),
        *((workers, FIRST, BAD_ADDRESS) for workers in (["a:1", "a:1"], ["a:1", "b"], ["a:1", "b:65536"], "a:1", [7])),
    ],
)
def test_bad_descriptions_of_a_cluster_are_refused(workers, task, message, monkeypatch):
    jobs = workers if isinstance(workers, dict) else {"worker": workers}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": jobs, "task": task}) if task else "")
    assert_refused(message, DistributionConfig("multi_worker").check_tf_config)
    assert_refused("--distribution_strategy is 'horovod'", DistributionConfig, "horovod")
