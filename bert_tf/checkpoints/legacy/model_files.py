"""Finds the config and the tokenizer of SavedModels and of KerasHub's presets, which do not have these files.

The files are written to a temporary directory, which is removed when the process ends.
"""

import functools
import os
import tempfile
from typing import Any

from bert_tf.checkpoints.download import CONFIG_FILES
from bert_tf.checkpoints.legacy import keras_hub, saved_model
from bert_tf.checkpoints.legacy.keras_names import translated
from bert_tf.config import BertConfig
from bert_tf.runtime import files
from bert_tf.runtime.errors import InputError
from bert_tf.runtime.program import say_once
from bert_tf.tokenization.vocabulary import CLS, SEP, TOKENIZER_CONFIG_FILE, TOKENIZER_JSON, UNK, VOCAB_FILE

_OWN = (*CONFIG_FILES, VOCAB_FILE, TOKENIZER_JSON, TOKENIZER_CONFIG_FILE)
# The settings that are the sizes of the embedding tables.
_TABLES = {"word": "vocab_size", "position": "max_position_embeddings", "token_type": "type_vocab_size"}


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


@functools.cache
def _written(folder: str, stamps: tuple, flag_name: str) -> tuple[str, tempfile.TemporaryDirectory]:
    temporary = tempfile.TemporaryDirectory(prefix="bert-tf-")
    # Keep the directory's own name, because the casing is checked by the names of the released models.
    target = os.path.join(temporary.name, os.path.basename(folder))
    files.make_folder(target)
    if stamps[0]:
        config = keras_hub.hf_config(folder, flag_name)
        vocabulary, rules = keras_hub.tokenizer(folder, flag_name)
    else:
        for name in _OWN:
            if files.exists(os.path.join(folder, name)):
                files.copy(os.path.join(folder, name), os.path.join(target, name))
        config, vocabulary, rules = _of_saved_model(folder, flag_name, {*files.list_folder(target)})
    if config:
        files.write_json(os.path.join(target, "config.json"), config)
    if vocabulary:
        files.copy(vocabulary, os.path.join(target, VOCAB_FILE))
    if rules:
        files.write_json(os.path.join(target, TOKENIZER_CONFIG_FILE), rules)
    return target, temporary  # removed when the process ends


def _of_saved_model(folder: str, flag_name: str, own: set[str]) -> tuple[dict | None, str | None, dict]:
    """Returns the config, the vocabulary and the rules of the tokenizer, except for those in the model's own files."""
    path = os.path.join(folder, saved_model.SAVED_MODEL_FILE)
    where = f"{flag_name}: {path}"
    vocabulary, rules = None, {}
    assets = os.path.join(folder, "assets")
    if own.isdisjoint((VOCAB_FILE, TOKENIZER_JSON)) and files.is_folder(assets):
        texts = [os.path.join(assets, name) for name in files.list_folder(assets) if name.endswith(".txt")]
        vocabulary = next((text for text in texts if {CLS, SEP, UNK} <= {*files.read_text(text, where).split()}), None)
    if TOKENIZER_CONFIG_FILE not in own and (is_uncased := saved_model.casing(path, where)) is not None:
        rules = {"do_lower_case": is_uncased}
    return (None if own & {*CONFIG_FILES} else _hf_config(path, where)), vocabulary, rules


def _hf_config(path: str, where: str) -> dict[str, Any]:
    shapes, read = saved_model.open_saved_model(path, where)
    stored, _, _ = translated(shapes, read, where)
    tables = {name: shapes.get(stored.get(f"bert/embeddings/{name}_embeddings"), ()) for name in _TABLES}
    inner = shapes.get(stored.get("bert/encoder/layer_0/intermediate/dense/kernel"), ())
    if not all((*tables.values(), inner)) or "bert/encoder/layer_0/attention/self/query/kernel" not in stored:
        raise InputError(f"{where}: no embeddings or no layers of BERT. Use a SavedModel of BERT.")
    sizes = {setting: tables[name][0] for name, setting in _TABLES.items()}
    layers = {name.split("/")[2] for name in stored if name.startswith("bert/encoder/layer_")}
    sizes |= {"hidden_size": tables["word"][-1], "intermediate_size": inner[-1], "num_hidden_layers": len(layers)}
    config = BertConfig.from_dict(sizes | saved_model.settings(path, shapes, stored, where), where)
    say_once(f"{path}: dropout rates are not recorded in a SavedModel. The usual 0.1 is used.")
    values = config.to_hf_dict()
    if rows := shapes.get(stored.get("output_bias")):
        return values | {"architectures": [saved_model.architecture(path, *rows, where)]}
    return {name: value for name, value in values.items() if name != "architectures"}
