"""Classification or regression of your own data, from files with named columns or from examples in memory."""

import functools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from bert_tf.checkpoints import class_names, run_directory, run_record
from bert_tf.config import BertConfig
from bert_tf.data_report import findings
from bert_tf.data_report.rows import contradictions, unusual_classes, unusual_scores
from bert_tf.finetuning.dev_split import as_tuple
from bert_tf.finetuning.feature_sets import FeatureSet
from bert_tf.finetuning.models import ClassifierModel
from bert_tf.finetuning.task import ModelOutputs, SplitOutputs
from bert_tf.runtime.errors import InputError, first_of
from bert_tf.runtime.messages import say
from bert_tf.sequences.text_packer import LongDocuments, TextPacker
from bert_tf.tasks import example_rows, metrics, tables
from bert_tf.tasks.data_config import Columns, ConfidenceConfig, DataConfig
from bert_tf.tasks.example_rows import Source
from bert_tf.tasks.sentences import calibration, soft_labels
from bert_tf.tasks.sentences.examples import (
    NAME_THE_COLUMNS,
    InputExample,
    WeightedExample,
    class_of,
    classes_of,
    is_number,
)
from bert_tf.tasks.sentences.glue import DEFINITIONS
from bert_tf.tasks.sentences.sentence_task import SentenceTask
from bert_tf.tasks.sentences.soft_labels import SoftExample
from bert_tf.tasks.sentences.text_reader import TextReader, flag_columns
from bert_tf.tasks.setup import Setup
from bert_tf.tasks.task_names import TEXT

# A value of --class_weights: every class has the same total weight in the loss, whatever its number of examples.
BALANCED = "balanced"
# A value of --label_threshold: use the threshold with the best F1 on the dev set.
TUNE = "tune"

_METRICS = {
    "classification": (metrics.accuracy_and_macro_f1, "accuracy"),
    "regression": (metrics.pearson_and_spearman, "pearson"),
    "multi_label": (metrics.multi_label_f1, "micro_f1"),
}


class TextTask(SentenceTask):
    """A task on your own data.

    Args:
      setup: the settings, the data and the trained model.

    Raises:
      InputError: if the settings contradict each other.
    """

    def __init__(self, setup: Setup) -> None:
        config, sources, labels = setup.config, setup.sources(example_rows.FILE_NAMES), setup.labels()
        problem, run = config.problem, setup.recorded
        first = next(iter(sources.values()), "")
        if not isinstance(first, str):
            text_b = "" if first[0].text_b is None else "text_b"
            weight = "weight" if isinstance(first[0], WeightedExample) else ""
            config = config.replace(columns=Columns(text_b=text_b, weight=weight))
        _check(config)
        if run and not isinstance(first, str):
            _check_pairs(config, run)
        super().__init__(TEXT, tuple(labels or flag_columns(config)) or None, problem, *_METRICS[problem])
        self.config = config
        self.sources: Mapping[str, Source] = sources
        self.documents: LongDocuments = config.documents
        self.tunes: bool = config.label_threshold == TUNE or config.confidence.calibrate
        # The settings of answers of a model that is not trained now.
        directory = "" if setup.does_train else config.tuned_in or setup.trained_in
        self._tuned = run_directory.tuned(directory) if directory else {}
        self.temperature: float = self._tuned.get("temperature", 1.0)
        self.confidence: ConfidenceConfig = config.confidence
        if config.confidence.min_probability is None and directory:
            self.confidence = ConfidenceConfig.from_flags(run_record.recorded_flags(directory))
        self.min_probability: float = self.confidence.min_probability or 0.0
        if config.label_threshold not in ("", TUNE):
            self.label_threshold: float = float(config.label_threshold)
        elif directory:
            self.label_threshold = run_record.label_threshold(directory)
        self._class_weights = class_weights_of(config.class_weights) if setup.does_train else ""
        self._recorded_scale = None if setup.does_train else class_names.recorded_scale(run)

    @classmethod
    def build(cls, setup: Setup) -> Self:
        """See `Task.build`."""
        return cls(setup)

    def examples(self, split: str) -> list[InputExample]:
        """Reads the examples of a split. See `TextReader`."""
        return TextReader(self.sources, self.config, self._known).examples(split)

    def _known(self, split: str) -> tuple[str, ...] | None:
        return self._labels if split == "train" else self.labels

    @functools.cached_property
    def labels(self) -> tuple[str, ...] | None:
        """The given classes, or the classes of the training set (see `classes_of`); None for regression.

        Raises:
          InputError: if no row has a label, a classification has only one class, or --abstain_label is a class.
        """
        if self.problem == "regression":
            return None
        labels = self._labels
        if labels is None:
            examples = self.split("train")
            labels = classes_of(
                self.problem, examples, example_rows.name_of(self.sources["train"]), self.config.class_order
            )
        elif len(labels) < 2 and self.problem == "classification":
            raise InputError(f"--labels has only {', '.join(labels)!r}. Name two classes or more.")
        self.confidence.check_labels(labels)
        return labels

    def input_settings(self) -> dict[str, Any]:
        """Returns the problem, the classes, how texts are read, and the columns by the names of their flags."""
        columns = self.config.columns
        names = {f"{name}_column": getattr(columns, name) for name in ("text", "text_b", "label")}
        separator = {"label_separator": columns.label_separator} if self.problem == "multi_label" else {}
        return super().input_settings() | {"problem": self.problem} | names | separator | self.documents.record

    def resume_settings(self) -> dict[str, Any]:
        """Returns `input_settings`, class weights, weight column, scale of scores, temperature, options of the loss.

        Settings that have no effect are omitted.
        """
        weight_column = self.config.columns.weight
        weights = {"weight_column": weight_column} if weight_column else {}
        scale = {"target_scale": list(self.target_scale)} if self.problem == "regression" else {}
        temperature = self.config.distillation_temperature
        scale |= {"distillation_temperature": temperature} if temperature != 1 else {}
        scale |= self.config.loss.record
        return self.input_settings() | {"class_weights": self.config.class_weights} | weights | scale

    def check_training_set(self, examples: Sequence[InputExample]) -> None:
        """Raises an InputError if all weights are 0, or if nothing can be learned from the labels."""
        source = example_rows.name_of(self.sources["train"])
        if examples and not any(getattr(example, "weight", 1.0) for example in examples):
            raise InputError(f"{source}: every row has weight 0. Give some rows a weight above 0.")
        if any(isinstance(example, SoftExample) for example in examples):
            given_flags = dict(self.config.loss.record)
            given_flags |= {"class_weights": self.config.class_weights} if self.problem == "multi_label" else {}
            if flag := next(filter(given_flags.get, given_flags), None):
                raise InputError(f"--{flag}: the labels in {source} are probabilities. Omit the flag, or use classes.")
            return  # even if the most probable class is the same in all rows, the probabilities may differ
        if self.config.distillation_temperature != 1:
            advice = f"Add columns {soft_labels.PREFIX}CLASS, or use 1."
            raise InputError(f"--distillation_temperature: there are no probabilities in {source}. {advice}")
        if self.labels is not None:
            labels = (label for example in examples for label in as_tuple(example.label))
            findings.report(unusual_classes(labels, source, self.config.columns.label))
            findings.report(contradictions(examples, source))
        else:
            findings.report(unusual_scores((float(example.label) for example in examples), source))
        if self.problem == "classification":
            super().check_training_set(examples)
        elif self.problem == "multi_label" and len({frozenset(example.label) for example in examples}) == 1:
            labels = first_of(examples[0].label)
            raise InputError(f"{source}: every row has the labels {labels!r}. {NAME_THE_COLUMNS}")

    def featurize(self, examples: Sequence[InputExample], packer: TextPacker, num_workers: int = 1) -> FeatureSet:
        """Returns the features; see `SentenceTask.featurize`.

        Weighted rows also have `sample_weights` [N]. Rows with probabilities also have `soft_labels` [N, C].
        """
        features = super().featurize(examples, packer, num_workers)
        weights = [example.weight for example in examples if isinstance(example, WeightedExample)]
        values = {"sample_weights": np.array(weights, np.float32)} if weights else {}
        if rows := [example.probabilities for example in examples if isinstance(example, SoftExample)]:
            form = self.labels, self.problem, self.config.distillation_temperature
            values["soft_labels"] = soft_labels.soft_labels(rows, *form)
        return features.with_values(**values)

    def build_model(self, config: BertConfig, **options: Any) -> ClassifierModel:
        """Returns a classifier with one logit per class, or one output for regression."""
        scale = {"target_scale": self.target_scale} if self.problem == "regression" else {}
        options["temperature"] = self.config.distillation_temperature
        weights, loss = self.weights(), self.config.loss.record
        if weights and self.problem == "multi_label":
            loss["positive_weights"], weights = weights, None
        return super().build_model(config, class_weights=weights, training_loss=loss, **scale, **options)

    @functools.cached_property
    def target_scale(self) -> tuple[float, float]:
        """Mean and standard deviation of the training scores. The model is trained on standardised scores."""
        if self._recorded_scale:
            return self._recorded_scale
        scores = [float(example.label) for example in self.split("train")]
        return float(np.mean(scores)), float(np.std(scores)) or 1.0

    def tune(self, outputs: ModelOutputs, features: FeatureSet) -> dict[str, float]:
        """Returns the temperature with the smallest loss, and then the threshold with the best F1.

        Values that were tuned in an earlier evaluation, and are not tuned now, are kept.
        """
        labels, temperature = features.document_values("label_ids"), self.temperature
        if self.config.confidence.calibrate:
            temperature = calibration.best_temperature(outputs["logits"], labels)
        tuned = {} if temperature == 1 else {"temperature": temperature}
        threshold = self.config.label_threshold or ("label_threshold" in self._tuned and TUNE)
        if threshold == TUNE:
            probabilities = self.replace(**tuned).calibrated(outputs, features)["probabilities"]
            tuned["label_threshold"] = metrics.best_threshold(probabilities, labels)
        return tuned

    def scores(self, outputs: ModelOutputs, features: FeatureSet) -> dict[str, float]:
        """Returns the scores of `SentenceTask` and, for classes, scores of the probabilities.

        - `calibration_error`, and `uncalibrated_error` without the temperature; see `calibration.expected_error`.
        - With `min_probability`: `abstained`, the number of examples below it, and the accuracy of the others,
          `answered_accuracy`. The other scores are computed from the most probable classes of all examples.
        """
        scores = super().scores(outputs, features)
        if self.labels is None:
            return scores
        labels = features.document_values("label_ids")
        scores["calibration_error"] = calibration.expected_error(outputs["probabilities"], labels)
        if self.temperature != 1:
            probabilities = calibration.probabilities_of(outputs["logits"] * np.float32(self.temperature), labels)
            scores["uncalibrated_error"] = calibration.expected_error(probabilities, labels)
        if self.min_probability:
            is_answered = self.confidences(outputs) >= self.min_probability
            scores["abstained"] = int(np.sum(~is_answered))
            is_right = (self.predictions(outputs) == labels).reshape(len(labels), -1).all(axis=-1)
            scores |= {"answered_accuracy": float(np.mean(is_right[is_answered]))} if is_answered.any() else {}
        return scores

    def weights(self) -> list[float] | None:
        """Returns the weight of each class in the training loss; None for equal weights.

        For several labels, a balanced weight is the number of examples without the label, per example with the label.

        Raises:
          InputError: if a class is unknown, or a weight is not a number above 0.
        """
        if not self._class_weights:
            return None
        if self._class_weights == BALANCED:
            labels = [example.label for example in self.split("train")]
            if self.problem == "multi_label":
                counts = {label: sum(label in row for row in labels) for label in self.labels}
                return [max(len(labels) - count, 1) / max(count, 1) for count in counts.values()]
            return [len(labels) / (len(self.labels) * max(labels.count(label), 1)) for label in self.labels]
        weights = dict.fromkeys(self.labels, 1.0)
        for label, weight in self._class_weights.items():
            known = class_of(label, self.labels)
            if known not in weights or not is_number(weight) or not weight > 0:
                classes, entry = first_of(self.labels), f"{label}={weight}"
                raise InputError(f"--class_weights: {entry!r} is not class=weight. Use {classes} and numbers above 0.")
            weights[known] = weight
        return list(weights.values())

    def write_predictions(self, output_dir: str, split: SplitOutputs, original_format: bool = False) -> list[str]:
        """Writes test_results.tsv, and test_predictions as TSV or CSV like the test file, or else as JSON lines.

        test_predictions contains the id, the texts and the other columns of the test file. Then follow the label and
        the probability of each class, or the score. Several labels are a list in JSON lines, and joined by the
        separator elsewhere. If another column has the name of one of these columns, it is renamed to given_NAME.
        """
        written = super().write_predictions(output_dir, split, original_format)
        name, suffix = self.output_names.get(split.name, split.name), tables.split_name(self.sources[split.name])[1]
        path = os.path.join(output_dir, f"{name}_predictions{suffix if suffix in ('.tsv', '.csv') else '.jsonl'}")
        rows = []
        predictions = self.decode(split.examples, split.features, split.outputs)
        if self.min_probability:
            count = np.sum(predictions.reshape(len(predictions), -1)[:, 0] < 0)
            say(f"{name}: {count} of {len(predictions)} answers are {self.confidence.abstain_label!r}.")
        for i, (example, prediction) in enumerate(zip(split.examples, predictions, strict=True)):
            cells = dict(example.cells)
            # A column "id" is kept even if no flag selects it. Its values may be missing or duplicate.
            own_id = None if self.config.columns.id else cells.pop("id", None)
            row: dict[str, object] = {"id": own_id or example.guid, **self.texts(example)}
            if self.labels is None:
                predicted: dict[str, object] = {"score": round(float(prediction), 6)}
            else:
                probabilities = zip(self.labels, split.outputs["probabilities"][i], strict=True)
                label = self.name_of(prediction)
                is_joined = isinstance(label, list) and not path.endswith(".jsonl")
                predicted = {"label": self.config.columns.label_separator.join(label) if is_joined else label}
                predicted |= {f"{soft_labels.PREFIX}{label}": round(float(value), 6) for label, value in probabilities}
            taken = {*row, *predicted}
            for column, cell in cells.items():
                row[f"given_{column}" if column in taken else column] = cell
            rows.append(row | predicted)
        tables.write_table(path, rows)
        return [*written, path]

    def name_of(self, prediction: np.ndarray) -> str | list[str]:
        """See `SentenceTask.name_of`."""
        is_sure = np.min(prediction) >= 0
        if self.problem == "multi_label":
            labels = [label for label, is_predicted in zip(self.labels, prediction, strict=True) if is_predicted]
            return labels if is_sure else [self.confidence.abstain_label]
        return self.labels[prediction] if is_sure else self.confidence.abstain_label


def reads_pairs(run: Mapping[str, Any]) -> bool:
    """Returns whether the model of a run was trained on pairs. `run` has the resume settings of the run."""
    return bool(DEFINITIONS[run["task"]].text_b if run["task"] in DEFINITIONS else run.get("text_b_column"))


def _check_pairs(config: DataConfig, run: Mapping[str, Any]) -> None:
    """Raises an InputError if the model was trained on pairs and the examples have one text, or vice versa."""
    if reads_pairs(run) != bool(config.columns.text_b):
        expected = "pairs of texts" if reads_pairs(run) else "single texts"
        raise InputError(f"x: the model was trained on {expected}. Give {expected}.", "x")


def _check(config: DataConfig) -> None:
    """Raises an InputError if settings contradict each other."""
    columns, label_threshold = config.columns, config.label_threshold
    names = [name for name in (columns.text, columns.text_b, columns.label, columns.id, columns.weight) if name]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InputError(f"--text_column and other flags use the column {repeated[0]!r} twice. Use different columns.")
    if not columns.label_separator:
        raise InputError("--label_separator is empty. Pass the text between two labels.")
    if config.documents.has_windows and columns.text_b:
        raise InputError("--long_documents=windows: pairs of texts can't have windows. Use head_tail or truncate.")
    is_fraction = is_number(label_threshold) and 0 < float(label_threshold) < 1
    if label_threshold not in ("", TUNE) and not is_fraction:
        raise InputError(f"--label_threshold is {label_threshold!r}. Use a number between 0 and 1, or {TUNE}.")


def class_weights_of(value: str | Mapping[str, float]) -> str | Mapping[str, float]:
    """Returns the value of --class_weights: "", "balanced" or, for "class=weight,...", the weights of classes.

    Raises:
      InputError: if an entry has another form, or a weight is not a number above 0.
    """
    if not isinstance(value, str) or value in ("", BALANCED):
        return value
    weights = {}
    for entry in re.sub(r"(=[^=,]*),", r"\1\n", value).split("\n"):  # a class may contain commas
        label, _, weight = entry.rpartition("=")
        if not label or not is_number(weight) or not float(weight) > 0:
            raise InputError(f"--class_weights: {entry!r} is not class=weight. Use classes and numbers above 0.")
        weights[label] = float(weight)
    return weights
