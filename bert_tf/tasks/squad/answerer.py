"""Answers from one model or from several, with the threshold for no answer that was tuned for these models."""

import hashlib
import os
from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from bert_tf.checkpoints import run_directory
from bert_tf.config import BertConfig
from bert_tf.finetuning.models import SpanModel
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.finetuning.task import ModelOutputs
from bert_tf.runtime import files, json_files
from bert_tf.runtime.errors import InputError
from bert_tf.runtime.program import say
from bert_tf.tasks.squad.decoding import average_distributions, decode
from bert_tf.tasks.squad.examples import SquadExample
from bert_tf.tasks.squad.predictions import SquadPredictions
from bert_tf.tasks.squad.rules import AnswerConfig
from bert_tf.tasks.squad.windows import SquadWindows

# The file of a run directory with the tuned threshold.
NULL_THRESHOLD_FILE = "null_threshold.json"
THRESHOLD_KEY = "null_score_diff_threshold"


class TunedThreshold(TypedDict):
    """The content of `NULL_THRESHOLD_FILE`: the threshold, its F1, and the description of its model."""

    null_score_diff_threshold: float
    best_f1: float
    model: str


class Answerer:
    """Loaded models that answer questions together.

    The distributions of several models over a window's tokens are averaged, as in the paper's ensembles (section 4.2).

    Args:
      run: has the task, and the model unless the configuration names an ensemble.
      config: the models that answer, and their settings.

    Attributes:
      model: a description of the models.
      null_score_diff_threshold: the threshold for no answer.

    Raises:
      InputError: if there is no such model, the vocabulary isn't the model's, or n-best lists are to be merged.
    """

    def __init__(self, run: FinetuningRun, config: AnswerConfig) -> None:
        if config.merges_lists:
            raise InputError("--ensemble_method=nbest: merged lists can't answer what is typed. Use distributions.")
        self.run = run
        if config.ensemble_dirs and run.settings.pad_to_max_seq_length:
            raise InputError("--pad_to_max_seq_length: ensembles ignore padding. Omit it with --ensemble_dirs.")
        self._members = [_member(run, folder) for folder in config.ensemble_dirs] or [run]
        folders = list(config.ensemble_dirs) or [run.model_folder]
        for folder in folders:
            run_directory.check_trained_with(folder, run.tokenizer_settings)
        self.model = " and ".join(describe_model(member.restore(), member.model) for member in self._members)
        beside_the_model = [run.training_config.output_dir] + ([] if config.ensemble_dirs else folders)
        threshold = config.null_score_diff_threshold
        self.null_score_diff_threshold = (
            find_null_threshold(beside_the_model, self.model) if threshold is None else threshold
        )

    def _outputs(self, windows: SquadWindows, shown: bool) -> ModelOutputs:
        """`start_logits` and `end_logits` [W, T]; those of an ensemble are logarithms of mean probabilities."""
        if not len(windows):
            return dict.fromkeys(("start_logits", "end_logits"), np.zeros([0, 1], np.float32))
        each = [member.predict(windows, self.run.settings.predict_batch_size, shown=shown) for member in self._members]
        if len(each) == 1:
            return each[0]
        return {name: average_distributions([one[name] for one in each], windows.lengths) for name in each[0]}

    def answer(self, examples: Sequence[SquadExample], windows: SquadWindows, shown: bool = True) -> SquadPredictions:
        """Answers questions from their windows; with `shown`, there is a progress bar."""
        outputs, task = self._outputs(windows, shown), self.run.task
        logits = outputs["start_logits"], outputs["end_logits"]
        return decode(examples, windows, *logits, self.run.tokenizer, task.config, self.null_score_diff_threshold)


def _member(run: FinetuningRun, folder: str) -> FinetuningRun:
    """A run with the model of another folder, which may have another size."""
    config = BertConfig.from_json_file(os.path.join(folder, run_directory.CONFIG_FILE), "--ensemble_dirs")
    return run.with_settings(run.settings.starting_from(None, folder).replace(bilstm_layers=0), config)


def describe_model(step: int, model: SpanModel) -> str:
    """A description of a model: its step, and a few digits that change with its weights."""
    digest = hashlib.sha256(model.head.output_weights.numpy().tobytes()).hexdigest()
    return f"step {step} ({digest[:8]})"


def read_null_threshold(folder: str) -> TunedThreshold | None:
    """Returns the threshold that is stored in a run directory; None if there is none.

    Raises:
      InputError: if the file is damaged.
    """
    path = os.path.join(folder, NULL_THRESHOLD_FILE)
    return json_files.read(path, f"--{THRESHOLD_KEY}", TunedThreshold) if files.exists(path) else None


def find_null_threshold(folders: Sequence[str], model: str) -> float:
    """Returns the threshold that was tuned for a model, from the first run directory that has one; 0 if none has."""
    for folder in folders:
        if tuned := read_null_threshold(folder):
            if tuned["model"] == model:
                say(f"Using the threshold {tuned[THRESHOLD_KEY]} of {folder}/{NULL_THRESHOLD_FILE}.")
                return tuned[THRESHOLD_KEY]
            say(f"Warning: {folder}/{NULL_THRESHOLD_FILE} was tuned for another model ({tuned['model']}) and not used.")
    return 0.0
