"""Weights on disk: read in any format, restored into a model, saved; and what else lies in a run's folder.

Imports `runtime`, `tokenization`, `sequences`, `model` and the encoder.
"""

from bert_tf.checkpoints.restoring import (
    CheckpointSource,
    RestoreSummary,
    find_checkpoint,
    matching_weights,
    named_variables,
    open_checkpoint,
    restore,
    without,
)
from bert_tf.checkpoints.saver import latest_checkpoint, write_checkpoint

__all__ = [
    "CheckpointSource",
    "RestoreSummary",
    "find_checkpoint",
    "latest_checkpoint",
    "matching_weights",
    "named_variables",
    "open_checkpoint",
    "restore",
    "without",
    "write_checkpoint",
]
