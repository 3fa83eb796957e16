"""Finds the config and the tokenizer of SavedModels and of KerasHub's presets, which do not have these files.

The files are written to a temporary directory, which is removed when the process ends.
"""

import functools
import os
import tempfile
from collections.abc import Mapping
from typing import Any, NamedTuple

from bert_tf.checkpoints.download import CONFIG_FILES
from bert_tf.checkpoints.legacy import keras_hub, saved_model
from bert_tf.checkpoints.legacy.keras_names import translated
from bert_tf.config import BertConfig
from bert_tf.runtime import files
from bert_tf.runtime.errors import InputError
from bert_tf.runtime.program import say_once
from bert_tf.tokenization.vocabulary import CLS, SEP, TOKENIZER_CONFIG_FILE, TOKENIZER_JSON, UNK, VOCAB_FILE

_OWN = (*CONFIG_FILES, VOCAB_FILE, TOKENIZER_JSON, TOKENIZER_CONFIG_FILE)


class Description(NamedTuple):
    """A model's settings.

    Attributes:
      config: in the format of Hugging Face's `config.json`; None if the model's directory has a config.
      vocabulary: the path of the vocabulary; None if there is none.
      rules: the recorded rules of the tokenizer.
    """

    config: dict[str, Any] | None
    vocabulary: str | None
    rules: Mapping[str, bool]


def described(folder: str, flag_name: str = "--init_checkpoint") -> str:
    """Returns a directory with the config and the vocabulary of the model in a directory.

    Returns:
      A temporary directory for a SavedModel or a preset of KerasHub; any other directory itself.

    Raises:
      InputError: if the model is not a BERT, or its settings are not clear.
    """
    paths = [os.path.join(folder, name) for name in (keras_hub.WEIGHTS_FILE, saved_model.SAVED_MODEL_FILE)]
    stamps = tuple(map(files.stamp, paths))
    if not any(stamps) or files.exists(os.path.join(folder, "run.json")):
        return folder
    return _written(files.resolved(folder), stamps, flag_name)[0]


@functools.lru_cache(maxsize=64)
def _written(folder: str, stamps: tuple, flag_name: str) -> tuple[str, tempfile.TemporaryDirectory]:
    temporary = tempfile.TemporaryDirectory(prefix="bert-tf-")
    # Keep the directory's own name, because the casing is checked by the names of the released models.
    target = os.path.join(temporary.name, os.path.basename(folder))
    files.make_folder(target)
    own = [name for name in _OWN if files.exists(os.path.join(folder, name))]
    is_preset = stamps[0] is not None
    for name in () if is_preset else own:
        files.copy(os.path.join(folder, name), os.path.join(target, name))
    found = (_of_preset if is_preset else _of_saved_model)(folder, flag_name, {*own})
    if found.config:
        files.write_json(os.path.join(target, "config.json"), found.config)
    if found.vocabulary:
        files.copy(found.vocabulary, os.path.join(target, VOCAB_FILE))
    if found.rules:
        files.write_json(os.path.join(target, TOKENIZER_CONFIG_FILE), dict(found.rules))
    return target, temporary  # removed when the process ends


def _of_preset(folder: str, flag_name: str, _: set[str]) -> Description:
    return Description(keras_hub.hf_config(folder, flag_name), *keras_hub.tokenizer(folder, flag_name))


def _of_saved_model(folder: str, flag_name: str, own: set[str]) -> Description:
    path = os.path.join(folder, saved_model.SAVED_MODEL_FILE)
    where = f"{flag_name}: {path}"
    vocabulary, rules = None, {}
    if own.isdisjoint((VOCAB_FILE, TOKENIZER_JSON)):
        assets = os.path.join(folder, "assets")
        names = files.list_folder(assets) if files.is_folder(assets) else []
        texts = [os.path.join(assets, name) for name in names if name.endswith(".txt")]
        vocabulary = next((text for text in texts if {CLS, SEP, UNK} <= {*files.read_text(text, where).split()}), None)
    if TOKENIZER_CONFIG_FILE not in own and (is_uncased := saved_model.casing(path, where)) is not None:
        rules = {"do_lower_case": is_uncased}
    return Description(None if own & {*CONFIG_FILES} else _hf_config(path, where), vocabulary, rules)


def _hf_config(path: str, where: str) -> dict[str, Any]:
    shapes, read = saved_model.open_saved_model(path, where)
    stored = translated(shapes, read, where).stored
    expected = {
        "vocab_size": ("bert/embeddings/word_embeddings", 0),
        "hidden_size": ("bert/embeddings/word_embeddings", -1),
        "max_position_embeddings": ("bert/embeddings/position_embeddings", 0),
        "type_vocab_size": ("bert/embeddings/token_type_embeddings", 0),
        "intermediate_size": ("bert/encoder/layer_0/intermediate/dense/kernel", -1),
    }
    if missing := next((name for name, _ in expected.values() if name not in stored), None):
        raise InputError(f"{where}: no variable {missing}. Use a SavedModel of BERT.")
    sizes = {key: shapes[stored[name]][axis] for key, (name, axis) in expected.items()}
    layers = {name.split("/")[2] for name in stored if name.startswith("bert/encoder/layer_")}
    config = BertConfig.from_dict(
        {**sizes, "num_hidden_layers": len(layers), **saved_model.settings(path, shapes, stored, where)}, where
    )
    say_once(f"{path}: dropout rates are not recorded in a SavedModel. The usual 0.1 is used.")
    return config.to_hf_dict(saved_model.architecture(path, shapes, stored, where))
