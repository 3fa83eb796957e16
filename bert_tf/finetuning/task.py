"""The interface that every fine-tuning task implements: its examples, features, model and scores."""

import abc
import copy
import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

import numpy as np

from bert_tf.checkpoints import class_names, run_directory
from bert_tf.config import BertConfig
from bert_tf.data_report import splits
from bert_tf.data_report.rows import inputs_of
from bert_tf.finetuning import dev_split, reports
from bert_tf.finetuning.explanations import Explanation
from bert_tf.finetuning.feature_sets import FeatureSet
from bert_tf.finetuning.finetuning_config import FinetuningConfig
from bert_tf.finetuning.models import FinetuningModel
from bert_tf.runtime import files
from bert_tf.runtime.messages import say
from bert_tf.sequences.text_packer import TRUNCATED, LongDocuments, TextPacker
from bert_tf.text import Tokenizer

ModelOutputs = Mapping[str, np.ndarray]


class Task(abc.ABC):
    """A task for `finetune`: its dev splits are evaluated, and its test splits are predicted.

    A task does not change after it is built, except that splits are read on first use.

    Attributes:
      name: the task's name, as in --task_name.
      architecture: Hugging Face's name of the model.
      metric_names: the scores that can select models. The task always computes them; higher is better.
      selection_metric: the score that selects models by default.
      chosen_metric: the score that selects models, if it is not the default.
      held_out: the fraction of the training examples that is the dev split; 0 if the dev split has its own file.
      holds_out_by_class: whether the labels of examples are classes; False for numbers. See `dev_split.divide`.
      output_names: maps splits to the names used in file names, where they differ.
      output_weights: the name of the output layer's weights.
      uses_model_of_run: if False, the task predicts with other models, and the run directory needs no model.
      counts_examples: if True, an epoch is counted in examples instead of features.
      labels: the names of the classes; None without classes.
      train_splits: the splits to train on, one after another.
      dev_splits: the splits for evaluation. The first one selects models.
      test_splits: the splits for prediction.
      documents: how texts are read that are longer than a sequence.
      tunes: whether prediction settings are tuned on the dev set; see `tune`.
      explains: whether the task has explanations; see `explained`.
    """

    name: str
    architecture: str = class_names.SEQUENCE
    metric_names: Sequence[str]
    selection_metric: str
    chosen_metric: str | None = None
    held_out: float = 0.0
    holds_out_by_class = True
    output_names: Mapping[str, str] = {}
    output_weights = "output_weights"
    uses_model_of_run = True
    counts_examples = False
    labels: Sequence[str] | None = None
    train_splits: Sequence[str] = ("train",)
    dev_splits: Sequence[str] = ("dev",)
    test_splits: Sequence[str] = ("test",)
    documents: LongDocuments = TRUNCATED
    tunes = False
    explains = False

    @classmethod
    def build(cls, setup: Any) -> Self:
        """Returns the task of `run_classifier.py` with some settings, a `bert_tf.tasks.setup.Setup`."""
        return cls()

    @abc.abstractmethod
    def examples(self, split: str) -> list[Any]:
        """Reads the examples of a split. Use `split` to get them."""

    def split(self, name: str) -> list[Any]:
        """Returns the examples of a split, which are read once. With `held_out`, "dev" is a part of "train"."""
        return self._splits(name)

    @functools.cached_property
    def _splits(self) -> Callable[[str], list[Any]]:
        return dev_split.with_held_out_dev(functools.cache(self.examples), self.held_out, self.holds_out_by_class)

    @property
    def metric_that_selects(self) -> str:
        """The score that selects models; higher is better."""
        return self.chosen_metric or self.selection_metric

    def replace(self, **attributes: Any) -> Self:
        """Returns a copy with other values of some attributes. If an attribute is a property, it is not changed."""
        task = copy.copy(self)
        vars(task).pop("_splits", None)
        vars(task).update(attributes)
        return task

    @abc.abstractmethod
    def featurize(self, examples: Sequence[Any], packer: TextPacker, num_workers: int = 1) -> FeatureSet:
        """Returns the features in the order of the examples. `num_workers` processes compute them."""

    @abc.abstractmethod
    def build_model(self, config: BertConfig, **options: Any) -> FinetuningModel:
        """Returns the encoder with the task's output layer. See `models.EncoderModel` for the options."""

    def decode(self, examples: Sequence[Any], features: FeatureSet, outputs: ModelOutputs) -> Any:
        """Returns the predictions for the examples, as NumPy or Python values. By default, these are the outputs."""
        return outputs

    def calibrated(self, outputs: ModelOutputs, features: FeatureSet) -> ModelOutputs:
        """Returns the outputs from which answers and scores are computed. By default, these are the model's outputs."""
        return outputs

    def explained(self, run: "TrainedRun", split: "SplitOutputs") -> Iterator[list[Explanation]]:
        """Yields the explanations of the predictions of each example. Called only if `explains` is True.

        Args:
          run: a run whose model computes in float32.
          split: the examples and the outputs of the model.
        """
        yield from ()

    def compared(self, split: "SplitOutputs") -> list[dict[str, Any]]:
        """Returns rows that compare predictions with labels, the wrong and most confident first; by default none."""
        return []

    @abc.abstractmethod
    def scores(self, outputs: ModelOutputs, features: FeatureSet) -> dict[str, float]:
        """Returns the task's scores, and "loss"."""

    @abc.abstractmethod
    def input_settings(self) -> dict[str, Any]:
        """Returns the settings of the model's inputs and outputs. Training and prediction must use the same ones."""

    def resume_settings(self) -> dict[str, Any]:
        """Returns the task's settings that influence the weights. A resumed run must have the same settings."""
        return self.input_settings()

    def check_training_set(self, examples: Sequence[Any]) -> None:  # noqa: B027 (a task may have nothing to check)
        """Raises an InputError if nothing can be learned from the training set."""

    def min_batch_size(self, examples: Sequence[Any]) -> int:
        """Returns the smallest batch from which the model can learn."""
        return 1

    def write_settings(self, directory: str, config: BertConfig, max_seq_length: int) -> None:
        """Writes the classes to the run directory, if there are any. `config` is the encoder's config."""
        if self.labels is not None:
            files.write_json(os.path.join(directory, run_directory.LABELS_FILE), list(self.labels))

    def has_labels(self, examples: Sequence[Any]) -> bool:
        """Returns whether the examples of a test split have labels, so their predictions can be scored."""
        return True

    def tune(self, outputs: ModelOutputs, features: FeatureSet) -> dict[str, float]:
        """Returns the values of task attributes that are best on the dev set. Called only if `tunes` is True."""
        return {}

    def results(self, outputs: ModelOutputs, features: FeatureSet, batch_size: int) -> dict[str, float]:
        """Returns the scores under the names of eval_results.txt."""
        return {f"eval_{name}": value for name, value in self.scores(outputs, features).items()}

    def confusion(self, outputs: ModelOutputs, features: FeatureSet) -> tuple[np.ndarray, Sequence[str]] | None:
        """Returns the counts of true (rows) and predicted (columns) classes, and their names; None without classes."""
        return None

    def write_predictions(self, output_dir: str, split: "SplitOutputs", original_format: bool = False) -> list[str]:
        """Writes the predictions of a split, and returns the file names.

        By default, the file is SPLIT_results.jsonl. Each line contains the model's outputs for one example.
        """
        path = os.path.join(output_dir, f"{self.output_names.get(split.name, split.name)}_results.jsonl")
        with files.replacing(path) as writer:
            for number in range(len(split.examples)):
                line = {name: values[number].tolist() for name, values in split.outputs.items()}
                writer.write(json.dumps(line) + "\n")
        return [path]

    def finish(self, run: "TrainedRun", output_dir: str) -> dict[str, dict[str, Any]]:
        """Evaluates and predicts, as selected by the run's settings. A dry run only loads the model.

        The results of the first dev split are in eval_results.txt, as in the original.

        Args:
          run: the run with the model.
          output_dir: the directory for the results.

        Returns:
          "eval": maps splits to results; "predict": maps splits to the model's outputs.
        """
        task, settings, global_step = self, run.settings, run.restore()
        results: dict[str, dict[str, Any]] = {}
        outputs: dict[str, ModelOutputs] = {}

        def report(split: str, suffix: str, values: ModelOutputs, batch_size: int) -> None:
            features = run.data.features(split)
            results[split] = {"global_step": global_step, **task.results(values, features, batch_size)}
            reports.report_evaluation(output_dir, suffix, results[split], task.confusion(values, features))

        for split in self.dev_splits if settings.do_eval else ():
            values = run.evaluate(split, global_step)
            if self.tunes and split == self.dev_splits[0]:
                tuned = self.tune(values, run.data.features(split))
                for directory in {output_dir, settings.training.output_dir}:
                    files.write_json(os.path.join(directory, run_directory.TUNED_FILE), tuned)
                say(f"Tuned on {split}: {tuned}.")
                task = self.replace(**tuned)
            values = task.calibrated(values, run.data.features(split))
            evaluated = SplitOutputs(split, self.split(split), values, run.data.features(split))
            reports.write_compared(output_dir, split, task.compared(evaluated))
            report(split, "" if split == self.dev_splits[0] else f"_{split}", values, settings.eval_batch_size)
        for split in self.test_splits if settings.do_predict else ():
            examples, features = self.split(split), run.data.features(split)
            values = run.predict(features, settings.predict_batch_size, split)
            outputs[split] = task.calibrated(values, features)
            predicted = SplitOutputs(split, examples, outputs[split], features)
            for path in task.write_predictions(output_dir, predicted, settings.original_format):
                say(f"Wrote {path}.")
            if settings.explain:
                name = f"{self.output_names.get(split, split)}_explanations.jsonl"
                explained = task.explained(run.explainer(), predicted)
                reports.write_explanations(os.path.join(output_dir, name), explained)
            if self.has_labels(examples):
                name = self.output_names.get(split, split)
                report(split, f"_{name}", outputs[split], settings.predict_batch_size)
        return {"eval": results, "predict": outputs}


class TaskData:
    """The features of a task's examples, by split. Runs of the same task share them.

    Args:
      task: the task.
      config: the encoder's config.
      tokenizer: the tokenizer.
      settings: the settings of the first run.

    Attributes:
      packer: makes the input sequences of texts.
      counts: maps splits to the numbers of examples, tokens and so on, for the record of a run.
    """

    def __init__(self, task: Task, config: BertConfig, tokenizer: Tokenizer, settings: FinetuningConfig) -> None:
        self._task, self._config, self._num_workers = task, config, settings.num_workers
        self._settings = settings
        self.counts: dict[str, dict[str, Any]] = {}
        self.packer: TextPacker = TextPacker(tokenizer, settings.max_seq_length, task.documents)
        self._features: dict[str, FeatureSet] = {}

    def features(self, split: str) -> FeatureSet:
        """Returns the features of a split. The split is tokenized once.

        Call this first for all splits, because worker processes can't be started once TensorFlow has run an operation.
        """
        if split not in self._features:
            examples = self._task.split(split)
            self._features[split] = self.featurize(examples, split)
        return self._features[split]

    def featurize(self, examples: Sequence[Any], name: str) -> FeatureSet:
        """Returns the features of some examples, and reports under their name how many texts are truncated."""
        features = self._task.featurize(examples, self.packer, self._num_workers)
        self._config.check_segments(bool((features.first_lengths < features.lengths).any()))
        splits.report_truncation(features.num_truncated, len(examples), name, self.packer.max_seq_length)
        self._report(examples, features, name)
        return features

    def _report(self, examples: Sequence[Any], features: FeatureSet, name: str) -> None:
        tokenizer, settings, task = self.packer.tokenizer, self._settings, self._task
        if not settings.runs_steps:  # the examples of a call of a Python class
            lines = ("\n".join(inputs_of(example)) for example in examples)
            splits.report_inputs(lines, tokenizer, name, features.input_ids, once=True)
        else:
            kinds = name not in task.test_splits or task.has_labels(examples), bool(getattr(task, "labels", None))
            allows_errors = settings.allow_unusual_data or not settings.do_train or name not in task.train_splits
            self.counts[name] = splits.report_split(name, examples, features, tokenizer, *kinds, allows_errors)


class TrainedRun(Protocol):
    """A `FinetuningRun`, as `Task.finish` uses it."""

    settings: FinetuningConfig
    data: TaskData
    model: FinetuningModel

    def restore(self) -> int:
        """Loads the weights to use into the model, and returns their global step."""

    def explainer(self) -> "TrainedRun":
        """Returns a run whose model computes in float32, for `Task.explained`."""

    def evaluate(self, split: str, step: int) -> ModelOutputs:
        """Returns the model's outputs for a dev split; `step` is the global step of the model's weights."""

    def predict(self, features: FeatureSet, batch_size: int, description: str) -> ModelOutputs:
        """Returns the outputs for all examples, in their order. `description` is the label of the progress bar."""


class SplitOutputs(NamedTuple):
    """The model's outputs for the examples of a split."""

    name: str
    examples: Sequence[Any]
    outputs: ModelOutputs
    features: FeatureSet


ReportingTask: TypeAlias = Task  # the earlier name of the class
