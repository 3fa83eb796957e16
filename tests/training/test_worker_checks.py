"""Simulates workers with threads, which exchange texts in memory. test_multi_worker has real workers."""

import concurrent.futures
import functools
import threading
import types
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.distribution import strategies, workers
from bert_tf.distribution.workers import WorkersError
from bert_tf.optimization import OptimizerConfig
from bert_tf.training import worker_checks
from bert_tf.training.run import Run
from bert_tf.training.settings import Compilation, TrainingConfig
from tests.conftest import tiny_config


@pytest.fixture
def outcomes(monkeypatch):
    """Calls `require` with the values of each worker. Returns all errors, and the lengths of the exchanged texts."""

    def run(*values):
        barrier, sent, lengths = threading.Barrier(len(values), timeout=100), {}, []

        def gather(strategy, text):
            sent[strategy.name] = text
            lengths.append(len(text))
            barrier.wait()
            received = dict(sorted(sent.items()))
            barrier.wait()
            return received

        monkeypatch.setattr(workers, "gather", gather)

        def outcome(i):
            strategy = mock.create_autospec(tf.distribute.MultiWorkerMirroredStrategy, instance=True)
            strategy.extended.worker_devices = [f"/job:worker/replica:0/task:{i}/device:CPU:0"]
            strategy.configure_mock(name=f"worker {i}", num_replicas_in_sync=len(values))
            try:
                worker_checks.require(strategy, lambda: values[i])
            except WorkersError as error:
                return str(error)
            return None

        with concurrent.futures.ThreadPoolExecutor(len(values)) as pool:
            return list(pool.map(outcome, range(len(values)))), lengths

    return run


def test_workers_that_agree_exchange_only_a_hash(outcomes):
    assert outcomes(*[{"files": [str(i) for i in range(1000)]}] * 3) == ([None] * 3, [64] * 3)


def test_all_workers_are_told_what_differs(outcomes):
    same = {"rate": 0.1, "files": ["a", "b"]}
    errors, _ = outcomes({"step": 100, **same}, {"step": 0, **same, "files": ["a", "c", "d"]}, {"step": 100, **same})
    lines = errors[0].splitlines()
    assert errors == [errors[0]] * 3 and "--output_dir" in lines[-1]
    assert lines[1:-1] == [
        "  step is 100 on worker 0, worker 2; 0 on worker 1",
        '  files 2 is "b" on worker 0, worker 2; "c" on worker 1',
        '  files 3 is null on worker 0, worker 2; "d" on worker 1',
    ]
    errors, _ = outcomes({"rate": 0.1}, {"rate": 0.2})
    assert "share" not in errors[0]


@pytest.mark.parametrize(
    ("module", "name", "values", "message"),
    [
        (worker_checks, "_code", ["1", "2"], "code: bert-tf is"),
        (strategies, "devices", ["CPU", "GPU"], "devices: bert-tf is"),
    ],
)
def test_other_code_and_other_devices_are_refused(outcomes, monkeypatch, module, name, values, message):
    found = iter([{"bert-tf": value} for value in values])
    monkeypatch.setattr(module, name, lambda *_: next(found))
    errors, _ = outcomes({}, {})
    assert message in errors[0] and errors[0] == errors[1]


def test_one_worker_agrees_with_itself():
    worker_checks.require(tf.distribute.OneDeviceStrategy("/cpu:0"), values=None)


def test_the_path_of_a_checkpoint_may_differ_but_no_setting(outcomes, monkeypatch):
    monkeypatch.setattr(worker_checks, "require", lambda strategy, values: compared.append(values()))
    compared = []
    for path, rate in (("a", 1), ("b", 1), ("b", 2)):
        run = types.SimpleNamespace(strategy=None, config=tiny_config(), vocab_file="", compilation=Compilation.NONE)
        run.data_settings = functools.partial(dict, init_checkpoint=path)
        run.training_config = TrainingConfig(optimizer=OptimizerConfig(rate))
        run._resume_settings = Run._resume_settings.func(run)
        Run.check_workers(run)
    assert compared[0] == compared[1] != compared[2]
    assert compared[0]["bert_config"]["vocab_size"] == 41


def test_the_state_is_the_step_and_every_bit_of_every_variable():
    def state(a=0.0, b=7, is_reversed=False):
        values = np.zeros([2, 3], np.float32)
        values[1, 2] = a
        variables = [("a", tf.Variable(values)), ("b", tf.Variable(np.int64(b)))]
        return worker_checks.state(5, dict(variables[:: -1 if is_reversed else 1]))

    assert state() == state(is_reversed=True) and state()["step"] == 5
    assert state() not in (state(a=1e-45), state(b=8))
