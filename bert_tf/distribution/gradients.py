"""Makes TensorFlow release custom gradients together with their graphs. Import this module before tracing graphs."""

import weakref
from collections.abc import Callable

import tensorflow as tf
from tensorflow.python.framework import func_graph, ops, registry
from tensorflow.python.ops import custom_gradient


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
