"""`bert_tf.load_model`: loads a pre-trained or fine-tuned encoder of any format, with its tokenizer and config."""

import contextlib
import dataclasses
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras

from bert_tf import checkpoints
from bert_tf.checkpoints import run_directory, run_record, saver
from bert_tf.checkpoints.class_names import HEAD_VARIABLES
from bert_tf.checkpoints.download import CONFIG_FILES
from bert_tf.config import BertConfig, ModelFiles
from bert_tf.encoder import BertEncoder, EncoderOutput
from bert_tf.model.heads import MaskedLMHead
from bert_tf.runtime import files
from bert_tf.runtime.errors import InputError, require_path
from bert_tf.runtime.messages import say_once
from bert_tf.text import Tokenizer
from bert_tf.text.hf_tokenizer import read_tokenizer_config
from bert_tf.text.vocabulary import TOKENIZER_JSON, VOCAB_FILE, check_same_ids

# The files of a checkpoint may be smaller than the weights of a config by this number of bytes. If the difference is
# small, the error of `restore` is more precise.
_SIZE_TOLERANCE = 10**8


@dataclasses.dataclass(frozen=True)
class LoadedBert:
    """The result of `load_model`. Call it with texts to encode them.

    Examples:
      >>> bert = bert_tf.load_model("build/quickstart/pretrained")
      >>> output = bert("The whale was white.", ("Who was he?", "A sailor."))
      >>> output.sequence_output.shape
      TensorShape([2, 10, 128])

    Attributes:
      encoder: takes input_ids [B, T] (and input_mask, segment_ids) as arrays or tensors; see `BertEncoder`.
      tokenizer: the tokenizer; None if there is no vocabulary in the directory of the checkpoint.
      config: the config of the encoder.
      source: the checkpoint, which may contain other tensors too.
    """

    encoder: BertEncoder
    tokenizer: Tokenizer | None
    config: BertConfig
    source: checkpoints.CheckpointSource

    def masked_lm(self, flag_name: str) -> MaskedLMHead | None:
        """Loads the masked-LM head. Returns None if the checkpoint has no such head.

        Pass `encoder.embedding_table` to each call of the head.

        Args:
          flag_name: the flag with the checkpoint, for messages.

        Raises:
          InputError: if a part of the head is missing or has a different size.
        """
        if "cls/predictions/output_bias" not in self.source.shapes:
            return None
        head = MaskedLMHead(self.config)
        variables = checkpoints.named_variables(head.weights)
        # `load_model` has already checked the rest of the checkpoint.
        checkpoints.restore(variables, self.source, may_be_new="", may_be_ignored=".*", flag_name=flag_name)
        return head

    def __call__(
        self, *texts: str | tuple[str, str] | list[Any] | Mapping[str, Any], max_seq_length: int | None = None
    ) -> EncoderOutput:
        """Encodes a batch of B texts or pairs of texts.

        Args:
          *texts: a text becomes [CLS] A [SEP]; a pair (a tuple) becomes [CLS] A [SEP] B [SEP]; a list is a batch of
            texts and pairs; a dict is the output of the tokenizer, for which `max_seq_length` is ignored.
          max_seq_length: longest sequence in tokens; longer ones are truncated. Default: the maximum of the model.

        Returns:
          The output of the encoder. T is the length of the longest sequence.

        Raises:
          InputError: if an input is not a text, there is no vocabulary, or the model has too few positions.
        """
        if len(texts) == 1 and isinstance(texts[0], Mapping):
            return self.encoder(texts[0])
        texts = [text for item in texts for text in (item if isinstance(item, list) else [item])]
        max_seq_length = max_seq_length or self.config.max_position_embeddings
        self.config.check_sequence_length(max_seq_length)
        tokenizer = required_tokenizer(self.tokenizer, self.source.path, "load_model()")
        batch = tokenizer(texts, max_length=max_seq_length)
        self.config.check_segments(bool(batch["segment_ids"].any()))
        return self.encoder(batch)


def load_model(
    path: str | os.PathLike[str],
    do_lower_case: bool | None = None,
    dtype: str | None = None,
    caller: str = "load_model()",
) -> LoadedBert:
    """Loads an encoder.

    Args:
      path: a directory or a checkpoint prefix, in the format of the original code, Hugging Face, Model Garden or this
        project, with bert_config.json (or config.json) and vocab.txt in the same directory. Or a repository on the
        Hugging Face Hub (`owner/name` or `hf://owner/name@revision`), or a released zip file or its URL.
      do_lower_case: the casing of the tokenizer. By default, it is read from the settings of the run or the tokenizer,
        or derived from the vocabulary.
      dtype: the dtype of matrix multiplications: "float32", "bfloat16" or "float16". Keras's names "mixed_bfloat16" and
        "mixed_float16" are also accepted. The default is Keras's global policy.
      caller: the function or flag with the path, for messages.

    Returns:
      The encoder, its tokenizer, its config and the checkpoint.

    Raises:
      InputError: if a file is missing, or checkpoint, config and vocabulary do not match.
    """
    checkpoint, config, tokenizer = find_model(path, caller, do_lower_case)
    source = checkpoints.open_checkpoint(checkpoint, caller)
    policy = keras.config.dtype_policy().name if dtype is None else dtype
    encoder, summary = restored_encoder(config, source, caller, dtype=policy, seed=None)
    if layer := [name for name in summary.ignored if re.fullmatch(HEAD_VARIABLES, name)]:
        say_once(f"{checkpoint}: the encoder is loaded, and the output layer ({', '.join(layer)}) is not.")
    return LoadedBert(encoder, tokenizer, config, source)


def find_model(
    path: str | os.PathLike[str], flag_name: str, do_lower_case: bool | None = None
) -> tuple[str, BertConfig, Tokenizer | None]:
    """Finds the checkpoint (prefix or file), the config and the tokenizer of a model.

    Args:
      path: see `load_model`.
      flag_name: the flag or function with the path, for messages.
      do_lower_case: see `load_model`.

    Raises:
      InputError: if a file is missing, or checkpoint, config and vocabulary do not match.
    """
    checkpoint = checkpoints.find_checkpoint(require_path(flag_name, path), flag_name)
    directory = run_directory.directory_of_checkpoint(checkpoint, flag_name)
    config = BertConfig.from_json_file(find_config(directory, flag_name), flag_name)
    check_size(config, directory, flag_name)
    vocab_file = find_vocabulary(directory)
    if vocab_file is None:
        return checkpoint, config, None
    return checkpoint, config, tokenizer_of(directory, config, vocab_file, do_lower_case)


def required_tokenizer(tokenizer: Tokenizer | None, checkpoint: str, flag_name: str) -> Tokenizer:
    """Returns the tokenizer if there is one.

    Raises:
      InputError: if `tokenizer` is None.
    """
    if tokenizer is None:
        problem = f"no vocab.txt or tokenizer.json next to {checkpoint}"
        raise InputError(f"{flag_name}: {problem}. Copy the vocabulary there.")
    return tokenizer


def tokenizer_of(
    directory: str | None, config: BertConfig, vocab_file: str, do_lower_case: bool | None = None
) -> Tokenizer:
    """Returns the tokenizer of a model.

    Args:
      directory: the directory of the model; None for a new model.
      config: the config of the model.
      vocab_file: the vocabulary.
      do_lower_case: the casing; by default the casing of the model, see `find_rules`.

    Raises:
      InputError: if the vocabulary can't be used, or does not match the config, the model or the casing.
    """
    records = tokenizer_records(directory, vocab_file)
    tokenizer = Tokenizer.checked(vocab_file, do_lower_case, records=records, directory=directory)
    config.check_vocabulary(len(tokenizer.vocab), vocab_file)
    return tokenizer


class FoundFiles(NamedTuple):
    """The files of the model that a run starts from or resumes.

    Attributes:
      directory: the directory of the model; None if there is none or it is not needed.
      config_file: the config; None if it is neither given nor in the directory.
      vocab_file: the vocabulary; None if it is neither given nor in the directory.
    """

    directory: str | None
    config_file: str | None
    vocab_file: str | None


def check_size(config: BertConfig, directory: str | None, flag_name: str) -> None:
    """Checks, before any variable is created, that the files of a model may contain the weights of a config.

    Args:
      config: the config.
      directory: the directory of the model; None for a new model.
      flag_name: the flag with the model, for messages.

    Raises:
      InputError: if the weights would need much more space than the files have, even in half precision.
    """
    children = [os.path.join(directory, name) for name in files.list_directory(directory)] if directory else []
    parents = [child for child in children if files.is_directory(child)]  # such as "variables" of a SavedModel
    children += [os.path.join(parent, name) for parent in parents for name in files.list_directory(parent)]
    size, weights = sum(map(files.size, filter(files.exists, children))), config.num_parameters
    if directory and 2 * weights > size + _SIZE_TOLERANCE:
        problem = f"the files have {size:.1e} bytes, but the config describes {weights:.1e} weights"
        raise InputError(f"{flag_name}: {directory}: {problem}. Use the config of the checkpoint.")


def find_files(model: ModelFiles, output_dir: str) -> FoundFiles:
    """Finds the config and the vocabulary of the model that a run starts from or resumes.

    Args:
      model: the given files.
      output_dir: the run directory, or "". The model is in this directory if the run has started, or if there is no
        `init_checkpoint`.

    Raises:
      InputError: if `init_checkpoint` is needed but doesn't exist.
    """
    start, config_file, vocab_file = model.init_checkpoint, model.bert_config_file, model.vocab_file
    if start and not (output_dir and saver.latest_checkpoint(output_dir)):
        directory = run_directory.directory_of_checkpoint(checkpoints.find_checkpoint(start))
    elif output_dir and not (config_file and vocab_file):
        directory = run_directory.directory_of_model(output_dir)
    else:
        return FoundFiles(None, config_file, vocab_file)
    return FoundFiles(directory, config_file or _config_in(directory), vocab_file or find_vocabulary(directory))


def model_directory(paths: FoundFiles, init_checkpoint: str | None) -> str | None:
    """Returns the directory of the model that a run starts from or resumes; None for a new model."""
    has_begun = paths.directory and saver.latest_checkpoint(run_directory.evaluated_directory(paths.directory))
    return paths.directory if init_checkpoint or has_begun else None


def read_model(model: ModelFiles, output_dir: str = "") -> tuple[BertConfig, Tokenizer]:
    """Returns the config and the tokenizer of the model that a run starts from or resumes.

    Args:
      model: the given files.
      output_dir: the run directory; see `find_files`.

    Raises:
      InputError: if a file is neither given nor in the directory of the model, or the files do not match each other.
    """
    paths = find_files(model, output_dir)
    why = f"there is no such file in {paths.directory}" if paths.directory else "--init_checkpoint is not given"
    for flag, path in (("bert_config_file", paths.config_file), ("vocab_file", paths.vocab_file)):
        if not path:
            raise InputError(f"--{flag} is missing: {why}. Pass it.")
    config = BertConfig.from_json_file(paths.config_file)
    directory = model_directory(paths, model.init_checkpoint)
    check_size(config, directory, "--init_checkpoint")
    return config, tokenizer_of(directory, config, paths.vocab_file, model.do_lower_case)


def restored_encoder(
    config: BertConfig,
    source: checkpoints.CheckpointSource,
    flag_name: str = "--init_checkpoint",
    **encoder_options: Any,
) -> tuple[BertEncoder, checkpoints.RestoreSummary]:
    """Builds an encoder and restores a checkpoint into it.

    The encoder is left-to-right if the encoder in the checkpoint was, and has a pooler if the checkpoint has one.

    Args:
      config: the config of the encoder.
      source: the checkpoint. Heads are ignored.
      flag_name: the flag with the checkpoint, for messages.
      encoder_options: see `BertEncoder`.

    Returns:
      The encoder, and a summary of the restored variables.

    Raises:
      InputError: if the config and the checkpoint do not match.
    """
    # Without a seed, the encoder would draw a random number, which would change the initial weights of later layers.
    options = {"seed": 0, "use_pooler": checkpoints.has_pooler(source)} | encoder_options
    encoder = BertEncoder(config, causal=run_record.is_causal(source.path), **options)
    variables = checkpoints.named_variables(encoder.weights)
    return encoder, checkpoints.restore(variables, source, may_be_new="", flag_name=flag_name)


def find_config(directory: str, flag_name: str) -> str:
    """Finds the config file in a directory: bert_config.json, or else config.json.

    Raises:
      InputError: if the directory contains neither.
    """
    config_file = _config_in(directory)
    if not config_file:
        raise InputError(f"{flag_name}: {directory or '.'} has no {' or '.join(CONFIG_FILES)}. Copy the config there.")
    return config_file


def _config_in(directory: str) -> str | None:
    """Returns the config file in a directory, or None. If a second one has other values, prints their names."""
    paths = list(filter(files.exists, (os.path.join(directory, name) for name in CONFIG_FILES)))
    if len(paths) == 2:
        with contextlib.suppress(InputError):  # the second file may belong to another program
            first, second = (BertConfig.from_json_file(path) for path in paths)
            names = [name for name in first.__struct_fields__ if getattr(first, name) != getattr(second, name)]
            if names:
                others = " and another ".join(names)
                say_once(f"Warning: {paths[0]} is used, but {paths[1]} has another {others}. Remove the wrong file.")
    return next(iter(paths), None)


def find_vocabulary(directory: str) -> str | None:
    """Finds the vocabulary in a directory: vocab.txt, or else Hugging Face's tokenizer.json. None if there is none."""
    paths = (os.path.join(directory, name) for name in (VOCAB_FILE, TOKENIZER_JSON))
    return next(filter(files.exists, paths), None)


def tokenizer_records(directory: str | None, vocab_file: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Returns the records of a model's tokenizer, for `find_rules`.

    Args:
      directory: the directory of the model; None for a new model.
      vocab_file: the vocabulary to use with the model.

    Raises:
      InputError: if the ids of tokens differ from the ids in the vocabulary in the model's directory.
    """
    if directory is None:
        return []
    records = [(os.path.join(directory, run_directory.RUN_FILE), run_record.recorded_tokenizer(directory))]
    model_vocab = find_vocabulary(directory)
    if model_vocab and os.path.abspath(model_vocab) != os.path.abspath(vocab_file):
        check_same_ids(vocab_file, model_vocab)
        records.append((f"the tokenizer's settings next to {model_vocab}", read_tokenizer_config(model_vocab)))
    return records
