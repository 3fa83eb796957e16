"""Imports modules on first use: optional packages, and modules that need TensorFlow."""

import ast
import contextlib
import glob
import importlib.util
import inspect
import json
import logging
import os
import platform
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


def prepare_tensorflow() -> None:
    """Sets the environment variables that TensorFlow and Keras read when they are imported, unless they are set.

    Programs and the Python classes call this function before they import TensorFlow. A process that only uses the
    layers keeps its environment.

    Raises:
      InputError: see `require_backend`.
    """
    # Hide TensorFlow's log output, so that this project's messages stay readable. Show TensorFlow errors on machines
    # with a GPU. On other machines, the first "error" only states that no GPU was found.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2" if os.path.exists("/dev/nvidiactl") else "3")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    require_backend()
    # By default, TensorFlow disables oneDNN on x86 CPUs without neural-network instructions (for example with AVX2
    # only). On such CPUs, training and inference are also faster with oneDNN; see docs/results/speed.md.
    if platform.machine() == "x86_64":
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    # The TPU build of TensorFlow loads libtpu when it is imported. Without a TPU, libtpu waits several minutes for the
    # cloud's metadata server, without a message.
    if not glob.glob("/dev/accel*") and not glob.glob("/dev/vfio/[0-9]*"):
        os.environ.setdefault("TPU_LOAD_LIBRARY", "0")


def require_backend() -> None:
    """Raises an InputError if Keras uses another backend than TensorFlow, or would use one when it is imported."""
    keras = sys.modules.get("keras")
    backend = keras.config.backend() if keras else os.environ.get("KERAS_BACKEND") or _backend_in_file()
    if backend != "tensorflow":
        raise InputError(
            f"Keras has the backend {backend!r}, but this project needs TensorFlow. Set KERAS_BACKEND=tensorflow."
        )


def _backend_in_file() -> str:
    """Returns the backend in Keras's settings file; "tensorflow" if there is none."""
    path = os.path.join(os.environ.get("KERAS_HOME") or os.path.expanduser("~/.keras"), "keras.json")
    try:
        with open(path, encoding="utf-8") as reader:
            return json.load(reader)["backend"]
    except (OSError, ValueError, LookupError, TypeError):  # Keras ignores such a file
        return "tensorflow"


def import_tensorflow_for_serving() -> None:
    """Imports TensorFlow without the optional packages of Keras, which takes a seventh less processor time to serve.

    TensorFlow imports Keras, which imports these packages if they are installed. Keras's functions for them then raise
    errors in this process, so call this function only in programs that serve.
    """
    hidden = [name for name in ("matplotlib", "sklearn") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # with None, an import raises an ImportError
    try:
        importlib.import_module("tensorflow")
    finally:
        for name in hidden:
            del sys.modules[name]


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
      purpose: see `check_installed`.

    Raises:
      InputError: if the package is not installed.
    """
    check_installed(module, purpose)
    with without_warnings():
        return importlib.import_module(module)


def check_installed(module: str, purpose: str) -> None:
    """Checks that an optional package is installed, without importing it.

    Args:
      module: the full name of a module of the package.
      purpose: the flag or task that needs the module; the error message begins with it.

    Raises:
      InputError: if the package is not installed.
    """
    top_level = module.partition(".")[0]
    if not (sys.modules.get(top_level) or importlib.util.find_spec(top_level)):
        package = OPTIONAL[top_level]
        raise InputError(f"{package} is not installed. Install it with `pip install {package}`.", purpose)


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
