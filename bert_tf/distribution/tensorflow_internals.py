"""All private names of TensorFlow that this package uses. CONTRIBUTING lists them with their tests.

Importing this module makes TensorFlow release custom gradients together with their graphs. Import it before tracing.
"""

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

    In a graph, `tf.custom_gradient`, `tf.recompute_grad` and the sums over replicas register a gradient in each call.
    TensorFlow keeps it until the process ends, and it refers to the graph. Here, the graph has the strong reference.
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


ops.gradient_registry.__class__ = _GradientRegistry


def set_absl_log_level(level: int) -> None:
    """Sets the lowest level of absl's log. Has no effect if this TensorFlow's function has another name."""
    library = os.path.join(tf.sysconfig.get_lib(), "libtensorflow_framework.so.2")
    with contextlib.suppress(OSError):
        loaded = ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        for name in _SET_ABSL_LEVEL:
            with contextlib.suppress(AttributeError):
                getattr(loaded, name)(level)


def lacks_onednn() -> bool:
    """Returns whether oneDNN is disabled; False if it is unknown."""
    with contextlib.suppress(ImportError, AttributeError):
        from tensorflow.python.util import _pywrap_util_port

        return not _pywrap_util_port.IsMklEnabled()
    return False


def is_compiled_by_xla() -> bool:
    """Returns whether this is called in a function that XLA compiles as a whole."""
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def optimization_barrier(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the tensors. XLA computes none of them, nor what uses them, before it has computed all."""
    return gen_xla_ops.xla_optimization_barrier(tensors)


def configure_coordination(leader: str, jobs: Mapping[str, int], timeout: int) -> None:
    """Configures the service through which workers notice each other's failures, unless this has been done.

    The strategy keeps a configuration that exists before it is built. Otherwise its timeout is ten seconds, which is
    too short for a busy machine.

    Args:
      leader: the worker with the service, as the name of a device.
      jobs: maps types of workers to their numbers.
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


def report_to_workers(name: str, message: str, timeout: float) -> None:
    """Ends all workers' computations with an error.

    Args:
      name: the name of a value that was set before.
      message: the message of the error.
      timeout: the longest time in seconds to wait for the coordination service.

    Raises:
      tf.errors.OpError: if the coordination service does not respond.
    """
    # Reporting to a service that hangs would hang. Reading a value that was set before fails after a timeout.
    context.context().get_config_key_value(name, timeout_in_ms=int(1000 * timeout))
    context.context().report_error_to_cluster(tf.errors.UNAVAILABLE, message)
