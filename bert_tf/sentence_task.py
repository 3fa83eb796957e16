"""What all sentence-level tasks share: labels, features, scores and prediction files."""

import abc
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bert_tf import files, metrics, sentence_features
from bert_tf.config import BertConfig
from bert_tf.feature_sets import FeatureSet
from bert_tf.files import InputError
from bert_tf.finetuning_models import ClassifierModel
from bert_tf.sentence_features import InputExample
from bert_tf.tokenization import FullTokenizer

Metric = Callable[[np.ndarray, np.ndarray], dict[str, float]]


class SentenceTask(abc.ABC):
    """A classification or regression of sentences or pairs; subclasses bring the rows.

    Args:
      name: of the task.
      labels: the classes in the order of their ids; None for regression.
      metric: gets predicted classes (or scores) and labels.
    """

    def __init__(self, name: str, labels: Sequence[str] | None, metric: Metric = metrics.accuracy) -> None:
        self.name = name
        self.labels = None if labels is None else tuple(labels)
        self.metric = metric

    @abc.abstractmethod
    def examples(self, split: str) -> list[InputExample]:
        """The rows of a split."""

    def featurize(self, examples: Sequence[InputExample], tokenizer: FullTokenizer, max_seq_length: int) -> FeatureSet:
        """See `sentence_features.featurize`."""
        return sentence_features.featurize(examples, self.labels, max_seq_length, tokenizer)

    def build_model(self, config: BertConfig, **encoder_options) -> ClassifierModel:
        """A classifier with a logit a class, or one output for regression."""
        if self.labels is None:
            return ClassifierModel(config, 1, "regression", **encoder_options)
        return ClassifierModel(config, len(self.labels), **encoder_options)

    def predictions(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Class numbers, or scores."""
        return outputs["score"] if self.labels is None else np.argmax(outputs["logits"], axis=-1)

    def scores(self, outputs: Mapping[str, np.ndarray], features: FeatureSet) -> dict[str, float]:
        """The task's metric, and the mean loss."""
        scores = self.metric(self.predictions(outputs), features.per_example["label_ids"])
        return scores | {"loss": float(np.mean(outputs["per_example_loss"]))}


def release_results(
    scores: Mapping[str, float], outputs: Mapping[str, np.ndarray], batch_size: int
) -> dict[str, float]:
    """Scores under the names of the release's eval_results.txt.

    `eval_loss` is the mean over examples; `loss` that over batches in the file's order, the last of which may be short
    (on TPU the release filled it up with padding, which counted).
    """
    losses = outputs["per_example_loss"]
    batches = [np.mean(losses[start : start + batch_size]) for start in range(0, len(losses), batch_size)]
    return {f"eval_{name}": value for name, value in scores.items()} | {"loss": float(np.mean(batches))}


def write_test_results(
    path: str, outputs: Mapping[str, np.ndarray], labels: Sequence[str] | None, release_format: bool = False
) -> None:
    """Writes test_results.tsv: a row an example, a column a class, with its probability (or the score).

    Args:
      path: the file.
      outputs: of the model, in the examples' order.
      labels: the classes; None for regression.
      release_format: without the header that names the classes.
    """
    columns = outputs["score"][:, None] if labels is None else outputs["probabilities"]
    with files.replacing(path) as writer:
        if not release_format:
            writer.write("\t".join(labels or ["score"]) + "\n")
        writer.writelines("\t".join(map(str, row)) + "\n" for row in columns)


def require_rows(examples: Sequence[InputExample], where: str) -> None:
    """Raises an InputError if a split has no rows."""
    if not examples:
        raise InputError(f"{where} has no rows.")
