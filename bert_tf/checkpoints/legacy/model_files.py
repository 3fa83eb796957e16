"""Writes the config and the tokenizer files of SavedModels and KerasHub presets, which do not have these files.

The files are in a temporary directory, which is removed when the process ends.
"""

import functools
import os
import tempfile

from bert_tf.checkpoints.download import CONFIG_FILES
from bert_tf.checkpoints.legacy import keras_hub, saved_model
from bert_tf.runtime import files
from bert_tf.text.vocabulary import TOKENIZER_CONFIG_FILE, TOKENIZER_JSON, VOCAB_FILE

# If one of these files is in the directory of `saved_model.pb`, it is used instead.
_MODEL_FILES = (*CONFIG_FILES, VOCAB_FILE, TOKENIZER_JSON, TOKENIZER_CONFIG_FILE)


def described(directory: str, flag_name: str = "--init_checkpoint") -> str:
    """Returns a directory that contains the config and the vocabulary of a model.

    Args:
      directory: the directory of the model.
      flag_name: the flag with the directory, for messages.

    Returns:
      For a SavedModel or a preset of KerasHub, a temporary directory; otherwise, `directory`.

    Raises:
      InputError: if the model is not a BERT model, or a setting is ambiguous.
    """
    paths = [os.path.join(directory, name) for name in (keras_hub.WEIGHTS_FILE, saved_model.SAVED_MODEL_FILE)]
    stamps = tuple(map(files.stamp, paths))
    if not any(stamps) or files.exists(os.path.join(directory, "run.json")):
        return directory
    return _written(files.resolved(directory), stamps, flag_name)[0]


@functools.cache
@files.fills_cache()
def _written(directory: str, stamps: tuple, flag_name: str) -> tuple[str, tempfile.TemporaryDirectory]:
    temporary = tempfile.TemporaryDirectory(prefix="bert-tf-")
    # Keep the name of the directory, because the casing is checked by the names of the released models.
    target = os.path.join(temporary.name, os.path.basename(directory))
    files.make_directory(target)
    reader = keras_hub if stamps[0] else saved_model
    names = [name for name in _MODEL_FILES if reader is saved_model and files.exists(os.path.join(directory, name))]
    if not {*names} & {*CONFIG_FILES}:
        files.write_json(os.path.join(target, "config.json"), reader.hf_config(directory, flag_name))
    vocabulary, rules = reader.tokenizer(directory, flag_name)
    if vocabulary:
        files.copy(vocabulary, os.path.join(target, VOCAB_FILE))
    files.write_json(os.path.join(target, TOKENIZER_CONFIG_FILE), rules)
    for name in names:
        files.copy(os.path.join(directory, name), os.path.join(target, name))
    return target, temporary  # removed when the process ends
