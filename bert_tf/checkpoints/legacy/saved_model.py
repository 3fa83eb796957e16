"""Reads the variables and the settings of a SavedModel. Its functions are not run: they are searched for constants."""

import functools
import itertools
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef, SignatureDef
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from bert_tf.checkpoints.saver import ReadTensor, Shapes, open_bundle
from bert_tf.config import RELEASED_LAYER_NORM_EPSILON
from bert_tf.optimization import TRAINING_STATE
from bert_tf.runtime import files
from bert_tf.runtime.errors import InputError

SAVED_MODEL_FILE = "saved_model.pb"
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# The keys of variables that training needed and the model does not.
_STATE = re.compile(
    r"(.*/)?(optimizer|keras_api)/.*|.*/\.OPTIMIZER_SLOT/.*|save_counter/.*|_CHECKPOINTABLE_OBJECT_GRAPH"
)
# The operations of activations. GELU's tanh form has a power.
_ACTIVATIONS = {"Erf": "gelu_erf", "Erfc": "gelu_erf", "Pow": "gelu", "Relu": "relu"}
# Hugging Face's architectures by a variable of their output layers.
_ARCHITECTURES = {
    "cls/squad/output_weights": "BertForQuestionAnswering",
    "cls/seq_relationship/output_weights": "BertForPreTraining",
    "cls/predictions/output_bias": "BertForMaskedLM",
}
_ADVICE = "Put the model's bert_config.json into this directory."


def open_saved_model(path: str, where: str) -> tuple[Shapes, ReadTensor]:
    """Opens the variables of a SavedModel, without the state of training. Their names are from its object graph.

    Args:
      path: `saved_model.pb`.
      where: the beginning of error messages.

    Raises:
      InputError: if a file is missing or damaged, or two variables have the same name.
    """
    prefix = os.path.join(os.path.dirname(path), "variables", "variables")
    if not files.exists(f"{prefix}.index"):
        raise InputError(f"{where}: no {prefix}.index. Copy the complete directory of the SavedModel.")
    shapes, read = open_bundle(prefix, f"{where}: ")
    if OBJECT_GRAPH not in shapes:  # a model of TensorFlow 1, where the keys are the names
        return {name: shape for name, shape in shapes.items() if not re.fullmatch(TRAINING_STATE, name)}, read
    nodes = _graph(path, where).object_graph_def.nodes
    return named_variables(shapes, read, where, [node.variable.trainable for node in nodes])


def named_variables(
    shapes: Shapes, read: ReadTensor, where: str, is_trained: Sequence[bool] = ()
) -> tuple[Shapes, ReadTensor]:
    """Returns the variables of a TensorFlow 2 checkpoint by their own names, without the state of training.

    Args:
      shapes: the shapes by the keys in the checkpoint.
      read: returns the tensor with a key.
      where: the beginning of error messages.
      is_trained: for each object of the checkpoint, whether it is a trained variable; all are by default.

    Raises:
      InputError: if two variables have the same name.
    """
    keys: dict[str, str] = {}
    for node, trained in itertools.zip_longest(TrackableObjectGraph.FromString(read(OBJECT_GRAPH)).nodes, is_trained):
        for attribute in node.attributes if trained is not False else ():
            key, name = attribute.checkpoint_key, attribute.full_name
            if key in shapes and not _STATE.fullmatch(key) and keys.setdefault(name, key) != key:
                raise InputError(f"{where}: two variables are called {name}. Use a file of one BERT model.")
    return {name: shapes[key] for name, key in keys.items()}, lambda name: read(keys[name])


@functools.lru_cache(maxsize=2)
def _parsed(path: str, _: object) -> SavedModel:
    with files.open_file(path, "rb") as reader:
        return SavedModel.FromString(reader.read())


def _graph(path: str, where: str) -> MetaGraphDef:
    """Returns the graph for serving. TensorFlow Hub's first format also contains one for training."""
    try:
        graphs = _parsed(path, files.stamp(path)).meta_graphs
        return next(graph for graph in graphs if "train" not in graph.meta_info_def.tags)
    except (DecodeError, StopIteration):
        raise InputError(f"{where}: damaged, or not a SavedModel. Copy the file again.") from None


def _nodes(graph: MetaGraphDef) -> Iterator[NodeDef]:
    yield from graph.graph_def.node
    for function in graph.graph_def.library.function:
        yield from function.node_def


def _small_constant(node: NodeDef) -> list[Any]:
    """Returns the numbers of a constant of up to four numbers; nothing for other operations."""
    tensor = node.attr["value"].tensor
    is_small = math.prod(dim.size for dim in tensor.tensor_shape.dim) in range(1, 5)
    return tf.make_ndarray(tensor).ravel().tolist() if node.op == "Const" and is_small else []


def _constants(graph: MetaGraphDef, pattern: str) -> dict[str, list[Any]]:
    """Returns the numbers of the small constants whose names end with a pattern."""
    found = ((node.name, _small_constant(node)) for node in _nodes(graph) if re.search(f"{pattern}$", node.name))
    return {name: values for name, values in found if values}


def settings(path: str, shapes: Shapes, stored: Mapping[str, str], where: str) -> dict[str, Any]:
    """Returns the settings of a model that its variables do not show: heads, activation and epsilon.

    Args:
      path: `saved_model.pb`.
      shapes: maps the names of the variables to their shapes.
      stored: maps released names to names.
      where: the beginning of error messages.

    Raises:
      InputError: if the number of heads or the activation is not clear.
    """
    graph = _graph(path, where)
    query = shapes[stored["bert/encoder/layer_0/attention/self/query/kernel"]]
    if len(query) == 3:
        heads = {query[1]}
    else:  # found where the query is divided: reshape(query, [batch, length, heads, size])
        whole = _constants(graph, r"attention/self/Reshape(_\d+)?/shape").values()
        parts = _constants(graph, r"attention/self/Reshape(_\d+)?/shape/[23]")
        pairs = [(*values, *parts.get(f"{name[:-1]}3", ())) for name, values in parts.items() if name.endswith("/2")]
        pairs += [tuple(values[2:]) for values in whole]
        heads = {pair[0] for pair in pairs if len(pair) == 2 and math.prod(pair) == query[1]}
    found = {node.op for node in _nodes(graph)} & _ACTIVATIONS.keys()
    activations = {_ACTIVATIONS[name] for name in found}
    for name, values in (("number of attention heads", heads), ("activation", activations)):
        if len(values) != 1:
            raise InputError(f"{where}: the {name} is not clear ({sorted(values) or 'not found'}). {_ADVICE}")
    epsilons = {float(str(np.float32(value))) for (value,) in _constants(graph, "batchnorm/add/y").values()}
    epsilons |= {float(str(np.float32(n.attr["epsilon"].f))) for n in _nodes(graph) if n.op == "FusedBatchNormV3"}
    if len(epsilons) > 1:
        raise InputError(f"{where}: several epsilons of layer normalisation ({sorted(epsilons)}). {_ADVICE}")
    return {
        "num_attention_heads": heads.pop(),
        "hidden_act": activations.pop(),
        "layer_norm_eps": next(iter(epsilons), RELEASED_LAYER_NORM_EPSILON),
    }


def casing(path: str, where: str) -> bool | None:
    """Returns whether the model is uncased; None if this is not recorded.

    TensorFlow Hub's models record it: in a variable, or (in the first format) in a constant of a signature. Models that
    take texts have an operation that changes the case.
    """
    graph = _graph(path, where)
    shapes, read = open_bundle(os.path.join(os.path.dirname(path), "variables", "variables"), f"{where}: ")
    flags = {bool(value) for key in shapes if shapes[key] == () and isinstance(value := read(key), np.bool_)}
    if len(flags) == 1:
        return flags.pop()
    nodes = {node.name: node for node in graph.graph_def.node}
    for signature in graph.signature_def.values():
        name = signature.outputs["do_lower_case"].name if "do_lower_case" in signature.outputs else ""
        for _ in range(9):  # through a few identity operations
            node = nodes.get(name.partition(":")[0], NodeDef())
            if value := _small_constant(node):
                return bool(value[0])
            name = next(iter(node.input), "")
    operations = {node.op for node in _nodes(graph)}
    return "CaseFoldUTF8" in operations if any("WordpieceTokenize" in name for name in operations) else None


def architecture(path: str, shapes: Shapes, stored: Mapping[str, str], where: str) -> str:
    """Returns Hugging Face's name of the architecture, from the output layer and the signature for serving.

    Args:
      path: `saved_model.pb`.
      shapes: maps the names of the variables to their shapes.
      stored: maps released names to names.
      where: the beginning of error messages.
    """
    if "output_weights" not in stored:
        return next((name for head, name in _ARCHITECTURES.items() if head in stored), "BertModel")
    outputs = _graph(path, where).signature_def.get("serving_default", SignatureDef()).outputs
    if any("start" in name for name in outputs):
        return "BertForQuestionAnswering"
    dims = [[dim.size for dim in tensor.tensor_shape.dim] for tensor in outputs.values()]
    is_tagger = any(len(sizes) == 3 and sizes[2:] == [*shapes[stored["output_bias"]]] for sizes in dims)
    return "BertForTokenClassification" if is_tagger else "BertForSequenceClassification"


def with_span_head(path: str, shapes: Shapes, stored: Mapping[str, str], where: str) -> dict[str, str]:
    """Returns the names of the variables with the released name of a question-answering model's output layer."""
    if architecture(path, shapes, stored, where) != "BertForQuestionAnswering":
        return dict(stored)
    return {re.sub("^output_", "cls/squad/output_", name): stored[name] for name in stored}
