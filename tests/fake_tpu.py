"""Runs a program with a simulated TPU, whose cores are logical CPU devices, and describes the graphs for the TPU.

    python -m tests.fake_tpu --cores=8 --graphs=graphs.jsonl run_classifier.py --use_tpu --tpu_name=local ...

The script replaces functions of TensorFlow. A graph for the TPU is traced, but not run: a training step only increases
the step number, and the outputs of a model are zeros. All other parts of the program run. With --export, each graph is
also written as MLIR.
"""

import argparse
import collections
import json
import os
import pathlib
import runpy
import sys
from collections.abc import Iterable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.python.distribute import tpu_strategy
from tensorflow.python.eager.polymorphic_function import polymorphic_function
from tensorflow.python.tpu import tpu_system_metadata

# Attributes of nodes that each core runs, and of nodes that the host would run for a core.
_REPLICATED, _ON_HOST = "_tpu_replicate", "_xla_outside_compilation"


class Resolver(tf.distribute.cluster_resolver.TPUClusterResolver):
    """Describes a TPU.

    Args:
      cores: the number of cores.
      hosts: the number of hosts. All hosts have the same number of cores.
    """

    def __init__(self, cores: int, hosts: int = 1) -> None:
        self.devices = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(cores)]
        self.hosts = hosts

    def get_tpu_system_metadata(self) -> tpu_system_metadata.TPUSystemMetadata:
        """Returns the number of cores and hosts."""
        devices = [mock.Mock() for _ in self.devices]
        for device, name in zip(devices, self.devices, strict=True):
            device.name = name.replace("CPU", "TPU")
        return tpu_system_metadata.TPUSystemMetadata(
            len(devices), self.hosts, len(devices) // self.hosts, topology=None, devices=devices
        )

    def master(self, *arguments: object, **options: object) -> str:
        """Returns the address of the TPU on this machine."""
        return ""

    def cluster_spec(self) -> None:
        """Returns None, because there are no other machines."""


def install(cores: int, hosts: int = 1) -> None:
    """Adds a simulated TPU to this process. Call this before TensorFlow runs an operation."""
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * cores
    )
    resolver = Resolver(cores, hosts)
    initialize = tpu_strategy.TPUExtended.__init__

    def initialize_on_cpus(self: tpu_strategy.TPUExtended, *arguments: object, **options: object) -> None:
        initialize(self, *arguments, **options)
        first_cores = resolver.devices[:: cores // hosts]  # replace the hosts
        own = [resolver.devices[i : i + cores // hosts] for i in range(0, cores, cores // hosts)]
        self._tpu_devices = np.array([[device] for device in resolver.devices], object)
        self._host_device = first_cores[0]
        self._device_input_worker_devices = collections.OrderedDict(zip(first_cores, own, strict=True))
        self._host_input_worker_devices = collections.OrderedDict(
            (host, [host] * len(devices)) for host, devices in zip(first_cores, own, strict=True)
        )

    if hosts > 1:  # input pipelines on other machines can't call Python
        tf.numpy_function = tf.py_function = tf.data.Dataset.from_generator = None
    tpu_strategy.TPUExtended.__init__ = initialize_on_cpus
    tf.distribute.cluster_resolver.TPUClusterResolver.connect = staticmethod(lambda *_, **__: resolver)


def describe(graph: graph_pb2.GraphDef) -> dict[str, Any]:
    """Returns the properties of a graph that tests check.

    Returns:
      A dict with these keys:

      - "operations": names of the operations that the cores run
      - "types": data types of these operations
      - "products": data types of the matrix multiplications of activations
      - "host_operations": names of all other operations
      - "unknown_shapes": nodes that the cores run or read and that have an unknown dimension
      - "host_calls": nodes in the cores' part that the host would run
      - "compiled_parts": functions that are compiled separately, like parts of a step on a CPU
    """
    functions = {function.signature.name: list(function.node_def) for function in graph.library.function}
    everything = [*graph.node, *(node for nodes in functions.values() for node in nodes)]
    replicated = list(_with_called((node for node in everything if _REPLICATED in node.attr), functions))
    names = {id(node) for node in replicated}
    read = [node for node in everything if node.op == "IteratorGetNext"]
    return {
        "operations": sorted({node.op for node in replicated}),
        "types": _types(replicated),
        "products": _types(node for node in replicated if node.op.startswith("BatchMatMul")),
        "host_operations": sorted({node.op for node in everything if id(node) not in names}),
        "unknown_shapes": [f"{node.op} {node.name}" for node in (*replicated, *read) if not _is_static(node)],
        "host_calls": [node.name for node in replicated if _ON_HOST in node.attr],
        "compiled_parts": [f.signature.name for f in graph.library.function if f.attr["_XlaMustCompile"].b],
    }


def _with_called(
    nodes: Iterable[node_def_pb2.NodeDef], functions: dict[str, list[node_def_pb2.NodeDef]]
) -> Iterator[node_def_pb2.NodeDef]:
    """Yields the nodes, and the nodes of the functions that they call, each once."""
    left, seen = list(nodes), set()
    while left:
        node = left.pop()
        yield node
        for value in node.attr.values():
            for function in (value.func, *value.list.func):
                if function.name in functions and function.name not in seen:
                    seen.add(function.name)
                    left += functions[function.name]


def _types(nodes: Iterable[node_def_pb2.NodeDef]) -> list[str]:
    return sorted({tf.as_dtype(value.type).name for node in nodes for value in node.attr.values() if value.type})


def _is_static(node: node_def_pb2.NodeDef) -> bool:
    return all(tf.TensorShape(shape).is_fully_defined() for shape in node.attr["_output_shapes"].list.shape)


def trace_only(graphs: pathlib.Path, export: bool) -> None:
    """Traces and describes functions for the TPU when they are called, in place of running them.

    Args:
      graphs: a file, to which a line of JSON is added for each graph.
      export: whether each graph is also written as MLIR, into a file next to this one.
    """
    call = polymorphic_function.Function._call
    described = set()

    def call_or_trace(self: polymorphic_function.Function, *arguments: Any, **options: Any) -> Any:
        if not tf.executing_eagerly():
            return call(self, *arguments, **options)
        concrete = self.get_concrete_function(*arguments, **options)
        graph = concrete.graph.as_graph_def(add_shapes=True)
        nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
        if all(node.op != "TPUReplicateMetadata" for node in nodes):
            return call(self, *arguments, **options)
        if concrete.name not in described:
            described.add(concrete.name)
            with graphs.open("a") as writer:
                writer.write(json.dumps({"function": self.python_function.__name__, **describe(graph)}) + "\n")
            if export:
                from tensorflow.python import pywrap_mlir

                module = pywrap_mlir.import_function(concrete, "", False)
                graphs.with_name(f"{graphs.stem}-{len(described)}.mlir").write_text(module)
        if self.python_function.__name__ == "many_steps":
            step = self.python_function.__self__.optimizer.global_step
            step.assign_add(tf.cast(arguments[1], step.dtype))
        return tf.nest.map_structure(
            lambda x: x if x is None else tf.zeros(x.shape, x.dtype),
            concrete.graph.structured_outputs,
            expand_composites=True,
        )

    polymorphic_function.Function._call = call_or_trace


def main() -> None:
    """Runs a program."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--cores", type=int, default=8)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--directory", default=".", help="where the program runs")
    parser.add_argument(
        "--graphs", type=pathlib.Path, required=True, help="the file for the descriptions of the graphs"
    )
    parser.add_argument("--export", action="store_true", help="also write the graphs as MLIR, next to this file")
    parser.add_argument("program")
    own, arguments = parser.parse_known_args()
    install(own.cores, own.hosts)
    trace_only(own.graphs.absolute(), own.export)
    os.chdir(own.directory)
    sys.argv = [own.program, *arguments]
    runpy.run_path(own.program, run_name="__main__")


if __name__ == "__main__":
    main()
