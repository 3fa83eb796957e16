"""Old names of modules that moved. A documented module can still be imported by its old name, with a warning."""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# Old name -> new name.
MOVED = {"bert_tf.serving.text_to_inputs": "bert_tf.graphs.keras_layer"}


class _OldNames(MetaPathFinder, Loader):
    """Imports the new module of an old name. For unknown names, the error refers to the changelog."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name in MOVED:
            return ModuleSpec(name, self)
        if name.startswith("bert_tf."):
            advice = "CHANGELOG.md lists the modules that moved."
            raise ModuleNotFoundError(f"No module named {name!r}. {advice}", name=name)
        return None

    def exec_module(self, module: ModuleType) -> None:
        new = MOVED[module.__name__]
        warnings.warn(f"{module.__name__} is now {new}. Import the new name.", FutureWarning, stacklevel=2)
        sys.modules[module.__name__] = importlib.import_module(new)


sys.meta_path.append(_OldNames())  # used only if no other finder finds the module
