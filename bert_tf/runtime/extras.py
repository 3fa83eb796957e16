"""Packages and names that are imported when they are first used: optional packages, and what needs TensorFlow."""

import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from bert_tf.runtime.errors import InputError

# Top-level module -> what to install. pyproject.toml has the extras with the tested versions.
OPTIONAL = {
    "ai_edge_litert": "ai-edge-litert",
    "apache_beam": "apache-beam",
    "pyarrow": "pyarrow",
    "official": "tf-models-official",
    "tf2onnx": "tf2onnx",
}


def require(module: str, purpose: str) -> ModuleType:
    """Imports a module of an optional package, without the warnings that its import logs.

    Args:
      module: its full name.
      purpose: the flag or task that needs it; the error message begins with it.

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
    """Returns `__getattr__`, `__dir__` and `__all__` of a package that offers names of modules.

    Args:
      package: the package's name.
      modules: module -> the names that the package offers from it.
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    return get, lambda: sorted(homes), sorted(homes)
