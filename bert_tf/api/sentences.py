"""Estimators for classification, regression and multiple choice."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Self, Unpack

import numpy as np

from bert_tf.api import in_memory
from bert_tf.api.arguments import Labels, PathLike
from bert_tf.api.base import Estimator
from bert_tf.api.class_labels import ClassLabels, are_probabilities, as_given, check_named
from bert_tf.api.ranking import Ranker
from bert_tf.api.setting_types import ClassifierSettings, RegressorSettings
from bert_tf.checkpoints import class_names, run_directory, run_record
from bert_tf.runtime import files
from bert_tf.runtime.errors import InputError
from bert_tf.runtime.settings import about
from bert_tf.sequences.text_packer import LongDocuments
from bert_tf.tasks import hf_names
from bert_tf.tasks.data_config import ConfidenceConfig, DataConfig, LossConfig
from bert_tf.tasks.sentences.examples import InputExample, whole_number
from bert_tf.tasks.sentences.multiple_choice import ChoiceExample
from bert_tf.tasks.sentences.soft_labels import PREFIX
from bert_tf.tasks.task_names import TEXT


def _text_examples(
    values: Sequence[Any], labels: Sequence[Any] | None, to_label: Callable[[Any, str], Any]
) -> list[InputExample]:
    """Returns an example for each text or pair of texts.

    Args:
      values: the texts or pairs of texts.
      labels: the labels; None without labels.
      to_label: converts a label. The second argument is the name of the example in messages.

    Raises:
      InputError: if a text or a label can't be used, or if some examples are pairs and others are not.
    """
    texts = [in_memory.texts(value, f"example {number}") for number, value in enumerate(values)]
    single = [number for number, (_, text_b) in enumerate(texts) if text_b is None]
    if single and len(single) != len(texts):
        raise InputError(f"example {single[0]} is one text, but others are pairs. Use only texts or only pairs.")
    if labels is None:
        results = [None] * len(texts)
    else:
        results = [to_label(label, f"example {number}") for number, label in enumerate(labels)]
    return [InputExample(str(i + 1), *pair, label) for i, (pair, label) in enumerate(zip(texts, results, strict=True))]


class ClassifierOptions(LongDocuments, frozen=True):
    """The settings of a `Classifier`.

    Attributes:
      multi_label: if True, an example may have any number of labels.
      class_weights: "balanced", a dictionary that maps classes to factors of the training loss, or a list or array of
        factors in the order of the classes. With `multi_label`, the factors apply to examples with the label.
      label_threshold: with `multi_label`: lowest probability of a predicted label. Default 0.5; "tune" selects the
        threshold with the best F1 on the validation data.
      distillation_temperature: divides the logits of teacher and model, if the labels are probabilities.
      loss: options of the training loss.
      confidence: calibration, and the lowest probability of an answer.
    """

    multi_label: Annotated[bool, about("Allow any number of labels per example.")] = False
    class_weights: Annotated[
        str | dict[str | int | bool | float, float] | tuple[float, ...], about("Class weights in the training loss.")
    ] = ""
    label_threshold: Annotated[str | float, about("Lowest probability of a predicted label.")] = ""
    distillation_temperature: Annotated[float, about("Softens probability labels if above 1.", gt=0)] = 1.0
    loss: LossConfig = LossConfig()
    confidence: ConfidenceConfig = ConfidenceConfig()


class Classifier(Ranker):
    """Classifies texts or pairs of texts.

    Examples are texts, pairs of texts (tuples), or rows of a table with the columns `text` and, for pairs, `text_b`.
    Labels are strings, integers, whole floats or bools, and are returned as they were given. If `labels` are strings,
    an integer is an index into them. Default of `labels`: the classes of the run or of the model if they are recorded,
    or else the training labels in the order of `numpy.unique`. With `multi_label=True`, each example has a list of
    labels, which may be empty, or a row of 0 and 1 for the classes.
    Labels may also be probabilities: a matrix [num_examples, num_classes] in the order of `labels`, or the columns
    `probability_CLASS` of a table, which `fit` uses instead of a column of labels. Scores compare predictions with the
    most probable class.

    `from_pretrained` also accepts the settings of `ClassifierOptions` and `LongDocuments`.

    Examples:
      >>> classifier = bert_tf.Classifier.from_pretrained("build/quickstart/pretrained", max_seq_length=32)
      >>> texts, labels = ["a fine film", "a dull film"] * 8, ["good", "bad"] * 8
      >>> scores = classifier.fit(texts, labels, epochs=5, batch_size=4, learning_rate=5e-4, verbose=0)
      >>> classifier.predict(["a fine day", "a dull day"])
      ['good', 'bad']
      >>> classifier.labels, classifier.predict_proba(["a fine day"])
      (['bad', 'good'], array([[0.0397875 , 0.96021247]], dtype=float32))
    """

    _ARCHITECTURE = hf_names.SEQUENCE
    _OPTIONS = ClassifierOptions
    _SOFT_COLUMNS = (PREFIX,)

    if TYPE_CHECKING:

        @classmethod
        def from_pretrained(  # noqa: D102 (inherited)
            cls, path: PathLike, labels: Labels = None, **settings: Unpack[ClassifierSettings]
        ) -> Self: ...

    @property
    def _problem(self) -> str:
        return "multi_label" if self._options.multi_label else "classification"

    @property
    def _sklearn_type(self) -> str | None:
        return None if self._options.multi_label else "classifier"

    def _data_config(self, examples: Mapping[str, Sequence[Any]]) -> DataConfig:
        is_tuned_before = self._tuned_before and not self._trained_checkpoint
        return DataConfig(
            TEXT,
            problem=self._problem,
            labels=self._labels and tuple(self._classes.names),
            label_threshold=str(self._options.label_threshold),
            tuned_in=run_directory.directory_of_checkpoint(self._tuned_before.path) if is_tuned_before else "",
            distillation_temperature=self._options.distillation_temperature,
            loss=self._options.loss,
            confidence=self._options.confidence,
            documents=LongDocuments.from_flags(self._options.flag_values()),
        )

    @functools.cached_property
    def _classes(self) -> ClassLabels:
        recorded = self._labels and run_directory.recorded_labels(self._directory)
        if self._labels and not recorded and self._tuned_before:
            recorded = class_names.recorded_classes(self._tuned_before)
        return ClassLabels(self._labels, recorded or ())

    def _examples(self, values: Sequence[Any], labels: Sequence[Any] | None) -> list[InputExample]:
        if are_probabilities(labels or ()):
            return _text_examples(values, labels, self._classes.probabilities)
        if not self._options.multi_label:
            return _text_examples(values, labels, self._classes.name)
        if labels and not (self._labels or self._trained_checkpoint):
            if isinstance(labels[0], Mapping) and not self._tuned_before:
                self._labels = list(labels[0])
                self._classes = ClassLabels(self._labels)
            else:
                check_named(labels)
        to_names = functools.partial(self._classes.several, classes=self._labels_now)
        return _text_examples(values, labels, to_names)

    def _learned_settings(self, labels: Sequence[Any]) -> dict[str, Any]:
        is_row = self._classes.is_row
        has_rows = self._options.multi_label and not are_probabilities(labels) and all(map(is_row, labels))
        return {"given_labels": self._classes.of_training(labels), "label_rows": has_rows}

    def _class_config(self, learned: Mapping[str, Any], directory: str) -> dict[str, Any]:
        recorded = []
        if not self._labels:
            runs = filter(files.is_directory, (directory, self._directory))
            models = [class_names.recorded_classes(self._tuned_before)] if self._tuned_before else []
            recorded = next(filter(None, [*(run_record.recorded(run).get("labels") for run in runs), *models]), [])
        order = tuple(dict.fromkeys([*recorded, *learned["given_labels"]]))
        return {"class_order": order, "class_weights": self._classes.weights(self._options.class_weights, order)}

    @classmethod
    def _as_given(cls, names: Sequence[str], flags: Mapping[str, Any]) -> list[Any]:
        return as_given(names, flags)

    @property
    def _recorded_flags(self) -> Mapping[str, Any]:
        """The flags of the run that trained the current model; empty for a model without a run."""
        source = self._trained_checkpoint or (self._tuned_before and self._tuned_before.path)
        directory = run_directory.directory_of_checkpoint(source)
        return run_record.read(directory)["flags"] if run_record.recorded(directory) else {}

    @property
    def labels(self) -> list[Any]:
        """The classes as they were given, in the order of the columns of `predict_proba`."""
        names = self._labels_now()
        return as_given(names, {"given_labels": self._classes.by_name} if self._labels else self._recorded_flags)

    def _given_labels(self) -> dict[str, Any]:
        return dict(zip(self._labels_now(), self.labels, strict=True))

    @property
    def classes_(self) -> np.ndarray:
        """The classes, under scikit-learn's name."""
        return np.array(self.labels)

    def _labels_before(self) -> list[str]:
        if self._labels:
            return self._classes.names
        names = class_names.recorded_classes(self._tuned_before)
        rows = self._tuned_before.shapes[self._OUTPUT_WEIGHTS][0]
        return list(names or (f"LABEL_{row}" for row in range(rows)))

    def predict_proba(self, x: Any, *, batch_size: int = 8) -> np.ndarray:
        """Returns the probability of each class, [num_examples, num_classes], in the order of `labels`.

        Args:
          x: the examples, as in `fit`, without labels.
          batch_size: number of examples per batch, across all devices.

        Raises:
          InputError: if there is no trained model, or an example can't be used.
        """
        return self._predicted(x, batch_size)[-1]["probabilities"]

    def predict(self, x: Any, *, batch_size: int = 8) -> list[Any] | np.ndarray:
        """Returns the class of each example; with `multi_label`, the list of classes above the threshold.

        Classes are returned as they were given. If the labels were rows of 0 and 1 in the order of `labels`, the
        predictions are such rows too: an array [num_examples, num_classes]. Below `min_probability`, the class or the
        only label is `abstain_label`, and a row has only -1.

        Args:
          x: see `predict_proba`.
          batch_size: see `predict_proba`.

        Raises:
          InputError: if there is no trained model, or an example can't be used.
        """
        task, *predicted = self._predicted(x, batch_size)
        predictions, labels, abstained = task.decode(*predicted), self.labels, task.confidence.abstain_label
        if self._options.multi_label and self._recorded_flags.get("label_rows"):
            return predictions
        if self._options.multi_label:
            chosen = [[label for label, flag in zip(labels, row, strict=True) if flag] for row in predictions]
            return [[abstained] if -1 in row else labels for row, labels in zip(predictions, chosen, strict=True)]
        return [abstained if number < 0 else labels[number] for number in predictions]


class Regressor(Ranker):
    """Predicts a number for each text or pair of texts. Examples are as for `Classifier`; labels are numbers.

    `from_pretrained` also accepts the settings of `LongDocuments`.

    Examples:
      >>> regressor = bert_tf.Regressor.from_pretrained("build/quickstart/pretrained", max_seq_length=32)
      >>> texts, stars = ["a fine film", "a film", "a dull film"] * 4, [3, 2, 1] * 4
      >>> scores = regressor.fit(texts, stars, epochs=5, batch_size=4, learning_rate=5e-4, verbose=0)
      >>> regressor.predict(["a fine day", "a dull day"])
      array([2.9024053, 1.1583707], dtype=float32)
    """

    _ARCHITECTURE = hf_names.SEQUENCE
    _problem = "regression"
    _OPTIONS = LongDocuments
    _sklearn_type = "regressor"

    if TYPE_CHECKING:

        @classmethod
        def from_pretrained(  # noqa: D102 (inherited)
            cls, path: PathLike, labels: None = None, **settings: Unpack[RegressorSettings]
        ) -> Self: ...

    def _data_config(self, examples: Mapping[str, Sequence[Any]]) -> DataConfig:
        return DataConfig(TEXT, problem=self._problem, documents=self._options)

    def _examples(self, values: Sequence[Any], labels: Sequence[Any] | None) -> list[InputExample]:
        return _text_examples(values, labels, in_memory.label)

    def predict(self, x: Any, *, batch_size: int = 8) -> np.ndarray:
        """Returns the number predicted for each example, [num_examples].

        Args:
          x: the examples, as in `fit`, without labels.
          batch_size: number of examples per batch, across all devices.

        Raises:
          InputError: if there is no trained model, or an example can't be used.
        """
        return self._decoded(x, batch_size)


class MultipleChoice(Estimator):
    """Selects the ending that best continues a prompt (paper, section 4.4).

    Examples are pairs (prompt, list of endings), or rows of a table with the columns `prompt` and `endings`, or
    `prompt`, `ending0`, `ending1`... The number of endings may differ. Labels are indices of endings.

    Examples:
      >>> chooser = bert_tf.MultipleChoice.from_pretrained("build/quickstart/pretrained", max_seq_length=32)
      >>> examples = [("She sat", ["down.", "blue."]), ("He rose", ["green.", "up.", "or."])] * 8
      >>> scores = chooser.fit(examples, [0, 1] * 8, epochs=5, batch_size=4, learning_rate=5e-4, verbose=0)
      >>> chooser.predict([("He sat", ["down.", "blue."])])
      [0]
    """

    _ARCHITECTURE = hf_names.CHOICE

    def _data_config(self, examples: Mapping[str, Sequence[Any]]) -> DataConfig:
        return DataConfig("multiple_choice")

    def _examples(self, values: Sequence[Any], labels: Sequence[Any] | None) -> list[ChoiceExample]:
        examples = []
        for number, value in enumerate(values):
            where = f"example {number}"
            if isinstance(value, Mapping):
                names = sorted((name for name in value if name.startswith("ending")), key=lambda x: (len(x), x))
                value = value.get("prompt"), value.get("endings", [value[name] for name in names])
            if not isinstance(value, list | tuple) or len(value) != 2 or not isinstance(value[1], list | tuple):
                raise InputError(f"{where} is {str(value)[:60]!r}. Use a pair (prompt, list of endings).")
            prompt = in_memory.text(value[0], f"the prompt of {where}")
            endings = tuple(in_memory.text(ending, f"ending {i} of {where}") for i, ending in enumerate(value[1]))
            label = None if labels is None else whole_number(str(in_memory.label(labels[number], where)).strip())
            examples.append(ChoiceExample(str(number + 1), prompt, endings, label))
        return examples

    def predict_proba(self, x: Any, *, batch_size: int = 8) -> np.ndarray:
        """Returns the probability of each ending, [num_examples, num_endings].

        `num_endings` is the largest number of endings. The probabilities of missing endings are 0.

        Args:
          x: the examples, as in `fit`, without labels.
          batch_size: number of examples per batch, across all devices.

        Raises:
          InputError: if there is no trained model, or an example can't be used.
        """
        return self._predicted(x, batch_size)[-1]["probabilities"]

    def predict(self, x: Any, *, batch_size: int = 8) -> list[int]:
        """Returns the index of the best ending of each example.

        Args:
          x: see `predict_proba`.
          batch_size: see `predict_proba`.

        Raises:
          InputError: if there is no trained model, or an example can't be used.
        """
        return self._decoded(x, batch_size).tolist()
