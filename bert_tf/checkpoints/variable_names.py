"""Translates variable names between released checkpoints and Hugging Face's checkpoints.

This project uses the released names. For the names in Keras models, see `legacy.keras_names`.
"""

import re

# Pattern of the released names of variables that are not part of the encoder.
HEADS = r"(cls/.*|(heads/.*/)?output_(weights|bias))"
# Pattern of the variables that fine-tuning may add: an output layer and a BiLSTM. Other formats can't store a BiLSTM.
ADDED_BY_FINE_TUNING = rf"({HEADS}|bilstm/.*)"


# --- Hugging Face -----------------------------------------------------------------------------------------------------

# Names of variables in heads. All other names are translated by rules.
_HF_HEADS = {
    "cls/predictions/output_bias": "cls.predictions.bias",
    "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
    "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
    "cls/squad/output_weights": "qa_outputs.weight",
    "cls/squad/output_bias": "qa_outputs.bias",
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
}
# For each ending of a module path, maps the last part of Hugging Face's name to the last part of the released name.
_HF_LEAVES_BY_MODULE = {
    "_embeddings": {"weight": ""},
    "LayerNorm": {"weight": "/gamma", "bias": "/beta", "gamma": "/gamma", "beta": "/beta"},
    "": {"weight": "/kernel", "bias": "/bias"},
}
_HF_LEAVES = {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}

# Hugging Face tensors that are not weights, but counters.
HF_COUNTERS = r".*embeddings\.(position|token_type)_ids"
# The decoder shares the embeddings and the bias.
_HF_COPIES = {
    "cls.predictions.decoder.weight": "bert/embeddings/word_embeddings",
    "cls.predictions.decoder.bias": "cls/predictions/output_bias",
}


def released_to_hf(name: str) -> str:
    """Translates a released name, for example bert/pooler/dense/kernel to bert.pooler.dense.weight."""
    if name in _HF_HEADS:
        return _HF_HEADS[name]
    *directories, leaf = re.sub(r"layer_(\d+)", r"layer/\1", name).split("/")
    # The released path of an embedding table ends with the table. Hugging Face adds "weight".
    return ".".join([*directories, _HF_LEAVES[leaf]] if leaf in _HF_LEAVES else [*directories, leaf, "weight"])


def hf_to_released(name: str) -> str | None:
    """Translates a name of Hugging Face; returns None for an unknown name. The inverse of `released_to_hf`.

    Names without the leading "bert." (models saved without heads) are also accepted, names with the prefixes of models
    inside of other PyTorch modules, and "gamma" and "beta" in layer normalisation (the first converted models).
    """
    heads = {hf: released for released, hf in _HF_HEADS.items()} | _HF_COPIES
    name = re.sub(r"^((module|model|_orig_mod)\.)+", "", name)
    if name in heads:
        return heads[name]
    name = re.sub(r"^(?=(embeddings|encoder|pooler)\.)", "bert.", name)
    path, _, leaf = re.sub(r"\blayer\.(\d+)", r"layer_\1", name).replace(".", "/").rpartition("/")
    leaves = next(leaves for ending, leaves in _HF_LEAVES_BY_MODULE.items() if path.endswith(ending))
    return path + leaves[leaf] if leaf in leaves and re.match("(bert|cls)/", path) else None


def hf_is_transposed(released_name: str) -> bool:
    """Returns True if Hugging Face stores the tensor transposed: [out, in] instead of [in, out]."""
    return released_name.endswith("/kernel")
