"""Old names of modules that moved. A documented module can still be imported by its old name, with a warning."""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# Old name -> new name of modules that can be imported by both names.
MOVED = {"bert_tf.serving.text_to_inputs": "bert_tf.graphs.keras_layer"}
# Old name -> new name, both without "bert_tf.", of modules that can be imported by their new name only.
RENAMED = {
    "finetuning.input_pipeline": "finetuning.training_batches",
    "finetuning.workflow": "finetuning.finetune",
    "serving.exportable": "graphs.exportable",
    "serving.inference_encoder": "graphs.encoder",
    "serving.pretrained_encoder": "graphs.pretrained",
    "serving.signature_inputs": "graphs.text_reader",
    "tasks.dev_split": "finetuning.dev_split",
    "tasks.graph_classifier": "graphs.classifier",
    "tasks.graph_heads": "graphs.heads",
    "tasks.squad.graph_predictor": "graphs.answers",
    "tasks.tagging.graph_tagger": "graphs.tags",
    "tasks.text": "tasks.sentences.own_files",
    "text.graph_characters": "graphs.characters",
    "text.graph_packing": "graphs.packing",
    "text.graph_tokenization": "graphs.tokenization",
    "text.long_documents": "sequences.text_packer",
    "training.dry_run": "training.estimate",
}
# (old package, new package, modules) of modules that kept their last name.
_PACKAGES = (
    ("runtime", "runtime.storage", "first_bytes locks output_checks remote"),
    ("tasks", "tasks.sentences", "examples glue glue_benchmark multiple_choice sentence_task soft_labels text_reader"),
    ("text", "sequences", "example_format graph_masking masking packed_rows packing placement random_streams"),
    ("training", "training.step", "metric_means micro_batches nonfinite trainer"),
)
RENAMED |= {f"{old}.{name}": f"{new}.{name}" for old, new, names in _PACKAGES for name in names.split()}


class _OldNames(MetaPathFinder, Loader):
    """Imports the new module of an old name, or names it in the error."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name in MOVED:
            return ModuleSpec(name, self)
        new = RENAMED.get(name.removeprefix("bert_tf."))
        # `importlib.util.find_spec` also calls this method, and expects None.
        is_import = sys._getframe(2).f_code.co_name != "find_spec"
        if new and name.startswith("bert_tf.") and is_import:
            raise ModuleNotFoundError(f"No module named {name!r}. It is now 'bert_tf.{new}'.", name=name)
        return None

    def exec_module(self, module: ModuleType) -> None:
        new = MOVED[module.__name__]
        warnings.warn(f"{module.__name__} is now {new}. Import the new name.", FutureWarning, stacklevel=2)
        sys.modules[module.__name__] = importlib.import_module(new)


sys.meta_path.append(_OldNames())  # used only if no other finder finds the module
