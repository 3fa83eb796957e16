"""A model that can be exported, and the files of its export: SavedModel, LiteRT, ONNX, vocabulary and labels.

The LiteRT (TensorFlow Lite) and ONNX models contain only common operations on padded ids.

Axis letters: B batch, T tokens.
"""

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from bert_tf.checkpoints import run_directory
from bert_tf.finetuning.models import EncoderModel
from bert_tf.runtime import extras, files
from bert_tf.serving.export_config import LITE_FILE, LITE_INT8_FILE, LITE_TASK_FILE, ExportConfig
from bert_tf.serving.lite_model import TextTask
from bert_tf.serving.signature_inputs import IDS, ServedModel
from bert_tf.text import Tokenizer
from bert_tf.text.tokenizer_config import copy_tokenizer

ONNX_FILE = "ids.onnx"
# The newest operator set that tf2onnx supports completely.
_OPSET = 17

# input_ids, input_mask, segment_ids [B, T] -> named outputs.
PlainFunction = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], dict[str, tf.Tensor]]

_SPECS = list(IDS.values())


class Exportable(NamedTuple):
    """A model that can be exported.

    Attributes:
      served: the model with its signatures.
      plain: computes the outputs of the signature `token_ids` on padded input, with common operations only, for other
        runtimes.
      tokenizer: the model's tokenizer.
      max_seq_length: length at which texts are truncated or split into windows.
      classes: the names of the logits' columns; None if they have no names.
      task: the other data that LiteRT needs to answer texts, pairs and choices; None for other tasks.
    """

    served: ServedModel
    plain: PlainFunction
    tokenizer: Tokenizer
    max_seq_length: int
    classes: Sequence[str] | None = None
    task: TextTask | None = None

    def write(self, folder: str, config: ExportConfig) -> list[str]:
        """Writes the export to a folder that doesn't exist yet.

        After `tf.saved_model.load`, the object can be called like its first signature, with inputs in the same order.

        Returns:
          The names of the SavedModel's signatures.
        """
        signatures = {
            name: call for name, call in self.served.signatures().items() if config.text or name == "token_ids"
        }
        self.served.__call__ = next(iter(signatures.values()))
        tf.saved_model.save(self.served, folder, signatures=signatures)
        self.write_text_settings(folder)
        if config.quantize == "int8":
            write_lite(self.plain, os.path.join(folder, LITE_INT8_FILE), is_quantized=True)
        if config.litert:
            write_lite(self.plain, os.path.join(folder, LITE_FILE))
        if self.task is not None and (config.litert or config.quantize == "int8"):
            files.write_json(os.path.join(folder, LITE_TASK_FILE), self.task)
        if config.onnx:
            write_onnx(self.plain, os.path.join(folder, ONNX_FILE))
        return list(signatures)

    def write_text_settings(self, folder: str) -> None:
        """Writes the files that callers of `token_ids`, LiteRT or ONNX need to convert texts to ids and classes back.

        These are vocab.txt, tokenizer_config.json (the rules and the maximum length, in Hugging Face's format) and
        labels.json (the classes).
        """
        tokenizer = self.tokenizer
        copy_tokenizer(tokenizer.vocab_file, folder, tokenizer.rules, self.max_seq_length)
        if self.classes is not None:
            files.write_json(os.path.join(folder, run_directory.LABELS_FILE), list(self.classes))


def plain_logits(model: EncoderModel) -> PlainFunction:
    """Returns a function from padded ids [B, T] to a fine-tuned model's logits by name. See `Exportable`."""

    def logits(input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        values = model.logits({"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segment_ids})
        if isinstance(values, dict):
            return values
        if isinstance(values, tuple):
            return dict(zip(("start_logits", "end_logits"), values, strict=True))
        return {"logits": values}

    return logits


def write_lite(function: PlainFunction, path: str, is_quantized: bool = False) -> None:
    """Writes a LiteRT model with the signature `serving_default`.

    Args:
      function: computes the model's outputs.
      path: the file.
      is_quantized: store matrices in 8 bits, with one scale per output channel. Activations are quantised when computed
        ("dynamic range"), so no sample data is needed.
    """
    concrete = tf.function(function, input_signature=_SPECS).get_concrete_function()
    module = tf.Module()
    module.used_variables = list(concrete.variables)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], module)
    converter.optimizations = [tf.lite.Optimize.DEFAULT] if is_quantized else []
    with files.replacing(path, "wb") as writer:
        writer.write(converter.convert())


def write_onnx(function: PlainFunction, path: str) -> None:
    """Writes an ONNX model in float32.

    Raises:
      InputError: if tf2onnx isn't installed.
    """
    converter = extras.require("tf2onnx", "--export_onnx").convert
    model, _ = converter.from_function(tf.function(function, input_signature=_SPECS), _SPECS, opset=_OPSET)
    with files.replacing(path, "wb") as writer:
        writer.write(model.SerializeToString())
