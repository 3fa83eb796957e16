"""A finished run, as input of its task's export."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from bert_tf import checkpoints
from bert_tf.checkpoints import pretrained, run_directory
from bert_tf.config import BertConfig
from bert_tf.finetuning.models import EncoderModel
from bert_tf.serving.export_config import ExportConfig, check_no_bilstm
from bert_tf.serving.inference_encoder import InferenceEncoder
from bert_tf.text import Tokenizer
from bert_tf.text.packing import check_max_seq_length
from bert_tf.training import resume
from bert_tf.training.interface import TrainableModel


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """The parts of a run directory that an export needs.

    Attributes:
      folder: the folder of its checkpoints.
      settings: the settings of training; see `run_directory.recorded`.
      flags: the flags of the program that trained it.
      labels: the classes; None for regression.
      config: the encoder's config.
      tokenizer: the model's tokenizer.
      max_seq_length: length at which the exported model truncates sequences.
      export_config: the settings of the export.
    """

    folder: str
    settings: Mapping[str, Any]
    flags: Mapping[str, Any]
    labels: list[str] | None
    config: BertConfig
    tokenizer: Tokenizer
    max_seq_length: int
    export_config: ExportConfig

    @classmethod
    def read(cls, model_dir: str, config: ExportConfig) -> "FinishedRun":
        """Reads the records in a run's folder.

        Raises:
          InputError: if it isn't the folder of a finished run, or `max_seq_length` exceeds the model's maximum.
        """
        folder = run_directory.folder_of_model(model_dir)
        recorded = run_directory.read(folder)
        settings = recorded["resume_settings"]
        check_no_bilstm("bilstm_units" in settings, f"--model_dir: {folder}")
        bert_config = BertConfig.from_json_file(os.path.join(folder, run_directory.CONFIG_FILE), "--model_dir")
        max_seq_length = config.max_seq_length or settings["max_seq_length"]
        vocab_file = os.path.join(folder, run_directory.VOCAB_FILE)
        check_max_seq_length(max_seq_length)
        bert_config.check_sequence_length(max_seq_length)
        return cls(
            folder=folder,
            settings=settings,
            flags=recorded.get("flags", {}),
            labels=settings.get("labels") or run_directory.recorded_labels(model_dir),
            config=bert_config,
            tokenizer=pretrained.tokenizer_of(folder, bert_config, vocab_file),
            max_seq_length=max_seq_length,
            export_config=config,
        )

    def restore(self, model: TrainableModel) -> int:
        """Loads the run's selected weights into a model, and returns their step."""
        source = checkpoints.open_checkpoint(self.folder, "--model_dir")
        return resume.restore_weights(model, source, "--model_dir")

    @property
    def causal(self) -> bool:
        """Whether the run's model is left-to-right."""
        return bool(self.settings.get("causal"))

    def encoder(self, model: EncoderModel) -> InferenceEncoder:
        """Returns the encoder of the exported model."""
        return InferenceEncoder(model.encoder, self.export_config.dtype)
