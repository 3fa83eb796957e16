"""The base of the classes that predict: evaluation, wrong predictions, explanations and outputs of a trained model."""

import abc
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from bert_tf.api import in_memory
from bert_tf.api.recorded_run import RecordedRun
from bert_tf.finetuning.feature_sets import FeatureSet
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.finetuning.task import ModelOutputs, SplitOutputs, Task
from bert_tf.runtime import messages
from bert_tf.runtime.errors import InputError
from bert_tf.tasks.squad.answerer import Answerer

# The model's task, the examples, their features, and the model's outputs.
Outputs = tuple[Task, list[Any], FeatureSet, ModelOutputs]


class PredictingRun(RecordedRun, abc.ABC):
    """A sequence of training runs whose newest model evaluates and predicts. For the arguments, see `RecordedRun`."""

    _problem: str | None = None  # "classification", "multi_label" or "regression"; None for other tasks
    _LABEL_COLUMNS: ClassVar[tuple[str, ...]] = in_memory.LABEL_COLUMNS  # label columns of tables
    _RANK: ClassVar[int] = 0  # nesting depth of an example; see `in_memory.as_list`
    _DEV: ClassVar[str] = "dev"  # the split of examples to evaluate
    _TEST: ClassVar[str] = "test"  # the split of examples to predict
    _model: FinetuningRun | Answerer | None = None  # the model that predicts, once loaded
    _loaded_for: Any = None  # the settings, the classes and the directory of `_model`

    def evaluate(self, x: Any, y: Any = None, *, batch_size: int = 8) -> dict[str, float]:
        """Returns the task's scores and the mean loss on labelled examples.

        Args:
          x: the examples; see `fit`.
          y: their labels.
          batch_size: number of examples per batch, across all devices.

        Raises:
          InputError: if there is no trained model, or an example or a label can't be used.
        """
        examples = self._examples(*self._labelled(x, y, "x")[:2])
        task, _, features, outputs = self._outputs(self._DEV, examples, batch_size)
        return task.scores(outputs, features)

    def errors(self, x: Any, y: Any = None, *, batch_size: int = 8) -> list[dict[str, Any]]:
        """Returns a row for each wrong prediction, the most confident first, as in `dev_predictions.tsv`.

        For numbers, there is a row for each example, and the largest error is first. For tags, there is a row for each
        wrong entity, and for questions a row for each answer with an F1 below 100.

        Args:
          x: see `evaluate`.
          y: see `evaluate`.
          batch_size: see `evaluate`.

        Raises:
          InputError: see `evaluate`.
        """
        examples = self._examples(*self._labelled(x, y, "x")[:2])
        task, examples, features, outputs = self._outputs(self._DEV, examples, batch_size)
        rows = task.compared(SplitOutputs(self._DEV, examples, outputs, features))
        rows, originals = [row for row in rows if not row.pop("correct", False)], self._given_labels()
        for row, column in itertools.product(rows, ("label", "prediction")):
            names = row[column]
            is_list = isinstance(names, list)
            row[column] = [originals.get(name, name) for name in names] if is_list else originals.get(names, names)
        return rows

    def explain(self, x: Any, *, batch_size: int = 8) -> list[Any]:
        """Returns which words caused the predictions, for a `Classifier`, a `Regressor` or a `TokenClassifier`.

        The scores of the words are integrated gradients; see `bert_tf.finetuning.explanations`.

        Args:
          x: the examples, as in `fit`, without labels.
          batch_size: number of examples per batch of the prediction.

        Returns:
          An `Explanation` of each example: of the score of the predicted class, or of the number. With `multi_label`, a
          list of explanations for each example, one for each predicted label. For tags, a list of explanations for each
          sentence, one for each word whose tag is not O.

        Raises:
          InputError: if there is no trained model, its predictions have no explanations, or an example can't be used.
        """
        task, examples, features, outputs = self._predicted(x, batch_size)
        if not task.explains:
            raise InputError(f"explain(): a {type(self).__name__} has no explanations. Use predict().")
        predicted = SplitOutputs(self._TEST, examples, outputs, features)
        originals, has_one = self._given_labels(), self._problem in ("classification", "regression")
        results = []
        for several in task.explained(self._loaded(task).explainer(), predicted):
            several = [one._replace(label=originals.get(one.label, one.label)) for one in several]
            results.append(several[0] if has_one else several)
        return results

    def score(self, x: Any, y: Any = None) -> float:
        """Returns the score of `evaluate` that selects models.

        The score is accuracy for classes and choices, the Pearson correlation for numbers, and F1 for multi-label tasks
        and entities.

        Args:
          x: see `evaluate`.
          y: see `evaluate`.
        """
        scores = self.evaluate(x, y)
        return scores[self._model.task.metric_that_selects]

    def _labelled(
        self, x: Any, y: Any, name: str, columns: Sequence[str] = (), sample_weight: Any = None
    ) -> tuple[list[Any], list[Any], list[float] | None]:
        """Returns examples, labels and weights. See `in_memory.labelled`."""
        return in_memory.labelled(x, y, name, self._RANK, columns or self._LABEL_COLUMNS, sample_weight)

    @abc.abstractmethod
    def _examples(self, values: Sequence[Any], labels: Sequence[Any] | None) -> list[Any]:
        """Returns the examples of the task."""

    @abc.abstractmethod
    def _task(self, examples: Mapping[str, Sequence[Any]], does_train: bool, **data: Any) -> Task:
        """Returns the task. `examples` maps splits to examples, and `data` has other settings of `DataConfig`."""

    @abc.abstractmethod
    def _run(self, task: Task) -> FinetuningRun:
        """Returns a run that evaluates and predicts."""

    @abc.abstractmethod
    def _check_usable(self) -> None:
        """Raises an InputError if there is no model that can predict."""

    def _given_labels(self) -> dict[str, Any]:
        """Maps the names of the classes to the classes as they were given; empty if they are the same."""
        return {}

    def _outputs(self, split: str, examples: Sequence[Any], batch_size: int) -> Outputs:
        """Predicts examples. They become a split of a new task, which checks them."""
        self._check_usable()
        if not examples:
            raise InputError("x has no examples. Pass at least one example.", "x")
        task = self._task({split: examples}, does_train=False)
        model, examples = self._loaded(task), task.split(split)
        features = model.data.featurize(examples, "x")
        outputs = model.task.calibrated(model.predict(features, batch_size, shown=False), features)
        return model.task, examples, features, outputs

    def _predicted(self, x: Any, batch_size: int) -> Outputs:
        return self._outputs(self._TEST, self._examples(in_memory.as_list(x, "x", self._RANK), None), batch_size)

    def _decoded(self, x: Any, batch_size: int) -> Any:
        task, *predicted = self._predicted(x, batch_size)
        return task.decode(*predicted)

    def _loaded(self, task: Task) -> FinetuningRun | Answerer:
        """Returns the model. It is loaded again only if settings, classes or the directory have changed."""
        loaded_for = self._settings, self._options, task.labels, self._directory
        if self._loaded_for != loaded_for:
            self._model, self._loaded_for = self._load(task), loaded_for
        return self._model

    def _load(self, task: Task) -> FinetuningRun | Answerer:
        run = self._run(task)
        with messages.verbosity(self._verbosity):
            run.restore()
        return run
