"""Imports modules on first use: optional packages, and modules that need TensorFlow."""

import ast
import contextlib
import importlib
import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from bert_tf.runtime.errors import InputError

# Maps top-level modules to the packages to install. pyproject.toml lists the extras and tested versions.
OPTIONAL = {
    "ai_edge_litert": "ai-edge-litert",
    "apache_beam": "apache-beam",
    "mlflow": "mlflow",
    "pyarrow": "pyarrow",
    "official": "tf-models-official",
    "onnxruntime": "onnxruntime",
    "tf2onnx": "tf2onnx",
    "wandb": "wandb",
}


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Hides the warnings that other packages log in the `with` block."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(disabled)


def require(module: str, purpose: str) -> ModuleType:
    """Imports a module of an optional package, and hides the warnings that the import logs.

    Args:
      module: the full name of the module.
      purpose: the flag or task that needs the module; the error message begins with it.

    Raises:
      InputError: if the package is not installed.
    """
    top_level = module.partition(".")[0]
    try:
        with without_warnings():
            importlib.import_module(top_level)
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != top_level:
            raise
        package = OPTIONAL[top_level]
        raise InputError(f"{package} is not installed. Install it with `pip install {package}`.", purpose) from None


def when_used(name: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns `__getattr__`, `__dir__` and `__all__` for a module that imports names on first use.

    The names are the imports `NAME as NAME` in the module's `if TYPE_CHECKING` block, so that type checkers and editors
    use the same list of names:

        if TYPE_CHECKING:
            from bert_tf.fill_mask import FillMask as FillMask
        else:
            __getattr__, __dir__, __all__ = lazy_imports.when_used(__name__)

    Args:
      name: the module's name.
    """
    module = sys.modules[name]
    checked = [node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.If)]
    imports = [node for branch in checked for node in branch.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.asname: node.module for node in imports for alias in node.names if alias.asname}

    def get(attribute: str) -> Any:
        if attribute not in homes:
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}")
        return getattr(importlib.import_module(homes[attribute]), attribute)

    return get, lambda: sorted({*vars(module), *homes}), sorted(homes)
