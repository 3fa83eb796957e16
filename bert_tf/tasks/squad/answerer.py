"""One or several models in memory that answer questions."""

import hashlib
import os
from collections.abc import Sequence

import numpy as np

from bert_tf.checkpoints import run_directory, run_record
from bert_tf.config import BertConfig
from bert_tf.finetuning.feature_sets import FeatureSet
from bert_tf.finetuning.models import SpanModel
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.finetuning.task import ModelOutputs, Task
from bert_tf.runtime.errors import InputError
from bert_tf.runtime.messages import say
from bert_tf.tasks.squad.decoding import average_distributions
from bert_tf.tasks.squad.rules import AnswerConfig

THRESHOLD_KEY = "null_score_diff_threshold"


class Answerer:
    """One or several models in memory that answer questions. It predicts like a `FinetuningRun`.

    The distributions of several models over the tokens of a window are averaged, as in the paper's ensembles (section
    4.2).

    Args:
      run: the run with the task. Without an ensemble, its model answers.
      config: the models that answer, and the no-answer threshold.

    Attributes:
      task: the task of the run, with the no-answer threshold of the models.
      settings: the settings of the run.
      data: the features of the run's task.
      description: the step and a digest of each model.

    Raises:
      InputError: if there is no such model, the vocabulary does not match the model, or `ensemble_method` is "nbest".
    """

    def __init__(self, run: FinetuningRun, config: AnswerConfig) -> None:
        if config.merges_lists:
            raise InputError("--ensemble_method=nbest: can't answer typed questions. Omit it.")
        self.settings, self.data = run.settings, run.data
        if config.ensemble_dirs and run.training_config.pad_to_max_seq_length:
            raise InputError("--pad_to_max_seq_length: not supported by ensembles. Omit it with --ensemble_dirs.")
        self._members = [_member(run, directory) for directory in config.ensemble_dirs] or [run]
        directories = list(config.ensemble_dirs) or [run.model_directory]
        for directory in directories:
            run_record.check_trained_with(directory, run.tokenizer_settings)
        self.description: str = " and ".join(describe_model(member.restore(), member.model) for member in self._members)
        tuned_in = [run.training_config.output_dir] + ([] if config.ensemble_dirs else directories)
        threshold = config.null_score_diff_threshold
        if threshold is None:
            threshold = find_null_threshold(tuned_in, self.description)
        self.task: Task = run.task.replace(null_score_diff_threshold=threshold)

    def predict(
        self, features: FeatureSet, batch_size: int, description: str = "predict", shown: bool = True
    ) -> ModelOutputs:
        """Returns `start_logits` and `end_logits` [W, T]; for an ensemble, logarithms of mean probabilities.

        See `FinetuningRun.predict` for the arguments.
        """
        if not len(features):
            return dict.fromkeys(("start_logits", "end_logits"), np.zeros([0, 1], np.float32))
        outputs = [member.predict(features, batch_size, description, shown) for member in self._members]
        if len(outputs) == 1:
            return outputs[0]
        return {name: average_distributions([one[name] for one in outputs], features.lengths) for name in outputs[0]}


def _member(run: FinetuningRun, directory: str) -> FinetuningRun:
    """Returns a run with the model in another directory. The model may have another size."""
    config = BertConfig.from_json_file(os.path.join(directory, run_directory.CONFIG_FILE), "--ensemble_dirs")
    return run.with_settings(run.settings.starting_from(None, directory).replace(bilstm_layers=0), config)


def describe_model(step: int, model: SpanModel) -> str:
    """Returns a description of a model: the step, and a digest of the output weights."""
    digest = hashlib.sha256(model.head.output_weights.numpy().tobytes()).hexdigest()
    return f"step {step} ({digest[:8]})"


def find_null_threshold(directories: Sequence[str], model: str) -> float:
    """Returns the first threshold in the run directories that was tuned for a model; 0 if there is none."""
    for directory in directories:
        if THRESHOLD_KEY in (tuned := run_directory.tuned(directory)):
            path = os.path.join(directory, run_directory.TUNED_FILE)
            if tuned.get("model") == model:
                say(f"Using the threshold {tuned[THRESHOLD_KEY]} from {path}.")
                return tuned[THRESHOLD_KEY]
            say(f"Warning: {path} was tuned for another model ({tuned.get('model')}). The file is ignored.")
    return 0.0
