"""The common part of all sentence tasks: labels, features, scores and prediction files."""

import abc
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf.config import BertConfig
from bert_tf.finetuning.feature_sets import FeatureSet
from bert_tf.finetuning.models import ClassifierModel
from bert_tf.finetuning.task import ModelOutputs
from bert_tf.runtime import files
from bert_tf.runtime.files import InputError
from bert_tf.tasks import metrics, sentence_features
from bert_tf.tasks.sentence_features import InputExample
from bert_tf.tokenization import FullTokenizer

Metric = Callable[[np.ndarray, np.ndarray], dict[str, float]]


class SentenceTask(abc.ABC):
    """A classification or regression of sentences or pairs; subclasses read the rows.

    Args:
      name: the task's name.
      labels: the classes in the order of their ids; None for regression.
      metric: computes the scores from predicted classes (or numbers) and labels.
      selection_metric: the score that models are chosen by; higher is better.
    """

    independent = True
    dev_splits: Sequence[str] = ("dev",)
    test_splits: Sequence[str] = ("test",)
    output_names: Mapping[str, str] = {}

    def __init__(
        self,
        name: str,
        labels: Sequence[str] | None,
        metric: Metric = metrics.accuracy,
        selection_metric: str = "accuracy",
    ) -> None:
        self.name = name
        self._labels = None if labels is None else tuple(labels)
        self.metric = metric
        self.selection_metric = selection_metric

    @property
    def metric_names(self) -> list[str]:
        """The scores that models can be chosen by."""
        return list(self.metric(np.arange(2), np.arange(2)))

    def has_labels(self, examples: Sequence[Any]) -> bool:
        """Returns whether every row of a test split has its label."""
        return all(example.label is not None for example in examples)

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The classes in the order of their ids; None for regression."""
        return self._labels

    @abc.abstractmethod
    def examples(self, split: str) -> list[InputExample]:
        """Returns the rows of a split."""

    def input_settings(self) -> dict[str, Any]:
        """Returns the classes."""
        return {"labels": self.labels and list(self.labels)}

    def resume_settings(self) -> dict[str, Any]:
        """Returns the task's settings that change the weights."""
        return self.input_settings()

    def featurize(
        self, examples: Sequence[InputExample], tokenizer: FullTokenizer, max_seq_length: int, num_workers: int = 1
    ) -> FeatureSet:
        """Returns the features; see `sentence_features.featurize`."""
        return sentence_features.featurize(examples, self.labels, max_seq_length, tokenizer, num_workers)

    def check_training_set(self, examples: Sequence[InputExample]) -> None:
        """Raises an InputError if all examples have the same class."""
        if self.labels is not None and len({example.label for example in examples}) == 1:
            raise InputError(
                f"{self.name}: all {len(examples)} training examples have the label {examples[0].label!r}, "
                "but at least two classes are needed."
            )

    def build_model(self, config: BertConfig, **options) -> ClassifierModel:
        """Returns a classifier with one logit per class, or one output for regression."""
        if self.labels is None:
            return ClassifierModel(config, 1, problem="regression", **options)
        return ClassifierModel(config, len(self.labels), classes=self.labels, **options)

    def predictions(self, outputs: ModelOutputs) -> np.ndarray:
        """Returns class numbers, or scores for regression."""
        return outputs["score"] if self.labels is None else np.argmax(outputs["logits"], axis=-1)

    def scores(self, outputs: ModelOutputs, features: FeatureSet) -> dict[str, float]:
        """Returns the task's scores, and the mean loss."""
        scores = self.metric(self.predictions(outputs), features.per_example["label_ids"])
        return scores | {"loss": float(np.mean(outputs["per_example_loss"]))}

    def results(self, outputs: ModelOutputs, features: FeatureSet, batch_size: int) -> dict[str, float]:
        """Returns the scores under the names of the release's eval_results.txt; see `release_results`."""
        return release_results(self.scores(outputs, features), outputs, batch_size)

    def confusion(self, outputs: ModelOutputs, features: FeatureSet) -> tuple[np.ndarray, Sequence[str]] | None:
        """Returns the counts of true (rows) and predicted classes (columns), and their names; None without classes."""
        if self.labels is None:
            return None
        labels, count = features.per_example["label_ids"], len(self.labels)
        counts = metrics.confusion(labels, self.predictions(outputs), count)
        return None if counts is None else (counts, self.labels)

    def write_predictions(
        self,
        output_dir: str,
        split: str,
        examples: Sequence[InputExample],
        outputs: ModelOutputs,
        features: FeatureSet,
        *,
        release_format: bool = False,
    ) -> list[str]:
        """Writes test_results.tsv, and returns the names of the files."""
        own_name = self.output_names.get(split, split)
        name = f"test_results{split.removeprefix('test')}" if own_name == split else f"{own_name}_results"
        path = os.path.join(output_dir, f"{name}.tsv")
        write_test_results(path, outputs, self.labels, release_format)
        return [path]


def release_results(scores: Mapping[str, float], outputs: ModelOutputs, batch_size: int) -> dict[str, float]:
    """Returns scores under the names of the release's eval_results.txt.

    `eval_loss` is the mean over examples. `loss` is the mean over the losses of batches in the file's order, where the
    last batch may be smaller. (On TPU the release filled it up with padding examples and included them in the mean.)
    """
    losses = outputs["per_example_loss"]
    batches = [np.mean(losses[start : start + batch_size]) for start in range(0, len(losses), batch_size)]
    return {f"eval_{name}": value for name, value in scores.items()} | {"loss": float(np.mean(batches))}


def write_test_results(
    path: str, outputs: ModelOutputs, labels: Sequence[str] | None, release_format: bool = False
) -> None:
    """Writes test_results.tsv: one row per example, and one column per class with its probability, or the score.

    Args:
      path: the file.
      outputs: the model's outputs in the examples' order.
      labels: the classes; None for regression.
      release_format: omit the header with the names of the classes, as the release does.
    """
    columns = outputs["score"][:, None] if labels is None else outputs["probabilities"]
    with files.replacing(path) as writer:
        if not release_format:
            writer.write("\t".join(labels or ["score"]) + "\n")
        writer.writelines("\t".join(map(str, row)) + "\n" for row in columns)
