"""Runs a model in the library that wrote it, and writes the outputs.

`bert_tf.verification` runs the source of this module in a Python interpreter, often of another environment. The module
therefore imports nothing from this project.
"""

import importlib.metadata
import importlib.util
import json
import os
import sys
from typing import Any

import numpy as np


def transformers_outputs(path: str, texts: np.ndarray, *arrays: np.ndarray) -> dict[str, Any]:
    """Runs a model of `transformers`: in TensorFlow if the weights are in an HDF5 file, or else in PyTorch."""
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import transformers

    directory, name = os.path.split(path)
    architecture = (transformers.AutoConfig.from_pretrained(directory).architectures or ["BertModel"])[0]
    inputs = dict(zip(("input_ids", "attention_mask", "token_type_ids"), arrays, strict=True))
    if architecture.endswith("MultipleChoice"):
        inputs = {key: value[:, None] for key, value in inputs.items()}
    if ".h5" in name:
        model = getattr(transformers, f"TF{architecture.removeprefix('TF')}").from_pretrained(directory)
    else:
        import torch

        model_class = getattr(transformers, architecture.removeprefix("TF"))
        model = (
            model_class.from_pretrained(directory, use_safetensors=".safetensors" in name).eval().requires_grad_(False)
        )
        inputs = {key: torch.tensor(value, dtype=torch.long) for key, value in inputs.items()}
    tokenizer, length = transformers.AutoTokenizer.from_pretrained(directory), arrays[0].shape[1]
    rows = [tokenizer(*text.split(" ||| "), truncation=True, max_length=length)["input_ids"] for text in texts.tolist()]
    outputs = {"input_ids": [(row + [0] * length)[:length] for row in rows]}
    for key, value in model(**inputs, output_hidden_states=True).items():
        outputs |= {f"{key} {n}": state for n, state in enumerate(value)} if isinstance(value, tuple) else {key: value}
    return outputs


def keras_hub_outputs(path: str, _: np.ndarray, *arrays: np.ndarray) -> dict[str, Any]:
    """Runs a preset of KerasHub."""
    import keras_hub

    directory = os.path.dirname(path)
    task, architecture = os.path.join(directory, "task.json"), "BertBackbone"
    if os.path.exists(task):
        with open(task, encoding="utf-8") as reader:
            architecture = json.load(reader)["class_name"]
    model = getattr(keras_hub.models, architecture).from_preset(directory)
    inputs = dict(zip(("token_ids", "padding_mask", "segment_ids"), arrays, strict=True))
    if isinstance(model, keras_hub.models.MaskedLM):
        inputs["mask_positions"] = np.tile(np.arange(arrays[0].shape[1]), (len(arrays[0]), 1))
    outputs = model(inputs)
    return outputs if isinstance(outputs, dict) else {"output": outputs}


def saved_model_outputs(path: str, texts: np.ndarray, *arrays: np.ndarray) -> dict[str, Any]:
    """Calls the default signature of a SavedModel, or a signature of TensorFlow Hub's first format."""
    import tensorflow as tf

    if importlib.util.find_spec("tensorflow_text"):
        importlib.import_module("tensorflow_text")  # registers operations that may be in the model
    directory = os.path.dirname(path)
    try:
        model = tf.saved_model.load(directory)
    except ValueError:  # a model of TensorFlow Hub's first format, with a second graph for training
        model = tf.saved_model.load(directory, tags=[])
    names = ("serving_default", "mlm", "tokens", *model.signatures)
    function = next(model.signatures[name] for name in names if name in model.signatures)
    specs = function.structured_input_signature[1]
    arrays = (*arrays, np.tile(np.arange(arrays[0].shape[1], dtype=np.int32), (len(arrays[0]), 1)))
    kinds = {"mask": 1, "type": 2, "seg": 2, "position": 3, "ids": 0}
    inputs = {}
    for name in sorted(specs, key=lambda name: (len(name), name)):
        # Names such as input_1 are in Model Garden's order: ids, mask, segments.
        value = arrays[next((number for kind, number in kinds.items() if kind in name), len(inputs))]
        is_label = len(specs[name].shape) == 1  # a label, or the number of an example
        if specs[name].dtype == tf.string and any(" ||| " in text for text in texts):
            raise ValueError("this model takes texts. Remove pairs from the file.")
        value = texts if specs[name].dtype == tf.string else np.zeros(len(value), np.int32) if is_label else value
        inputs[name] = tf.constant(value, specs[name].dtype)
    outputs = function(**inputs)
    if hasattr(model, "mlm"):  # TensorFlow Hub's later format has no signature for it
        outputs = {**outputs, "mlm_logits": model.mlm({**inputs, "masked_lm_positions": arrays[3]})["mlm_logits"]}
    return outputs


def main(path: str, inputs_file: str, outputs_file: str) -> None:
    """Runs the model with the weights in `path`, and writes the outputs."""
    is_preset, is_saved_model = path.endswith(".weights.h5"), path.endswith(".pb")
    run = keras_hub_outputs if is_preset else saved_model_outputs if is_saved_model else transformers_outputs
    with np.load(inputs_file) as inputs:
        outputs = run(path, *(inputs[name] for name in ("texts", "input_ids", "input_mask", "segment_ids")))
    loaded = [name for name in ("tensorflow", "keras", "keras_hub", "torch", "transformers") if name in sys.modules]
    versions = {"python": sys.version.split()[0], **{name: importlib.metadata.version(name) for name in loaded}}
    np.savez(outputs_file, versions=json.dumps(versions), **{name: np.asarray(x) for name, x in outputs.items()})
