"""Converts Hugging Face's `config.json` to the original keys and names. Values that BERT does not have are errors."""

import os
from collections.abc import Collection, Mapping
from typing import Any, Literal

from bert_tf.runtime import files
from bert_tf.runtime.errors import InputError, check, first_of
from bert_tf.runtime.messages import say_once
from bert_tf.text.hf_tokenizer import TOKENIZER_CLASSES

_ACTIVATION_FROM_HF = {
    "gelu": "gelu_erf",
    "gelu_python": "gelu_erf",
    "gelu_pytorch_tanh": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "relu": "relu",
    "tanh": "tanh",
    "linear": "linear",
}
# Several of Hugging Face's names have the same function. The first one is written.
ACTIVATION_TO_HF = {ours: name for name, ours in reversed(_ACTIVATION_FROM_HF.items())}

# Keys in some released bert_config.json files (Chinese, multilingual cased) that the original code does not read.
UNREAD_RELEASED_KEYS = frozenset(
    {
        *("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers"),
        *("pooler_size_per_head", "pooler_type"),
    }
)

# Hugging Face keys that do not change the computation of an encoder.
_UNREAD_KEYS = UNREAD_RELEASED_KEYS | {
    *("_attn_implementation", "_attn_implementation_autoset", "_name_or_path", "architectures"),
    *("attn_implementation", "bos_token_id", "chunk_size_feed_forward", "classifier_dropout", "cls_token_id"),
    *("dtype", "eos_token_id", "finetuning_task", "gradient_checkpointing", "id2label", "label2id", "num_labels"),
    *("output_attentions", "output_hidden_states", "output_past", "problem_type", "return_dict", "sep_token_id"),
    *("torch_dtype", "torchscript", "transformers_version", "use_bfloat16", "use_cache"),
}

# Hugging Face keys that change the computation, and their values in BERT models.
_REQUIRED: dict[str, tuple] = {
    "model_type": ("bert",),
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "tie_word_embeddings": (True,),
    "pad_token_id": (0, None),
    "pruned_heads": ({},),
    "auto_map": (None,),
    "tokenizer_class": (*TOKENIZER_CLASSES, None),
    "is_causal": (False, None),
    "quantization_config": (None,),
    "transformers_weights": (None,),
}

# The sizes in configs of 2019 of DistilBERT, XLM, XLNet and GPT-2.
_OTHER_SIZES = frozenset({"dim", "emb_dim", "d_model", "n_embd"})
# Keys that occur only in Hugging Face configs. Configs of 2018 and 2019 have no `model_type`.
_HF_ONLY_KEYS = (_UNREAD_KEYS | _REQUIRED.keys()) - UNREAD_RELEASED_KEYS | _OTHER_SIZES
# In a config without `model_type`, these keys distinguish BERT from other models.
_BERT_KEYS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")


def is_hf(values: Mapping[str, Any]) -> bool:
    """Returns True if a key of a config occurs only in Hugging Face's format."""
    return not _HF_ONLY_KEYS.isdisjoint(values)


def is_next_to_pytorch(path: str) -> bool:
    """Returns True if a file's directory has weights of PyTorch and no checkpoint of TensorFlow."""
    names = files.list_directory(os.path.dirname(path) or ".")
    is_tensorflow = any(name.endswith(".index") for name in names)
    return not is_tensorflow and not {"pytorch_model.bin", "model.safetensors"}.isdisjoint(names)


def to_released(values: Mapping[str, Any], known: Collection[str], source: str) -> dict[str, Any]:
    """Returns the values of a config of Hugging Face with the original keys and names of activations.

    Args:
      values: the config. Unknown keys are ignored and reported, because old versions of transformers and other programs
        write settings that BERT does not have.
      known: the original keys.
      source: the source of the config, for messages.

    Raises:
      InputError: if the config is not one of BERT, or the activation is unknown.
    """
    for key, allowed in _REQUIRED.items():
        if key in values and values[key] not in allowed:
            remedy = "without it" if allowed[0] is None else f"with {allowed[0]!r}"
            raise InputError(f"{key} is {values[key]!r:.60}. This is not a BERT model. Use one {remedy}.", source)
    if "model_type" not in values and (missing := [key for key in _BERT_KEYS if key not in values]):
        raise InputError(f"no model_type and no {missing[0]}. This is not a BERT model.", source)
    if others := sorted(values.keys() - _UNREAD_KEYS - _REQUIRED.keys() - {*known}):
        say_once(f"{source}: ignoring {first_of(others)}, which BERT does not have.")
    act = check(values.get("hidden_act", "gelu"), Literal[tuple(_ACTIVATION_FROM_HF)], f"{source}, at hidden_act")
    fields = {"type_vocab_size": 2} | {key: values[key] for key in values if key in known}  # the original's is 16
    return fields | {"hidden_act": _ACTIVATION_FROM_HF[act]}
