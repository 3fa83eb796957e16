"""The hardware of this process: types and instructions of devices, and whether XLA can compile for them."""

import contextlib
import functools
import importlib.metadata
from collections.abc import Iterator

import tensorflow as tf

from bert_tf.distribution import tensorflow_internals
from bert_tf.distribution.assumed_devices import AssumedDevices

# Linux's names for bfloat16 multiplication instructions: the first two on x86, the last on Arm.
_BFLOAT16_INSTRUCTIONS = {"avx512_bf16", "amx_bf16", "bf16"}
# The lowest compute capability of GPUs with bfloat16 instructions.
_BFLOAT16_CAPABILITY = (8, 0)


def emulates_bfloat16() -> bool:
    """Returns whether the program runs on a CPU without bfloat16 instructions."""
    return has_only_cpus() and _cpu_lacks_bfloat16()


@functools.cache
def _cpu_lacks_bfloat16() -> bool:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as reader:
            return _BFLOAT16_INSTRUCTIONS.isdisjoint(reader.read().split())
    except FileNotFoundError:  # not Linux
        return False


def gpu_without_bfloat16() -> str:
    """Returns the name of a GPU without bfloat16 instructions, or "" if there is none."""
    for gpu in tf.config.list_physical_devices("GPU"):
        details = tf.config.experimental.get_device_details(gpu)
        if details.get("compute_capability", _BFLOAT16_CAPABILITY) < _BFLOAT16_CAPABILITY:
            return details.get("device_name", gpu.name)
    return ""


def compiles_parts() -> bool:
    """Returns True if small functions of a step are compiled by XLA: on a CPU, with one replica in this process.

    Several replicas on one CPU are for tests. Their steps are so short that compiling would take longer.
    """
    replicas = len(tf.distribute.get_strategy().extended.worker_devices) if tf.distribute.has_strategy() else 1
    return has_only_cpus() and replicas == 1 and not _is_tpu_build()


@contextlib.contextmanager
def without_graph_optimizer() -> Iterator[None]:
    """Context manager: on CPUs, functions run without TensorFlow's graph optimizer, Grappler.

    Grappler takes a third of the time of the first training step, and saves little time in later steps. Make all calls
    of a function in this context. Otherwise, TensorFlow prepares the function twice.
    """
    name = "disable_meta_optimizer"
    before = tf.config.optimizer.get_experimental_options()[name]
    tf.config.optimizer.set_experimental_options({name: before or has_only_cpus()})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({name: before})


def compiles_all() -> bool:
    """Returns True if the calling code is traced for a function that XLA compiles completely, or runs on a TPU."""
    return computes_on_tpu() or tensorflow_internals.is_compiled_by_xla()


def compiles_for_gpu() -> bool:
    """Returns True if the calling code is traced for a function that XLA compiles for a GPU."""
    return compiles_all() and not computes_on_tpu() and not has_only_cpus()


@functools.cache
def _is_tpu_build() -> bool:
    """Returns True for TensorFlow's TPU build, in which XLA can't compile for CPUs."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return bool(importlib.metadata.version("tensorflow-tpu"))
    return False


def has_only_cpus() -> bool:
    """Returns True if the calling code runs on CPUs: the program has no GPU and is not in the scope of a TPU."""
    return not computes_on_tpu() and len(tf.config.list_logical_devices()) == len(tf.config.list_logical_devices("CPU"))


def is_tpu(strategy: tf.distribute.Strategy) -> bool:
    """Returns True if the strategy uses a TPU. A TPU runs several steps in one loop on the device."""
    is_assumed = isinstance(strategy, AssumedDevices) and strategy.kind == "TPU"
    return is_assumed or isinstance(strategy, tf.distribute.TPUStrategy)


def computes_on_tpu() -> bool:
    """Returns True in the scope or a replica of a strategy that uses a TPU."""
    return is_tpu(tf.distribute.get_strategy())
