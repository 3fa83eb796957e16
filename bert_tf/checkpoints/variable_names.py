"""The names of the released variables in Hugging Face's and Model Garden's checkpoints.

The released names are the reference, and this project uses them too. Hugging Face's table is used in both directions,
Model Garden's only for reading.
"""

import re
from collections.abc import Iterable

# Pattern of the released names of variables that are not part of the encoder.
HEADS = r"(cls/.*|output_weights|output_bias)"
# Pattern of the variables that fine-tuning may add: an output layer, and a BiLSTM (which other formats can't store).
ADDED_BY_FINE_TUNING = rf"({HEADS}|bilstm/.*)"


# --- Hugging Face -----------------------------------------------------------------------------------------------------

# The names of heads follow no rule. All other names are translated by rules.
_HF_HEADS = {
    "cls/predictions/output_bias": "cls.predictions.bias",
    "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
    "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
    "cls/squad/output_weights": "qa_outputs.weight",
    "cls/squad/output_bias": "qa_outputs.bias",
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
}
# Maps the end of a module's path to a map from the last part of the name to the last part of the released name.
_HF_LEAVES_BY_MODULE = {
    "_embeddings": {"weight": ""},
    "LayerNorm": {"weight": "/gamma", "bias": "/beta", "gamma": "/gamma", "beta": "/beta"},
    "": {"weight": "/kernel", "bias": "/bias"},
}
_HF_LEAVES = {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}

# Hugging Face tensors that are not weights, or copy other tensors (the decoder shares the embeddings and the bias).
HF_COPIES = r"(.*embeddings\.position_ids|cls\.predictions\.decoder\.(weight|bias))"


def released_to_hf(name: str) -> str:
    """Translates bert/encoder/layer_0/output/dense/kernel to bert.encoder.layer.0.output.dense.weight, for example."""
    if name in _HF_HEADS:
        return _HF_HEADS[name]
    *folders, leaf = re.sub(r"layer_(\d+)", r"layer/\1", name).split("/")
    # The released path of an embedding table ends with the table. Hugging Face has a module there, with a weight.
    return ".".join([*folders, _HF_LEAVES[leaf]] if leaf in _HF_LEAVES else [*folders, leaf, "weight"])


def hf_to_released(name: str) -> str | None:
    """Translates a name back, as the inverse of `released_to_hf`; returns None for an unknown name.

    It also accepts names without the leading "bert." (models saved without heads), and "gamma" and "beta" in layer
    normalisation (the first converted models).
    """
    heads = {hf: released for released, hf in _HF_HEADS.items()}
    if name in heads:
        return heads[name]
    name = re.sub(r"^(?=(embeddings|encoder|pooler)\.)", "bert.", name)
    path, _, leaf = re.sub(r"\blayer\.(\d+)", r"layer_\1", name).replace(".", "/").rpartition("/")
    leaves = next(leaves for ending, leaves in _HF_LEAVES_BY_MODULE.items() if path.endswith(ending))
    return path + leaves[leaf] if leaf in leaves and re.match("(bert|cls)/", path) else None


def hf_is_transposed(released_name: str) -> bool:
    """Returns whether Hugging Face stores the tensor transposed ([out, in] instead of [in, out])."""
    return released_name.endswith("/kernel")


# --- Model Garden (TensorFlow 2, object-based) ------------------------------------------------------------------------

_GARDEN_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"

# Maps the path of an object in the encoder to the released path without bert/.
_GARDEN_EMBEDDINGS = {
    "_embedding_layer/embeddings": "embeddings/word_embeddings",
    "_position_embedding_layer/embeddings": "embeddings/position_embeddings",
    "_type_embedding_layer/embeddings": "embeddings/token_type_embeddings",
    "_embedding_norm_layer/beta": "embeddings/LayerNorm/beta",
    "_embedding_norm_layer/gamma": "embeddings/LayerNorm/gamma",
    "_pooler_layer/kernel": "pooler/dense/kernel",
    "_pooler_layer/bias": "pooler/dense/bias",
}
_GARDEN_BLOCK = {
    "_attention_layer/_query_dense": "attention/self/query",
    "_attention_layer/_key_dense": "attention/self/key",
    "_attention_layer/_value_dense": "attention/self/value",
    "_attention_layer/_output_dense": "attention/output/dense",
    "_attention_layer_norm": "attention/output/LayerNorm",
    "_intermediate_dense": "intermediate/dense",
    "_output_dense": "output/dense",
    "_output_layer_norm": "output/LayerNorm",
}
# The functional encoder numbers its layers: first these four, then the blocks, then the pooler.
_GARDEN_NUMBERED = ("_embedding_layer", "_position_embedding_layer", "_type_embedding_layer", "_embedding_norm_layer")
_GARDEN_HEAD = {
    "masked_lm/dense/kernel": "cls/predictions/transform/dense/kernel",
    "masked_lm/dense/bias": "cls/predictions/transform/dense/bias",
    "masked_lm/layer_norm/beta": "cls/predictions/transform/LayerNorm/beta",
    "masked_lm/layer_norm/gamma": "cls/predictions/transform/LayerNorm/gamma",
    "masked_lm/bias": "cls/predictions/output_bias",
}
_GARDEN_IGNORED = (
    r"_CHECKPOINTABLE_OBJECT_GRAPH|save_counter|global_step|.*/\.OPTIMIZER_SLOT/.*|optimizer/.*|"
    r"masked_lm/embedding_table|next_sentence.*|cls_.*|.*_heads?/.*"
)
# Pattern of the ignored tensors that are copies of others, or belong to the training state.
NOT_TRAINED = (
    rf"{HF_COPIES}|_CHECKPOINTABLE_OBJECT_GRAPH|(save_counter|global_step)(/.*)?|.*/\.OPTIMIZER_SLOT/.*|optimizer/.*|"
    r"masked_lm/embedding_table/.*"
)


def garden_names(names: Iterable[str]) -> tuple[dict[str, str], list[str], list[str]]:
    """Translates the names in a Model Garden checkpoint.

    Returns:
      A dict from released to stored names; the stored names that are ignored on purpose (optimizer slots, counters,
      copies, other heads); and the unknown stored names.
    """
    stored = sorted(names)
    last_layer = max((int(m.group(1)) for n in stored if (m := re.search(r"layer_with_weights-(\d+)/", n))), default=-1)
    known: dict[str, str] = {}
    ignored: list[str] = []
    unknown: list[str] = []
    for name in stored:
        path = name.removesuffix(_GARDEN_SUFFIX)
        if re.fullmatch(_GARDEN_IGNORED, path):
            ignored.append(name)
        elif released := _garden_to_released(path, last_layer):
            known.setdefault(released, name)
        else:
            unknown.append(name)
    return known, ignored, unknown


def _garden_to_released(path: str, last_layer: int) -> str | None:
    if path.removeprefix("model/") in _GARDEN_HEAD:
        return _GARDEN_HEAD[path.removeprefix("model/")]
    path = re.sub(r"^(model/|bert/|encoder/)+", "", path)
    numbered = re.match(r"layer_with_weights-(\d+)/", path)
    if numbered:
        number, rest = int(numbered.group(1)), path[numbered.end() :]
        if number < len(_GARDEN_NUMBERED):
            path = f"{_GARDEN_NUMBERED[number]}/{rest}"
        elif number == last_layer and rest in ("kernel", "bias"):
            path = f"_pooler_layer/{rest}"
        else:
            path = f"_transformer_layers/{number - len(_GARDEN_NUMBERED)}/{rest}"
    if path in _GARDEN_EMBEDDINGS:
        return f"bert/{_GARDEN_EMBEDDINGS[path]}"
    block = re.fullmatch(r"_transformer_layers/(\d+)/(.+)/(\w+)", path)
    if block and block.group(2) in _GARDEN_BLOCK:
        return f"bert/encoder/layer_{block.group(1)}/{_GARDEN_BLOCK[block.group(2)]}/{block.group(3)}"
    return None
