"""Folders of finished runs of a tiny model, as the programs leave them."""

import numpy as np

from bert_tf import checkpoints
from bert_tf.checkpoints import run_directory, saver
from tests.conftest import tiny_config
from tests.programs import PIECES, write_model_files


def write_run(folder, model, flags=None, **resume_settings):
    """Writes the files that a training program writes into its folder."""
    folder.mkdir(parents=True)
    _, vocab_file = write_model_files(folder)
    resume_settings = {"do_lower_case": True, "max_seq_length": 12, **resume_settings}
    run_directory.prepare(str(folder), config(), vocab_file, flags or {}, resume_settings)
    tensors = checkpoints.named_variables(model.variables) | {"global_step": np.int64(7)}
    saver.write_checkpoint(str(folder / "model.ckpt-7"), tensors)
    (folder / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-7"\n')
    return str(folder)


def config():
    return tiny_config(vocab_size=len(PIECES), num_hidden_layers=1, initializer_range=0.7)
