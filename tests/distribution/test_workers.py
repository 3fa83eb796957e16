"""Tests the conversion of TensorFlow's errors when a worker is lost.

The messages were recorded with two workers, after the process of one was killed, stopped or ended.
tests/training/test_multi_worker.py repeats this.
"""

import json
from unittest import mock

import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from benchmarks.local_cluster import worker_configs
from bert_tf.distribution import cluster, workers
from bert_tf.distribution.workers import WorkersError
from bert_tf.runtime import program
from bert_tf.runtime.files import InputError

ABORTED = "Graph execution error:\n\nCollective ops is aborted by: {}\nThe error could be from a previous operation."
STOPPED = (
    "Error reported from /job:worker/task:1: The following tasks are unhealthy (stopped sending heartbeats):\n"
    "/job:worker/replica:0/task:1\nThe tasks have crashed."
)
RESET = (
    "recvmsg:Connection reset by peer\nAdditional GRPC error information from remote target "
    "/job:worker/replica:0/task:2 while calling /tensorflow.WorkerService/CompleteInstance:\n:UNKNOWN:Error"
)
LEADER = "Deadline Exceeded\n\nRPC: /tensorflow.CoordinationService/Heartbeat"
REPORTED = "Error reported from /job:worker/task:1: <worker>worker 1 has ended: a [b]\nc</worker>"


def error_of(message, kind=tf.errors.UnavailableError):
    return kind(None, None, message)


@pytest.mark.parametrize(
    ("message", "cluster", "names"),
    [
        (ABORTED.format(STOPPED), "worker", "worker 1"),
        (ABORTED.format(RESET), "worker", "worker 2"),
        (RESET, "worker", "worker 2"),
        (ABORTED.format(RESET + STOPPED.replace("task:1", "task:0")), "worker", "worker 2"),  # task 0 is the reader
        (ABORTED.format(LEADER), "worker", "worker 0"),
        (ABORTED.format(LEADER), "chief", "chief 0"),
    ],
)
def test_a_lost_worker_is_named(message, cluster, names, monkeypatch):
    tf_config = {"cluster": {"worker": ["a:1"], cluster: ["b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(tf_config))
    expected = f"{names} has ended, or has not answered within --worker_timeout."
    assert workers.explain(error_of(message)) == expected
    assert workers.explain(error_of(message, tf.errors.DeadlineExceededError)) == expected


def test_workers_that_compute_something_else_are_not_taken_for_lost():
    message = ABORTED.format("Shape mismatch in the collective instance 219. Op at device /job:worker/task:1 expected")
    assert "run different computations" in workers.explain(error_of(message))


def test_what_another_worker_reports_is_repeated():
    assert workers.explain(error_of(ABORTED.format(REPORTED))) == "worker 1 has ended: a [b]\nc"
    assert workers.explain(WorkersError("a reason", "an advice")) == "a reason"
    assert str(WorkersError("a reason", "an advice")) == "a reason an advice"


def test_other_errors_are_not_about_workers():
    assert workers.explain(error_of("the disk is full", tf.errors.ResourceExhaustedError)) is None
    assert workers.explain(InputError("Collective ops is aborted by")) is None


def test_gradients_are_sent_in_parts_and_not_all_at_the_end(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", worker_configs(2)[0])
    monkeypatch.setattr(cluster, "wait_for_all", mock.Mock())
    monkeypatch.setattr(program, "on_failure", mock.Mock())
    strategy = mock.Mock()
    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", strategy)
    with mock.patch.object(context, "context"):
        workers.connect(worker_timeout=1)
    options = strategy.call_args.kwargs["communication_options"]
    assert 0 < options.bytes_per_pack < 100 << 20  # a model of ordinary size has more
