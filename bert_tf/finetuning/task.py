"""The interface that every fine-tuning task implements: its rows, features, model and scores."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.finetuning.feature_sets import FeatureSet
from bert_tf.tokenization import FullTokenizer
from bert_tf.training.contract import TrainableModel

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
