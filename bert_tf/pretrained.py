"""`bert_tf.load`: a pre-trained or fine-tuned encoder from any format, with its tokenizer and config."""

import dataclasses
import os
from typing import Any

from bert_tf import checkpoints, files, run_directory
from bert_tf.config import BertConfig
from bert_tf.encoder import BertEncoder
from bert_tf.files import InputError
from bert_tf.tokenization import FullTokenizer, load_tokenizer
from bert_tf.vocabulary import guess_casing

_CONFIG_FILES = (run_directory.CONFIG_FILE, "config.json")


@dataclasses.dataclass(frozen=True)
class LoadedBert:
    """What `load` returns.

    Attributes:
      encoder: call it with input_ids [B, T] (and input_mask, segment_ids); see `BertEncoder`.
      tokenizer: None where there is no vocabulary beside the checkpoint.
      config: of the encoder.
      source: the checkpoint, for reading what else it holds.
    """

    encoder: BertEncoder
    tokenizer: FullTokenizer | None
    config: BertConfig
    source: checkpoints.CheckpointSource


def load(path: str, do_lower_case: bool | None = None, dtype: str = "float32") -> LoadedBert:
    """Loads an encoder.

    Args:
      path: a folder or a checkpoint prefix, in the release's, Hugging Face's, Model Garden's or our own format; the
        config (bert_config.json or config.json) and vocab.txt lie beside it.
      do_lower_case: the tokenizer's casing; by default that of the run, or else what the vocabulary's letters say.
      dtype: of `BertEncoder`.

    Raises:
      InputError: if something is missing, or doesn't fit together.
    """
    checkpoint = checkpoints.find_checkpoint(path, "load()")
    folder = path if files.is_folder(path) else os.path.dirname(path)
    config = BertConfig.from_json_file(find_config(folder, "load()"), "load()")
    encoder = BertEncoder(config, causal=_recorded(folder, "objective") == "ltr", dtype=dtype)
    source = checkpoints.open_checkpoint(checkpoint, "load()")
    checkpoints.restore(checkpoints.named_variables(encoder.variables), source, may_be_fresh="", what="load()")
    vocab_file = os.path.join(folder, run_directory.VOCAB_FILE)
    tokenizer = None
    if files.exists(vocab_file):
        if do_lower_case is None:
            do_lower_case = _recorded_casing(folder, vocab_file)
        tokenizer = load_tokenizer(vocab_file, do_lower_case, checkpoint)
        config.check_vocabulary(len(tokenizer.vocab), vocab_file)
    return LoadedBert(encoder, tokenizer, config, source)


def find_config(folder: str, what: str) -> str:
    """The config file in a folder; the release's name goes first.

    Raises:
      InputError: if there is none.
    """
    for name in _CONFIG_FILES:
        if files.exists(os.path.join(folder, name)):
            return os.path.join(folder, name)
    raise InputError(f"{what}: {folder or '.'} has no {' or '.join(_CONFIG_FILES)} beside the checkpoint.")


def _recorded_casing(folder: str, vocab_file: str) -> bool:
    """What the run or the tokenizer's settings say, or else the vocabulary's letters."""
    recorded = _recorded(folder, "do_lower_case")
    if recorded is not None:
        return recorded
    settings_file = os.path.join(folder, "tokenizer_config.json")
    if files.exists(settings_file):
        recorded = files.read_json(settings_file, "load()").get("do_lower_case")
        if recorded is not None:
            return recorded
    return guess_casing(vocab_file)


def _recorded(folder: str, setting: str) -> Any:
    """What a run was trained with; None where that isn't known."""
    if not files.exists(os.path.join(folder, run_directory.RUN_FILE)):
        return None
    return run_directory.read(folder)["decisive"].get(setting)
