"""The interface that every fine-tuning task implements: its rows, features, model and scores."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.finetuning.feature_sets import FeatureSet
from bert_tf.tokenization import FullTokenizer
from bert_tf.training.interface import TrainableModel

ModelOutputs = Mapping[str, np.ndarray]


class FinetuningModel(TrainableModel, Protocol):
    """A model that can also predict."""

    def predict(self, batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the outputs for a batch; each has one row per example."""


class Task(Protocol):
    """A task, as `FinetuningRun` uses it.

    Attributes:
      name: the task's name, as in --task_name.
      selection_metric: the score that models are chosen by; higher is better.
      independent: whether every example has exactly one row of features, which doesn't depend on other examples.
    """

    name: str
    selection_metric: str
    independent: bool

    def examples(self, split: str) -> list[Any]:
        """Returns the rows of "train", "dev", "test" or another split of the task."""

    def featurize(
        self, examples: Sequence[Any], tokenizer: FullTokenizer, max_seq_length: int, num_workers: int = 1
    ) -> FeatureSet:
        """Returns the examples' features, in their order, computed in several processes (see `parallel.map_chunks`)."""

    def build_model(self, config: BertConfig, **options) -> FinetuningModel:
        """Returns the encoder with the task's output layer; for the options see `models.EncoderModel`."""

    def scores(self, outputs: ModelOutputs, features: FeatureSet) -> dict[str, float]:
        """Returns the task's scores, and "loss"."""

    def input_settings(self) -> dict[str, Any]:
        """Returns the task's own settings of what the model reads and predicts; a trained model is used with these."""

    def resume_settings(self) -> dict[str, Any]:
        """Returns the task's own settings that change the weights; a resumed run must have the same ones."""


class ReportingTask(Task, Protocol):
    """A task that can also be evaluated and write predictions.

    Attributes:
      labels: the names of the classes; None for regression.
      dev_splits: the splits for evaluation; models are chosen by the first one.
      test_splits: the splits for prediction.
      output_names: split -> the name in the names of its files, where it is another one than the split's.
      metric_names: the scores that models can be chosen by; the task always computes them, and higher is better.
    """

    labels: Sequence[str] | None
    dev_splits: Sequence[str]
    test_splits: Sequence[str]
    output_names: Mapping[str, str]
    metric_names: Sequence[str]

    def has_labels(self, examples: Sequence[Any]) -> bool:
        """Returns whether the rows of a test split have labels, so that their predictions can be scored."""

    def check_training_set(self, examples: Sequence[Any]) -> None:
        """Raises an InputError if nothing can be learned from the training set."""

    def results(self, outputs: ModelOutputs, features: FeatureSet, batch_size: int) -> dict[str, float]:
        """Returns the scores under the names of eval_results.txt."""

    def confusion(self, outputs: ModelOutputs, features: FeatureSet) -> tuple[np.ndarray, Sequence[str]] | None:
        """Returns the counts of true (rows) and predicted classes (columns), and their names; None without classes."""

    def write_predictions(
        self,
        output_dir: str,
        split: str,
        examples: Sequence[Any],
        outputs: ModelOutputs,
        features: FeatureSet,
        *,
        original_format: bool = False,
    ) -> list[str]:
        """Writes the predictions of a split, and returns the names of the files."""
