"""The base of all estimators: construction, loading and training."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self, Unpack

import numpy as np
from msgspec import Meta
from sklearn.utils import InputTags, Tags, TargetTags

from bert_tf import checkpoints
from bert_tf.api import in_memory
from bert_tf.api.arguments import Labels, PathLike, accepted, applied, applied_to_both
from bert_tf.api.predicting_run import PredictingRun
from bert_tf.api.recorded_run import finished_run
from bert_tf.api.setting_types import EstimatorSettings, FitSettings
from bert_tf.checkpoints import pretrained, run_directory
from bert_tf.config import BertConfig, ModelFiles
from bert_tf.finetuning.finetune import finetune
from bert_tf.finetuning.finetuning_config import FinetuningConfig
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.finetuning.task import Task
from bert_tf.runtime.errors import InputError, check
from bert_tf.runtime.settings import FIT, MODEL, Settings
from bert_tf.tasks import hf_names
from bert_tf.tasks.data_config import DataConfig, MetricName
from bert_tf.tasks.registry import build_task
from bert_tf.tasks.sentences.examples import WeightedExample
from bert_tf.text import Tokenizer


class Estimator(PredictingRun):
    """A pre-trained model with an output layer for a task. Use `from_pretrained` or `load` to create one.

    Args:
      output_dir: see `RecordedRun`.
      start: the model to start from; None if the task has a frozen model.
      model: the encoder's config and the tokenizer.
      labels: the classes; None to use the classes of the data.
      config: the settings of fine-tuning.
      options: the settings of the class.

    Attributes:
      output_dir: see `RecordedRun`.
      config: the encoder's `BertConfig`.
      tokenizer: the model's tokenizer.

    Raises:
      InputError: if `labels` is not a list of classes.
    """

    config: BertConfig
    tokenizer: Tokenizer
    _ARCHITECTURE: ClassVar[str]
    _sklearn_type: str | None = None  # the type of the estimator in scikit-learn
    _MAX_SEQ_LENGTH: ClassVar[int] = 128
    _OUTPUT_WEIGHTS: ClassVar[str] = "output_weights"
    _OPTIONS: ClassVar[type[Settings]] = Settings
    _SOFT_COLUMNS: ClassVar[tuple[str, ...]] = ()  # prefixes of probability columns, in training tables

    def __init__(
        self,
        output_dir: PathLike | None,
        start: PathLike | None,
        model: tuple[BertConfig, Tokenizer],
        labels: Labels,
        config: FinetuningConfig,
        options: Settings,
    ) -> None:
        super().__init__(output_dir, start)
        self.config, self.tokenizer = model
        if isinstance(labels, str) or not isinstance(labels, Iterable | None):
            raise InputError(f"labels is {labels!r}. Use a list of classes.", "labels")
        self._labels = None if labels is None else in_memory.as_list(labels, "labels")
        self._settings = config
        self._options = options
        self._first_start = start
        self._check_options()

    def _check_options(self) -> None:
        """Raises an InputError if the settings of the class do not match the settings of fine-tuning."""

    def __repr__(self) -> str:
        start = self._directory if self._trained_checkpoint else self._start
        labels = f", labels={self._labels!r}" if self._labels else ""
        return f"{type(self).__name__}({start!r}{labels}, max_seq_length={self._settings.max_seq_length})"

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Returns the settings, for scikit-learn."""
        return self._settings.flag_values() | self._options.flag_values()

    def set_params(self, **settings: Any) -> Self:
        """Changes settings of `from_pretrained`, as scikit-learn's searches do, and returns this object."""
        # scikit-learn also passes values that do not change. They may have no effect.
        before = self.get_params()
        changed = {name: value for name, value in settings.items() if not np.array_equal(before.get(name, self), value)}
        self._settings, self._options = applied_to_both(self._settings, self._options, changed, "set_params()")
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return bool(self._trained_checkpoint or self._tuned_before)

    def __sklearn_clone__(self) -> Self:
        model = self.config, self.tokenizer
        return type(self)(None, self._first_start, model, self._labels, self._settings, self._options)

    def __sklearn_tags__(self) -> Any:
        return Tags(self._sklearn_type, TargetTags(required=True), input_tags=InputTags(two_d_array=False, string=True))

    @classmethod
    def from_pretrained(
        cls,
        path: PathLike,
        labels: Labels = None,
        *,
        output_dir: PathLike | None = None,
        **settings: Unpack[EstimatorSettings],
    ) -> Self:
        """Returns an estimator that starts from a pre-trained model, with a randomly initialised output layer.

        If the model was fine-tuned for this task, the estimator uses the model's output layer and can predict without
        further training. Classes are matched by name.

        Args:
          path: the model, as for `bert_tf.load_model`.
          labels: the classes. Default: the classes of the training data or, without training, of the model.
          output_dir: the run directory. `fit` resumes an interrupted run in it.
          settings: fields of the class's own settings and of `bert_tf.finetuning.finetuning_config.FinetuningConfig`,
            including nested settings: `max_seq_length` (default 128; 384 for question answering), `do_lower_case`,
            `dtype`, `distribution_strategy` and `tpu_name`, `reset_head`, `reinit_layers`, `bilstm_layers`. Training
            settings become the defaults of `fit`.

        Raises:
          InputError: if a file is missing, or the files do not match each other.
          TypeError: if there is no such argument.
        """
        caller = f"{cls.__name__}.from_pretrained()"
        if labels is not None and not hasattr(cls, "labels"):
            raise InputError(f"labels: a {cls.__name__} has no classes. Omit this argument.", "labels")
        start = FinetuningConfig(max_seq_length=cls._MAX_SEQ_LENGTH), cls._OPTIONS()
        config, options = applied_to_both(*start, settings, caller)
        checkpoint, bert_config, tokenizer = pretrained.find_model(path, caller, config.model.do_lower_case)
        tokenizer = pretrained.required_tokenizer(tokenizer, checkpoint, caller)
        if settings:
            config.check_model(bert_config)
        # A resumed run compares `path`. If it is a Hub name, the location of the copy in the cache does not matter.
        return cls(output_dir, path, (bert_config, tokenizer), labels, config, options)

    @classmethod
    def load(cls, directory: PathLike, distribution_strategy: str = "one_device", tpu_name: str = "") -> Self:
        """Returns an estimator from a directory written by `save` or by a program.

        `fit` continues training in a temporary directory and leaves `directory` unchanged.

        Args:
          directory: the run directory.
          distribution_strategy: see `from_pretrained`.
          tpu_name: see `from_pretrained`.

        Raises:
          InputError: if the directory has no finished run of this type of task.
        """
        directory, run, flags = finished_run(directory, cls.__name__, cls._ARCHITECTURE, cls._problem == "regression")
        _, bert_config, tokenizer = pretrained.find_model(directory, "load()", run["do_lower_case"])
        settings = {"max_seq_length": run["max_seq_length"], "distribution_strategy": distribution_strategy}
        settings |= {"tpu_name": tpu_name, "dtype": flags.get("dtype", "float32")}
        config = applied(FinetuningConfig(), settings, "load()")
        # Programs record this setting of a `Classifier` as the problem.
        problem = {"multi_label": run.get("problem") == "multi_label", "distillation_temperature": 1.0}
        options = cls._OPTIONS.from_flags(flags | problem)
        labels = cls._as_given(run.get("labels"), flags)
        loaded = cls(None, directory, (bert_config, tokenizer), labels, config, options)
        loaded._directory = directory
        return loaded

    def _run(self, task: Task) -> FinetuningRun:
        """Returns a run that evaluates and predicts, after checking that its settings match the trained model."""
        config = self._settings.in_directory(self._directory).replace(model=ModelFiles(self._start))
        run = FinetuningRun(task, config, (self.config, self.tokenizer))
        if self._trained_checkpoint:
            run.check_reading()
        return run

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        sample_weight: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        verbose: int = 1,
        callbacks: Any = None,
        selection_metric: MetricName | None = None,
        **settings: Unpack[FitSettings],
    ) -> dict[str, float]:
        """Trains with the settings and defaults of `run_classifier.py` and `run_squad.py`.

        A second call continues training from the current weights with a new schedule. In another process, the same
        calls with the same directory, data and settings resume an interrupted run and skip completed ones.

        Args:
          x: the examples; see the class. If `y` is None, a table with a column of labels, or a `tf.data.Dataset` of
            pairs (example, label) or triples (example, label, weight).
          y: the labels, one per example; for a `Classifier` also probabilities.
          sample_weight: a number >= 0 for each example. The example's loss is multiplied by it before the mean over the
            batch, as in Keras. Only for classification and regression. Scores ignore weights.
          validation_split: the fraction of the examples, in [0, 1), to use for evaluation instead of training. Examples
            are chosen as by --dev_fraction: independently of the seed, and the same fraction of each class. At least
            one example of each class stays in training.
          validation_data: a pair (examples, labels) to evaluate on, or a data set as for `x`. It replaces
            `validation_split`. With SQuAD 2.0, the no-answer threshold is tuned on the validation data too.
          verbose: 0 to print only warnings, 1 for messages and progress bars, 2 for messages and one line per epoch.
          callbacks: Keras callbacks; see `bert_tf.training.callbacks.Callbacks`. An epoch ends at each evaluation
            (`evaluate_every`), even without validation data. If a callback stops a run, the run is complete. Callbacks
            that need a Keras optimizer or save weights are refused.
          selection_metric: the score that selects the best weights. Default: the task's own.
          settings: `epochs` (default 3), `batch_size` (32), and fields of
            `bert_tf.finetuning.finetuning_config.FinetuningConfig`, including nested settings: `learning_rate` (5e-5),
            `warmup_proportion`, `num_train_steps`, `seed`, `evaluate_every`, `early_stopping_patience`,
            `use_best_checkpoint`, `weight_decay_rate`, `clip_norm`, `gradient_accumulation_steps` and more.

        Returns:
          The scores on the validation data, named as in eval_results.txt; empty without validation data.

        Raises:
          InputError: if the data can't be used, or the directory has a run with other data or settings.
          KeyboardInterrupt: after Ctrl-C, once the state has been saved.
          TypeError: if there is no such argument.
        """
        check(validation_split, Annotated[float, Meta(ge=0, lt=1)], "validation_split")
        if of_model := settings.keys() & accepted(self._OPTIONS, MODEL).keys():
            raise TypeError(f"{type(self).__name__}.fit() has no argument {min(of_model)!r}. Use from_pretrained().")
        config = applied(self._settings, settings, f"{type(self).__name__}.fit()", FIT)
        training_columns = (*self._LABEL_COLUMNS, *self._SOFT_COLUMNS)
        values, labels, weights = self._labelled(x, y, "x", training_columns, sample_weight)
        examples = {"train": self._examples(values, labels)}
        if validation_data is not None:
            pair = validation_data if in_memory.is_pair(validation_data) else (validation_data, None)
            examples["dev"] = self._examples(*self._labelled(*pair, "validation_data")[:2])
            validation_split = 0.0
        does_select = config.selection.use_best_checkpoint or config.selection.early_stopping_patience
        has_dev = bool("dev" in examples or validation_split)
        if does_select and not has_dev:
            raise InputError("use_best_checkpoint and early_stopping_patience need validation data. Pass it to fit().")
        if weights is not None:
            if self._ARCHITECTURE != hf_names.SEQUENCE:
                raise InputError(f"sample_weight: {type(self).__name__} does not support weights. Omit it.")
            weighted = zip(examples["train"], weights, strict=True)
            examples["train"] = [WeightedExample(**vars(example), weight=weight) for example, weight in weighted]
        self._model = self._loaded_for = None  # frees memory
        with self._next_run(verbose, callbacks) as (directory, checked):
            data = {"dev_fraction": validation_split, "selection_metric": selection_metric}
            learned = self._learned_settings(labels)
            data |= self._class_config(learned, directory)
            task = self._task(examples, does_train=True, **data)
            config = config.in_directory(directory).replace(model=ModelFiles(self._start))
            if self._fits:
                config = config.starting_from(self._start, directory)
            flags = self._options.values_of() | learned
            config = config.replace(do_train=True, do_eval=has_dev, flags=flags)
            results = finetune(task, config, (self.config, self.tokenizer), callbacks=checked)
        return results.get("eval", {}).get(task.dev_splits[0], {})

    def _data_config(self, examples: Mapping[str, Sequence[Any]]) -> DataConfig:
        """Returns the settings of a task of `run_classifier.py`. `examples` maps splits to examples."""
        raise NotImplementedError

    def _task(self, examples: Mapping[str, Sequence[Any]], does_train: bool, **data: Any) -> Task:
        """Returns the task. `examples` maps splits to examples, and `data` has other settings of `DataConfig`."""
        config = self._data_config(examples).replace(**data)
        if not (does_train or config.labels or self._trained_checkpoint):
            config = config.replace(labels=self._labels_before())
        return build_task(config, self._directory, does_train, examples=examples)

    def _learned_settings(self, labels: Sequence[Any]) -> dict[str, Any]:
        """Returns the properties of the training labels to record."""
        return {}

    def _class_config(self, learned: Mapping[str, Any], directory: str) -> dict[str, Any]:
        """Returns the fields of `DataConfig` for the classes of the run in a directory. See `_learned_settings`."""
        return {}

    @classmethod
    def _as_given(cls, names: Sequence[str] | None, flags: Mapping[str, Any]) -> Sequence[Any] | None:
        """Returns classes in the type and the spelling that the flags of the run record."""
        return names

    def _labels_before(self) -> Sequence[str] | None:
        """Returns the classes of the model passed to `from_pretrained`; None if the task has none."""
        return None

    def _labels_now(self) -> Sequence[str] | None:
        """Returns the classes of the trained model or, before training, of the initial model."""
        self._check_usable()
        trained = self._trained_checkpoint
        return (run_directory.recorded_labels(self._directory) or self._labels) if trained else self._labels_before()

    @functools.cached_property
    def _tuned_before(self) -> checkpoints.CheckpointSource | None:
        """The model passed to `from_pretrained`, if its output layer is used; else None."""
        if self._start is None or self._settings.reset_head:
            return None
        source = checkpoints.open_checkpoint(self._start, "from_pretrained()")
        return source if self._OUTPUT_WEIGHTS in source.shapes else None

    def _check_usable(self) -> None:
        """Raises an InputError if there is neither a trained model nor a suitable output layer in the initial model."""
        if self._tuned_before is None:
            self._check_trained()
        elif not self._trained_checkpoint:
            problem_type = hf_names.PROBLEM_TYPES.get(self._problem)
            hf_names.check(self._tuned_before, self._ARCHITECTURE, problem_type)
