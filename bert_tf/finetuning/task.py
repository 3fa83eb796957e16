"""What a task brings to fine-tuning: its rows, its rules and its model. The loop is in `finetuning`."""

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
        """Outputs of a batch, each with a row for each example."""


class Task(Protocol):
    """What a task brings.

    Attributes:
      name: of the task, as in its flag.
      selection_metric: the score that models are chosen by; higher is better.
      independent: whether every example makes one row of features, which doesn't depend on the others.
    """

    name: str
    selection_metric: str
    independent: bool

    def examples(self, split: str) -> list[Any]:
        """The rows of "train", "dev" or "test" (or of what else the task has)."""

    def featurize(
        self, examples: Sequence[Any], tokenizer: FullTokenizer, max_seq_length: int, num_workers: int = 1
    ) -> FeatureSet:
        """Their features, in their order; made in several processes (see `parallel.map_chunks`)."""

    def build_model(self, config: BertConfig, **options) -> FinetuningModel:
        """The encoder with the task's output layer; for the options see `finetuning_models.EncoderModel`."""

    def scores(self, outputs: ModelOutputs, features: FeatureSet) -> dict[str, float]:
        """What the task is judged by, and "loss"."""

    def resume_settings(self) -> dict[str, Any]:
        """The task's own settings that change the weights: a run that resumes must have the same."""
