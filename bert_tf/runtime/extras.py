"""Optional packages: each belongs to an extra in pyproject.toml, and is imported only where it is used."""

import importlib
import logging
from types import ModuleType

from bert_tf.runtime.files import InputError

# Top-level module -> the package that brings it, and the extra that brings the package.
OPTIONAL = {
    "ai_edge_litert": ("ai-edge-litert", "litert"),
    "apache_beam": ("apache-beam", "beam"),
    "datasketch": ("datasketch", "corpus"),
    "py3langid": ("py3langid", "corpus"),
    "pyarrow": ("pyarrow", "corpus"),
    "official": ("tf-models-official", "models"),
    "tf2onnx": ("tf2onnx", "onnx"),
}


def require(module: str, purpose: str) -> ModuleType:
    """Imports a module of an optional package.

    Warnings that the import logs are not printed: Beam's are about parts of its own that are not installed, and using
    these is an error of its own.

    Args:
      module: its full name.
      purpose: a flag or a task that needs it; the error message begins with it.

    Raises:
      InputError: if the package is not installed.
    """
    top_level = module.partition(".")[0]
    package, extra = OPTIONAL[top_level]
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        importlib.import_module(top_level)
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != top_level:
            raise
        raise InputError(
            f"{purpose} needs {package}, which is not installed. Install it with `pip install 'bert-tf[{extra}]'` "
            f"(in a checkout of the code: `pip install '.[{extra}]'`)."
        ) from None
    finally:
        logging.disable(disabled)
