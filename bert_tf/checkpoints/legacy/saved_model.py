"""Reads the variables and the settings of a SavedModel. Its functions are searched for constants, but never run."""

import collections
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

from bert_tf.checkpoints.legacy.keras_names import translated
from bert_tf.checkpoints.saver import ReadTensor, Shapes, open_bundle
from bert_tf.config import BertConfig
from bert_tf.optimization import TRAINING_STATE
from bert_tf.runtime import files
from bert_tf.runtime.errors import InputError
from bert_tf.runtime.messages import say_once
from bert_tf.text.vocabulary import CLS, SEP, UNK

SAVED_MODEL_FILE = "saved_model.pb"
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# Keys of variables that only training needs.
_STATE = re.compile(r"(.*/)?(optimizer|keras_api)/.*|.*/\.OPTIMIZER_SLOT/.*")
# Maps operations in a graph to activations. The tanh form of GELU contains a power.
_ACTIVATIONS = {"Erf": "gelu_erf", "Erfc": "gelu_erf", "Pow": "gelu", "Relu": "relu"}
# Maps embedding tables to the settings that are their sizes.
_TABLES = {"word": "vocab_size", "position": "max_position_embeddings", "token_type": "type_vocab_size"}


def open_saved_model(path: str, where: str) -> tuple[Shapes, ReadTensor]:
    """Opens the variables of a SavedModel, without training state. The names are read from the object graph.

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
    """Returns the variables of a TensorFlow 2 checkpoint by variable name, without training state.

    Args:
      shapes: maps keys in the checkpoint to shapes.
      read: returns the tensor with a key.
      where: the beginning of error messages.
      is_trained: for each object of the checkpoint, whether it is a trained variable. By default, all objects are.

    Raises:
      InputError: if two variables have the same name.
    """
    keys: dict[str, str] = {}
    nodes = _decoded(TrackableObjectGraph, read(OBJECT_GRAPH), where).nodes
    for node, trained in itertools.zip_longest(nodes, is_trained):
        for attribute in node.attributes if node and trained is not False else ():
            key, name = attribute.checkpoint_key, attribute.full_name
            if not shapes.get(key) or _STATE.fullmatch(key):  # scalars are counters and settings
                continue
            if keys.setdefault(name, key) != key:
                raise InputError(f"{where}: two variables are called {name}. Use a file of one BERT model.")
    return {name: shapes[key] for name, key in keys.items()}, lambda name: read(keys[name])


def _decoded(kind: type[Any], data: bytes, where: str) -> Any:
    try:
        return kind.FromString(data)
    except (DecodeError, TypeError):  # TypeError: an array instead of one text
        raise InputError(f"{where}: damaged, or not a SavedModel. Copy the file again.") from None


@functools.lru_cache(maxsize=2)
def _parsed(path: str, where: str, _: object) -> MetaGraphDef:
    with files.open_file(files.require_file(path, where), "rb") as reader:
        graphs = _decoded(SavedModel, reader.read(), where).meta_graphs
    # TensorFlow Hub's first format also contains a graph for training.
    return next((graph for graph in graphs if "train" not in graph.meta_info_def.tags), MetaGraphDef())


def _graph(path: str, where: str) -> MetaGraphDef:
    return _parsed(path, where, files.stamp(path))


def _nodes(graph: MetaGraphDef) -> Iterator[NodeDef]:
    yield from graph.graph_def.node
    for function in graph.graph_def.library.function:
        yield from function.node_def


def _constant(node: NodeDef) -> list[Any]:
    """Returns the values of a constant with one to four numbers; an empty list for other or damaged operations."""
    tensor = node.attr["value"].tensor
    is_small = math.prod(dim.size for dim in tensor.tensor_shape.dim) in range(1, 5)
    if node.op != "Const" or not is_small:
        return []
    try:
        array = tf.make_ndarray(tensor)
    except (TypeError, ValueError):  # the type is unknown, or the values don't fit the shape
        return []
    return array.ravel().tolist() if array.dtype.kind in "biuf" else []


def _signature(path: str, where: str) -> SignatureDef:
    return _graph(path, where).signature_def.get("serving_default", SignatureDef())


def hf_config(directory: str, where: str) -> dict[str, Any]:
    """Returns the settings of a SavedModel in the format of Hugging Face's `config.json`.

    The number of heads, the activation and epsilon are not stored in variables. They are read from the graph.

    Raises:
      InputError: if the model is not a BERT model, or a setting is ambiguous.
    """
    path = os.path.join(directory, SAVED_MODEL_FILE)
    where = f"{where}: {path}"
    shapes, read = open_saved_model(path, where)
    stored, _, _ = translated(shapes, read, where)
    names = [f"bert/embeddings/{name}_embeddings" for name in _TABLES]
    names += [f"bert/encoder/layer_0/{name}/kernel" for name in ("intermediate/dense", "attention/self/query")]
    *tables, inner, query = weight_shapes = [shapes.get(stored.get(name), ()) for name in names]
    if not all(weight_shapes):
        raise InputError(f"{where}: embeddings or layers of BERT are missing. Use a SavedModel of BERT.")
    layers = {name.split("/")[2] for name in stored if name.startswith("bert/encoder/layer_")}
    sizes = {"num_hidden_layers": len(layers), "hidden_size": query[0], "intermediate_size": inner[-1]}
    sizes |= {setting: table[0] for setting, table in zip(_TABLES.values(), tables, strict=True)}
    for setting, choices in _settings(_graph(path, where), query).items():
        if len(choices) != 1:
            shown = sorted(choices) or "nothing"
            remedy = "Put a bert_config.json next to the file."
            raise InputError(f"{where}: {setting} is not clear (found: {shown}). {remedy}")
        sizes[setting] = choices.pop()
    say_once(f"{path}: dropout rates are not recorded in a SavedModel. The usual 0.1 is used.")
    values = BertConfig.from_dict(sizes, where).to_hf_dict()
    del values["architectures"]
    if "output_weights" in stored:
        values["architectures"] = [architecture(path, shapes, stored, where)]
    return values


def _settings(graph: MetaGraphDef, query: tuple[int, ...]) -> dict[str, set]:
    """Finds possible values of the settings that are not stored in variables.

    Args:
      graph: the graph.
      query: the shape of a query kernel.

    Returns:
      Maps settings to the values that were found.
    """
    sizes: dict[str, list] = collections.defaultdict(list)
    settings: dict[str, set] = {"num_attention_heads": {*query[1:-1]}, "hidden_act": set(), "layer_norm_eps": set()}
    for node in sorted(_nodes(graph), key=lambda node: node.name):
        if node.op in _ACTIVATIONS:
            settings["hidden_act"].add(_ACTIVATIONS[node.op])
        elif reshape := re.search(r"(.*attention/self/Reshape(_\d+)?)/shape(/[23])?$", node.name):
            sizes[reshape.group(1)] += _constant(node)  # the shape in reshape(query, [batch, length, heads, size])
        elif node.name.endswith("batchnorm/add/y"):
            settings["layer_norm_eps"] |= {float(str(np.float32(value))) for value in _constant(node)}
    if len(query) == 2:
        settings["num_attention_heads"] = {n[-2] for n in sizes.values() if len(n) > 1 and n[-2] * n[-1] == query[1]}
    return settings


def tokenizer(directory: str, where: str) -> tuple[str | None, dict[str, bool]]:
    """Returns the vocabulary in the assets of a SavedModel, or None, and the recorded rules, or an empty dict."""
    is_uncased, assets = _casing(os.path.join(directory, SAVED_MODEL_FILE), where), os.path.join(directory, "assets")
    names = files.list_directory(assets) if files.is_directory(assets) else []
    texts = [os.path.join(assets, name) for name in names if name.endswith(".txt")]
    vocabulary = next((text for text in texts if {CLS, SEP, UNK} <= {*files.read_text(text, where).split()}), None)
    return vocabulary, {} if is_uncased is None else {"do_lower_case": is_uncased}


def _casing(path: str, where: str) -> bool | None:
    """Returns True if the model is uncased; None if the casing is not recorded.

    If a model takes texts, the casing is determined by an operation that changes the case. TensorFlow Hub's models
    record the casing in a constant of a signature (first format) or in a variable.
    """
    graph = _graph(path, where)
    operations = {node.op for node in _nodes(graph)}
    if any("WordpieceTokenize" in name for name in operations):
        return "CaseFoldUTF8" in operations
    nodes = {node.name: node for node in graph.graph_def.node}
    for signature in graph.signature_def.values():
        name = signature.outputs["do_lower_case"].name if "do_lower_case" in signature.outputs else ""
        for _ in range(9):  # skips a few identity operations
            node = nodes.get(name.partition(":")[0], NodeDef())
            if value := _constant(node):
                return bool(value[0])
            name = next(iter(node.input), "")
    shapes, read = open_bundle(os.path.join(os.path.dirname(path), "variables", "variables"), f"{where}: ")
    flags = {bool(value) for key in shapes if shapes[key] == () and isinstance(value := read(key), np.bool_)}
    return flags.pop() if len(flags) == 1 else None


def architecture(path: str, shapes: Shapes, stored: Mapping[str, str], where: str) -> str:
    """Returns Hugging Face's name for the architecture of a model with an output layer, from the serving signature.

    Args:
      path: `saved_model.pb`.
      shapes: maps the names of the variables to their shapes.
      stored: maps released names to the names in the file.
      where: the beginning of error messages.
    """
    outputs = _signature(path, where).outputs
    if any("start" in name for name in outputs):
        return "BertForQuestionAnswering"
    rows = shapes.get(stored.get("output_bias"))
    is_tagger = any(tuple(dim.size for dim in tensor.tensor_shape.dim[2:]) == rows for tensor in outputs.values())
    return "BertForTokenClassification" if is_tagger else "BertForSequenceClassification"


def sequence_length(path: str, where: str) -> int:
    """Returns the number of tokens that the serving signature takes; 0 or less if it takes any number."""
    shapes = [tensor.tensor_shape.dim for tensor in _signature(path, where).inputs.values()]
    return max((dims[1].size for dims in shapes if len(dims) > 1), default=0)
