"""Builds the `tf.distribute` strategy, and provides functions whose implementation depends on the strategy."""

import functools
import os
import platform
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from bert_tf.distribution import hardware, tensorflow_internals, workers
from bert_tf.distribution.assumed_devices import AssumedDevices
from bert_tf.distribution.devices import DistributionConfig
from bert_tf.runtime import dry_run
from bert_tf.runtime.files import InputError
from bert_tf.runtime.messages import say

T = TypeVar("T")
# Seconds to wait for a TPU before a message is printed.
_SECONDS_OF_SILENCE = 5.0
_TPU_LOCK = "/tmp/libtpu_lockfile"
_TPU_PACKAGES = f"tensorflow-tpu=={tf.__version__} libtpu==0.0.31"
_ERRORS_ONLY = 2  # a value of TF_CPP_MIN_LOG_LEVEL


def _quieten_tensorflow() -> None:
    """Applies TF_CPP_MIN_LOG_LEVEL to TensorFlow's Python log and absl's log, which ignore it.

    `lazy_imports.prepare_tensorflow` sets a default for this variable. The Python log would warn about every new graph
    of a step, but one graph per length is expected.
    """
    level = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "")
    if not level.isdecimal():
        return
    if int(level) >= _ERRORS_ONLY:
        tf.get_logger().setLevel("ERROR")
    tensorflow_internals.set_absl_log_level(int(level))


def _warn_of_lost_onednn() -> None:
    """Warns if TensorFlow was imported before `lazy_imports.prepare_tensorflow` could enable oneDNN."""
    is_wanted = os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "1" and platform.machine() == "x86_64"
    if is_wanted and tensorflow_internals.lacks_onednn():
        warnings.warn(
            "TensorFlow was imported before bert_tf.api, so oneDNN is disabled. Computation is slower, and the last "
            "digits differ from the programs' results. Import bert_tf.api first, or set TF_ENABLE_ONEDNN_OPTS=1.",
            stacklevel=2,
        )


_quieten_tensorflow()
_warn_of_lost_onednn()


def build_strategy(config: DistributionConfig, several_hosts: bool = False) -> tf.distribute.Strategy:
    """Builds the requested strategy, and sets TensorFlow options of the process. A dry run assumes the devices.

    On a TPU, `allow_tf32` has no effect: float32 matrix multiplications have the default precision of the TPU, as in
    the original code. Otherwise, TensorFlow would split each one into six bfloat16 multiplications.

    Args:
      config: the devices.
      several_hosts: whether the program can use a TPU with hosts on other machines. Input pipelines on such hosts can't
        call Python.

    Raises:
      InputError: if workers can't connect (see `workers.connect`), no TPU with this name can be reached, or the program
        can't use this TPU.
    """
    tensorflow_internals.release_gradients_with_graphs()
    is_tf32_allowed = config.allow_tf32 or config.distribution_strategy == "tpu"
    tf.config.experimental.enable_tensor_float_32_execution(is_tf32_allowed)
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
    if dry_run.is_on():
        strategy = AssumedDevices(config)
    elif config.distribution_strategy == "one_device":
        return tf.distribute.OneDeviceStrategy("/gpu:0" if tf.config.list_logical_devices("GPU") else "/cpu:0")
    elif config.distribution_strategy == "mirrored":
        devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        return _build_mirrored_strategy(*(device.name for device in devices))
    elif config.distribution_strategy == "multi_worker":
        return workers.connect(config.worker_timeout)
    else:
        strategy = _build_tpu_strategy(config)
    if config.distribution_strategy == "tpu" and not several_hosts and not _has_only_this_host(strategy):
        raise InputError(
            f"the TPU {config.tpu_name!r} has several hosts, or its host is another machine. Run this program on a "
            "single-host TPU VM with --tpu_name=local. (Only run_pretraining.py supports such TPUs.)",
            "--tpu_name",
        )
    return strategy


@functools.cache  # two strategies would give their sums the same numbers, and confuse them
def _build_mirrored_strategy(*devices: str) -> tf.distribute.Strategy:
    return tf.distribute.MirroredStrategy(devices)


@functools.cache  # initialising the TPU again would delete all variables on it
def _build_tpu_strategy(config: DistributionConfig) -> tf.distribute.Strategy:
    message = f"Waiting for the TPU {config.tpu_name!r}"
    if config.tpu_name != "local":
        message += ", or for the cloud's metadata server, which gives --tpu_zone and --gcp_project"
    waiting = threading.Timer(_SECONDS_OF_SILENCE, say, [f"{message}."])
    waiting.start()
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect(
            tpu=config.tpu_name, zone=config.tpu_zone or None, project=config.gcp_project or None
        )
        strategy = tf.distribute.TPUStrategy(resolver)
    except (ValueError, RuntimeError, OSError, tf.errors.OpError) as error:
        raise InputError(_explain_missing_tpu(config.tpu_name, str(error)), "--tpu_name") from None
    finally:
        waiting.cancel()
    cores = strategy.num_replicas_in_sync
    if config.num_tpu_cores and cores != config.num_tpu_cores:
        raise InputError(
            f"--num_tpu_cores is {config.num_tpu_cores}, but the TPU {config.tpu_name!r} has {cores} cores. Omit "
            "--num_tpu_cores to use all cores."
        )
    return strategy


def _explain_missing_tpu(name: str, error: str) -> str:
    """Returns a message with the reason why the TPU can't be used, and advice."""
    if "No OpKernel was registered" in error:
        return (
            "this build of TensorFlow can't use TPUs. Uninstall the packages tensorflow and tensorflow-tpu, then run "
            f"`pip install {_TPU_PACKAGES}`."
        )
    if re.search("in use|busy", error, re.IGNORECASE) or _is_locked(_TPU_LOCK):
        return (
            f"the TPU {name!r} is used by another program. Stop that program (`sudo lsof -w /dev/accel* /dev/vfio/*` "
            f"lists it) or, if there is none, delete {_TPU_LOCK}. Then run this program again."
        )
    return (
        f"no TPU {name!r} was found ({error.strip().partition(chr(10))[0]}). On a TPU VM, pass --tpu_name=local and "
        f"install {_TPU_PACKAGES}. Elsewhere, check --tpu_name, --tpu_zone and --gcp_project."
    )


def _is_locked(path: str) -> bool:
    """Returns True if another process has locked a file. libtpu locks a file while it uses the TPU of this machine."""
    import fcntl

    try:
        with open(path, "r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
    except OSError as error:
        return not isinstance(error, FileNotFoundError)


def is_multi_worker(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether other processes take part in each training step."""
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


def input_pipelines(strategy: tf.distribute.Strategy) -> int:
    """Returns the number of input pipelines: one for each worker, or for each host of a TPU."""
    workers = strategy.num_replicas_in_sync // len(strategy.extended.worker_devices)
    return getattr(strategy.extended, "num_hosts", workers)  # only for a TPU and for assumed devices


def can_read_with_python(strategy: tf.distribute.Strategy) -> bool:
    """Returns True if input pipelines can call Python. On TPU hosts that are other machines, they can't."""
    return not hardware.is_tpu(strategy) or _has_only_this_host(strategy)


def _has_only_this_host(strategy: tf.distribute.TPUStrategy) -> bool:
    if isinstance(strategy, AssumedDevices):
        return strategy.is_local
    return strategy.extended.num_hosts == 1 and "/job:localhost" in strategy.extended.worker_devices[0]


def batches(
    strategy: tf.distribute.Strategy, dataset: Callable[[tf.distribute.InputContext], tf.data.Dataset]
) -> Iterator:
    """Returns an iterator over the batches for the replicas of this process.

    If TensorFlow tunes an input pipeline, deleting the iterator may block for up to a minute. TensorFlow always tunes
    the pipeline that a strategy builds from `dataset`. With one replica per process, this function does not use the
    strategy's pipeline. With several replicas, the end of a run may take up to a minute longer.

    Args:
      strategy: the strategy.
      dataset: returns the batches of one input pipeline, each element for one replica.
    """
    if isinstance(strategy, AssumedDevices):
        return iter(dataset(strategy.context))
    pipelines = []

    def pipeline(context: tf.distribute.InputContext) -> tf.data.Dataset:
        pipelines.append(dataset(context))
        return pipelines[-1]

    distributed = strategy.distribute_datasets_from_function(pipeline)
    if len(strategy.extended.worker_devices) > 1 or hardware.is_tpu(strategy):
        return iter(distributed)
    options = tf.data.Options()
    options.autotune.enabled = False
    return iter(pipelines[0].with_options(options))


def sum_over_replicas(values: Any, gradients: Sequence[tf.Tensor], dtype: str) -> tuple[Any, list[tf.Tensor]]:
    """Sums the results of all replicas. Call it in a replica.

    Args:
      values: float32 tensors in any structure.
      gradients: float32 tensors.
      dtype: the dtype in which gradients are sent and summed, if there are several replicas.

    Returns:
      The sums of the values and of the gradients, in float32.
    """
    replica = tf.distribute.get_replica_context()
    if replica.num_replicas_in_sync == 1:
        return values, list(gradients)
    add_up = functools.partial(replica.all_reduce, tf.distribute.ReduceOp.SUM)
    if dtype == "float32":
        return add_up((values, gradients))
    # One all_reduce requires tensors of the same dtype.
    sums = add_up([tf.cast(gradient, dtype) for gradient in gradients])
    return add_up(values), [tf.cast(gradient, tf.float32) for gradient in sums]


def wait_for_workers(strategy: tf.distribute.Strategy) -> None:
    """Waits until all processes have called this function."""
    if is_multi_worker(strategy):
        workers.wait(strategy)


def devices(strategy: tf.distribute.Strategy) -> dict[str, object]:
    """Returns the properties of the devices that influence the trained weights through dropout and TensorFloat-32."""
    kind = tf.DeviceSpec.from_string(strategy.extended.worker_devices[0]).device_type
    if isinstance(strategy, AssumedDevices):
        kind = strategy.kind
    tf32 = {"allow_tf32": tf.config.experimental.tensor_float_32_execution_enabled()} if kind == "GPU" else {}
    return {"replicas": strategy.num_replicas_in_sync, "device": kind, **tf32}


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Returns True if this process writes checkpoints and reports. In a cluster, one worker does."""
    resolver = strategy.cluster_resolver
    if not is_multi_worker(strategy) or resolver is None:
        return True
    has_own_job = "chief" in resolver.cluster_spec().jobs
    return resolver.task_type == "chief" or (not has_own_job and resolver.task_id == 0)


def computing(function: Callable[..., T]) -> Callable[..., T]:
    """Returns a function that computes results, such as predictions. A dry run ends when it is called."""

    @functools.wraps(function)
    def call(*arguments: Any) -> T:
        dry_run.end()
        return function(*arguments)

    return call


def replicated(
    function: Callable[[Mapping[str, tf.Tensor]], Mapping[str, tf.Tensor]],
    strategy: tf.distribute.Strategy,
    has_static_shapes: bool = False,
) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """Compiles a function so that each replica computes its part of the batch.

    Args:
      function: takes and returns named tensors [B, ...] with one row per example.
      strategy: the strategy in whose scope the function's variables were built.
      has_static_shapes: whether all batches have the same shape, as on a TPU.

    Returns:
      A function that takes and returns arrays. B must be a multiple of the number of replicas.
    """
    replicas = strategy.num_replicas_in_sync
    is_static = has_static_shapes or hardware.is_tpu(strategy)

    @tf.function(reduce_retracing=not is_static, autograph=False)
    def run(batch: Mapping[str, tf.Tensor]) -> Mapping[str, tf.Tensor]:
        return strategy.run(function, args=(batch,))

    def split_and_run(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        def replica_batch(context: Any) -> dict[str, tf.Tensor]:
            i = context.replica_id_in_sync_group
            return {
                name: tf.constant(x[i * len(x) // replicas : (i + 1) * len(x) // replicas]) for name, x in batch.items()
            }

        if replicas == 1 and not is_static and not run.experimental_get_tracing_count():
            # Trace for any shape. Otherwise, TensorFlow would first trace for the shape of the first batch.
            run.get_concrete_function({name: tf.TensorSpec([None] * x.ndim, x.dtype) for name, x in batch.items()})
        outputs = run(strategy.experimental_distribute_values_from_function(replica_batch))
        return {
            name: np.concatenate([output.numpy() for output in strategy.experimental_local_results(value)])
            for name, value in outputs.items()
        }

    return computing(split_and_run)
