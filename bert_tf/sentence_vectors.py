"""Sentence vectors: the layers to use, the pooling of hidden states, and normalisation.

Directories of sentence-transformers record these settings in modules.json, config_sentence_transformers.json,
sentence_bert_config.json, and config.json of the pooling module.
"""

import os
from collections.abc import Iterable
from typing import Annotated, Any, NamedTuple, Self, TypedDict

import msgspec
import numpy as np
import tensorflow as tf

from bert_tf.checkpoints import download
from bert_tf.config import POOLINGS, Pooling
from bert_tf.runtime import files, json_files
from bert_tf.runtime.errors import InputError, check, require_whole
from bert_tf.runtime.messages import say_once
from bert_tf.runtime.settings import Settings
from bert_tf.text import Tokenizer
from bert_tf.text.hf_tokenizer import SENTENCE_CONFIG_FILE
from bert_tf.text.vocabulary import TOKENIZER_CONFIG_FILE

MODULES_FILE = "modules.json"
_DEFAULT_PROMPT = "default"
_LENGTH_FILE = SENTENCE_CONFIG_FILE
_PROMPTS_FILE = "config_sentence_transformers.json"
_FILES = (MODULES_FILE, _LENGTH_FILE, _PROMPTS_FILE)
# Settings that are read, or that do not change the vectors. `_ACCEPTED` has the accepted values of other settings.
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

# The numbers of queries and vectors that `search` compares at a time.
_SEARCHED_QUERIES, _SEARCHED_VECTORS = 1024, 4096


def check_layers(numbers: Iterable[int], num_layers: int, where: str) -> None:
    """Raises an InputError if the model does not have one of the layers.

    Args:
      numbers: the layers, from 0; negative numbers are counted from the end.
      num_layers: the number of layers of the model.
      where: the flag or the argument with the layers, for messages.
    """
    for number in numbers:
        if not -num_layers <= number < num_layers:
            problem = f"there is no layer {number} in a model of {num_layers} layers"
            raise InputError(f"{problem}. Use {-num_layers} to {num_layers - 1}.", where)


class VectorConfig(Settings, frozen=True):
    """How to compute the vector of a text from the hidden states of its tokens.

    Attributes:
      pooling: "mean" or "max" over all tokens, including [CLS] and [SEP]; "cls": the state of [CLS]; "pooled": the
        pooled output, which was trained with next sentence prediction.
      normalize: if True, scale each vector to length 1, so that dot products are cosine similarities.
      layers: the layers whose states are concatenated; 0 is the first layer, -1 the last.
      truncate_dim: the number of values of a vector to keep; None for all.
      truncate_first: whether vectors are truncated before they are normalised.
      prompt: a text to put before each text.
      prompts: pairs of the name of a prompt and the prompt.
      include_prompt: if False, pooling leaves out [CLS] and the tokens of the prompt.
      left_out: the number of tokens that pooling leaves out; see `with_prompt`.

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

    def with_given(self, **values: Any) -> Self:
        """Returns the settings with the given values that are not None.

        If `normalize` is given and True, vectors are truncated before they are normalised.
        """
        values = {name: value for name, value in values.items() if value is not None}
        return self.replace(truncate_first=values.get("normalize", False), **values)

    def with_prompt(self, prompt: str, tokenizer: Tokenizer) -> Self:
        """Returns the settings with a prompt, and with the number of tokens that pooling leaves out."""
        tokens = 0 if self.include_prompt or not prompt else 1 + len(tokenizer.encode(prompt))
        return self.replace(prompt=prompt, left_out=tokens)

    def check_model(self, num_layers: int, has_pooler: bool, model: str) -> None:
        """Raises an InputError if a model can't compute the vectors.

        Args:
          num_layers: the number of layers of the model.
          has_pooler: whether the model has a pooler.
          model: the name of the model, for messages.
        """
        if self.pooling == "pooled" and not has_pooler:
            raise InputError(f"{model} has no pooler. Use another pooling.", "pooling='pooled'")
        if self.pooling == "pooled" and self.layers != (-1,):
            raise InputError("the pooler reads only the last layer. Omit layers.", "pooling='pooled'")
        check_layers(self.layers, num_layers, "layers")

    def vectors(self, states: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """Returns the vectors of texts.

        Args:
          states: [B, T, H], the hidden states of the tokens; for the pooling "pooled", the pooled output [B, H].
          mask: [B, T], 1 for tokens, 0 for padding.

        Returns:
          [B, H], or [B, truncate_dim], float32.
        """
        lengths = tf.reduce_sum(tf.cast(mask, tf.int32), axis=1)
        # At least the last token is pooled, as in sentence-transformers if the prompt fills the sequence.
        first = tf.clip_by_value(lengths - 1, 0, self.left_out)  # [B]
        is_pooled = tf.range(tf.shape(mask)[1]) >= first[:, tf.newaxis]
        is_token = tf.expand_dims(tf.cast(mask, tf.bool) & is_pooled, 2)  # LiteRT's converter needs this form
        vectors = self._pooled(tf.cast(states, tf.float32), is_token, first)
        if self.truncate_first:
            vectors = vectors[:, : self.truncate_dim]
        if self.normalize:
            vectors /= tf.maximum(tf.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors[:, : self.truncate_dim]

    def _pooled(self, states: tf.Tensor, is_token: tf.Tensor, first: tf.Tensor) -> tf.Tensor:
        if self.pooling == "pooled":
            return states
        if self.pooling == "cls":
            return tf.gather(states, first, batch_dims=1)
        if self.pooling == "max":
            return tf.reduce_max(tf.where(is_token, states, states.dtype.min), axis=1)
        weights = tf.cast(is_token, tf.float32)
        return tf.reduce_sum(weights * states, axis=1) / tf.reduce_sum(weights, axis=1)


def unit_vectors(vectors: np.ndarray, where: str, first: int = 0) -> np.ndarray:
    """Returns vectors [..., H] scaled to length 1, float32. A zero vector stays zero.

    Args:
      vectors: the vectors, of any numeric type.
      where: the argument with the vectors, for messages.
      first: the number of the first vector, for messages.

    Raises:
      InputError: if a vector has a number that is not finite.
    """
    vectors = np.asarray(vectors, np.float32)  # a norm can exceed the largest float16
    is_finite = np.isfinite(vectors).all(axis=-1)
    if not is_finite.all():
        number = first + int(np.argmin(is_finite))
        raise InputError(f"vector {number} contains NaN or infinity. Compute it again, or remove it.", where)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def search(queries: np.ndarray, corpus: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Finds the k vectors with the largest cosine similarity to each query. Compares each query with all vectors.

    The corpus is compared in parts, so memory does not depend on the size of the corpus.

    Args:
      queries: [q, H].
      corpus: [n, H], in memory or an `np.memmap`.
      k: the number of vectors to find; if it is larger than n, all are returned.

    Returns:
      The indices in the corpus, int64 [q, k], and the similarities, float32 [q, k], largest first. Vectors with the
      same similarity are sorted by index.

    Raises:
      InputError: if k is below 1, the vectors have different sizes, or a number is not finite.
    """
    require_whole("k", k, 1)
    if queries.shape[1:] != corpus.shape[1:]:
        raise InputError(f"shape {corpus.shape}, but the queries have {queries.shape}. Use the same encoder.", "corpus")
    size = len(queries), min(k, len(corpus))
    numbers, scores = np.zeros(size, np.int64), np.zeros(size, np.float32)
    for first in range(0, len(queries), _SEARCHED_QUERIES):
        rows = slice(first, first + _SEARCHED_QUERIES)
        unit_queries = unit_vectors(queries[rows], "queries", first)
        nearest, best = numbers[rows, :0], scores[rows, :0]
        for begin in range(0, len(corpus), _SEARCHED_VECTORS):
            vectors = unit_vectors(corpus[begin : begin + _SEARCHED_VECTORS], "corpus", begin)
            similarities = unit_queries @ vectors.T
            indices = np.broadcast_to(begin + np.arange(similarities.shape[1]), similarities.shape)
            best = np.concatenate([best, similarities], axis=1)
            best, order = map(np.array, tf.math.top_k(best, min(k, best.shape[1])))  # the first of equal values
            nearest = np.take_along_axis(np.concatenate([nearest, indices], axis=1), order, axis=1)
        numbers[rows], scores[rows] = nearest, best
    return numbers, scores


class SentenceModel(NamedTuple):
    """The recorded settings of a model for sentence vectors.

    Attributes:
      path: the directory or the name of the encoder.
      config: how to compute the vectors.
      max_seq_length: longest sequence in tokens; longer ones are truncated. None if it is not recorded.
      is_recorded: whether the directory has settings of sentence-transformers.
    """

    path: str
    config: VectorConfig
    max_seq_length: int | None
    is_recorded: bool = False


def find(path: str, flag_name: str) -> SentenceModel:
    """Reads the settings in a directory of sentence-transformers. For other models, returns the defaults.

    Args:
      path: the directory or the name of a model; see `bert_tf.load_model`.
      flag_name: the flag or function with the path, for messages.

    Raises:
      InputError: if a module or a setting of the model is not supported; the message names it.
    """
    directory = download.local_path(path, flag_name)
    modules = _modules(directory, flag_name)
    if not modules:
        return SentenceModel(path, VectorConfig(), None)
    types = [module.get("type", "") for module in modules]
    # Other packages are the model's own code.
    kinds = [kind.rpartition(".")[2] if kind.startswith("sentence_transformers.") else repr(kind) for kind in types]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        problem = f"the modules are {', '.join(kinds)}"
        remedy = "Use a model with Transformer, Pooling and optionally Normalize."
        raise InputError(f"{problem}. {remedy}", f"{flag_name}: {os.path.join(directory, MODULES_FILE)}")
    encoder, pooling_directory = (os.path.join(directory, _path(module)).rstrip("/") for module in modules[:2])
    lengths = _settings(os.path.join(encoder, _LENGTH_FILE), flag_name)
    others = files.find(os.path.join(encoder, "sentence_*_config.json"))
    if others and os.path.join(encoder, _LENGTH_FILE) not in others:
        raise InputError(f"{flag_name}: {others[0]}: rename this file to {_LENGTH_FILE}.")
    settings = _settings(os.path.join(directory, _PROMPTS_FILE), flag_name)
    prompts = check(settings.get("prompts") or {}, dict[str, str], f"{flag_name}: {directory}/{_PROMPTS_FILE}")
    default = check(settings.get("default_prompt_name"), str | None, "default_prompt_name")
    if default is not None and default not in prompts:
        raise InputError(f"{flag_name}: {directory}/{_PROMPTS_FILE}: prompts has no {default!r}. Add it.")
    pooling, include_prompt = _pooling(os.path.join(pooling_directory, "config.json"), flag_name)
    config = VectorConfig(
        pooling,
        "Normalize" in kinds,
        truncate_dim=settings.get("truncate_dim"),
        prompt=prompts.get(default, ""),
        prompts=tuple(prompts.items()),
        include_prompt=include_prompt,
    )
    tokenizer_config = os.path.join(encoder, TOKENIZER_CONFIG_FILE)
    recorded = json_files.read(tokenizer_config, flag_name, dict[str, Any]) if files.exists(tokenizer_config) else {}
    where = f"{flag_name}: {encoder}: max_seq_length"
    longest = check(lengths.get("max_seq_length"), Annotated[int, msgspec.Meta(ge=1)] | None, where)
    if longest is None:  # transformers 2 called the setting of the tokenizer max_len
        longest = recorded.get("model_max_length", recorded.get("max_len"))
        longest = check(longest, int | float | None, f"{flag_name}: {tokenizer_config}: model_max_length")
    if (compared := settings.get("similarity_fn_name")) not in (None, "cosine"):
        say_once(f"Warning: {directory}: similarity_fn_name is {compared!r:.60}, but similarities are cosines here.")
    return SentenceModel(encoder, config, None if longest is None else int(min(longest, 1e9)), is_recorded=True)


def write_settings(directory: str, config: VectorConfig, width: int, max_seq_length: int) -> None:
    """Writes settings in the format of sentence-transformers, which has no pooling "pooled".

    Args:
      directory: the directory of the model.
      config: how to compute the vectors.
      width: the hidden size of the model.
      max_seq_length: longest sequence in tokens.
    """
    kinds = ("Transformer", "Pooling", "Normalize")[: 2 + config.normalize]
    modes = {name: mode == config.pooling for name, mode in _POOLING_MODES.items()}
    pooling = modes if any(modes.values()) else {"pooling_mode": config.pooling}
    default = _DEFAULT_PROMPT if config.prompt else None
    contents: dict[str, Any] = {
        MODULES_FILE: [
            {
                "idx": number,
                "name": str(number),
                "path": f"{number}_{kind}" if number else "",
                "type": f"sentence_transformers.models.{kind}",
            }
            for number, kind in enumerate(kinds)
        ],
        _LENGTH_FILE: {"max_seq_length": max_seq_length},
        "1_Pooling/config.json": {"word_embedding_dimension": width, "include_prompt": config.include_prompt} | pooling,
        _PROMPTS_FILE: {
            "prompts": dict(config.prompts) | ({default: config.prompt} if default else {}),
            "default_prompt_name": default,
            "similarity_fn_name": "cosine",
            "truncate_dim": config.truncate_dim,
        },
    }
    for name, content in contents.items():
        path = os.path.join(directory, name)
        files.make_directory(os.path.dirname(path))
        files.write_json(path, content)


def copy_settings(directory: str, target: str, flag_name: str) -> None:
    """Copies the settings of sentence-transformers from one directory to another, if there are any."""
    modules = _modules(directory, flag_name)
    if not modules:
        return
    directories = filter(None, (os.path.basename(_path(module)) for module in modules))
    for name in (*_FILES, *(os.path.join(name, "config.json") for name in directories)):
        if files.exists(os.path.join(directory, name)):
            files.make_directory(os.path.dirname(os.path.join(target, name)))
            files.copy(os.path.join(directory, name), os.path.join(target, name))


class _Module(TypedDict, total=False):
    type: str
    path: str


def _modules(directory: str, flag_name: str) -> list[_Module]:
    """Reads the list of modules in a directory of sentence-transformers; empty for other models.

    Raises:
      InputError: if a module is not in the directory.
    """
    path = os.path.join(directory, MODULES_FILE)
    has_file = files.is_directory(directory) and files.exists(path)
    kind = Annotated[list[_Module], msgspec.Meta(min_length=1)]
    modules: list[_Module] = json_files.read(path, flag_name, kind) if has_file else []
    for name in map(_path, modules):
        if name.startswith("/") or ".." in name.split("/"):
            raise InputError(f"{flag_name}: {path}: {name!r} is outside of the directory. Use another model.")
    return modules


def _path(module: _Module) -> str:
    """Returns the subdirectory of a module."""
    return module.get("path", "").rstrip("/")


def _pooling(path: str, flag_name: str) -> tuple[str, bool]:
    """Reads the config of a pooling module. Returns the pooling, and whether it includes the prompt."""
    values = _settings(files.require_file(path, flag_name), flag_name)
    named = [name for name, value in values.items() if name.startswith("pooling_mode_") and value is True]
    recorded = values.get("pooling_mode", ", ".join(named))
    pooling = recorded if "pooling_mode" in values else _POOLING_MODES.get(recorded)
    if pooling not in POOLINGS:
        known = ", ".join(POOLINGS)
        raise InputError(f"the pooling is {recorded or None}. Use a model with one of {known}.", f"{flag_name}: {path}")
    return pooling, values.get("include_prompt", True)


def _settings(path: str, flag_name: str) -> dict[str, Any]:
    """Reads a file of settings; empty if there is no file.

    Raises:
      InputError: if an unsupported setting may change the vectors.
    """
    values = json_files.read(path, flag_name, dict[str, Any]) if files.exists(path) else {}
    for name, value in values.items():
        is_known = name in _KNOWN or name.startswith("pooling_mode_") or value in (None, False, {}, [])
        if not is_known and _ACCEPTED.get(name) != value:
            problem = f"the setting {name!r} is {str(value)[:60]}, which may change the vectors"
            raise InputError(f"{problem}. Use another model, or remove the setting.", f"{flag_name}: {path}")
    return values
