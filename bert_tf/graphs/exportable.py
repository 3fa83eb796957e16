"""Reads a finished run for export, and writes the files of an export: SavedModel, LiteRT, ONNX, vocabulary and labels.

The LiteRT (TensorFlow Lite) and ONNX models contain only common operations on padded ids.

Axis letters: B batch, T tokens.
"""

import contextlib
import dataclasses
import gc
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from bert_tf import checkpoints
from bert_tf.checkpoints import pretrained, run_directory, run_record
from bert_tf.config import BertConfig
from bert_tf.finetuning.models import EncoderModel
from bert_tf.graphs.encoder import InferenceEncoder
from bert_tf.graphs.text_reader import IDS, ServedModel
from bert_tf.runtime import files, lazy_imports
from bert_tf.sequences.packing import check_max_seq_length
from bert_tf.serving.export_config import LITE_FILE, LITE_INT8_FILE, LITE_TASK_FILE, ExportConfig, check_no_bilstm
from bert_tf.serving.lite_model import TextSettings
from bert_tf.text import Tokenizer
from bert_tf.text.tokenizer_config import copy_tokenizer
from bert_tf.text.vocabulary import VOCAB_FILE
from bert_tf.training import resume

ONNX_FILE, ONNX_INT8_FILE = "ids.onnx", "ids_int8.onnx"
# The newest operator set that tf2onnx supports completely.
_OPSET = 17

# input_ids, input_mask, segment_ids [B, T] -> named outputs.
PlainFunction = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], dict[str, tf.Tensor]]

_SPECS = list(IDS.values())


class Exportable(NamedTuple):
    """A model that can be exported.

    Attributes:
      served: the model with its signatures.
      plain: computes the outputs of the signature `token_ids` from padded inputs, with common operations only, for
        LiteRT and ONNX.
      tokenizer: the model's tokenizer.
      max_seq_length: length at which texts are truncated or split into windows.
      classes: the class names of the logits, in order; None if they have no names.
      settings: the settings that LiteRT needs to answer texts, pairs and choices; None for other tasks.
    """

    served: ServedModel
    plain: PlainFunction
    tokenizer: Tokenizer
    max_seq_length: int
    classes: Sequence[str] | None = None
    settings: TextSettings | None = None

    def write(self, directory: str, config: ExportConfig) -> list[str]:
        """Writes the export to a new directory.

        The object that `tf.saved_model.load` returns can be called like the first signature, with inputs in the same
        order.

        Returns:
          The names of the signatures in the SavedModel.
        """
        signatures = {
            name: call for name, call in self.served.signatures().items() if config.text or name == "token_ids"
        }
        self.served.__call__ = next(iter(signatures.values()))
        tf.saved_model.save(self.served, directory, signatures=signatures)
        self.write_text_settings(directory)
        if config.quantize == "int8":
            write_lite(self.plain, os.path.join(directory, LITE_INT8_FILE), is_quantized=True)
        if config.litert:
            write_lite(self.plain, os.path.join(directory, LITE_FILE))
        if self.settings is not None and (config.litert or config.quantize == "int8"):
            files.write_json(os.path.join(directory, LITE_TASK_FILE), self.settings)
        if config.onnx or config.onnx_int8:
            write_onnx(self.plain, directory, config)
        return list(signatures)

    def write_text_settings(self, directory: str) -> None:
        """Writes the files with which callers of `token_ids`, LiteRT or ONNX convert texts to ids, and ids to classes.

        The files are vocab.txt, tokenizer_config.json (the rules and the maximum length, in Hugging Face's format) and
        labels.json (the classes).
        """
        tokenizer = self.tokenizer
        copy_tokenizer(tokenizer.vocab_file, directory, tokenizer.rules, self.max_seq_length)
        if self.classes is not None:
            files.write_json(os.path.join(directory, run_directory.LABELS_FILE), list(self.classes))


def plain_logits(model: EncoderModel) -> PlainFunction:
    """Returns a function from padded ids [B, T] to the logits of a fine-tuned model, by name. See `Exportable`."""

    def logits(input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        values = model.logits({"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segment_ids})
        if isinstance(values, dict):
            return values
        if isinstance(values, tuple):
            return dict(zip(("start_logits", "end_logits"), values, strict=True))
        return {"logits": values}

    return logits


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """The parts of a run directory that an export needs.

    Attributes:
      directory: the directory of the checkpoints.
      settings: the settings of training; see `run_record.recorded`.
      flags: the flags of the training program.
      labels: the classes; None for regression.
      config: the config of the encoder.
      tokenizer: the model's tokenizer.
      max_seq_length: length at which the exported model truncates sequences.
      export_config: the settings of the export.
    """

    directory: str
    settings: Mapping[str, Any]
    flags: Mapping[str, Any]
    labels: list[str] | None
    config: BertConfig
    tokenizer: Tokenizer
    max_seq_length: int
    export_config: ExportConfig

    @classmethod
    def read(cls, model_dir: str, config: ExportConfig) -> "FinishedRun":
        """Reads the records in a run directory.

        Raises:
          InputError: if `model_dir` is not a run directory, the model has a BiLSTM, or `max_seq_length` exceeds the
            maximum of the model.
        """
        directory = run_directory.directory_of_model(model_dir)
        recorded = run_record.read(directory)
        settings = recorded["resume_settings"]
        check_no_bilstm("bilstm_units" in settings, f"--model_dir: {directory}")
        bert_config = BertConfig.from_json_file(os.path.join(directory, run_directory.CONFIG_FILE), "--model_dir")
        max_seq_length = config.max_seq_length or settings["max_seq_length"]
        vocab_file = os.path.join(directory, VOCAB_FILE)
        check_max_seq_length(max_seq_length)
        bert_config.check_sequence_length(max_seq_length)
        return cls(
            directory=directory,
            settings=settings,
            flags=recorded.get("flags", {}),
            labels=settings.get("labels") or run_directory.recorded_labels(model_dir),
            config=bert_config,
            tokenizer=pretrained.tokenizer_of(directory, bert_config, vocab_file),
            max_seq_length=max_seq_length,
            export_config=config,
        )

    def restored(self, kind: type[EncoderModel], *arguments: Any, **options: Any) -> tuple[EncoderModel, int]:
        """Builds a model and restores the selected checkpoint of the run.

        Args:
          kind: the class of the model.
          *arguments: arguments of the class, after the config.
          **options: keyword arguments of the class.

        Returns:
          The model, and the step of the checkpoint.
        """
        model = kind(self.config, *arguments, causal=bool(self.settings.get("causal")), **options)
        source = checkpoints.open_checkpoint(self.directory, "--model_dir")
        return model, resume.restore_weights(model, source, "--model_dir")

    def encoder(self, model: EncoderModel) -> InferenceEncoder:
        """Returns the encoder of the exported model, with its output layer."""
        return InferenceEncoder(model.encoder, self.export_config.dtype, head=model.head)

    def exportable(
        self,
        served: ServedModel,
        model: EncoderModel,
        classes: Sequence[str] | None = None,
        settings: TextSettings | None = None,
    ) -> Exportable:
        """Returns the exportable model of the run."""
        return Exportable(served, plain_logits(model), self.tokenizer, self.max_seq_length, classes, settings)


def write_lite(function: PlainFunction, path: str, is_quantized: bool = False) -> None:
    """Writes a LiteRT model with the signature `serving_default`.

    Args:
      function: computes the outputs of the model.
      path: the file.
      is_quantized: if True, store matrices in 8 bits, with one scale per output channel. Activations are quantised when
        the model runs ("dynamic range"), so no sample data is needed.
    """
    concrete = tf.function(function, input_signature=_SPECS).get_concrete_function()
    module = tf.Module()
    module.used_variables = list(concrete.variables)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], module)
    converter.optimizations = [tf.lite.Optimize.DEFAULT] if is_quantized else []
    with files.replacing(path, "wb") as writer:
        writer.write(converter.convert())


@contextlib.contextmanager
def _frequent_garbage_collection() -> Iterator[None]:
    """Collects garbage more often in the `with` block, and only among the objects that are created there.

    Each optimization of tf2onnx copies the graph with all weights. By default, Python keeps dozens of copies in memory.
    """
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(thresholds[0], thresholds[1], 2)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def write_onnx(function: PlainFunction, directory: str, config: ExportConfig) -> None:
    """Writes an ONNX model in float32, with 8-bit weights, or both.

    8-bit weights have one scale per output channel. Activations are quantised when the model runs ("dynamic"), so no
    sample data is needed.

    Raises:
      InputError: if tf2onnx or, for 8-bit weights, onnxruntime isn't installed.
    """
    converter = lazy_imports.require("tf2onnx", "--export_onnx").convert
    with _frequent_garbage_collection():
        model, _ = converter.from_function(tf.function(function, input_signature=_SPECS), _SPECS, opset=_OPSET)
    if config.onnx:
        with files.replacing(os.path.join(directory, ONNX_FILE), "wb") as writer:
            writer.write(model.SerializeToString())
    if config.onnx_int8:
        quantization = lazy_imports.require("onnxruntime.quantization", "--export_onnx_int8")
        # reduce_range stores 7 bits: on CPUs without neural-network instructions, sums of 8-bit products overflow.
        options = {"per_channel": True, "reduce_range": True, "weight_type": quantization.QuantType.QInt8}
        with tempfile.TemporaryDirectory() as local, lazy_imports.without_warnings():
            path = os.path.join(local, ONNX_INT8_FILE)
            quantization.quantize_dynamic(model, path, **options)
            files.copy(path, os.path.join(directory, ONNX_INT8_FILE))
