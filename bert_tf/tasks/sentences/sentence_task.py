"""The base class of all sentence tasks: labels, features, scores and prediction files."""

import dataclasses
import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bert_tf.config import BertConfig
from bert_tf.finetuning.explanations import ExplainedText, Explanation
from bert_tf.finetuning.feature_sets import FeatureSet
from bert_tf.finetuning.models import ClassifierModel
from bert_tf.finetuning.task import ModelOutputs, SplitOutputs, Task, TrainedRun
from bert_tf.runtime import files, parallel
from bert_tf.runtime.files import InputError
from bert_tf.runtime.messages import say_once
from bert_tf.sequences.packing import Packed
from bert_tf.sequences.text_packer import TextPacker
from bert_tf.serving.export_config import LABEL_THRESHOLD
from bert_tf.tasks import metrics
from bert_tf.tasks.sentences import calibration
from bert_tf.tasks.sentences.examples import InputExample
from bert_tf.tasks.sentences.soft_labels import PREFIX

Metric = Callable[[np.ndarray, np.ndarray], dict[str, float]]


class SentenceTask(Task):
    """Base class of tasks that classify or score sentences or sentence pairs.

    Args:
      name: the name of the task.
      labels: the classes in the order of their ids; None for regression.
      problem: "classification", "regression" or "multi_label".
      metric: computes the scores from predicted classes (or numbers) and labels.
      selection_metric: the score that selects models; higher is better.
    """

    explains = True
    choices = 1  # the number of sequences in an example
    temperature = 1.0  # divides the logits; see `calibration`
    min_probability = 0.0  # the lowest confidence of an answer; see `confidences`
    label_threshold = LABEL_THRESHOLD  # in multi-label tasks, the lowest probability of a predicted label

    def __init__(
        self,
        name: str,
        labels: tuple[str, ...] | None,
        problem: str = "classification",
        metric: Metric = metrics.accuracy,
        selection_metric: str = "accuracy",
    ) -> None:
        self.name = name
        self._labels = labels
        self.problem = problem
        self.holds_out_by_class = problem != "regression"
        self.metric = metric
        self.selection_metric = selection_metric

    @property
    def metric_names(self) -> list[str]:
        """The scores that can select models."""
        values = np.eye(2) if self.problem == "multi_label" else np.arange(2)
        return list(self.metric(values, values))

    def has_labels(self, examples: Sequence[Any]) -> bool:
        """Returns True if every row of a test split has a label."""
        return all(example.label is not None for example in examples)

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The classes in the order of their ids; None for regression."""
        return self._labels

    def input_settings(self) -> dict[str, Any]:
        """Returns the classes."""
        return {"labels": self.labels and list(self.labels)}

    def featurize(self, examples: Sequence[Any], packer: TextPacker, num_workers: int = 1) -> FeatureSet:
        """Returns the features of a data set, with an array `label_ids`; see `SentenceTask.label_ids`.

        Args:
          examples: the examples.
          packer: makes the sequences.
          num_workers: see `parallel.map_chunks`.
        """
        documents = packer.documents
        if documents.has_windows and documents.doc_stride >= packer.max_seq_length - 2:
            say_once(f"Warning: --doc_stride={documents.doc_stride}: windows do not overlap. Use a smaller stride.")

        def pack(chunk: Sequence[Any]) -> tuple[FeatureSet, np.ndarray]:
            packed = [self.sequences(example, packer) for example in chunk]
            counts = np.array(list(map(len, packed)), np.int64)
            return FeatureSet.from_sequences(list(itertools.chain.from_iterable(packed))), counts

        label_ids = self.label_ids(examples)
        chunks, counts = zip(*parallel.map_chunks(pack, examples, num_workers, "tokenize"), strict=True)
        features = FeatureSet.joined(chunks, self.choices)
        if documents.has_windows:
            features = dataclasses.replace(features, windows=np.concatenate(counts))
        return features.with_values(label_ids=label_ids)

    def sequences(self, example: Any, packer: TextPacker) -> list[Packed]:
        """Returns the sequences of an example, one for each window."""
        return packer.pack_document(example.text_a, example.text_b)

    def label_ids(self, examples: Sequence[Any]) -> np.ndarray:
        """Returns class ids [N] or, for regression, numbers [N]; 0 for an example without a label.

        In multi-label tasks, returns [N, C], 1.0 for the labels of an example and 0.0 for other labels.
        """
        labels = self.labels
        if labels is None:
            return np.array([float(example.label or 0) for example in examples], np.float32)
        if self.problem == "multi_label":
            label_sets = [set(example.label or ()) for example in examples]
            return np.array([[label in label_set for label in labels] for label_set in label_sets], np.float32)
        numbers = {label: i for i, label in enumerate(labels)} | {None: 0}
        return np.array([numbers[example.label] for example in examples], np.int32)

    def check_training_set(self, examples: Sequence[InputExample]) -> None:
        """Raises an InputError if all examples have the same class."""
        if self.labels is not None and len({example.label for example in examples}) == 1:
            label = examples[0].label
            raise InputError(f"{self.name}: all training examples have the label {label!r}. Add other labels.")

    def build_model(self, config: BertConfig, **options: Any) -> ClassifierModel:
        """Returns a classifier with one logit per class, or one output for regression."""
        outputs = 1 if self.labels is None else len(self.labels)
        return ClassifierModel(config, outputs, self.problem, classes=self.labels, **options)

    def predictions(self, outputs: ModelOutputs) -> np.ndarray:
        """Returns class ids [N]; for regression, scores [N]; in multi-label tasks, 0 or 1 for each class [N, C]."""
        if self.problem == "multi_label":
            return (outputs["probabilities"] >= self.label_threshold).astype(np.int32)
        return outputs["score"] if self.labels is None else np.argmax(outputs["logits"], axis=-1)

    def decode(self, examples: Sequence[Any], features: FeatureSet, outputs: ModelOutputs) -> np.ndarray:
        """Returns the predictions of the examples; see `predictions`. Below `min_probability`, all values are -1."""
        predictions = self.predictions(outputs)
        if self.min_probability:
            predictions[self.confidences(outputs) < self.min_probability] = -1
        return predictions

    def confidences(self, outputs: ModelOutputs) -> np.ndarray:
        """Returns the probability of each predicted class [N] or, for several labels, of the least certain decision."""
        probabilities = outputs["probabilities"]
        if self.problem == "multi_label":
            is_chosen = probabilities >= self.label_threshold
            return np.where(is_chosen, probabilities, 1 - probabilities).min(axis=-1)
        return probabilities.max(axis=-1)

    def calibrated(self, outputs: ModelOutputs, features: FeatureSet) -> ModelOutputs:
        """Returns the outputs for the logits divided by the temperature."""
        if self.temperature == 1.0:
            return outputs
        logits, labels = outputs["logits"] / np.float32(self.temperature), features.document_values("label_ids")
        probabilities = calibration.probabilities_of(logits, labels)
        losses = calibration.losses(logits, labels)
        return {**outputs, "logits": logits, "probabilities": probabilities, "per_example_loss": losses}

    def scores(self, outputs: ModelOutputs, features: FeatureSet) -> dict[str, float]:
        """Returns the task's scores and the mean loss."""
        predictions, labels = self.predictions(outputs), features.document_values("label_ids")
        scores = self.metric(predictions, labels)
        if self.labels is None:
            scores |= metrics.errors(predictions, labels)
        return scores | {"loss": float(np.mean(outputs["per_example_loss"]))}

    def results(self, outputs: ModelOutputs, features: FeatureSet, batch_size: int) -> dict[str, float]:
        """Returns the scores under the names of the original eval_results.txt.

        `eval_loss` is the mean over examples. `loss` is the mean over the losses of batches in the order of the file.
        The last batch may be smaller. (On a TPU, the original code pads the last batch and includes the padding in the
        mean.)
        """
        losses = outputs["per_example_loss"]
        batches = [np.mean(losses[start : start + batch_size]) for start in range(0, len(losses), batch_size)]
        return super().results(outputs, features, batch_size) | {"loss": float(np.mean(batches))}

    def confusion(self, outputs: ModelOutputs, features: FeatureSet) -> tuple[np.ndarray, Sequence[str]] | None:
        """Returns the confusion matrix [C, C], true classes by predicted classes, and the names of the classes.

        Returns None for regression and multi-label tasks, and if there are too many classes.
        """
        if self.labels is None or self.problem != "classification":
            return None
        labels, count = features.document_values("label_ids"), len(self.labels)
        counts = metrics.confusion(labels, self.predictions(outputs), count)
        return None if counts is None else (counts, self.labels)

    def explained(self, run: TrainedRun, split: SplitOutputs) -> Iterator[list[Explanation]]:
        """Yields an explanation of the score, of the predicted class, or of each predicted label of each example."""
        scale, labels = run.model.target_scale[1] / self.temperature, self.labels or ("score",)
        for example, prediction in zip(split.examples, self.predictions(split.outputs), strict=True):
            columns = np.flatnonzero(prediction) if self.problem == "multi_label" else [int(prediction)]
            text = ExplainedText(run.data.packer, example.text_a, example.text_b)
            yield [
                text.explained(run.model, labels[column], lambda logits, column=column: scale * logits[:, column])
                for column in (columns if self.labels else (0,))
            ]

    def compared(self, split: SplitOutputs) -> list[dict[str, Any]]:
        """Returns a row for each example: texts, label, prediction, and probabilities or error. See `Task.compared`.

        An answer below `min_probability` is not correct. The rows of a regression begin with the largest error.
        """
        features, outputs = split.features, split.outputs
        labels, predictions = features.document_values("label_ids"), self.decode(split.examples, features, outputs)
        is_right = (predictions == labels).reshape(len(labels), -1).all(axis=-1)
        errors, rows = np.abs(predictions - labels), []
        keys = (-errors,) if self.labels is None else (-self.confidences(outputs), is_right)
        for number in np.lexsort(keys):  # the last key is the first criterion
            label, prediction, row = labels[number], predictions[number], self.texts(split.examples[number])
            if self.labels is None:
                row |= {"label": float(label), "prediction": float(prediction), "error": float(errors[number])}
            else:
                values = zip(self.labels, outputs["probabilities"][number], strict=True)
                row |= {"label": self.name_of(label), "prediction": self.name_of(prediction)}
                row |= {f"{PREFIX}{name}": round(float(value), 6) for name, value in values}
                row["correct"] = bool(is_right[number])
            rows.append(row)
        return rows

    def texts(self, example: Any) -> dict[str, Any]:
        """Returns the texts of an example by column."""
        second = {} if example.text_b is None else {"text_b": example.text_b}
        return {"text": example.text_a, **second}

    def name_of(self, prediction: np.ndarray) -> str | list[str]:
        """Returns the name of a predicted class or, for several labels, the names; see `decode`."""
        return self.labels[prediction]

    def write_predictions(self, output_dir: str, split: SplitOutputs, original_format: bool = False) -> list[str]:
        """Writes test_results.tsv: for each example, the probabilities of the classes or the score.

        With `original_format`, the file has no header, as in the original code.
        """
        shown_name = self.output_names.get(split.name, split.name)
        name = f"test_results{split.name.removeprefix('test')}" if shown_name == split.name else f"{shown_name}_results"
        path = os.path.join(output_dir, f"{name}.tsv")
        columns = split.outputs["score"][:, None] if self.labels is None else split.outputs["probabilities"]
        with files.replacing(path) as writer:
            if not original_format:
                # A class may contain tabs and line ends, which would end its column.
                names = (re.sub(r"[\t\r\n]", " ", label) for label in self.labels or ["score"])
                writer.write("\t".join(names) + "\n")
            writer.writelines("\t".join(map(str, row)) + "\n" for row in columns)
        return [path]
