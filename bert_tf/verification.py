"""Compares a converted model with the original model, which runs in the library that wrote it.

The original library may run code in the files of the model. Verify only files that you trust.
"""

import glob
import hashlib
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf import features
from bert_tf.checkpoints import pretrained
from bert_tf.checkpoints.legacy import run_old_model, saved_model
from bert_tf.runtime import __version__, files
from bert_tf.runtime.errors import InputError
from bert_tf.runtime.messages import say, verbosity

VERIFICATION_FILE = "verification.json"
_MAX_LENGTH = 128
# The largest accepted difference, as a fraction of the largest value, or of 1 if the largest value is smaller.
_TOLERANCE = 2e-5


def verify(source: str, target: str, texts_file: str, python: str | None = None) -> None:
    """Runs the original and the converted model on texts, compares their outputs, and writes `verification.json`.

    Args:
      source: the file with the original weights.
      target: the directory of the converted model, to which the results are written.
      texts_file: a file with one text per line.
      python: the Python interpreter of an environment with the original library; not needed for a SavedModel.

    Raises:
      InputError: if a file can't be read, the original model can't be run, or outputs differ by more than rounding.
    """
    if not python and not source.endswith(".pb"):
        say("Only names and shapes were checked. To compare the outputs, pass --verify_python.")
        return
    with verbosity(0):
        loaded = pretrained.load_model(target)
    tokenizer = pretrained.required_tokenizer(loaded.tokenizer, source, "--verify")
    lines = [line for line in features.read_examples(texts_file, flag_name="--verify") if line[0]]
    if not lines:
        raise InputError(f"--verify: {texts_file} has no texts. Use a file with one text per line.")
    fixed = saved_model.sequence_length(source, "--verify") if source.endswith(".pb") else 0
    length = fixed if fixed > 0 else min(_MAX_LENGTH, loaded.config.max_position_embeddings)
    pairs = [line if line[1] else line[0] for line in lines]
    inputs = tokenizer(pairs, max_length=length, padding="max_length" if fixed > 0 else "longest")
    old, versions = _run_old(source, {**inputs, "texts": [" ||| ".join(filter(None, line)) for line in lines]}, python)
    new = _outputs(loaded, inputs)
    outputs = {name: _compared(array, new, inputs["input_mask"] > 0) for name, array in sorted(old.items())}
    report = {
        "texts": len(lines),
        "outputs": outputs,
        "sha256": {"old": _digest(os.path.dirname(source)), "new": _digest(target)},
        "versions": {"old": versions, "new": {"bert-tf": __version__, "tensorflow": tf.__version__}},
    }
    files.write_json(os.path.join(target, VERIFICATION_FILE), report)
    for name, result in outputs.items():
        values = ", ".join(f"{key} {value:.3g}" for key, value in result.items() if not isinstance(value, str))
        say(f"{name}: {values or 'not compared, because no output of the converted model has this shape'}")
    wrong = [name for name, result in outputs.items() if result and not result["largest_difference"] <= result["limit"]]
    if wrong or not any(outputs.values()):
        raise InputError(f"--verify: the outputs differ ({', '.join(wrong or outputs)}). Do not use {target}.")
    say(f"The outputs agree on {len(lines)} texts. See {os.path.join(target, VERIFICATION_FILE)}.")


def _run_old(source: str, inputs: Mapping[str, Any], python: str | None) -> tuple[dict[str, np.ndarray], Any]:
    """Returns the outputs of the original model by name, and the versions of its libraries."""
    with tempfile.TemporaryDirectory() as directory:
        paths = [os.path.join(directory, name) for name in ("inputs.npz", "outputs.npz")]
        np.savez(paths[0], **inputs)
        command = [python or sys.executable, "-", source, *paths]
        script = f"{inspect.getsource(run_old_model)}\nmain(*sys.argv[1:])\n"
        completed = subprocess.run(command, input=script, stderr=subprocess.PIPE, text=True, check=False)
        if completed.returncode:
            errors = re.findall(r"^[\w.]+(?:Error|Exception):.*", completed.stderr, re.MULTILINE) or ["no message"]
            raise InputError(f"--verify: the original model of {source} can't be run: {errors[-1]}")
        with np.load(paths[1]) as arrays:
            outputs = dict(arrays)
    return outputs, json.loads(str(outputs.pop("versions")))


def _outputs(loaded: pretrained.LoadedBert, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns all outputs, by name, that a model with these weights may have."""
    output, source, ids = loaded.encoder(inputs), loaded.source, inputs["input_ids"]
    states = {"sequence_output": output.sequence_output, "pooled_output": output.pooled_output}
    states = {name: np.asarray(state) for name, state in states.items() if state is not None}
    layers = enumerate((output.embedding_output, *output.all_encoder_layers))
    outputs = {"input_ids": ids, **states, **{f"layer {number}": np.asarray(layer) for number, layer in layers}}
    logits = {}
    for weights in (name for name in source.shapes if name.endswith("output_weights")):
        kernel, bias = source.read(weights).T, source.read(weights.replace("weights", "bias"))
        prefix = weights.removesuffix("output_weights")
        logits |= {f"{prefix}logits of {name}": state @ kernel + bias for name, state in states.items()}
    if head := loaded.masked_lm("--verify"):
        positions = np.tile(np.arange(ids.shape[1], dtype=np.int32), (len(ids), 1))
        predicted = head(output.sequence_output, positions, loaded.encoder.embedding_table)
        logits["cls/predictions/logits"] = np.reshape(predicted, (*ids.shape, -1))
    for name, values in logits.items():
        outputs |= {name: values, f"softmax of {name}": tf.nn.softmax(values).numpy()}
        outputs |= {f"sigmoid of {name}": tf.sigmoid(values).numpy()}
        outputs |= {f"{name}, {end}": values[..., n] for n, end in enumerate(("start", "end")) if "squad" in name}
    return outputs


def _compared(old: np.ndarray, new: Mapping[str, np.ndarray], mask: np.ndarray) -> dict[str, Any]:
    """Compares an output with the most similar new output of the same shape, without padding.

    Returns:
      The name of the new output and the differences; an empty dict if no new output has this shape.
    """
    results = []
    for name, array in new.items():
        if old.shape == array.shape:
            first, second = (x[mask] if x.shape[:2] == mask.shape else x for x in (old, array))
            difference = np.abs(first.astype(np.float64) - second)
            largest, limit = float(difference.max()), _TOLERANCE * max(1.0, float(np.abs(first).max()))
            result = {"compared_with": name, "largest_difference": largest, "limit": limit}
            result["mean_difference"] = float(difference.mean())
            if "logits" in name and first.ndim > 1:
                result["changed_labels"] = int(np.sum(first.argmax(-1) != second.argmax(-1)))
            results.append(result)
    return min(results, key=lambda result: result["largest_difference"], default={})


def _digest(directory: str) -> str:
    """Returns the SHA-256 digest of all files in a directory, in the order of their names."""
    digest = hashlib.sha256()
    for path in sorted(filter(os.path.isfile, glob.glob(os.path.join(glob.escape(directory), "**"), recursive=True))):
        with open(path, "rb") as reader:
            digest.update(hashlib.file_digest(reader, "sha256").digest())
    return digest.hexdigest()
