"""A finished run as exporting sees it, and what its task makes of it.

Axis letters: B batch, T tokens.
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from bert_tf import checkpoints
from bert_tf.checkpoints import run_directory
from bert_tf.config import BertConfig
from bert_tf.finetuning.models import EncoderModel
from bert_tf.model.bilstm import BiLstmConfig
from bert_tf.runtime.program import say
from bert_tf.sequences.packing import check_max_seq_length
from bert_tf.serving.bilstm import RecurrentEncoder, TextEncoder
from bert_tf.serving.encoder import InferenceEncoder
from bert_tf.serving.portable_models import PlainFunction
from bert_tf.serving.reader import ServedModel, TextReader
from bert_tf.serving.saved_model import ExportConfig
from bert_tf.tokenization import FullTokenizer, load_tokenizer
from bert_tf.training.contract import TrainableModel


class Exportable(NamedTuple):
    """A model that can be exported.

    Attributes:
      served: with its signatures.
      plain: what `ids` computes, padded, for runtimes that know TensorFlow's common operations only; None for a model
        with a BiLSTM, which they can't run.
    """

    served: ServedModel
    plain: PlainFunction | None


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """A run's folder, as far as exporting needs it.

    Attributes:
      folder: where its checkpoints are.
      settings: what it was trained with; see `run_directory.recorded`.
      flags: of the program that trained.
      bilstm: sizes of the BiLSTM that was fine-tuned with the encoder; None for none.
      labels: the classes; None for regression.
      config: of the encoder.
      tokenizer: of the model.
      max_seq_length: longest sequence of the exported model.
      export_config: how it is exported.
    """

    folder: str
    settings: Mapping[str, Any]
    flags: Mapping[str, Any]
    bilstm: BiLstmConfig | None
    labels: list[str] | None
    config: BertConfig
    tokenizer: FullTokenizer
    max_seq_length: int
    export_config: ExportConfig

    @classmethod
    def read(cls, model_dir: str, config: ExportConfig) -> "FinishedRun":
        """Reads what a run has recorded in its folder.

        Raises:
          InputError: if the folder isn't that of a finished run, or sequences are to be longer than the model takes.
        """
        folder = run_directory.folder_of_model(model_dir)
        recorded = run_directory.read(folder)
        settings = recorded["resume_settings"]
        bert_config = BertConfig.from_json_file(os.path.join(folder, run_directory.CONFIG_FILE), "--model_dir")
        max_seq_length = config.max_seq_length or settings["max_seq_length"]
        check_max_seq_length(max_seq_length)
        bert_config.check_sequence_length(max_seq_length)
        return cls(
            folder=folder,
            settings=settings,
            flags=recorded["flags"],
            bilstm=run_directory.recorded_bilstm(folder),
            labels=settings.get("labels") or run_directory.recorded_labels(model_dir),
            config=bert_config,
            tokenizer=load_tokenizer(os.path.join(folder, run_directory.VOCAB_FILE), settings["do_lower_case"]),
            max_seq_length=max_seq_length,
            export_config=config,
        )

    def restore(self, model: TrainableModel) -> int:
        """Gives a model the weights that the run is judged with, and returns their step."""
        source = checkpoints.open_checkpoint(self.folder, "--model_dir")
        variables = checkpoints.named_variables(model.variables)
        say(str(checkpoints.restore(variables, source, may_be_fresh="", flag_name="--model_dir")))
        return int(source.read("global_step"))

    @property
    def encoder_options(self) -> dict[str, Any]:
        """What models are built with besides the config; see `EncoderModel`."""
        if self.bilstm is not None:
            self.export_config.check_bilstm()
        return {"causal": bool(self.settings.get("causal")), "bilstm": self.bilstm}

    def encoder(self, model: EncoderModel) -> TextEncoder:
        """What reads tokens in the exported model."""
        encoder = InferenceEncoder(model.encoder, self.export_config.dtype)
        return encoder if model.bilstm is None else RecurrentEncoder(encoder, model.bilstm)

    def texts(self) -> TextReader:
        """What reads texts in the exported model."""
        return TextReader(self.tokenizer, self.max_seq_length)


def plain_logits(model: EncoderModel) -> PlainFunction | None:
    """A fine-tuned model's logits, by name, from padded ids [B, T]; see `Exportable`."""
    if model.bilstm is not None:
        return None

    def logits(input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        found = model.logits({"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segment_ids})
        if isinstance(found, tuple):
            return dict(zip(("start_logits", "end_logits"), found, strict=True))
        return {"logits": found}

    return logits
