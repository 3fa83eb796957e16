"""Models for runtimes other than TensorFlow: LiteRT (TensorFlow Lite), with weights of eight bits, and ONNX.

They are made of plain operations on padded ids, and lie beside saved_model.pb.

Axis letters: B batch, T tokens.
"""

from collections.abc import Callable
from types import ModuleType

import tensorflow as tf

from bert_tf.runtime import extras, files
from bert_tf.serving.reader import IDS

LITE_FILE = "ids_int8.tflite"
ONNX_FILE = "ids.onnx"
# The newest whose operations tf2onnx writes all of.
_OPSET = 17

# input_ids, input_mask, segment_ids [B, T] -> named outputs.
PlainFunction = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], dict[str, tf.Tensor]]

_SPECS = list(IDS.values())


def write_lite(function: PlainFunction, path: str) -> None:
    """Writes a LiteRT model with the signature `serving_default`.

    Only matrices are quantised, each output channel with a scale of its own; activations are quantised as they come
    ("dynamic range"), so no example data are needed.
    """
    concrete = tf.function(function, input_signature=_SPECS).get_concrete_function()
    module = tf.Module()
    module.read_by_it = list(concrete.variables)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], module)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    with files.replacing(path, "wb") as writer:
        writer.write(converter.convert())


def import_tf2onnx() -> ModuleType:
    """The converter to ONNX.

    Raises:
      InputError: if it isn't installed.
    """
    return extras.require("tf2onnx", "--export_onnx")


def write_onnx(function: PlainFunction, path: str) -> None:
    """Writes an ONNX model, float32.

    Raises:
      InputError: if tf2onnx isn't installed.
    """
    traced = tf.function(function, input_signature=_SPECS)
    model, _ = import_tf2onnx().convert.from_function(traced, _SPECS, opset=_OPSET)
    with files.replacing(path, "wb") as writer:
        writer.write(model.SerializeToString())
