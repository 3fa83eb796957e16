"""Reads the arrays in HDF5 files of Keras: `tf_model.h5`, and the `*.weights.h5` of KerasHub."""

import re

import h5py
import ml_dtypes
import numpy as np

from bert_tf.checkpoints.saver import ReadTensor, Shapes
from bert_tf.runtime import files
from bert_tf.runtime.errors import InputError

# The dtype with which Keras stores bfloat16 arrays.
_BFLOAT16 = np.dtype("V2")


def open_h5(path: str, where: str) -> tuple[Shapes, ReadTensor]:
    """Opens an HDF5 file of weights. Reads only the arrays; a model in the file is never built.

    Args:
      path: the file.
      where: the beginning of error messages.

    Raises:
      InputError: if the file is damaged, refers to other files, or has a Lambda layer. The returned function also
        raises an InputError if an array is damaged.
    """
    try:
        with files.open_file(path, "rb") as reader, h5py.File(reader, "r") as file:
            if match := re.search(r'"class_name": *"(\w*Lambda\w*)"', str(file.attrs.get("model_config", ""))):
                raise ValueError(f"a layer of the model is a {match.group(1)}, which contains code")
            shapes = _shapes(file)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        remedy = "Save the weights with save_pretrained, or copy the file again."
        problem = f"not an HDF5 file of weights, or damaged ({error}). Nothing in it was run"
        raise InputError(f"{where}: {problem}. {remedy}") from None

    def read(name: str) -> np.ndarray:
        try:
            with files.open_file(path, "rb") as reader, h5py.File(reader, "r") as file:
                array = file[name][()]
                return (array.view(ml_dtypes.bfloat16) if array.dtype == _BFLOAT16 else array).astype(np.float32)
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            raise InputError(f"{where}: {name} is damaged ({error}). Copy the file again.") from None

    return shapes, read


def _shapes(file: h5py.File) -> Shapes:
    """Returns the shape of each array in a file.

    Raises:
      ValueError: if a name is a link, or an array is stored elsewhere, compressed, or smaller than its shape.
    """
    links: dict[str, object] = {}
    items: dict[str, h5py.HLObject] = {}
    # The callbacks must return None, and h5py ignores errors in them.
    file.visititems_links(lambda name, link: links.update({name: link}))
    if link_name := next((name for name, link in links.items() if not isinstance(link, h5py.HardLink)), None):
        raise ValueError(f"{link_name} is a link")
    file.visititems(lambda name, item: items.update({name: item}))
    arrays = {name: item for name, item in items.items() if not isinstance(item, h5py.Group)}
    for name, item in arrays.items():
        is_number = isinstance(item, h5py.Dataset) and (item.dtype.kind in "fiu" or item.dtype == _BFLOAT16)
        if not is_number or item.external or item.is_virtual:
            raise ValueError(f"{name} is not an array of numbers in this file")
        if item.id.get_storage_size() != item.nbytes:
            raise ValueError(
                f"{name} of shape {list(item.shape)} has {item.id.get_storage_size()} bytes instead of {item.nbytes}; "
                "compressed arrays are not supported"
            )
    return {name: item.shape for name, item in arrays.items()}
