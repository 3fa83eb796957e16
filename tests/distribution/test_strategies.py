import ctypes
import logging
import os
import platform
import subprocess
import sys
import threading
import warnings
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.util import _pywrap_util_port

from benchmarks.traced_step import OneCore
from bert_tf.distribution import hardware, strategies, tensorflow_internals
from bert_tf.distribution.devices import DistributionConfig
from bert_tf.distribution.strategies import build_strategy
from bert_tf.runtime.errors import InputError
from tests.conftest import assert_refused

TPU = DistributionConfig("tpu", "local", num_tpu_cores=8)


def test_float32_is_float32_unless_less_is_allowed_or_on_a_tpu(monkeypatch):
    def connect(**options):
        assert tf.config.experimental.tensor_float_32_execution_enabled()
        raise ValueError("no TPU")

    for allowed in (True, False):
        build_strategy(DistributionConfig(allow_tf32=allowed))
        assert tf.config.experimental.tensor_float_32_execution_enabled() == allowed
    monkeypatch.setattr(tf.distribute.cluster_resolver.TPUClusterResolver, "connect", connect)
    assert_refused("no TPU 'local'", build_strategy, DistributionConfig("tpu", tpu_name="local"))
    build_strategy(DistributionConfig())
    assert not tf.config.experimental.tensor_float_32_execution_enabled()


def test_a_tpu_is_no_cpu_though_the_process_has_one():
    strategy = OneCore()
    assert hardware.is_tpu(strategy)
    assert not hardware.computes_on_tpu()
    compiles = hardware.compiles_parts()
    with strategy.scope():
        assert hardware.computes_on_tpu()
        assert not hardware.compiles_parts()
        assert not hardware.emulates_bfloat16()
    assert strategy.run(hardware.computes_on_tpu)
    assert hardware.compiles_parts() == compiles


def test_what_weights_depend_on_besides_settings_is_recorded():
    strategy = mock.Mock(num_replicas_in_sync=2)
    strategy.extended.worker_devices = ["/job:localhost/replica:0/task:0/device:GPU:0"]
    build_strategy(DistributionConfig())
    assert strategies.devices(strategy) == {"replicas": 2, "device": "GPU", "allow_tf32": False}


class Replica:
    """Substitute for the context of a replica. All other replicas have the same values."""

    def __init__(self, replicas):
        self.num_replicas_in_sync = replicas

    def all_reduce(self, reduce_op, values):
        assert reduce_op == tf.distribute.ReduceOp.SUM
        assert len({value.dtype for value in tf.nest.flatten(values)}) == 1  # TensorFlow requires equal types
        return tf.nest.map_structure(lambda value: value * self.num_replicas_in_sync, values)


@pytest.mark.parametrize(
    ("replicas", "dtype", "expected"), [(2, "float32", 2 + 2**-8), (2, "bfloat16", 2.0), (1, "bfloat16", 1 + 2**-9)]
)
def test_replicas_add_up_gradients_in_the_given_type(monkeypatch, replicas, dtype, expected):
    monkeypatch.setattr(tf.distribute, "get_replica_context", lambda: Replica(replicas))
    value = 1 + 2**-9  # bfloat16 rounds it to 1
    gradients = [tf.constant([value]), tf.constant(value)]
    values, sums = strategies.sum_over_replicas({"loss": tf.constant(value)}, gradients, dtype)
    assert float(values["loss"]) == replicas * value
    assert [(float(tf.squeeze(x)), x.dtype) for x in sums] == [(expected, tf.float32)] * 2


def test_tensorflow_says_nothing_below_errors():
    assert tf.get_logger().level == logging.ERROR


def test_one_replica_reads_a_pipeline_that_is_not_tuned():
    # Removing the iterator of an auto-tuned data set takes up to a minute.
    dataset = tf.data.Dataset.range(3)
    with mock.patch.object(tf.data.Dataset, "with_options", autospec=True, return_value=dataset) as with_options:
        batches = strategies.batches(tf.distribute.OneDeviceStrategy("/cpu:0"), lambda context: dataset)
    assert with_options.call_args.args[1].autotune.enabled is False
    assert [int(batch) for batch in batches] == [0, 1, 2]


def test_strategies_of_one_process_do_not_mix_up_their_sums():
    for shapes in ([[3], [4, 2]], [[6], [2, 9]]):
        strategy = build_strategy(DistributionConfig("mirrored"))

        def sums(shapes=shapes):
            return tf.distribute.get_replica_context().all_reduce("sum", [tf.ones(shape) for shape in shapes])

        for each in tf.function(strategy.run)(sums):
            assert [float(tf.reduce_max(part)) for part in strategy.experimental_local_results(each)] == [2, 2]


def test_batches_of_any_shape_share_one_trace():
    traced = []
    run = strategies.replicated(
        lambda batch: traced.append(1) or {"y": 2 * batch["x"]}, build_strategy(DistributionConfig())
    )
    for shape in ((2, 3), (4, 5), (1, 7)):
        np.testing.assert_array_equal(run({"x": np.ones(shape)})["y"], np.full(shape, 2.0))
    assert len(traced) == 1


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names in libraries differ between processors")
def test_tensorflow_has_the_function_that_sets_the_level_of_absl_s_log():
    library = ctypes.CDLL(os.path.join(tf.sysconfig.get_lib(), "libtensorflow_framework.so.2"))
    assert any(hasattr(library, name) for name in tensorflow_internals._SET_ABSL_LEVEL)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="oneDNN is TensorFlow's own choice on other processors")
def test_onednn_is_used_and_missed_where_tensorflow_was_imported_first(monkeypatch):
    assert _pywrap_util_port.IsMklEnabled()
    monkeypatch.setattr(_pywrap_util_port, "IsMklEnabled", lambda: False)
    with pytest.warns(UserWarning, match="Import bert_tf.api first"):
        strategies._warn_of_lost_onednn()
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")  # a value that the user has set
    with warnings.catch_warnings(action="error"):
        strategies._warn_of_lost_onednn()


@pytest.mark.parametrize(("local", "is_tpu_build", "compiles"), [(1, False, True), (2, False, False), (1, True, False)])
def test_parts_are_compiled_with_one_replica_in_a_process(monkeypatch, local, is_tpu_build, compiles):
    """Replicas of other processes do not count. The TPU build of TensorFlow compiles no parts on a CPU."""
    extended = mock.Mock(worker_devices=["/cpu:0"] * local)
    strategy = mock.Mock(extended=extended, num_replicas_in_sync=2)
    monkeypatch.setattr(tf.distribute, "has_strategy", lambda: True)
    monkeypatch.setattr(tf.distribute, "get_strategy", lambda: strategy)
    monkeypatch.setattr(hardware, "_is_tpu_build", lambda: is_tpu_build)
    assert hardware.compiles_parts() == compiles


@pytest.mark.parametrize(
    ("has_gpu", "given", "during"), [(False, False, True), (True, False, False), (True, True, True)]
)
def test_the_graph_optimizer_is_off_on_cpus_and_then_as_before(monkeypatch, has_gpu, given, during):
    def is_off():
        return tf.config.optimizer.get_experimental_options()["disable_meta_optimizer"]

    monkeypatch.setattr(hardware, "has_only_cpus", lambda: not has_gpu)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": given})
    try:
        with pytest.raises(KeyError), hardware.without_graph_optimizer():
            assert is_off() == during
            raise KeyError
        assert is_off() == given
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


def test_determinism_is_asked_of_tensorflow(monkeypatch):
    enable = mock.Mock()
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", enable)
    build_strategy(DistributionConfig())
    enable.assert_not_called()
    build_strategy(DistributionConfig(deterministic=True))
    enable.assert_called_once_with()


def tpu(cores, hosts, job):
    """Returns a substitute for the strategy of a TPU."""
    strategy = mock.create_autospec(tf.distribute.TPUStrategy, instance=True)
    strategy.num_replicas_in_sync = cores
    strategy.extended = mock.Mock(num_hosts=hosts, worker_devices=[f"/job:{job}/replica:0/task:0/device:TPU:0"])
    return strategy


@pytest.fixture
def connect(monkeypatch):
    """Replaces the function that finds a TPU, and returns the substitute."""
    strategies._build_tpu_strategy.cache_clear()
    monkeypatch.setattr(strategies, "_TPU_LOCK", "no such file")
    connect = mock.Mock()
    monkeypatch.setattr(tf.distribute.cluster_resolver.TPUClusterResolver, "connect", connect)
    yield connect
    strategies._build_tpu_strategy.cache_clear()


UNSUPPORTED = "No OpKernel was registered to support Op 'ConfigureDistributedTPU'"


@pytest.mark.parametrize(
    ("kind", "message", "word"),
    [
        (tf.errors.NotFoundError, UNSUPPORTED, f"tensorflow-tpu=={tf.__version__}"),
        (tf.errors.NotFoundError, "TPUs not found in the cluster.", "TPU VM"),
        (tf.errors.InternalError, "Failed to get the topology.\nMore.", "TPU VM"),
        (tf.errors.InternalError, "open(/dev/vfio/0): Device or resource busy", "another program"),
        (tf.errors.AbortedError, "The TPU is already in use by process with pid 7.", "another program"),
        (ValueError, "Could not lookup TPU metadata from name 'local'.", "--tpu_zone"),
        (RuntimeError, "Missing runtime dependency on the Google API client.", "Google API client"),
        (OSError, "the metadata server can't be reached", "--gcp_project"),
    ],
)
def test_a_tpu_that_cannot_be_used_is_reported_in_one_line(connect, kind, message, word):
    connect.side_effect = kind(None, None, message) if issubclass(kind, tf.errors.OpError) else kind(message)
    with pytest.raises(InputError) as raised:
        build_strategy(TPU)
    message = str(raised.value)
    assert message.startswith("--tpu_name: ") and word in message and "\n" not in message


def test_a_tpu_that_another_program_has_locked_is_reported(connect, monkeypatch, tmp_path):
    connect.side_effect = tf.errors.NotFoundError(None, None, "TPUs not found in the cluster.")
    lock = tmp_path / "lock"
    lock.touch()
    monkeypatch.setattr(strategies, "_TPU_LOCK", str(lock))
    assert_refused("no TPU 'local' was found", build_strategy, TPU)
    code = f"import fcntl; f = open({str(lock)!r}, 'r+'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        assert_refused("another program", build_strategy, TPU)
        other.communicate(b"\n")


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (tpu(4, 1, "localhost"), "--num_tpu_cores is 8.* 4 cores"),
        (tpu(8, 2, "localhost"), "--tpu_name: .*several hosts.*run_pretraining.py"),
        (tpu(8, 1, "worker"), "--tpu_name: .*another machine.*run_pretraining.py"),
    ],
    ids=["cores", "hosts", "machine"],
)
def test_a_tpu_that_does_not_fit_is_refused(connect, monkeypatch, found, message):
    monkeypatch.setattr(tf.distribute, "TPUStrategy", lambda resolver: found)
    assert_refused(message, build_strategy, TPU)


def test_a_tpu_is_initialised_once_and_may_have_several_hosts_in_pretraining(connect, monkeypatch):
    found = tpu(8, 2, "worker")
    monkeypatch.setattr(tf.distribute, "TPUStrategy", lambda resolver: found)
    assert [build_strategy(TPU, several_hosts=True) for _ in range(2)] == [found, found]
    connect.assert_called_once_with(tpu="local", zone=None, project=None)


def test_a_wait_for_a_tpu_is_reported(connect, monkeypatch):
    reported = threading.Event()
    monkeypatch.setattr(strategies, "_SECONDS_OF_SILENCE", 0)
    monkeypatch.setattr(strategies, "say", lambda message: "'local'" in message and reported.set())
    connect.side_effect = lambda **_: reported.wait(100)
    monkeypatch.setattr(tf.distribute, "TPUStrategy", lambda found: found and tpu(8, 1, "localhost"))
    build_strategy(TPU)
    assert reported.is_set()


@pytest.mark.parametrize(("capability", "name"), [((7, 5), "Tesla T4"), ((8, 0), ""), (None, "")])
def test_a_gpu_without_bfloat16_is_named(capability, name, monkeypatch):
    details = {"device_name": "Tesla T4"} | ({"compute_capability": capability} if capability else {})
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [mock.Mock()] if kind == "GPU" else [])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: details)
    assert hardware.gpu_without_bfloat16() == name
