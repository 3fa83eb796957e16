"""What all estimators share: how they are made, loaded and trained."""

import abc
import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

from bert_tf import checkpoints
from bert_tf.api import in_memory
from bert_tf.api.in_python import errors_in_python
from bert_tf.api.run_folder import RunFolder
from bert_tf.checkpoints import pretrained, run_directory
from bert_tf.config import BertConfig, BiLstmConfig, ModelFiles
from bert_tf.distribution.devices import DistributionConfig
from bert_tf.finetuning.finetuning_config import FinetuningConfig, SelectionConfig
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.finetuning.task import Task
from bert_tf.finetuning.workflow import finetune
from bert_tf.optimization import OptimizerConfig
from bert_tf.runtime import files
from bert_tf.runtime.errors import InputError, require_path, require_whole
from bert_tf.tasks import architectures
from bert_tf.tokenization import Tokenizer
from bert_tf.training.settings import TrainingConfig


class Estimator(RunFolder, abc.ABC):
    """A pre-trained model with an output layer for a task; made by `from_pretrained` or `load`.

    Args:
      init_checkpoint: the model to start from; None if the folder holds a trained one, or the task has a frozen model.
      config: of the encoder.
      tokenizer: of the model.
      output_dir: the folder of the run; None for a temporary one.
      labels: the classes; None for those of the data.
      flags: the settings, under the names of the flags of `run_classifier.py` and `run_squad.py`.
      distribution: the devices.

    Attributes:
      output_dir: the run directory: checkpoints and metrics. Unless one was named, it is a temporary directory, which
        is removed with the estimator.
      config: of the encoder.
      tokenizer: of the model.
    """

    _ARCHITECTURE: ClassVar[str]
    _problem_type: str | None = None  # in Hugging Face's words; None for a task that has only one
    _MAX_SEQ_LENGTH: ClassVar[int] = 128
    _OUTPUT_WEIGHTS: ClassVar[str] = "output_weights"
    _SETTINGS: ClassVar[Mapping[str, Any]] = {}  # what the class adds to `from_pretrained`, with the defaults
    _HAS_LABELS: ClassVar[bool] = False  # whether there are classes that `labels` can name
    _RANK: ClassVar[int] = 0  # of an example; see `rows.as_list`

    def __init__(
        self,
        init_checkpoint: str | None,
        config: BertConfig,
        tokenizer: Tokenizer,
        output_dir: str | None,
        labels: Sequence[str | int] | None,
        flags: Mapping[str, Any],
        distribution: DistributionConfig,
    ) -> None:
        super().__init__(output_dir, init_checkpoint, flags, distribution)
        self.config = config
        self.tokenizer = tokenizer
        if isinstance(labels, str) or not isinstance(labels, Iterable | None):
            raise InputError(f"labels is {labels!r}. Use a list of classes.")
        self._labels = None if labels is None else in_memory.as_list(labels, "labels")

    def __repr__(self) -> str:
        start = self.output_dir if self._trained_checkpoint else self._init_checkpoint
        labels = f", labels={self._labels!r}" if self._labels else ""
        return f"{type(self).__name__}({start!r}{labels}, max_seq_length={self._flags['max_seq_length']})"

    @classmethod
    @errors_in_python()
    def from_pretrained(
        cls,
        path: str | os.PathLike[str],
        labels: Sequence[str | int] | None = None,
        *,
        output_dir: str | os.PathLike[str] | None = None,
        max_seq_length: int | None = None,
        do_lower_case: bool | None = None,
        dtype: str = "float32",
        distribution_strategy: str = "one_device",
        tpu_name: str = "",
        reset_head: bool = False,
        reinit_layers: int = 0,
        bilstm_layers: int = 0,
        bilstm_units: int = BiLstmConfig().units,
        **settings: Any,
    ) -> Self:
        """An estimator that starts from a pre-trained model, with a fresh output layer.

        If the model was fine-tuned and has such an output layer, it is used, with its classes matched by name, and the
        estimator can then predict without being trained.

        Args:
          path: of the model, as `bert_tf.load_model` takes it.
          labels: the classes; by default those of the training data, or of the model if nothing is trained.
          output_dir: the folder of the run. A run that was interrupted there goes on when `fit` is called again.
          max_seq_length: longer sequences are cut (long contexts of questions are read in windows of this length); by
            default what the programs take: 128, and 384 for questions.
          do_lower_case: the tokenizer's casing; by default what the model's folder says.
          dtype: "float32", "bfloat16" or "float16": the type that products are computed in.
          distribution_strategy: "one_device", "mirrored" or "tpu".
          tpu_name: The name of the TPU for "tpu"; "local" on a TPU VM.
          reset_head: train a fresh output layer even if the model has one.
          reinit_layers: the number of the encoder's top layers that start anew, with the pooler; helps on small data.
          bilstm_layers: of a BiLSTM between the encoder and the output layer (paper, Table 5); 0 for that of the model.
          bilstm_units: of the BiLSTM, in each direction.
          settings: what else the class says.

        Raises:
          InputError: if something is missing, or doesn't fit together.
        """
        if labels is not None and not cls._HAS_LABELS:
            raise InputError(f"labels: a {cls.__name__} has no classes. Omit them.")
        checkpoint, config, tokenizer = pretrained.find_model(path, "from_pretrained()", do_lower_case)
        tokenizer = pretrained.required_tokenizer(tokenizer, checkpoint, "from_pretrained()")
        flags = {
            "max_seq_length": cls._MAX_SEQ_LENGTH if max_seq_length is None else max_seq_length,
            "dtype": dtype,
            "reset_head": reset_head,
        }
        require_whole("bilstm_layers", bilstm_layers, 0)
        flags |= {"reinit_layers": reinit_layers, "bilstm_layers": bilstm_layers, "bilstm_units": bilstm_units}
        flags |= cls._checked(settings)
        distribution = DistributionConfig(distribution_strategy, tpu_name)
        # A run that is resumed compares the name, not the place of the copy in the cache.
        return cls(path, config, tokenizer, output_dir, labels, flags, distribution)

    @classmethod
    @errors_in_python()
    def load(
        cls, folder: str | os.PathLike[str], distribution_strategy: str = "one_device", tpu_name: str = ""
    ) -> Self:
        """The estimator that `save` wrote, or that a program trained.

        Args:
          folder: of the run.
          distribution_strategy: see `from_pretrained`.
          tpu_name: see `from_pretrained`.

        Raises:
          InputError: if the folder isn't that of a finished run of this kind of task.
        """
        folder = run_directory.folder_of_model(require_path("load()", folder))
        if not files.exists(os.path.join(folder, run_directory.RUN_FILE)):
            raise InputError(f"load(): {folder} has no {run_directory.RUN_FILE}. Use {cls.__name__}.from_pretrained().")
        recorded = run_directory.read(folder)
        settings = recorded["resume_settings"]
        task, problem = settings.get("task"), settings.get("problem")
        if task is None or not cls.fits(task, problem):
            raise InputError(f"load(): {folder} has a run of {task!r}. Use its own class, not {cls.__name__}.")
        if "feature_layers" in settings:
            raise InputError(f"load(): {folder} has a run with feature_layers. Use run_classifier.py.")
        _, config, tokenizer = pretrained.find_model(folder, "load()", settings["do_lower_case"])
        flags = {**recorded["flags"], "max_seq_length": settings["max_seq_length"], **cls._recorded(settings)}
        flags.pop("num_workers", None)  # other processes can only be started before TensorFlow is used
        distribution = DistributionConfig(distribution_strategy, tpu_name)
        return cls(None, config, tokenizer, folder, settings.get("labels"), flags, distribution)

    @classmethod
    def fits(cls, task: str, problem: str | None) -> bool:
        """Whether this is the estimator of a task; see `architectures.of_task`."""
        return architectures.of_task(task, problem)[0] == cls._ARCHITECTURE

    @classmethod
    def _recorded(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """What the settings of a run say besides its flags, under the names of flags."""
        return {}

    @classmethod
    def _checked(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of this class, under the names of their flags."""
        for name in settings:
            if name not in cls._SETTINGS:
                own = ", ".join(cls._SETTINGS) or "none"
                raise TypeError(f"{cls.__name__} has no setting {name!r}; it has {own}.")
        return dict(settings)

    def _settings(self, **changes: Any) -> FinetuningConfig:
        """The settings of a run of this model, in this directory, on these devices."""
        names = [*FinetuningConfig.__struct_fields__, *changes]
        flags = {name: value for name, value in self._flags.items() if name in names}
        training = TrainingConfig(self.output_dir, dtype=self._flags["dtype"])
        return FinetuningConfig(
            **{"training": training, "distribution": self._distribution, "flags": self._flags, **flags, **changes},
            model=ModelFiles(self._init_checkpoint),
        )

    def _predicting_run(self, task: Task) -> FinetuningRun:
        """A run that evaluates and predicts, after the check that what was trained in this folder read the same."""
        run = FinetuningRun(task, self._settings(), (self.config, self.tokenizer))
        if self._trained_checkpoint:
            run.check_reading()
        return run

    @errors_in_python()
    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        sample_weight: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        epochs: float = 3.0,
        num_train_steps: int = 0,
        batch_size: int = 32,
        learning_rate: float = 5e-5,
        warmup_proportion: float = 0.1,
        seed: int = 12345,
        use_best_checkpoint: bool = False,
        early_stopping_patience: int = 0,
        evaluate_every: str | int = "epoch",
        group_by_length: bool | None = None,
        bias_correction: bool = False,
        allow_changed_settings: bool = False,
        **training: Any,
    ) -> dict[str, float]:
        """Trains, with the loop and the defaults of `run_classifier.py` and `run_squad.py`.

        Called again in the same folder with the same data and settings, it goes on where it was interrupted.

        Args:
          x: the examples; see the class. Or a `tf.data.Dataset` of pairs (example, label), or of triples (example,
            label, weight), if `y` is None.
          y: their labels.
          sample_weight: a number of at least 0 for each example, by which its loss is multiplied before the mean over
            the batch, as in Keras; for classes and numbers only. Scores don't use weights.
          validation_split: the share of the examples to evaluate on, and not to train on. They are drawn as by
            --dev_fraction: the same whatever the seed is, of each class the same share, and every class stays in
            training.
          validation_data: a pair of examples and labels to evaluate on, or what `x` may be without `y`, in place of a
            share of `x`. With SQuAD 2.0, the threshold for no answer is tuned on the validation data too.
          epochs: how often each example is seen.
          num_train_steps: if it isn't 0, the number of steps, whatever `epochs` says.
          batch_size: examples in a step; of questions, windows of their contexts.
          learning_rate: the peak.
          warmup_proportion: the share of the steps in which the learning rate rises.
          seed: of the output layer, the order of the data, and dropout.
          use_best_checkpoint: use the weights with the best score on the validation data instead of the last ones.
          early_stopping_patience: evaluations without a better score after which training stops; 0 for never.
          evaluate_every: when the validation data are looked at: "epoch", "end", or a number of steps.
          group_by_length: see `bert_tf.finetuning.run.FinetuningRun`.
          bias_correction: see `bert_tf.optimization.OptimizerConfig`.
          allow_changed_settings: go on with a run that was interrupted although its settings have changed.
          training: further fields of `bert_tf.training.settings.TrainingConfig`.

        Returns:
          The scores on the validation data, named as in eval_results.txt; nothing if there are no such data.

        Raises:
          InputError: if the data can't be used, or the folder holds a run with other data or settings.
          KeyboardInterrupt: after Ctrl-C, when the state has been saved.
          TypeError: if there is no such argument.
        """
        if self._init_checkpoint is None:
            new = f"{type(self).__name__}.from_pretrained({self.output_dir!r})"
            raise InputError(f"fit(): the training in {self.output_dir} is finished. To train on, use {new}.")
        optimizer = OptimizerConfig(learning_rate, bias_correction=bias_correction)
        training_config = self._training_config(optimizer, batch_size, seed, training)
        examples, labels, weights = in_memory.with_weights(*self._by_name(x, y, "x"), sample_weight, "x", self._RANK)
        train, dev = self._table(examples, labels), None
        if validation_data is not None:
            given = validation_data if in_memory.is_pair(validation_data) else (validation_data, None)
            given = self._by_name(*given, "validation_data")
            dev, validation_split = self._table(*in_memory.with_labels(*given, "validation_data", self._RANK)), 0.0
        if (use_best_checkpoint or early_stopping_patience) and not (dev or validation_split):
            raise InputError("use_best_checkpoint and early_stopping_patience need validation data. Give some.")
        before = dict(self._flags)
        try:
            self._flags |= self._learned_settings(train, labels) | {"group_by_length": group_by_length}
            self._weigh(train, weights)
            config = self._settings(
                training=training_config,
                do_train=True,
                do_eval=bool(dev or validation_split),
                num_train_epochs=epochs,
                warmup_proportion=warmup_proportion,
                num_train_steps=num_train_steps,
                selection=SelectionConfig(str(evaluate_every), early_stopping_patience, use_best_checkpoint),
                allow_changed_settings=allow_changed_settings,
            )
            task = self._training_task(train, dev, validation_split)
            return self.carry_out(task, config)
        except InputError:
            self._flags.clear()  # a model that was trained before is used as it was trained
            self._flags |= before
            raise

    def carry_out(self, task: Task, config: FinetuningConfig) -> dict[str, float]:
        """Returns the scores on the dev set of `finetune`; empty if it isn't evaluated."""
        self._forget_model()
        results = finetune(task, config, (self.config, self.tokenizer))
        return results.get("eval", {}).get(task.dev_splits[0], {})

    @abc.abstractmethod
    def _forget_model(self) -> None:
        """Forgets a loaded model, which training replaces."""

    def _by_name(self, x: Any, y: Any, name: str) -> tuple[Any, Any]:
        """Returns examples and labels; a subclass may find them in tables and dicts by name."""
        return x, y

    @abc.abstractmethod
    def _table(self, examples: Sequence[Any], labels: Sequence[Any] | None) -> list[dict[str, Any]]:
        """Returns the rows that the task reads."""

    def _learned_settings(self, table: Sequence[Mapping[str, Any]], labels: Sequence[Any]) -> dict[str, Any]:
        """Returns the settings that the training data decide, under the names of flags."""
        return {}

    def _weigh(self, table: Sequence[dict[str, Any]], weights: Sequence[float] | None) -> None:
        """Adds the weights of the training examples to their rows."""
        if weights is not None:
            raise InputError(f"sample_weight: {type(self).__name__} does not weigh examples. Omit it.")

    @abc.abstractmethod
    def _training_task(
        self, train: Sequence[dict[str, Any]], dev: Sequence[dict[str, Any]] | None, dev_fraction: float
    ) -> Task:
        """Returns the task; its dev set are other rows, or a share of the training rows."""

    @functools.cached_property
    def _tuned_before(self) -> checkpoints.CheckpointSource | None:
        """The model of `from_pretrained`, if its output layer is to be used."""
        if self._init_checkpoint is None or self._flags.get("reset_head"):
            return None
        source = checkpoints.open_checkpoint(self._init_checkpoint, "from_pretrained()")
        return source if self._OUTPUT_WEIGHTS in source.shapes else None

    def _check_usable(self) -> None:
        """Raises an InputError if nothing was trained, and `from_pretrained` gave no output layer of this kind."""
        if self._tuned_before is None:
            self._check_trained()
        elif not self._trained_checkpoint:
            architectures.check(self._tuned_before, self._ARCHITECTURE, self._problem_type)
