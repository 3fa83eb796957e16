"""Sentence vectors: the layers to use, the pooling of hidden states, and normalisation.

Directories of sentence-transformers record these settings in modules.json, config_sentence_transformers.json,
sentence_bert_config.json, and config.json of the pooling module.
"""

import os
from collections.abc import Iterable
from typing import Annotated, Any, NamedTuple, Self

import msgspec
import tensorflow as tf

from bert_tf.checkpoints import download
from bert_tf.config import Pooling
from bert_tf.runtime import files, json_files
from bert_tf.runtime.errors import InputError, check
from bert_tf.runtime.settings import Settings
from bert_tf.text import Tokenizer
from bert_tf.text.tokenizer_config import SENTENCE_CONFIG_FILE
from bert_tf.text.vocabulary import TOKENIZER_CONFIG_FILE

_MODULES_FILE = "modules.json"
_LENGTH_FILE = SENTENCE_CONFIG_FILE
_PROMPTS_FILE = "config_sentence_transformers.json"
_FILES = (_MODULES_FILE, _LENGTH_FILE, _PROMPTS_FILE)
# The settings that are read or do not change the vectors, and the accepted values of other settings.
_KNOWN = (
    *("prompts", "default_prompt_name", "truncate_dim", "max_seq_length", "do_lower_case", "pooling_mode"),
    *("include_prompt", "__version__", "similarity_fn_name", "unpad_inputs"),
    *("word_embedding_dimension", "embedding_dimension"),
)
_ACCEPTED = {
    "model_type": "SentenceTransformer",
    "transformer_task": "feature-extraction",
    "module_output_name": "token_embeddings",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
}
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
      truncate_dim: the number of values of a vector that are kept; None for all.
      truncate_first: whether this is done before vectors are normalised.
      prompt: a text to put before each text.
      prompts: the names of prompts, and the prompts.
      include_prompt: if False, pooling leaves out the tokens of the prompt, and [CLS] before them.
      left_out: the number of these tokens; see `with_prompt`.

    Raises:
      InputError: if a value is invalid.
    """

    pooling: Pooling = "mean"
    normalize: bool = False
    layers: Annotated[tuple[int, ...], msgspec.Meta(min_length=1)] = (-1,)
    truncate_dim: Annotated[int, msgspec.Meta(ge=1)] | None = None
    truncate_first: bool = False
    prompt: str = ""
    prompts: tuple[tuple[str, str], ...] = ()
    include_prompt: bool = True
    left_out: int = 0

    def with_given(self, **given: Any) -> Self:
        """Returns the settings with the values that are not None. Vectors that you normalise are truncated first."""
        given = {name: value for name, value in given.items() if value is not None}
        return self.replace(truncate_first=given.get("normalize", False), **given)

    def with_prompt(self, prompt: str, tokenizer: Tokenizer) -> Self:
        """Returns the settings for texts after a prompt."""
        tokens = 0 if self.include_prompt or not prompt else 1 + len(tokenizer.encode(prompt))
        return self.replace(prompt=prompt, left_out=tokens)

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
        is_pooled = tf.range(tf.shape(mask)[1]) >= self.left_out
        vectors = self._pooled(tf.cast(states, tf.float32), (tf.cast(mask, tf.bool) & is_pooled)[:, :, tf.newaxis])
        if self.truncate_first:
            vectors = vectors[:, : self.truncate_dim]
        if self.normalize:
            vectors /= tf.norm(vectors, axis=1, keepdims=True)
        return vectors[:, : self.truncate_dim]

    def _pooled(self, states: tf.Tensor, is_token: tf.Tensor) -> tf.Tensor:
        if self.pooling == "pooled":
            return states
        if self.pooling == "cls":
            return states[:, self.left_out]
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
    directory = download.local_path(path, flag_name)
    modules = _modules(directory, flag_name)
    if not modules:
        return SentenceModel(path, VectorConfig(), None)
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        expected = "Transformer, Pooling and optionally Normalize"
        raise InputError(
            f"the modules are {', '.join(kinds)}. Use a model with {expected}.",
            f"{flag_name}: {os.path.join(directory, _MODULES_FILE)}",
        )
    encoder, pooling_directory = (os.path.join(directory, _path(module)).rstrip("/") for module in modules[:2])
    lengths = _settings(os.path.join(encoder, _LENGTH_FILE), flag_name)
    settings = _settings(os.path.join(directory, _PROMPTS_FILE), flag_name)
    prompts = check(settings.get("prompts") or {}, dict[str, str], f"{flag_name}: {directory}/{_PROMPTS_FILE}")
    pooling, include_prompt = _pooling(os.path.join(pooling_directory, "config.json"), flag_name)
    config = VectorConfig(
        pooling,
        "Normalize" in kinds,
        truncate_dim=settings.get("truncate_dim"),
        prompt=prompts.get(settings.get("default_prompt_name") or "", ""),
        prompts=tuple(prompts.items()),
        include_prompt=include_prompt,
    )
    tokenizer_config = os.path.join(encoder, TOKENIZER_CONFIG_FILE)
    recorded = json_files.read(tokenizer_config, flag_name, dict[str, Any]) if files.exists(tokenizer_config) else {}
    longest = lengths.get("max_seq_length") or recorded.get("model_max_length")
    return SentenceModel(encoder, config, longest and int(longest))


def copy_settings(directory: str, target: str, flag_name: str) -> None:
    """Copies the settings of sentence-transformers, if a model's directory has any, to another directory."""
    modules = _modules(directory, flag_name)
    if not modules:
        return
    directories = filter(None, (os.path.basename(_path(module)) for module in modules))
    for name in (*_FILES, *(os.path.join(name, "config.json") for name in directories)):
        if files.exists(os.path.join(directory, name)):
            files.make_directory(os.path.dirname(os.path.join(target, name)))
            files.copy(os.path.join(directory, name), os.path.join(target, name))


def _modules(directory: str, flag_name: str) -> list[dict[str, Any]]:
    """Reads the modules of a directory of sentence-transformers; of other models there are none."""
    path = os.path.join(directory, _MODULES_FILE)
    has_file = files.is_directory(directory) and files.exists(path)
    return json_files.read(path, flag_name, list[dict[str, Any]]) if has_file else []


def _path(module: dict[str, Any]) -> str:
    """Returns the directory of a module in the directory."""
    return str(module.get("path", "")).rstrip("/")


def _pooling(path: str, flag_name: str) -> tuple[str, bool]:
    """Reads the pooling, and whether it includes a prompt, in the config of a pooling module."""
    values = _settings(files.require_file(path, flag_name), flag_name)
    named = [name for name, value in values.items() if name.startswith("pooling_mode_") and value is True]
    poolings = [_POOLING_MODES.get(name) for name in named] or [values.get("pooling_mode")]
    if len(poolings) > 1 or poolings[0] not in _POOLING_MODES.values():
        given = ", ".join(named) or values.get("pooling_mode")
        known = ", ".join(_POOLING_MODES.values())
        raise InputError(f"the pooling is {given}. Use a model with one of {known}.", f"{flag_name}: {path}")
    return poolings[0], values.get("include_prompt", True)


def _settings(path: str, flag_name: str) -> dict[str, Any]:
    """Reads a file of settings; empty if there is none.

    Raises:
      InputError: if it has a setting that may change the vectors, and that this project does not have.
    """
    values = json_files.read(path, flag_name, dict[str, Any]) if files.exists(path) else {}
    for name, value in values.items():
        is_known = name in _KNOWN or name.startswith("pooling_mode_") or value in (None, False, {}, [])
        if not is_known and _ACCEPTED.get(name) != value:
            problem = f"the setting {name!r} is {str(value)[:60]}, which may change the vectors"
            raise InputError(f"{problem}. Use another model, or remove it.", f"{flag_name}: {path}")
    return values
