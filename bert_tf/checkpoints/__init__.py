"""Reads, restores and saves weights, and manages the other files of a run directory.

This package imports only from lower layers, such as `runtime`, `config`, `text`, `model`, `encoder` and `optimization`.
`features`, `training` and higher layers may import it. It exports the functions in `__all__`. Its modules:

- `reading`: opens a checkpoint of any supported format.
- `restoring`: restores a checkpoint into a model.
- `download`: finds models by name on the Hugging Face Hub, and in zip files.
- `variable_names`: translates the variable names of Hugging Face.
- `class_names`: matches the rows of output layers by class name.
- `new_tokens`: adds embeddings of new tokens to a model.
- `legacy`: reads the files of PyTorch, Keras 2, TensorFlow Hub and KerasHub.
- `saver`: writes checkpoints in the original format, finds the newest complete one, and removes old ones.
- `run_directory`: writes and reads the settings of a run, and finds the directory of its best checkpoint.
- `pretrained`: `load_model`, which returns an encoder with its tokenizer and config.
"""

from bert_tf.checkpoints.reading import CheckpointSource, find_checkpoint, open_checkpoint
from bert_tf.checkpoints.restoring import (
    POOLER,
    RestoreSummary,
    has_pooler,
    matching_weights,
    named_variables,
    restore,
    without,
)
from bert_tf.checkpoints.saver import latest_checkpoint, write_checkpoint

__all__ = [
    "POOLER",
    "CheckpointSource",
    "RestoreSummary",
    "find_checkpoint",
    "has_pooler",
    "latest_checkpoint",
    "matching_weights",
    "named_variables",
    "open_checkpoint",
    "restore",
    "without",
    "write_checkpoint",
]
