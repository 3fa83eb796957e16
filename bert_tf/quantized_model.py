"""Models of eight-bit weights for LiteRT (TensorFlow Lite), which runs them where there is no TensorFlow.

Only matrices are quantised, each output channel with a scale of its own; activations are quantised as they come
("dynamic range"), so no example data are needed.

Axis letters: B batch, T tokens.
"""

from collections.abc import Callable

import tensorflow as tf

from bert_tf import files

# Beside saved_model.pb.
FILE = "ids_int8.tflite"

# input_ids, input_mask, segment_ids [B, T] -> named outputs.
PlainFunction = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], dict[str, tf.Tensor]]


def write(function: PlainFunction, path: str) -> None:
    """Converts a function whose operations LiteRT has, and writes it with the signature `serving_default`."""
    names = ("input_ids", "input_mask", "segment_ids")
    specs = [tf.TensorSpec([None, None], tf.int32, name) for name in names]
    concrete = tf.function(function, input_signature=specs).get_concrete_function()
    module = tf.Module()
    module.read_by_it = list(concrete.variables)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], module)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    with files.replacing(path, "wb") as writer:
        writer.write(converter.convert())
