"""All private names of TensorFlow that this package uses. CONTRIBUTING lists them with their tests."""

import contextlib
import ctypes
import os
import weakref
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.python.eager import context
from tensorflow.python.framework import func_graph, ops, registry
from tensorflow.python.ops import control_flow_util, custom_gradient

# absl::SetMinLogLevel in TensorFlow 2.20 and 2.21.
_SET_ABSL_LEVEL = [f"_ZN4absl12lts_{x}14SetMinLogLevelENS0_18LogSeverityAtLeastE" for x in ("20250127", "20250814")]


class _GradientRegistry(registry.Registry):
    """TensorFlow's registry of gradients, which has only weak references to custom gradients.

    In a graph, each call of `tf.custom_gradient`, `tf.recompute_grad` or a sum over replicas registers a gradient. The
    gradient refers to the graph. TensorFlow keeps both until the process ends. This registry stores the strong
    reference in the graph, so that both are released together.
    """

    __slots__ = ()

    def register(self, candidate: Callable, name: str | None = None) -> None:
        super().register(candidate, name)
        graph = tf.compat.v1.get_default_graph()
        if candidate.__module__ == custom_gradient.__name__ and isinstance(graph, func_graph.FuncGraph):
            graph.custom_gradients = [*getattr(graph, "custom_gradients", []), candidate]
            reference = weakref.ref(candidate)
            self._registry[name]["type"] = lambda *arguments: reference()(*arguments)
            weakref.finalize(candidate, self._registry.pop, name)


def release_gradients_with_graphs() -> None:
    """Makes TensorFlow release custom gradients together with their graphs. Call this before tracing."""
    ops.gradient_registry.__class__ = _GradientRegistry


def set_absl_log_level(level: int) -> None:
    """Sets the lowest level of absl's log. Has no effect if the function has another name in this TensorFlow."""
    library = os.path.join(tf.sysconfig.get_lib(), "libtensorflow_framework.so.2")
    with contextlib.suppress(OSError):
        loaded = ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        for name in _SET_ABSL_LEVEL:
            with contextlib.suppress(AttributeError):
                getattr(loaded, name)(level)


def lacks_onednn() -> bool:
    """Returns True if oneDNN is disabled; False if this is unknown."""
    with contextlib.suppress(ImportError, AttributeError):
        from tensorflow.python.util import _pywrap_util_port

        return not _pywrap_util_port.IsMklEnabled()
    return False


def is_compiled_by_xla() -> bool:
    """Returns True if the calling code is traced for a function that XLA compiles completely."""
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def optimization_barrier(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the same tensors. XLA computes all of them before it computes any operation that uses a result."""
    return gen_xla_ops.xla_optimization_barrier(tensors)


def configure_coordination(leader: str, jobs: Mapping[str, int], timeout: int) -> None:
    """Configures the service that notifies workers of failures of other workers, unless it is already configured.

    Call this before the strategy is built. The strategy keeps an existing configuration; its default timeout of ten
    seconds is too short for a busy machine.

    Args:
      leader: the worker that runs the service, as the name of a device.
      jobs: maps types of workers to the number of workers.
      timeout: seconds without a heartbeat after which a worker is considered lost.
    """
    if context.context().coordination_service is None:
        context.context().configure_coordination_service(
            service_type="standalone",
            service_leader=leader,
            coordinated_jobs=[
                coordination_config_pb2.CoordinatedJob(name=job, num_tasks=count) for job, count in jobs.items()
            ],
            heartbeat_timeout_in_ms=1000 * timeout,
            cluster_register_timeout_in_ms=1000 * timeout,
        )


def is_initialised() -> bool:
    """Returns whether TensorFlow has initialised its devices and services."""
    return context.context()._context_handle is not None


def set_shared_value(name: str, value: str) -> None:
    """Sets a value in the coordination service."""
    context.context().set_config_key_value(name, value)


def wait_for_shared_value(name: str, timeout: float) -> None:
    """Waits until a process has set a value in the coordination service.

    Raises:
      tf.errors.OpError: if the value is not set within `timeout` seconds, or the coordination service has ended.
    """
    context.context().get_config_key_value(name, timeout_in_ms=int(1000 * timeout))


def report_to_workers(name: str, message: str, timeout: float) -> None:
    """Ends the computations of all workers with an error.

    Args:
      name: the name of a value that was already set; see `set_shared_value`.
      message: the message of the error.
      timeout: the longest time in seconds to wait for the coordination service.

    Raises:
      tf.errors.OpError: if the coordination service does not respond.
    """
    # If the service hangs, reporting would hang too. Read an existing value first, because this fails after a timeout.
    wait_for_shared_value(name, timeout)
    context.context().report_error_to_cluster(tf.errors.UNAVAILABLE, message)
