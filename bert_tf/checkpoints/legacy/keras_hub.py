"""Reads BERT presets of KerasHub and KerasNLP: weights, sizes and the rules of the tokenizer."""

import os
from typing import Any, TypedDict

from bert_tf.checkpoints.legacy.keras_h5 import open_h5
from bert_tf.checkpoints.saver import ReadTensor, Shapes
from bert_tf.config import BertConfig
from bert_tf.runtime import files, json_files
from bert_tf.runtime.errors import InputError

WEIGHTS_FILE = "model.weights.h5"
_TASK_FILE = "task.json"
_VOCABULARIES = ("assets/tokenizer/vocabulary.txt", "assets/vocabulary.txt")
# Maps a task class to Hugging Face's architecture. BertClassifier is the name in KerasNLP.
_SEQUENCE = "BertForSequenceClassification"
_ARCHITECTURES = {"BertTextClassifier": _SEQUENCE, "BertClassifier": _SEQUENCE, "BertMaskedLM": "BertForMaskedLM"}
# Maps KerasHub's names of sizes to the names in a config.
_SIZES = {"hidden_dim": "hidden_size", "num_layers": "num_hidden_layers", "num_heads": "num_attention_heads"}
_SIZES |= {"vocabulary_size": "vocab_size", "intermediate_dim": "intermediate_size"}
_SIZES |= {"max_sequence_length": "max_position_embeddings", "num_segments": "type_vocab_size"}
# The settings in which KerasHub's masked-LM head differs from the encoder.
_MASKED_LM = {"mlm_hidden_act": "gelu_erf", "mlm_layer_norm_eps": 1e-5}
# Settings of the tokenizer, and the values that BERT's tokenizer has.
_TOKENIZER = {"class_name": "BertTokenizer", "split": True, "suffix_indicator": "##", "oov_token": "[UNK]"}


class _Object(TypedDict):
    class_name: str
    config: dict[str, Any]


def open_preset(path: str, where: str) -> tuple[Shapes, ReadTensor]:
    """Opens the weights of a preset. The names of weights in the task's file begin with "task/".

    Args:
      path: `model.weights.h5`.
      where: the beginning of error messages.

    Raises:
      InputError: if a file is damaged.
    """
    shapes, read = open_h5(path, where)
    task = os.path.join(os.path.dirname(path), "task.weights.h5")
    if not files.exists(task):
        return shapes, read
    task_shapes, read_task = open_h5(task, where)
    task_weights = {f"task/{name}": shape for name, shape in task_shapes.items() if not name.startswith("optimizer/")}
    return {**shapes, **task_weights}, lambda name: read_task(name[5:]) if name in task_weights else read(name)


def hf_config(directory: str, where: str) -> dict[str, Any]:
    """Returns the settings of a preset in the format of Hugging Face's `config.json`.

    Raises:
      InputError: if the preset is of another model or task; the message names the class.
    """
    name, values = _object(os.path.join(directory, "config.json"), where)
    if name != "BertBackbone":
        raise InputError(f"{where}: {directory} is a preset of {name}. Use a preset of BertBackbone.")
    task, settings = "", {}
    if files.exists(os.path.join(directory, _TASK_FILE)):
        task, settings = _object(os.path.join(directory, _TASK_FILE), where)
    if task and task not in _ARCHITECTURES:
        raise InputError(f"{where}: {directory} is a preset of {task}. Use a preset of {', '.join(_ARCHITECTURES)}.")
    sizes = {ours: values[name] for name, ours in _SIZES.items() if name in values}
    sizes |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), values.get("dropout", 0.1))
    config = BertConfig.from_dict({"type_vocab_size": 2} | sizes, f"{where}: {directory}/config.json")
    if (activation := settings.get("activation")) not in (None, "linear", "softmax", "sigmoid"):
        raise InputError(f"{where}: {directory}: the activation of the output layer is {activation!r:.60}. Use linear.")
    head_settings = _MASKED_LM if task == "BertMaskedLM" else {}
    if activation == "sigmoid":
        head_settings = {"problem_type": "multi_label_classification"}
    return config.to_hf_dict(_ARCHITECTURES.get(task, "BertModel")) | head_settings


def tokenizer(directory: str, where: str) -> tuple[str | None, dict[str, bool]]:
    """Returns the vocabulary of a preset, or None, and the rules of the tokenizer, or an empty dict.

    Raises:
      InputError: if the tokenizer differs from BERT's tokenizer; the message names the setting.
    """
    vocabulary = next((path for name in _VOCABULARIES if files.exists(path := os.path.join(directory, name))), None)
    settings_file = os.path.join(directory, "tokenizer.json")
    if vocabulary is None or not files.exists(settings_file):
        return vocabulary, {}
    name, settings = _object(settings_file, where)
    for key, value in _TOKENIZER.items():
        if (actual := (settings | {"class_name": name}).get(key, value)) != value:
            problem = f"{key} is {actual!r:.60} instead of {value!r}"
            raise InputError(f"{where}: {settings_file}: {problem}. Save the preset with KerasHub's BertTokenizer.")
    lower, strip = (settings.get(key) is True for key in ("lowercase", "strip_accents"))
    return vocabulary, {"do_lower_case": lower, "strip_accents": strip}


def _object(path: str, where: str) -> tuple[str, dict[str, Any]]:
    """Returns the class name and the settings of a stored Keras object. The object is not created."""
    values = json_files.read(path, where, _Object)
    return values["class_name"], values["config"]
