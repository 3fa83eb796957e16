"""Translates the names of variables in Keras models and SavedModels to the released names."""

import math
import os
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from bert_tf.runtime.errors import InputError

_PLACE = r"(?:.*/)?"
_KERNEL = "/(kernel|bias)"
_NORM = "/(gamma|beta)"
# The parts of a block, in Model Garden and in KerasHub.
_PARTS = {
    "self_attention/query": "attention/self/query",
    "self_attention/key": "attention/self/key",
    "self_attention/value": "attention/self/value",
    "self_attention/attention_output": "attention/output/dense",
    "self_attention_output": "attention/output/dense",
    "self_attention_layer_norm": "attention/output/LayerNorm",
    "intermediate": "intermediate/dense",
    "output": "output/dense",
    "output_layer_norm": "output/LayerNorm",
    "_self_attention_layer/query_dense": "attention/self/query",
    "_self_attention_layer/key_dense": "attention/self/key",
    "_self_attention_layer/value_dense": "attention/self/value",
    "_self_attention_layer/output_dense": "attention/output/dense",
    "_self_attention_layer_norm": "attention/output/LayerNorm",
    "_feedforward_intermediate_dense": "intermediate/dense",
    "_feedforward_output_dense": "output/dense",
    "_feedforward_layer_norm": "output/LayerNorm",
}
_WORDS, _POSITIONS, _SEGMENTS = (f"bert/embeddings/{kind}_embeddings" for kind in ("word", "position", "token_type"))
_TRANSFORM = "cls/predictions/transform"
# Patterns of names and the released names. `_released` translates the parts of blocks.
_RULES = {
    # The original, and transformers' TFBert models
    rf"{_PLACE}bert/embeddings/(\w+_embeddings)(?:/(?:weight|embeddings))?": r"bert/embeddings/\1",
    rf"{_PLACE}(bert/(?:embeddings/LayerNorm|pooler/dense|encoder/layer_\d+/.+)/(?:kernel|bias|gamma|beta))": r"\1",
    rf"{_PLACE}(?:mlm___)?({_TRANSFORM}/(?:dense{_KERNEL}|LayerNorm{_NORM}))": r"\1",
    rf"{_PLACE}(?:mlm___)?cls/predictions/(?:output_bias|bias|output_bias/bias)": "cls/predictions/output_bias",
    rf"{_PLACE}(cls/(?:squad|seq_relationship)/output_(?:weights|bias))": r"\1",
    r"output_(weights|bias)": r"output_\1",
    rf"{_PLACE}nsp___cls/seq_relationship{_KERNEL}": r"cls/seq_relationship/\1",
    rf"{_PLACE}classifier{_KERNEL}": r"\1",
    rf"{_PLACE}qa_outputs{_KERNEL}": r"cls/squad/\1",
    # Model Garden; TensorFlow Hub's first models for TensorFlow 2 have an embedding_postprocessor
    rf"{_PLACE}word_embeddings/embeddings": _WORDS,
    rf"{_PLACE}(?:position_embedding/embeddings|embedding_postprocessor/position_embeddings)": _POSITIONS,
    rf"{_PLACE}(?:type_embeddings/embeddings|embedding_postprocessor/type_embeddings)": _SEGMENTS,
    rf"{_PLACE}(?:embeddings|embedding_postprocessor)/layer_norm{_NORM}": r"bert/embeddings/LayerNorm/\1",
    rf"{_PLACE}(?:transformer|encoder)/(layer_\d+)/(.+)/(kernel|bias|gamma|beta)": r"bert/encoder/\1/<\2>/\3",
    rf"{_PLACE}(?:pooler_transform|pooler_dense){_KERNEL}": r"bert/pooler/dense/\1",
    rf"{_PLACE}next_sentence/logits{_KERNEL}": r"cls/seq_relationship/\1",
    rf"{_PLACE}logits{_KERNEL}": r"\1",
    # KerasHub
    "layers/reversible_embedding/0": _WORDS,
    "layers/position_embedding/0": _POSITIONS,
    "layers/embedding/0": _SEGMENTS,
    "layers/layer_normalization/(gamma|beta)": r"bert/embeddings/LayerNorm/\1",
    "layers/transformer_encoder/(.+)/(kernel|bias|gamma|beta)": r"bert/encoder/layer_0/<\1>/\2",
    r"layers/transformer_encoder_(\d+)/(.+)/(kernel|bias|gamma|beta)": r"bert/encoder/layer_\1/<\2>/\3",
    f"layers/dense{_KERNEL}": r"bert/pooler/dense/\1",
    f"task/layers/dense{_KERNEL}": r"\1",
    f"task/layers/masked_lm_head/_intermediate_dense{_KERNEL}": rf"{_TRANSFORM}/dense/\1",
    f"task/layers/masked_lm_head/_intermediate_layer_norm{_NORM}": rf"{_TRANSFORM}/LayerNorm/\1",
    "task/layers/masked_lm_head/0": "cls/predictions/output_bias",
}
_HEAD = re.compile(r"(cls/squad/|cls/seq_relationship/|)(?:kernel|(bias))")


def to_released(name: str) -> str | None:
    """Returns the released name of a variable; None for an unknown name."""
    name = re.sub(r":\d+$", "", name).replace("layer_._", "layer_")
    if numbered := re.fullmatch("(.+)/vars/([01])", name):  # KerasHub numbers the variables of a layer
        module, number = numbered.group(1), int(numbered.group(2))
        leaves = ("gamma", "beta") if "norm" in module else ("kernel", "bias")
        is_table = re.search("embedding$|masked_lm_head$", module)
        name = f"{module}/{number if is_table else leaves[number]}"
    for pattern, released in _RULES.items():
        if found := re.fullmatch(pattern, name):
            released = found.expand(released)
            break
    else:
        return None
    if head := _HEAD.fullmatch(released):
        return f"{head.group(1)}output_{head.group(2) or 'weights'}"
    if part := re.search("<(.+)>", released):
        return released.replace(part.group(), _PARTS[part.group(1)]) if part.group(1) in _PARTS else None
    return released


def released_shape(released: str, dims: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the original shape of a variable.

    Model Garden and KerasHub have separate axes for N heads of size D: [H, N, D], [N, D, H] and [N, D]. The original
    shapes are [H, H], [H, H] and [H].
    """
    if re.search(r"attention/self/\w+/bias$", released):
        return (math.prod(dims),)
    if re.search(r"attention/self/\w+/kernel$", released):
        return *dims[:1], math.prod(dims[1:])
    if released.endswith("attention/output/dense/kernel"):
        return math.prod(dims[:-1]), *dims[-1:]
    return dims


class Translation(NamedTuple):
    """The variables of a Keras model.

    Attributes:
      stored: maps released names to stored names.
      dropped: stored names of trained variables that no output of the model uses.
      layer: the stored path of an output layer of unknown name; "" if there is none.
    """

    stored: dict[str, str]
    dropped: tuple[str, ...]
    layer: str


def translated(shapes: Mapping[str, tuple[int, ...]], read: Callable[[str], np.ndarray], where: str) -> Translation:
    """Translates the names of all variables of a Keras model.

    Args:
      shapes: maps stored names to shapes.
      read: returns the variable with a stored name.
      where: the beginning of error messages.

    Raises:
      InputError: if a name is not a variable of BERT, or two different variables have the same meaning.
    """
    stored: dict[str, str] = {}
    unknown, dropped = [], []
    has_own_pooler = any(re.search("pooler_dense/", name) for name in shapes)
    for name in shapes:
        released = to_released(name)
        if released is None:
            unknown.append(name)
        elif has_own_pooler and "pooler_transform/" in name:
            dropped.append(name)  # an output layer of Model Garden may have a pooler of its own
        elif (first := stored.setdefault(released, name)) != name and not np.array_equal(read(first), read(name)):
            raise InputError(f"{where}: {name} and {first} have the same meaning. Use a file of one model.")
    layer = ""
    if _WORDS in stored and "output_weights" not in stored and len(unknown) == 2:
        # The output layer of a user's own Keras model, such as the tutorials' with a model of TensorFlow Hub
        layer, width = os.path.commonpath(unknown), shapes[stored[_WORDS]][-1]
        rows = shapes.get(f"{layer}/bias", ())
        if layer and shapes.get(f"{layer}/kernel") == (width, *rows) and len(rows) == 1:
            stored |= {"output_weights": f"{layer}/kernel", "output_bias": f"{layer}/bias"}
            unknown = []
    if unknown:
        raise InputError(f"{where}: {unknown[0]} is not a variable of BERT. Use another model.")
    return Translation(stored, tuple(dropped), layer if not unknown and "output_weights" in stored else "")
