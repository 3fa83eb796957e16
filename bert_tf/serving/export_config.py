"""The settings of an export, and of a serving process."""

import os
from typing import Annotated, ClassVar, Literal

import msgspec

from bert_tf.runtime import lazy_imports
from bert_tf.runtime.errors import InputError
from bert_tf.runtime.settings import Condition, Settings, about, only_with

SERVING_DEFAULT = "serving_default"
# The libraries that can run an exported model.
ENGINES = ("tensorflow", "litert")
# Models for LiteRT, with 8-bit and 32-bit weights.
LITE_INT8_FILE, LITE_FILE = "model_int8.tflite", "model.tflite"
# Settings for LiteRT models: `lite_model.TextSettings`.
LITE_TASK_FILE = "litert.json"
# Lowest probability of a predicted label in multi-label tasks, unless the run has another threshold.
LABEL_THRESHOLD = 0.5
# Number of sequences that are computed at a time, to limit the memory for large batches and long texts.
SEQUENCES_PER_PART = 32


def keep_packed_weights() -> None:
    """Makes TensorFlow convert each weight to the packed format of CPU matrix multiplications only once.

    The packed weights need as much additional memory as the weights. Call this function before TensorFlow runs an
    operation, and only in processes that serve, because TensorFlow then ignores changes of the weights.
    """
    os.environ.setdefault("TF_ONEDNN_ASSUME_FROZEN_WEIGHTS", "1")


def check_no_bilstm(has_bilstm: bool, where: str) -> None:
    """Raises an InputError if a model has a BiLSTM, because such models can't be exported."""
    if has_bilstm:
        raise InputError(
            f"{where}: a model with a BiLSTM can't be exported. Export a model that was fine-tuned without "
            "--bilstm_layers and --feature_layers."
        )


class ExportConfig(Settings, frozen=True):
    """The settings of an export.

    Attributes:
      text: if False, the only signature is `token_ids`, which does not need tensorflow-text.
      max_seq_length: longest sequence in tokens; longer ones are truncated. None for the value in training, or the
        maximum of a pre-trained model.
      null_score_diff_threshold: SQuAD 2.0: a question has no answer if the no-answer score minus the best answer's
        score exceeds this value; None for the threshold tuned for the model, or 0 if there is none.
      min_probability: replaces the value of the run; see `ConfidenceConfig`. None to keep it.
      abstain_label: replaces the value of the run, if `min_probability` is given.
      answers: SQuAD: replaces `doc_stride`, `max_query_length`, `n_best_size` and `max_answer_length` of the run.

    Raises:
      InputError: if an ONNX model is requested and a required library is missing.
    """

    needs: ClassVar[tuple[Condition, ...]] = (only_with("do_export"),)

    dtype: Annotated[
        Literal["float32", "bfloat16", "mixed_bfloat16"],
        about("Type of exported weights and of matrix multiplications.", flag="export_dtype"),
    ] = "float32"
    quantize: Annotated[
        Literal["none", "int8"], about("int8: also write a LiteRT model with 8-bit weights.", flag="export_quantize")
    ] = "none"
    onnx: Annotated[bool, about("Also write an ONNX model; needs tf2onnx.", flag="export_onnx")] = False
    text: Annotated[bool, about("Take raw strings; if False, take only token ids.", flag="export_text")] = True
    max_seq_length: int | None = None
    null_score_diff_threshold: float | None = None
    min_probability: float | None = None
    abstain_label: str = ""
    answers: dict[str, int] = msgspec.field(default_factory=dict)
    litert: Annotated[bool, about("Also write a LiteRT model in float32.", flag="export_litert")] = False
    onnx_int8: Annotated[
        bool, about("Also write an ONNX model with 8-bit weights; needs tf2onnx, onnxruntime.", flag="export_onnx_int8")
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        msgspec.structs.force_setattr(self, "dtype", self.dtype.removeprefix("mixed_"))
        if self.onnx or self.onnx_int8:
            lazy_imports.check_installed("tf2onnx", "--export_onnx" if self.onnx else "--export_onnx_int8")
        if self.onnx_int8:
            lazy_imports.check_installed("onnxruntime", "--export_onnx_int8")
