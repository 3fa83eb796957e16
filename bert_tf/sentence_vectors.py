"""Sentence vectors: the layers to use, the pooling of hidden states, and normalisation.

Directories of sentence-transformers record these settings in modules.json, in config.json of the pooling module, and in
sentence_bert_config.json.
"""

import os
from collections.abc import Iterable
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import tensorflow as tf

from bert_tf.checkpoints import download
from bert_tf.config import POOLINGS
from bert_tf.runtime import files, json_files
from bert_tf.runtime.errors import InputError
from bert_tf.runtime.program import say
from bert_tf.runtime.settings import Settings

_MODULES_FILE = "modules.json"
_LENGTH_FILE = "sentence_bert_config.json"
_PROMPTS_FILE = "config_sentence_transformers.json"
_FILES = (_MODULES_FILE, _LENGTH_FILE, _PROMPTS_FILE)
_POOLING_MODES = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_cls_token": "cls",
}


def check_layers(numbers: Iterable[int], num_layers: int, place: str) -> None:
    """Raises an InputError if a model of `num_layers` layers lacks a layer; the last layer is also -1.

    Args:
      numbers: the layers.
      num_layers: the number of layers of the model.
      place: the flag or the argument that named the layers.
    """
    for number in numbers:
        if not -num_layers <= number < num_layers:
            raise InputError(
                f"there is no layer {number} in a model of {num_layers} layers. Use {-num_layers} to {num_layers - 1}.",
                place,
            )


class VectorConfig(Settings, frozen=True):
    """How to compute the vector of a text from the hidden states of its tokens.

    Attributes:
      pooling: "mean" or "max" over all tokens, including [CLS] and [SEP]; "cls": the state of [CLS]; "pooled": the
        pooler's output, which was trained with next sentence prediction.
      normalize: if True, scale each vector to length 1, so that dot products are cosine similarities.
      layers: the layers whose states are concatenated; 0 is the first layer, -1 the last.

    Raises:
      InputError: if a value is invalid.
    """

    pooling: Literal[POOLINGS] = "mean"
    normalize: bool = False
    layers: Annotated[tuple[int, ...], msgspec.Meta(min_length=1)] = (-1,)

    def check_model(self, num_layers: int, has_pooler: bool, model: str) -> None:
        """Raises an InputError if a model of `num_layers` layers can't compute the vectors; `model` is its name."""
        if self.pooling == "pooled" and not has_pooler:
            raise InputError(f"{model} has no pooler. Use another pooling.", "pooling='pooled'")
        if self.pooling == "pooled" and self.layers != (-1,):
            raise InputError("the pooler reads only the last layer. Omit layers.", "pooling='pooled'")
        check_layers(self.layers, num_layers, "layers")

    def vectors(self, states: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """Returns the vectors of texts.

        Args:
          states: [B, T, H], the hidden states of the tokens; for "pooled", [B, H], the pooler's output.
          mask: [B, T], 1 for tokens, 0 for padding.

        Returns:
          [B, H], float32.
        """
        vectors = self._pooled(tf.cast(states, tf.float32), tf.cast(mask, tf.bool)[:, :, tf.newaxis])
        return vectors / tf.norm(vectors, axis=1, keepdims=True) if self.normalize else vectors

    def _pooled(self, states: tf.Tensor, is_token: tf.Tensor) -> tf.Tensor:
        if self.pooling == "pooled":
            return states
        if self.pooling == "cls":
            return states[:, 0]
        if self.pooling == "max":
            return tf.reduce_max(tf.where(is_token, states, states.dtype.min), axis=1)
        weights = tf.cast(is_token, tf.float32)
        return tf.reduce_sum(weights * states, axis=1) / tf.reduce_sum(weights, axis=1)


class SentenceModel(NamedTuple):
    """The recorded settings of a model for sentence vectors.

    Attributes:
      path: the directory or the name of the encoder.
      config: how to compute the vectors.
      max_seq_length: longer sequences are truncated; None if it is not recorded.
    """

    path: str
    config: VectorConfig
    max_seq_length: int | None


def find(path: str, flag_name: str) -> SentenceModel:
    """Reads the settings in a directory of sentence-transformers. Other models have the defaults.

    Args:
      path: the directory or the name of a model; see `bert_tf.load_model`.
      flag_name: the flag or function that got the path, for messages.

    Raises:
      InputError: if the vectors need a module that this project does not have; the message names it.
    """
    folder = download.local_path(path, flag_name)
    modules = _modules(folder, flag_name)
    if not modules:
        return SentenceModel(path, VectorConfig(), None)
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        expected = "Transformer, Pooling and optionally Normalize"
        raise InputError(
            f"the modules are {', '.join(kinds)}. Use a model with {expected}.",
            f"{flag_name}: {os.path.join(folder, _MODULES_FILE)}",
        )
    encoder, pooling_folder = (os.path.join(folder, _path(module)).rstrip("/") for module in modules[:2])
    length_file = os.path.join(encoder, _LENGTH_FILE)
    lengths = json_files.read(length_file, flag_name, dict[str, Any]) if files.exists(length_file) else {}
    _report_prompt(os.path.join(folder, _PROMPTS_FILE), flag_name)
    pooling = _pooling(os.path.join(pooling_folder, "config.json"), flag_name)
    return SentenceModel(encoder, VectorConfig(pooling, "Normalize" in kinds), lengths.get("max_seq_length"))


def copy_settings(folder: str, target: str, flag_name: str) -> None:
    """Copies the settings of sentence-transformers, if a model's directory has any, to another directory."""
    modules = _modules(folder, flag_name)
    if not modules:
        return
    folders = filter(None, (os.path.basename(_path(module)) for module in modules))
    for name in (*_FILES, *(os.path.join(name, "config.json") for name in folders)):
        if files.exists(os.path.join(folder, name)):
            files.make_folder(os.path.dirname(os.path.join(target, name)))
            files.copy(os.path.join(folder, name), os.path.join(target, name))


def _modules(folder: str, flag_name: str) -> list[dict[str, Any]]:
    """Reads the modules of a directory of sentence-transformers; of other models there are none."""
    path = os.path.join(folder, _MODULES_FILE)
    has_file = files.is_folder(folder) and files.exists(path)
    return json_files.read(path, flag_name, list[dict[str, Any]]) if has_file else []


def _path(module: dict[str, Any]) -> str:
    """Returns the folder of a module in the directory."""
    return str(module.get("path", "")).rstrip("/")


def _pooling(path: str, flag_name: str) -> str:
    """Reads the pooling in the config of a pooling module."""
    values = json_files.read(path, flag_name, dict[str, Any])
    named = [name for name, value in values.items() if name.startswith("pooling_mode_") and value is True]
    poolings = [_POOLING_MODES.get(name) for name in named] or [values.get("pooling_mode")]
    if len(poolings) > 1 or poolings[0] not in _POOLING_MODES.values():
        given = ", ".join(named) or values.get("pooling_mode")
        known = ", ".join(_POOLING_MODES.values())
        raise InputError(f"the pooling is {given}. Use a model with one of {known}.", f"{flag_name}: {path}")
    return poolings[0]


def _report_prompt(path: str, flag_name: str) -> None:
    """Prints a warning if a model was trained with a prompt before each text, because none is added."""
    values = json_files.read(path, flag_name, dict[str, Any]) if files.exists(path) else {}
    name, prompts = values.get("default_prompt_name"), values.get("prompts") or {}
    if name and prompts.get(name):
        say(f"Warning: {path}: the model was trained with {prompts[name]!r} before each text. Add it to your texts.")
