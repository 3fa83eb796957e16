"""Models for other runtimes than TensorFlow: LiteRT (TensorFlow Lite) and ONNX.

They contain only common operations on padded ids, and are written into the same folder as saved_model.pb.

Axis letters: B batch, T tokens.
"""

from collections.abc import Callable
from types import ModuleType

import tensorflow as tf

from bert_tf.runtime import extras, files
from bert_tf.serving.reader import IDS

ONNX_FILE = "ids.onnx"
# The newest operator set that tf2onnx supports completely.
_OPSET = 17

# input_ids, input_mask, segment_ids [B, T] -> named outputs.
PlainFunction = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], dict[str, tf.Tensor]]

_SPECS = list(IDS.values())


def write_lite(function: PlainFunction, path: str, is_quantized: bool = False) -> None:
    """Writes a LiteRT model with the signature `serving_default`.

    Args:
      function: computes the model's outputs.
      path: of the file.
      is_quantized: store matrices in 8 bits, with one scale for each output channel. Activations are quantised when
        they are computed ("dynamic range"), so no sample data are needed.
    """
    concrete = tf.function(function, input_signature=_SPECS).get_concrete_function()
    module = tf.Module()
    module.used_variables = list(concrete.variables)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], module)
    converter.optimizations = [tf.lite.Optimize.DEFAULT] if is_quantized else []
    with files.replacing(path, "wb") as writer:
        writer.write(converter.convert())


def import_tf2onnx() -> ModuleType:
    """Imports the converter to ONNX, which this project does not require.

    Raises:
      InputError: if it isn't installed.
    """
    return extras.require("tf2onnx", "--export_onnx")


def write_onnx(function: PlainFunction, path: str) -> None:
    """Writes an ONNX model in float32.

    Raises:
      InputError: if tf2onnx isn't installed.
    """
    traced = tf.function(function, input_signature=_SPECS)
    model, _ = import_tf2onnx().convert.from_function(traced, _SPECS, opset=_OPSET)
    with files.replacing(path, "wb") as writer:
        writer.write(model.SerializeToString())
