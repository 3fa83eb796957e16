"""Converts a checkpoint of any supported format to the original format or Hugging Face's format.

python -m bert_tf.convert_checkpoint --input=DIR_OR_CHECKPOINT --output=DIR --format={tf1,hf}
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import flags

from bert_tf.config import RELEASED_LAYER_NORM_EPSILON, BertConfig
from bert_tf.runtime import files, messages, path_checks, program
from bert_tf.runtime.errors import InputError, require_choice
from bert_tf.text.added_tokens import token_list
from bert_tf.text.tokenizer_config import copy_tokenizer

FORMATS = ("tf1", "hf")
NEW_EMBEDDINGS = ("mean", "random")

# Maps a tensor to the architecture that contains it. The settings of a run may be more specific.
_HF_ARCHITECTURES = {
    "qa_outputs.weight": "BertForQuestionAnswering",
    "classifier.weight": "BertForSequenceClassification",
    "cls.seq_relationship.weight": "BertForPreTraining",
    "cls.predictions.bias": "BertForMaskedLM",
}

_INPUT = flags.DEFINE_string("input", None, "Checkpoint to convert: directory, prefix, file, or Hub name (owner/name).")
_OUTPUT = flags.DEFINE_string("output", None, "Directory to write to.")
_FORMAT = flags.DEFINE_enum("format", None, FORMATS, "Output format. tf1: the original format; hf: Hugging Face's.")
_BERT_CONFIG_FILE = flags.DEFINE_string(
    "bert_config_file", None, "The model's config. Default: the one in the directory of --input."
)

_ADDED_TOKENS = flags.DEFINE_list(
    "added_tokens", [], "Tokens to add, which are never split, or a file with one per line."
)
_NEW_EMBEDDINGS = flags.DEFINE_enum(
    "new_embeddings", "mean", NEW_EMBEDDINGS, "Embedding of an added token: mean of its previous tokens, or random."
)
_VERIFY = flags.DEFINE_string("verify", None, "File with one text per line, to compare the outputs of both models.")
_VERIFY_PYTHON = flags.DEFINE_string("verify_python", None, "Python with the old library. May run the model's code.")


def convert(
    source_path: str | os.PathLike[str],
    target_directory: str | os.PathLike[str],
    target_format: str,
    config_file: str | None = None,
    added_tokens: str | os.PathLike[str] | Sequence[str] = (),
    new_embeddings: str = "mean",
    verify: str | None = None,
    verify_python: str | None = None,
) -> None:
    """Writes the weights, config and vocabulary of a model in another format. Training state is not written.

    The directory appears only when it is complete.

    Args:
      source_path: see `checkpoints.open_checkpoint`.
      target_directory: a directory that doesn't exist yet or is empty. With "tf1" the files are bert_model.ckpt.*,
        bert_config.json and vocab.txt; with "hf" model.safetensors, config.json, vocab.txt, tokenizer_config.json and
        README.md (see `model_card`).
      target_format: "tf1" or "hf".
      config_file: the config of the model. Default: the config in the directory of the checkpoint.
      added_tokens: tokens to add to the model, which are never split, or a file with one token per line. The embedding
        table grows if necessary.
      new_embeddings: initial embedding of an added token: "mean" of the tokens that it was split into, or "random".
      verify: a file with texts on which both models are compared; see `verification.verify`.
      verify_python: see `verification.verify`.

    Raises:
      InputError: if the checkpoint or its config can't be read, the format is unknown, the format can't represent the
        model, or the outputs of the models differ.
    """
    require_choice("--format", target_format, FORMATS)
    require_choice("--new_embeddings", new_embeddings, NEW_EMBEDDINGS)
    added_tokens = token_list(added_tokens, "--added_tokens")
    target_directory = os.fspath(target_directory)
    path_checks.check_new_directory(target_directory, "--output")
    from bert_tf import checkpoints, model_card, sentence_vectors, verification
    from bert_tf.checkpoints import class_names, new_tokens, pretrained, run_directory, run_record, saver
    from bert_tf.checkpoints.pretrained import find_config, find_vocabulary, tokenizer_of
    from bert_tf.tasks import hf_names

    source = checkpoints.open_checkpoint(source_path, "--input")
    if run_record.is_causal(source.path):
        problem = "is a left-to-right model. Neither format can describe it"
        raise InputError(f"--input: {source.path} {problem}. Use its run directory.")
    directory = run_directory.directory_of_checkpoint(source.path, "--input")
    config = BertConfig.from_json_file(config_file or find_config(directory, "--input"), "--bert_config_file")
    pretrained.check_size(config, directory, "--input")
    weights = checkpoints.matching_weights(source, config, "--input")
    for name in {"output_weights", "output_bias"} & weights.keys():
        weights[name] = class_names.as_answered(name, weights[name], directory)
    vocab_file = find_vocabulary(directory)
    tokenizer = tokenizer_of(directory, config, vocab_file) if vocab_file else None
    if added_tokens:
        pretrained.required_tokenizer(tokenizer, source.path, "--added_tokens")
    with files.replacing_directory(target_directory) as new:
        if tokenizer is not None:
            length = config.max_position_embeddings if target_format == "hf" else None
            copy_tokenizer(vocab_file, new, tokenizer.rules, length, added_tokens)
        if added_tokens:
            config = new_tokens.add_embeddings(weights, config, tokenizer, new, new_embeddings)
        sentence_vectors.copy_settings(directory, new, "--input")
        if target_format == "hf":
            write_hf(new, weights, config, hf_names.hf_settings(source))
            model_card.write(new, os.path.basename(os.path.abspath(target_directory)), source)
        else:
            saver.write_checkpoint(os.path.join(new, "bert_model.ckpt"), weights)
            with files.replacing(os.path.join(new, run_directory.CONFIG_FILE)) as writer:
                writer.write(config.to_json_string())
    if config.mlm_hidden_act or config.mlm_layer_norm_eps is not None:
        messages.say("Warning: other programs don't support mlm_hidden_act and mlm_layer_norm_eps in the config.")
    if target_format == "tf1":
        if config.hidden_act == "gelu_erf" or config.layer_norm_eps != RELEASED_LAYER_NORM_EPSILON:
            messages.say(
                f"Warning: the original code doesn't support hidden_act={config.hidden_act} and "
                f"layer_norm_eps={config.layer_norm_eps}."
            )
        if source.kind == "hf" and class_names.recorded_classes(source):
            messages.say("Warning: the original format can't store the names of the classes.")
    checked = "" if verify else " Only names and shapes were checked. To compare the outputs, pass --verify."
    messages.say(f"Wrote {len(weights)} tensors in the format {target_format} to {target_directory}.{checked}")
    if verify:
        verification.verify(source.path, target_directory, verify, verify_python)


def write_hf(
    directory: str, tensors: Mapping[str, np.ndarray], config: BertConfig, settings: Mapping[str, Any] | None = None
) -> None:
    """Writes `model.safetensors` and `config.json` for Hugging Face. Each file appears only when it is complete.

    Args:
      directory: the directory; created if it doesn't exist.
      tensors: maps released names to float32 arrays.
      config: the model's config.
      settings: see `hf_names.hf_settings`. Missing settings are derived from the tensors.
    """
    import safetensors.numpy

    from bert_tf.checkpoints import variable_names
    from bert_tf.checkpoints.class_names import HF_CONFIG_FILE
    from bert_tf.checkpoints.reading import SAFETENSORS_FILE, with_checksum
    from bert_tf.model.heads import CLASSIFIER_DROPOUT
    from bert_tf.tasks import hf_names

    stored = {}
    for name, array in tensors.items():
        array = array.T if variable_names.hf_is_transposed(name) else array
        stored[variable_names.released_to_hf(name)] = np.ascontiguousarray(array)
    if "cls.predictions.bias" in stored:  # Hugging Face also expects the shared tensors under these names
        stored["cls.predictions.decoder.bias"] = stored["cls.predictions.bias"].copy()
        stored["cls.predictions.decoder.weight"] = stored["bert.embeddings.word_embeddings.weight"].copy()
    architecture = next(
        (architecture for name, architecture in _HF_ARCHITECTURES.items() if name in stored), "BertModel"
    )
    values = config.to_hf_dict(architecture)
    if "classifier.weight" in stored:
        values["classifier_dropout"] = CLASSIFIER_DROPOUT
        values |= hf_names.named([f"LABEL_{number}" for number in range(len(stored["classifier.weight"]))])
    with files.replacing(os.path.join(directory, SAFETENSORS_FILE), "wb") as writer:
        writer.write(with_checksum(safetensors.numpy.save(stored, metadata={"format": "pt", "crc32": "00000000"})))
    files.write_json(os.path.join(directory, HF_CONFIG_FILE), values | dict(settings or {}))


def main() -> None:
    """Converts the checkpoint named by the flags."""
    used = (_INPUT, _OUTPUT, _FORMAT, _BERT_CONFIG_FILE, _ADDED_TOKENS, _NEW_EMBEDDINGS, _VERIFY, _VERIFY_PYTHON)
    convert(*(flag.value for flag in used))


def cli() -> None:
    """Runs this module as a command."""
    program.run(main, required=["input", "output", "format"])


if __name__ == "__main__":
    cli()
