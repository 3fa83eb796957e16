"""The names of the released variables in Hugging Face's checkpoints, for both directions.

The released names are the reference, and this project uses them too. For the names of Keras models, which are only
read, see `legacy.keras_names`.
"""

import re

# Pattern of the released names of variables that are not part of the encoder.
HEADS = r"(cls/.*|(heads/.*/)?output_(weights|bias))"
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
    *directories, leaf = re.sub(r"layer_(\d+)", r"layer/\1", name).split("/")
    # The released path of an embedding table ends with the table. Hugging Face has a module there, with a weight.
    return ".".join([*directories, _HF_LEAVES[leaf]] if leaf in _HF_LEAVES else [*directories, leaf, "weight"])


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
