"""The flags that several programs share; a program defines a group of flags by creating an object of its class.

Each group has first the release's flags with their names and defaults, and then the new ones.

    model      files and size of the model, and what is put on top of it
    training   devices, optimizer, training
    exporting  exported models
    values     flags with several values, and the defaults of recipes

Importing it does not import TensorFlow, so that --help and wrong flags are answered at once. Only programs import it.
"""

from bert_tf.program_flags.exporting import ExportFlags
from bert_tf.program_flags.model import BiLstmFlags, FreshHeadFlag, ModelFlags, ModelSizeFlags
from bert_tf.program_flags.training import DistributionFlags, FinetuningFlags, TrainingFlags
from bert_tf.program_flags.values import numbers, set_defaults, step_range

__all__ = [
    "BiLstmFlags",
    "DistributionFlags",
    "ExportFlags",
    "FinetuningFlags",
    "FreshHeadFlag",
    "ModelFlags",
    "ModelSizeFlags",
    "TrainingFlags",
    "numbers",
    "set_defaults",
    "step_range",
]
