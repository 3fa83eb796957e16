"""Estimators for classification, regression and multiple choice."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np

from bert_tf.api import in_memory
from bert_tf.api.base import Rows
from bert_tf.api.row_estimator import Outputs, RowEstimator
from bert_tf.checkpoints import output_layers, run_directory
from bert_tf.runtime.errors import InputError
from bert_tf.runtime.settings import about
from bert_tf.tasks import architectures
from bert_tf.tasks.data_config import TEXT, Columns, DataConfig
from bert_tf.tasks.glue import DEFINITIONS
from bert_tf.tasks.sentence_features import InputExample, check_texts
from bert_tf.text.long_documents import LongDocuments


class _TextEstimator(RowEstimator):
    """An estimator that reads texts or pairs of texts, as rows of the task "text"."""

    _ARCHITECTURE = architectures.SEQUENCE
    _OPTIONS = LongDocuments
    _PROBLEMS: ClassVar[tuple[str, ...]]

    @classmethod
    def fits(cls, task: str, problem: str | None) -> bool:
        """See `Estimator.fits`."""
        return super().fits(task, problem) and architectures.of_task(task, problem)[1] in cls._PROBLEMS

    def _table(self, examples: Sequence[Any], labels: Sequence[Any] | None) -> Rows:
        table = []
        for number, value in enumerate(examples):
            texts = in_memory.text_columns(value, f"example {number}")
            if labels is not None:
                check_texts(InputExample("", texts["text"], texts.get("text_b")), f"example {number}")
            table.append(texts)
        single = [number for number, row in enumerate(table) if "text_b" not in row]
        if single and len(single) != len(table):
            raise InputError(f"example {single[0]} is one text, but others are pairs. Give all of the same type.")
        for number, label in enumerate(labels or ()):
            table[number]["label"] = self._label(label, f"example {number}")
        return table

    def _label(self, value: Any, place: str) -> Any:
        return in_memory.label(value, place)

    def _weigh(self, table: Rows, weights: Sequence[float] | None) -> None:
        for row, weight in zip(table, weights or (), strict=weights is not None):
            row["weight"] = str(weight)

    def _outputs(self, split: str, table: Rows, batch_size: int) -> Outputs:
        run = run_directory.recorded(self._folder) if self._trained_checkpoint else {}
        if table and run:
            definition = DEFINITIONS.get(run["task"])
            reads_pairs = bool(definition.text_b if definition else run.get("text_b_column"))
            if reads_pairs != ("text_b" in table[0]):
                expected = "pairs of texts" if reads_pairs else "single texts"
                raise InputError(f"x: the model was trained on {expected}. Give {expected}.", "x")
        return super()._outputs(split, table, batch_size)

    def _data_config(self, table: Rows, **data: Any) -> DataConfig:
        columns = Columns(**{name: name for name in ("text_b", "weight") if table and name in table[0]})
        labels = self._labels and tuple(map(str, self._labels))
        documents = LongDocuments(self._options.long_documents, self._options.doc_stride)
        return DataConfig(TEXT, columns=columns, problem=self._problem, labels=labels, documents=documents, **data)

    @property
    def _problem(self) -> str:
        return self._PROBLEMS[0]

    @property
    def _problem_type(self) -> str:
        return architectures.PROBLEM_TYPES[self._problem]


_NAME_THE_COLUMNS = "Name the columns of 0 and 1: from_pretrained(..., labels=[...])."


def _are_flags(value: Any) -> bool:
    """Returns True for a list of 0 and 1, which may be columns of a table, one for each class."""
    return isinstance(value, list | tuple) and all(part in (0, 1) and not isinstance(part, str) for part in value)


class ClassifierOptions(LongDocuments, frozen=True):
    """The settings of a `Classifier`.

    Attributes:
      multi_label: if True, an example may have any number of labels.
      class_weights: "balanced", or a dictionary from classes to weights, by which training losses are multiplied.
      label_threshold: with `multi_label`: lowest probability of a predicted label. Default 0.5; "tune" selects the
        threshold with the best F1 on the validation data.
    """

    multi_label: Annotated[bool, about("Allow any number of labels per example.")] = False
    class_weights: Annotated[
        str | dict[str | int | bool | float, float], about("Class weights in the training loss.")
    ] = ""
    label_threshold: Annotated[str | float, about("Lowest probability of a predicted label.")] = ""


class Classifier(_TextEstimator):
    """Classifies texts or pairs of texts.

    Examples are texts, pairs of texts (tuples), or rows of a table with the columns `text` and, for pairs, `text_b`.
    Labels are strings, integers, whole floats or bools. If `labels` are strings, an integer is an index into them. With
    `multi_label=True`, each example has a list of labels, which may be empty, or a row of 0 and 1 for the classes.

        classifier = bert_tf.Classifier.from_pretrained("models/bert-base", labels=["neg", "pos"])
        classifier.fit(texts, labels, validation_split=0.1)
        classifier.predict(["A delight from start to end."])

    `from_pretrained` also accepts the settings of `ClassifierOptions` and `LongDocuments`.
    """

    _PROBLEMS = ("classification", "multi_label")
    _OPTIONS = ClassifierOptions
    _HAS_LABELS = True

    @classmethod
    def _recorded(cls, run: Mapping[str, Any]) -> dict[str, Any]:
        return {"multi_label": architectures.of_task(run["task"], run.get("problem"))[1] == "multi_label"}

    @property
    def _problem(self) -> str:
        return self._PROBLEMS[self._options.multi_label]

    @property
    def _sklearn_type(self) -> str | None:
        return None if self._options.multi_label else "classifier"

    def _data_config(self, table: Rows, **data: Any) -> DataConfig:
        weights = self._options.class_weights
        if not isinstance(weights, str):
            weights = {in_memory.label(self._name_of(label), ""): weight for label, weight in weights.items()}
        threshold = str(self._options.label_threshold)
        if not threshold and self._options.multi_label and not self._trained_checkpoint and self._tuned_before:
            threshold = str(run_directory.label_threshold(run_directory.folder_of_checkpoint(self._tuned_before.path)))
        return super()._data_config(table, **data).replace(class_weights=weights, label_threshold=threshold)

    def _table(self, examples: Sequence[Any], labels: Sequence[Any] | None) -> Rows:
        has_names = self._labels or self._trained_checkpoint or self._tuned_before
        if labels and self._options.multi_label and isinstance(labels[0], Mapping) and not has_names:
            self._labels = list(labels[0])
        is_named = not self._options.multi_label or self._labels or self._trained_checkpoint
        if labels and not is_named and all(_are_flags(value) and len(value) >= 2 for value in labels):
            raise InputError(f"the labels of every example are 0 and 1. {_NAME_THE_COLUMNS}")
        return super()._table(examples, labels)

    def _learned_settings(self, labels: Sequence[Any]) -> dict[str, Any]:
        classes = [part for parts in labels for part in parts] if self._options.multi_label else labels
        return {"label_type": in_memory.label_type(self._labels or classes)}

    def _label(self, value: Any, place: str) -> Any:
        if not self._options.multi_label:
            return super()._label(self._name_of(value), place)
        if isinstance(value, Mapping):
            value = self._flagged(value, place)
        if not isinstance(value, list | tuple):
            raise InputError(f"{place} has the label {value!r}. Give a list of labels (multi_label=True).")
        classes = list(map(str, self._labels or ()))
        if _are_flags(value) and len(value) == len(classes) and not {"0", "1"} & set(classes):
            return [label for label, is_there in zip(classes, value, strict=True) if is_there]
        found = [super(Classifier, self)._label(part, place) for part in value]
        if len(set(found)) < len(found):
            raise InputError(f"{place} has a label twice: {', '.join(found)}. {_NAME_THE_COLUMNS}")
        return found

    def _flagged(self, row: Mapping[Any, Any], place: str) -> list[Any]:
        """Returns the classes whose columns are 1 in a row of a table. Columns without names are in order."""
        classes = list(self._labels or self._labels_now())
        if list(row) == list(range(len(classes))):
            row = dict(zip(classes, row.values(), strict=True))
        if not _are_flags(list(row.values())) or set(map(str, row)) != set(map(str, classes)):
            columns, expected = (", ".join(map(repr, names)) for names in (row, classes))
            raise InputError(f"{place} has the columns {columns}. Use columns of 0 and 1 for the classes {expected}.")
        return [label for label, is_there in row.items() if is_there]

    def _name_of(self, value: Any) -> Any:
        """Returns a class by its index in `labels`, as in Hugging Face's data sets; returns other values unchanged."""
        names, value = self._labels or [], in_memory.whole(value)
        is_number = type(value) is int and 0 <= value < len(names)  # True and False are also instances of int
        return names[value] if is_number and isinstance(names[value], str) and str(value) not in names else value

    def _typed(self, label: str) -> str | int | bool:
        return in_memory.typed(label, self._label_type)

    @property
    def _label_type(self) -> str:
        """See `in_memory.label_type`. Runs of programs do not record it."""
        source = self._trained_checkpoint or (self._tuned_before and self._tuned_before.path)
        folder = run_directory.folder_of_checkpoint(source) if source else ""
        recorded = run_directory.read(folder)["flags"] if source and run_directory.recorded(folder) else {}
        return recorded.get("label_type") or in_memory.label_type(self._labels or ())

    @property
    def labels(self) -> list[Any]:
        """The classes in their original type, in the order of the columns of `predict_proba`."""
        return list(map(self._typed, self._labels_now()))

    @property
    def classes_(self) -> np.ndarray:
        """The classes, under scikit-learn's name."""
        return np.array(self.labels)

    def _labels_before(self) -> list[str]:
        if self._labels:
            return list(map(str, self._labels))
        names = output_layers.recorded_classes(self._tuned_before)
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

    def predict(self, x: Any, *, batch_size: int = 8) -> list[Any]:
        """Returns the class of each example; with `multi_label`, the list of classes above the threshold.

        Classes have the type of the training labels: str, int or bool.

        Args:
          x: see `predict_proba`.
          batch_size: see `predict_proba`.

        Raises:
          InputError: if there is no trained model, or an example can't be used.
        """
        task, *_, outputs = self._predicted(x, batch_size)
        found = task.predictions(outputs)
        labels = list(map(self._typed, task.labels))
        if self._options.multi_label:
            return [[label for label, chosen in zip(labels, row, strict=True) if chosen] for row in found]
        return [labels[number] for number in found]


class Regressor(_TextEstimator):
    """Predicts a number for each text or pair of texts. Examples have the form of `Classifier`; labels are numbers.

    `from_pretrained` also accepts the settings of `LongDocuments`.
    """

    _PROBLEMS = ("regression",)
    _sklearn_type = "regressor"

    def predict(self, x: Any, *, batch_size: int = 8) -> np.ndarray:
        """Returns the number predicted for each example, [num_examples].

        Args:
          x: the examples, as in `fit`, without labels.
          batch_size: number of examples per batch, across all devices.

        Raises:
          InputError: if there is no trained model, or an example can't be used.
        """
        return self._predicted(x, batch_size)[-1]["score"]


class MultipleChoice(RowEstimator):
    """Selects the ending that best continues a prompt (paper, section 4.4).

    Examples are pairs (prompt, list of endings), or rows of a table with the columns `prompt` and `endings`, or
    `prompt`, `ending0`, `ending1`... Labels are indices of endings.
    """

    _ARCHITECTURE = architectures.CHOICE

    def _data_config(self, table: Rows, **data: Any) -> DataConfig:
        return DataConfig("multiple_choice", **data)

    def _table(self, examples: Sequence[Any], labels: Sequence[Any] | None) -> Rows:
        table = []
        for number, example in enumerate(examples):
            place = f"example {number}"
            if isinstance(example, Mapping):
                names = sorted((name for name in example if name.startswith("ending")), key=lambda x: (len(x), x))
                example = example.get("prompt"), example.get("endings", [example[name] for name in names])
            if not isinstance(example, list | tuple) or len(example) != 2 or not isinstance(example[1], list | tuple):
                raise InputError(f"{place} is {str(example)[:60]!r}. Use a pair (prompt, list of endings).")
            endings = [in_memory.text(ending, f"ending {i} of {place}") for i, ending in enumerate(example[1])]
            table.append({"prompt": in_memory.text(example[0], f"the prompt of {place}"), "endings": endings})
        for number, label in enumerate(labels or ()):
            table[number]["label"] = in_memory.label(label, f"example {number}")
        return table

    def predict_proba(self, x: Any, *, batch_size: int = 8) -> np.ndarray:
        """Returns the probability of each ending, [num_examples, num_endings].

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
        return np.argmax(self.predict_proba(x, batch_size=batch_size), axis=-1).tolist()
