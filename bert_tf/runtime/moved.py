"""Old names of modules that moved. They can be imported, with a warning that names the new module."""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# Old name -> new name.
MOVED = {
    "bert_tf.text.graph_tokenization": "bert_tf.graphs.tokenization",
    "bert_tf.serving.signature_inputs": "bert_tf.graphs.text_reader",
    "bert_tf.serving.pretrained_encoder": "bert_tf.graphs.pretrained",
    "bert_tf.serving.exportable": "bert_tf.graphs.exportable",
    "bert_tf.serving.text_to_inputs": "bert_tf.graphs.keras_layer",
    "bert_tf.tasks.graph_classifier": "bert_tf.graphs.classifier",
    "bert_tf.tasks.graph_heads": "bert_tf.graphs.heads",
    "bert_tf.text.packing": "bert_tf.sequences.packing",
    "bert_tf.text.masking": "bert_tf.sequences.masking",
    "bert_tf.text.example_format": "bert_tf.sequences.example_format",
    "bert_tf.training.trainer": "bert_tf.training.step.trainer",
    "bert_tf.tasks.text": "bert_tf.tasks.sentences.own_files",
    "bert_tf.tasks.glue": "bert_tf.tasks.sentences.glue",
    "bert_tf.tasks.multiple_choice": "bert_tf.tasks.sentences.multiple_choice",
}


class _OldNames(MetaPathFinder, Loader):
    """Imports the new module if no module has the old name."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        new = MOVED[module.__name__]
        warnings.warn(f"{module.__name__} is now {new}. Import the new name.", FutureWarning, stacklevel=2)
        sys.modules[module.__name__] = importlib.import_module(new)


sys.meta_path.append(_OldNames())  # asked if no other finder knows the name
