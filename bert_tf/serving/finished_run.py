"""A finished run as the export of its task needs it, and the exportable model that a task returns.

Axis letters: B batch, T tokens.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from bert_tf import checkpoints
from bert_tf.checkpoints import run_directory
from bert_tf.config import BertConfig
from bert_tf.finetuning.models import EncoderModel
from bert_tf.runtime import files
from bert_tf.runtime.files import InputError
from bert_tf.runtime.program import say
from bert_tf.sequences.example_format import vocabulary_hash
from bert_tf.sequences.packing import check_max_seq_length
from bert_tf.serving.encoder import InferenceEncoder
from bert_tf.serving.lite_model import TextTask
from bert_tf.serving.portable_models import PlainFunction
from bert_tf.serving.reader import ServedModel, TextReader
from bert_tf.serving.settings import LITE_TASK_FILE, ExportConfig, check_no_bilstm
from bert_tf.tokenization import FullTokenizer, load_tokenizer
from bert_tf.training.contract import TrainableModel


class Exportable(NamedTuple):
    """A model that can be exported.

    Attributes:
      served: the model with its signatures.
      plain: a function that computes the same as the signature `ids` on padded input, for runtimes that have only
        TensorFlow's common operations.
      tokenizer: the model's tokenizer.
      max_seq_length: the length at which texts are cut, or split into windows.
      classes: the names of the logits' columns; None if they have no names.
      task: what LiteRT needs besides, to answer texts, pairs and choices; None for other tasks.
    """

    served: ServedModel
    plain: PlainFunction
    tokenizer: FullTokenizer
    max_seq_length: int
    classes: Sequence[str] | None = None
    task: TextTask | None = None

    def write_text_settings(self, folder: str) -> None:
        """Writes what a caller of the signature `ids`, of LiteRT or of ONNX needs to turn texts into ids and back.

        vocab.txt has the vocabulary, tokenizer_config.json the rules and the greatest length (in Hugging Face's
        format), and labels.json the classes.
        """
        tokenizer = self.tokenizer
        run_directory.write_hf_tokenizer(tokenizer.vocab_file, folder, tokenizer.do_lower_case, self.max_seq_length)
        if self.classes is not None:
            files.write_json(os.path.join(folder, run_directory.LABELS_FILE), list(self.classes))

    def write_text_task(self, folder: str) -> None:
        """Writes what stands around the logits of the LiteRT model; nothing if the task is none of texts or choices."""
        if self.task is not None:
            files.write_json(os.path.join(folder, LITE_TASK_FILE), self.task)


class _Recorded(dict[str, Any]):
    """The settings in a file; one that is missing is an error that names the file."""

    def __init__(self, values: Mapping[str, Any], path: str) -> None:
        super().__init__(values)
        self.path = path

    def __missing__(self, name: str) -> Any:
        raise InputError(
            f"--model_dir: {self.path} has no {name!r}, which a finished run records. Put back a copy of the file."
        )


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """A run's folder, as far as exporting needs it.

    Attributes:
      folder: the folder of its checkpoints.
      settings: the settings of training; see `run_directory.recorded`.
      flags: the flags of the program that trained it.
      labels: the classes; None for regression.
      config: the encoder's config.
      tokenizer: the model's tokenizer.
      max_seq_length: the exported model cuts longer sequences.
      export_config: the settings of the export.
    """

    folder: str
    settings: Mapping[str, Any]
    flags: Mapping[str, Any]
    labels: list[str] | None
    config: BertConfig
    tokenizer: FullTokenizer
    max_seq_length: int
    export_config: ExportConfig

    @classmethod
    def read(cls, model_dir: str, config: ExportConfig) -> "FinishedRun":
        """Reads the records in a run's folder.

        Raises:
          InputError: if it isn't the folder of a finished run, or `max_seq_length` is more than the model can take.
        """
        folder = run_directory.folder_of_model(model_dir)
        recorded = run_directory.read(folder)
        settings = _Recorded(recorded["resume_settings"], os.path.join(folder, run_directory.RUN_FILE))
        check_no_bilstm("bilstm_units" in settings, f"--model_dir: {folder}")
        bert_config = BertConfig.from_json_file(os.path.join(folder, run_directory.CONFIG_FILE), "--model_dir")
        max_seq_length = config.max_seq_length or settings["max_seq_length"]
        vocab_file = os.path.join(folder, run_directory.VOCAB_FILE)
        run_directory.check_trained_with(folder, {"vocab_sha256": vocabulary_hash(vocab_file)})
        check_max_seq_length(max_seq_length)
        bert_config.check_sequence_length(max_seq_length)
        return cls(
            folder=folder,
            settings=settings,
            flags=recorded.get("flags", {}),
            labels=settings.get("labels") or run_directory.recorded_labels(model_dir),
            config=bert_config,
            tokenizer=load_tokenizer(vocab_file, settings["do_lower_case"]),
            max_seq_length=max_seq_length,
            export_config=config,
        )

    def restore(self, model: TrainableModel) -> int:
        """Loads the run's selected weights into a model, and returns their step."""
        source = checkpoints.open_checkpoint(self.folder, "--model_dir")
        variables = checkpoints.named_variables(model.variables)
        say(str(checkpoints.restore(variables, source, may_be_fresh="", flag_name="--model_dir")))
        return int(source.read("global_step"))

    @property
    def causal(self) -> bool:
        """Whether the run's model is left-to-right."""
        return bool(self.settings.get("causal"))

    def encoder(self, model: EncoderModel) -> InferenceEncoder:
        """Returns the encoder of the exported model."""
        return InferenceEncoder(model.encoder, self.export_config.dtype)

    def texts(self) -> TextReader:
        """Returns the text reader of the exported model."""
        return TextReader(self.tokenizer, self.max_seq_length)

    def exportable(
        self,
        served: ServedModel,
        plain: PlainFunction,
        classes: Sequence[str] | None = None,
        task: TextTask | None = None,
    ) -> Exportable:
        """Returns the exportable model; see `Exportable`."""
        return Exportable(served, plain, self.tokenizer, self.max_seq_length, classes, task)


def plain_logits(model: EncoderModel) -> PlainFunction:
    """Returns a function from padded ids [B, T] to a fine-tuned model's logits by name; see `Exportable`."""

    def logits(input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        values = model.logits({"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segment_ids})
        if isinstance(values, tuple):
            return dict(zip(("start_logits", "end_logits"), values, strict=True))
        return {"logits": values}

    return logits
