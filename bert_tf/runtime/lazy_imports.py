"""Imports modules on first use: optional packages, and modules that need TensorFlow."""

import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from bert_tf.runtime.errors import InputError

# Top-level module -> the package to install. pyproject.toml lists the extras and tested versions.
OPTIONAL = {
    "ai_edge_litert": "ai-edge-litert",
    "apache_beam": "apache-beam",
    "mlflow": "mlflow",
    "pyarrow": "pyarrow",
    "official": "tf-models-official",
    "tf2onnx": "tf2onnx",
    "wandb": "wandb",
}


def require(module: str, purpose: str) -> ModuleType:
    """Imports a module of an optional package, and hides the warnings that the import logs.

    Args:
      module: its full name.
      purpose: the flag or task that needs it; begins the error message.

    Raises:
      InputError: if the package is not installed.
    """
    top_level = module.partition(".")[0]
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        importlib.import_module(top_level)
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != top_level:
            raise
        package = OPTIONAL[top_level]
        raise InputError(f"{package} is not installed. Install it with `pip install {package}`.", purpose) from None
    finally:
        logging.disable(disabled)


def when_used(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns `__getattr__`, `__dir__` and `__all__` for a package that imports its names on first use.

    Args:
      package: the package's name.
      modules: maps each module to the names that the package offers from it.
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    return get, lambda: sorted(homes), sorted(homes)
