"""Writes directories of tiny models: pre-trained models, and finished runs like the programs' outputs."""

import keras
import numpy as np

from bert_tf import checkpoints
from bert_tf.checkpoints import run_record, saver
from tests.conftest import tiny_config, weights_of
from tests.programs import PIECES, write_model_files


def write_model(directory, model, pieces=PIECES):
    """Writes a pre-trained model in the original format; returns the model."""
    directory.mkdir(parents=True, exist_ok=True)
    encoder = model if isinstance(model, keras.layers.Layer) else model.encoder
    saver.write_checkpoint(str(directory / "bert_model.ckpt"), checkpoints.named_variables(weights_of(model)))
    (directory / "bert_config.json").write_text(encoder.config.to_json_string())
    (directory / "vocab.txt").write_text("\n".join(pieces) + "\n")
    return model


def write_run(directory, model, flags=None, **resume_settings):
    """Writes the files of a run directory like a training program."""
    directory.mkdir(parents=True)
    _, vocab_file = write_model_files(directory)
    resume_settings = {"do_lower_case": True, "max_seq_length": 12, **resume_settings}
    record(directory, vocab_file, config(), flags, **resume_settings)
    tensors = checkpoints.named_variables(model.variables) | {"global_step": np.int64(7)}
    saver.write_checkpoint(str(directory / "model.ckpt-7"), tensors)
    (directory / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-7"\n')
    return str(directory)


def record(
    directory, vocab_file, config, flags=None, devices=None, rules=None, allow_changed_settings=False, **resume_settings
):
    """Compares and records the settings of a run."""
    settings = run_record.all_settings(config, vocab_file, resume_settings)
    choice = {"devices": devices, "allow_changed_settings": allow_changed_settings}
    settings = run_record.compared(str(directory), settings, **choice)
    run_record.write(str(directory), config, vocab_file, flags or {}, settings, devices=devices, rules=rules)


def config():
    return tiny_config(vocab_size=len(PIECES), num_hidden_layers=1, initializer_range=0.7)
