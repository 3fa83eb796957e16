"""Runs a model in the library that wrote it, and writes its outputs.

python run_old_model.py WEIGHTS INPUTS.npz OUTPUTS.npz

`bert_tf.verification` starts it, often in another environment. It therefore imports nothing of this project.
"""

import importlib.metadata
import importlib.util
import json
import os
import sys
from typing import Any

import numpy as np

Outputs = dict[str, Any]


def transformers_outputs(path: str, ids: np.ndarray, mask: np.ndarray, segments: np.ndarray, texts: list) -> Outputs:
    """Runs a model of `transformers`: in TensorFlow if its weights are in an HDF5 file, or else in PyTorch."""
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import transformers

    folder, name = os.path.split(path)
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as reader:
        architecture = (json.load(reader).get("architectures") or ["BertModel"])[0].removeprefix("TF")
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}
    if architecture.endswith("MultipleChoice"):
        inputs = {key: value[:, None] for key, value in inputs.items()}
    if ".h5" in name:
        model = getattr(transformers, f"TF{architecture}").from_pretrained(folder)
    else:
        import torch

        model = getattr(transformers, architecture).from_pretrained(folder, use_safetensors=".safetensors" in name)
        model = model.eval().requires_grad_(False)
        inputs = {key: torch.tensor(value, dtype=torch.long) for key, value in inputs.items()}
    tokenizer, length = transformers.AutoTokenizer.from_pretrained(folder), ids.shape[1]
    rows = [tokenizer(*text.split(" ||| "), truncation=True, max_length=length)["input_ids"] for text in texts]
    found: Outputs = {"input_ids": [(row + [0] * length)[:length] for row in rows]}
    for key, value in model(**inputs, output_hidden_states=True).items():
        found |= {f"{key} {n}": part for n, part in enumerate(value)} if isinstance(value, tuple) else {key: value}
    return found


def keras_hub_outputs(path: str, ids: np.ndarray, mask: np.ndarray, segments: np.ndarray, _: list) -> Outputs:
    """Runs a preset of KerasHub."""
    import keras_hub

    folder = os.path.dirname(path)
    task, architecture = os.path.join(folder, "task.json"), "BertBackbone"
    if os.path.exists(task):
        with open(task, encoding="utf-8") as reader:
            architecture = json.load(reader)["class_name"]
    model = getattr(keras_hub.models, architecture).from_preset(folder)
    inputs = {"token_ids": ids, "padding_mask": mask, "segment_ids": segments}
    if isinstance(model, keras_hub.models.MaskedLM):
        inputs["mask_positions"] = np.tile(np.arange(ids.shape[1]), (len(ids), 1))
    outputs = model(inputs)
    return outputs if isinstance(outputs, dict) else {"output": outputs}


def saved_model_outputs(path: str, *arrays: Any) -> Outputs:
    """Calls a signature of a SavedModel: the default one, or else the first one that takes tokens."""
    import tensorflow as tf

    if importlib.util.find_spec("tensorflow_text"):
        importlib.import_module("tensorflow_text")  # its operations may be in the model
    folder = os.path.dirname(path)
    try:
        signatures = tf.saved_model.load(folder).signatures
    except ValueError:  # a model of TensorFlow Hub's first format, with a second graph for training
        signatures = tf.saved_model.load(folder, tags=[]).signatures
    function = next(signatures[name] for name in ("serving_default", "tokens", *signatures) if name in signatures)
    specs = sorted(function.structured_input_signature[1].items(), key=lambda item: (len(item[0]), item[0]))
    length, fixed, inputs = arrays[0].shape[1], None, {}
    for name, spec in specs:
        # Names such as input_1 are in Model Garden's order: ids, mask, segments.
        number = 1 if "mask" in name else 2 if "type" in name or "seg" in name else 0 if "ids" in name else len(inputs)
        value = arrays[3] if spec.dtype == tf.string else arrays[number % 3]
        if len(spec.shape) == 1 and spec.dtype != tf.string:  # labels or numbers of examples
            value = np.zeros(len(value), spec.dtype.as_numpy_dtype)
        elif len(spec.shape) > 1 and (fixed := spec.shape[1]):
            value = np.pad(value, ((0, 0), (0, fixed - length)))
        inputs[name] = tf.constant(value, spec.dtype)
    outputs = {name: value.numpy() for name, value in function(**inputs).items()}
    return {name: value[:, :length] if value.shape[1:2] == (fixed,) else value for name, value in outputs.items()}


def main(path: str, inputs_file: str, outputs_file: str) -> None:
    """Runs the model of a file of weights."""
    is_preset, is_saved_model = path.endswith(".weights.h5"), path.endswith(".pb")
    run = keras_hub_outputs if is_preset else saved_model_outputs if is_saved_model else transformers_outputs
    with np.load(inputs_file) as inputs:
        names = ("input_ids", "input_mask", "segment_ids")
        outputs = run(path, *(inputs[name] for name in names), inputs["texts"].tolist())
    loaded = [name for name in ("tensorflow", "keras", "keras_hub", "torch", "transformers") if name in sys.modules]
    versions = {"python": sys.version.split()[0], **{name: importlib.metadata.version(name) for name in loaded}}
    np.savez(outputs_file, versions=json.dumps(versions), **{name: np.asarray(x) for name, x in outputs.items()})


if __name__ == "__main__":
    sys.path.pop(0)  # modules of this directory have the names of libraries
    main(*sys.argv[1:])
