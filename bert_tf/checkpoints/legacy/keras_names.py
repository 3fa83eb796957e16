"""Translates the names of variables in Keras models and SavedModels to the released names."""

import math
import re
from collections.abc import Callable, Mapping

import numpy as np

from bert_tf.checkpoints.saver import ReadTensor, Shapes
from bert_tf.runtime.errors import InputError

_PREFIX = r"(?:.*/)?"
_KERNEL = "/(kernel|bias)"
_NORM = "/(gamma|beta)"
# Maps patterns of names in a block, for Model Garden and KerasHub, to released names.
_BLOCK_LAYERS = {
    "self_attention/(query|key|value)": r"attention/self/\1",
    "_self_attention_layer/(query|key|value)_dense": r"attention/self/\1",
    "self_attention(?:/attention)?_output|_self_attention_layer/output_dense": "attention/output/dense",
    "_?self_attention_layer_norm": "attention/output/LayerNorm",
    "intermediate|_feedforward_intermediate_dense": "intermediate/dense",
    "output|_feedforward_output_dense": "output/dense",
    "output_layer_norm|_feedforward_layer_norm": "output/LayerNorm",
}
_WORDS, _POSITIONS, _SEGMENTS = (f"bert/embeddings/{kind}_embeddings" for kind in ("word", "position", "token_type"))
_TRANSFORM = "cls/predictions/transform"
# Maps patterns of names to released names. The name in < > is translated by `_BLOCK_LAYERS`.
_RULES = {
    # The original code, and transformers' TFBert models
    rf"{_PREFIX}bert/embeddings/(\w+_embeddings)(?:/(?:weight|embeddings))?": r"bert/embeddings/\1",
    rf"{_PREFIX}(bert/(?:embeddings/LayerNorm|pooler/dense|encoder/layer_\d+/.+)/(?:kernel|bias|gamma|beta))": r"\1",
    rf"{_PREFIX}(?:mlm___)?({_TRANSFORM}/(?:dense{_KERNEL}|LayerNorm{_NORM}))": r"\1",
    rf"{_PREFIX}(?:mlm___)?cls/predictions/(?:output_bias|bias|output_bias/bias)": "cls/predictions/output_bias",
    rf"{_PREFIX}(cls/(?:squad|seq_relationship)/output_(?:weights|bias))": r"\1",
    r"output_(weights|bias)": r"output_\1",
    rf"{_PREFIX}nsp___cls/seq_relationship{_KERNEL}": r"cls/seq_relationship/output_\1",
    rf"{_PREFIX}classifier{_KERNEL}": r"output_\1",
    rf"{_PREFIX}qa_outputs{_KERNEL}": r"cls/squad/output_\1",
    # Model Garden; TensorFlow Hub's first models for TensorFlow 2 have an embedding_postprocessor
    rf"{_PREFIX}word_embeddings/embeddings": _WORDS,
    rf"{_PREFIX}(?:position_embedding/embeddings|embedding_postprocessor/position_embeddings)": _POSITIONS,
    rf"{_PREFIX}(?:type_embeddings/embeddings|embedding_postprocessor/type_embeddings)": _SEGMENTS,
    rf"{_PREFIX}(?:embeddings|embedding_postprocessor)/layer_norm{_NORM}": r"bert/embeddings/LayerNorm/\1",
    rf"{_PREFIX}(?:transformer|encoder)/(layer_\d+)/(.+)/(kernel|bias|gamma|beta)": r"bert/encoder/\1/<\2>/\3",
    rf"{_PREFIX}(?:pooler_transform|pooler_dense){_KERNEL}": r"bert/pooler/dense/\1",
    rf"{_PREFIX}next_sentence/logits{_KERNEL}": r"cls/seq_relationship/output_\1",
    rf"{_PREFIX}logits{_KERNEL}": r"output_\1",
    # KerasHub
    "layers/reversible_embedding/0": _WORDS,
    "layers/position_embedding/0": _POSITIONS,
    "layers/embedding/0": _SEGMENTS,
    "layers/layer_normalization/(gamma|beta)": r"bert/embeddings/LayerNorm/\1",
    r"layers/transformer_encoder_(\d+)/(.+)/(kernel|bias|gamma|beta)": r"bert/encoder/layer_\1/<\2>/\3",
    f"layers/dense{_KERNEL}": r"bert/pooler/dense/\1",
    f"task/layers/dense{_KERNEL}": r"output_\1",
    f"task/layers/masked_lm_head/_intermediate_dense{_KERNEL}": rf"{_TRANSFORM}/dense/\1",
    f"task/layers/masked_lm_head/_intermediate_layer_norm{_NORM}": rf"{_TRANSFORM}/LayerNorm/\1",
    "task/layers/masked_lm_head/0": "cls/predictions/output_bias",
}


def to_released(name: str) -> str | None:
    """Returns the released name of a variable; None for an unknown name."""
    name = (
        re.sub(r":\d+$", "", name)
        .replace("layer_._", "layer_")
        .replace("transformer_encoder/", "transformer_encoder_0/")
    )
    if numbered := re.fullmatch("(.+)/vars/([01])", name):  # KerasHub numbers the variables of a layer
        module, number = numbered.group(1), int(numbered.group(2))
        leaves = ("gamma", "beta") if "norm" in module else ("kernel", "bias")
        is_table = re.search("embedding$|masked_lm_head$", module)
        name = f"{module}/{number if is_table else leaves[number]}"
    released = _expanded(_RULES, name)
    if released and (bracketed := re.search("<(.+)>", released)):
        inside = _expanded(_BLOCK_LAYERS, bracketed.group(1))
        return inside and released.replace(bracketed.group(), inside)
    return released and released.replace("output_kernel", "output_weights")


def _expanded(rules: Mapping[str, str], name: str) -> str | None:
    matches = ((re.fullmatch(pattern, name), template) for pattern, template in rules.items())
    return next((match.expand(template) for match, template in matches if match), None)


def released_shape(released: str, dims: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the original shape of a variable.

    Model Garden and KerasHub have separate axes for N heads of size D: [H, N, D], [N, D, H] and [N, D]. The original
    shapes are [H, H], [H, H] and [H].
    """
    if not re.search("/attention/(self|output)/.*(kernel|bias)$", released):
        return dims
    if released.endswith("bias"):
        return (math.prod(dims),)
    heads_end = -1 if "attention/output" in released else 1
    return math.prod(dims[:heads_end]), math.prod(dims[heads_end:])


def translated(
    shapes: Shapes, read: ReadTensor, where: str, translate: Callable[[str], str | None] = to_released
) -> tuple[dict[str, str], list[str], str]:
    """Translates the names of all variables of a model.

    Args:
      shapes: maps stored names to shapes.
      read: returns the variable with a stored name.
      where: the beginning of error messages.
      translate: returns the released name of a variable; None for an unknown name.

    Returns:
      A dict from released names to stored names; the stored names of trained variables that are not used; and the path
      of an output layer with an unknown name, or "".

    Raises:
      InputError: if a name is not a variable of BERT, or two different variables have the same released name.
    """
    stored: dict[str, str] = {}
    unknown, dropped = [], []
    has_own_pooler = any(re.search("pooler_dense/", name) for name in shapes)
    for name in shapes:
        released = translate(name)
        if released is None:
            unknown.append(name)
        elif has_own_pooler and "pooler_transform/" in name:
            dropped.append(name)  # an output layer of Model Garden may have a separate pooler
        elif (first := stored.setdefault(released, name)) != name and not np.array_equal(read(first), read(name)):
            raise InputError(f"{where}: {name} and {first} are both {released}, but differ. Use a file of one model.")
    layers = {name.rpartition("/")[0] for name in unknown}
    layer = layers.pop() if len(layers) == 1 and _WORDS in stored and "output_weights" not in stored else ""
    names = [f"{layer}/kernel", f"{layer}/bias"]
    if layer and sorted(unknown, reverse=True) == names:
        # The output layer of a user's own Keras model, for example in the tutorials with a model of TensorFlow Hub.
        kernel, rows = (shapes[name] for name in names)
        if len(rows) == 1 and kernel == (*shapes[stored[_WORDS]][-1:], *rows):
            stored |= dict(zip(("output_weights", "output_bias"), names, strict=True))
            unknown = []
    if unknown or _WORDS not in stored:
        problem = f"{unknown[0]} is not a variable of BERT" if unknown else "there are no word embeddings"
        raise InputError(f"{where}: {problem}. Use another model.")
    return stored, dropped, layer
