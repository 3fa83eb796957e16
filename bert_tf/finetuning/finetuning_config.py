"""The fine-tuning settings that all tasks share."""

import itertools
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from bert_tf.config import BertConfig, BiLstmConfig, ModelFiles
from bert_tf.data_report.findings import AllowUnusualData
from bert_tf.distribution.devices import DistributionConfig
from bert_tf.optimization.settings import warn_of_rate
from bert_tf.runtime.errors import InputError
from bert_tf.runtime.settings import MODEL, PROGRAMS, AbsentFrom, FiniteAboveZero, Settings, about, not_with, only_with
from bert_tf.training.settings import TrainingConfig

_NOT_IN_SQUAD = AbsentFrom("run_squad")
_SWEEPS = only_with("sweep")
_NOT_TAGGING = not_with("task_name", values=("ner",))
# A model for sentence vectors has no output layer.
_HAS_HEAD = not_with("task_name", values=("similarity",))
# A frozen model has no layers to train.
_HAS_LAYERS = not_with("feature_layers")
_Layers = Annotated[int, _HAS_LAYERS, MODEL]  # a number of layers


class SelectionConfig(Settings, frozen=True):
    """Settings of evaluation on the dev set during training, and of early stopping.

    Attributes:
      evaluate_every: the final weights are always evaluated.
      early_stopping_patience: early stopping also selects the weights with the best score.

    Raises:
      InputError: if `early_stopping_patience` is set, but only the final weights are evaluated.
    """

    evaluate_every: Annotated[
        str,
        about(
            "When to evaluate with --do_eval: after each 'epoch', at the 'end', or every N steps.",
            group="Model selection",
            pattern=r"^(epoch|end|0*[1-9][0-9]*)$",
        ),
    ] = "epoch"
    early_stopping_patience: Annotated[
        int,
        about("Stop training after this many evaluations without a better score; 0 to never stop early.", ge=0),
        not_with("evaluate_every", values=("end",)),
    ] = 0
    use_best_checkpoint: Annotated[bool, about("Use the weights with the best dev score instead of the last ones.")] = (
        False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_needs()

    def eval_steps(self, config: TrainingConfig, num_examples: int) -> int:
        """Returns the number of steps between evaluations; an epoch is rounded to whole steps."""
        if self.evaluate_every == "end":
            return config.num_train_steps
        if self.evaluate_every == "epoch":
            return max(1, round(num_examples / config.train_batch_size))
        return int(self.evaluate_every)


class TrialsConfig(Settings, frozen=True):
    """The hyperparameters to try. The trial with the best dev score is used (paper, appendix A.3)."""

    sweep: Annotated[bool, about("Try every combination of the --sweep_* values.", group="Model selection")] = False
    sweep_batch_sizes: Annotated[
        tuple[Annotated[int, Meta(ge=1)], ...], Meta(min_length=1), about("Batch sizes for --sweep."), _SWEEPS
    ] = (16, 32)
    sweep_learning_rates: Annotated[
        tuple[FiniteAboveZero, ...],
        Meta(min_length=1),
        about("Learning rates for --sweep. For GLUE the paper tries 5e-5,4e-5,3e-5,2e-5."),
        _SWEEPS,
    ] = (5e-5, 3e-5, 2e-5)
    sweep_epochs: Annotated[
        tuple[FiniteAboveZero, ...], Meta(min_length=1), about("Numbers of epochs for --sweep."), _SWEEPS
    ] = (2.0, 3.0, 4.0)
    num_restarts: Annotated[
        int, about("Number of seeds to try, starting with --random_seed; the best is used.", ge=1)
    ] = 1


class FinetuningConfig(Settings, frozen=True, kw_only=True):
    """The settings of `finetune`.

    Attributes:
      num_train_epochs: on small data sets, more than the paper's 2 to 4 epochs make training more stable. Mosbach et
        al. (2021) recommend 20, with bias correction.
      group_by_length: has no effect. Packed rows need no grouping.
      reinit_layers: the top layers are the most specific to pre-training. Initialising them randomly helps on small
        data sets (Zhang et al., 2021, "Revisiting Few-sample BERT Fine-tuning").
      training: the training settings. Their numbers of steps are ignored; `for_steps` computes them from the data.
      flags: other values to record in the run directory.
    """

    model: ModelFiles = ModelFiles()
    max_seq_length: Annotated[
        int,
        about("Longest sequence in tokens; longer ones are truncated or split.", ge=4, group="Model and directories"),
        MODEL,
    ] = 128
    allow_changed_settings: Annotated[bool, about("Resume or evaluate a run even if its settings have changed.")] = (
        False
    )
    allow_unusual_data: AllowUnusualData = False
    do_train: Annotated[bool, about("Train.", group="What to do"), PROGRAMS] = False
    do_eval: Annotated[bool, about("Evaluate on the dev set."), PROGRAMS, _NOT_IN_SQUAD] = False
    do_predict: Annotated[bool, about("Predict the test set."), PROGRAMS] = False
    eval_batch_size: Annotated[
        int, about("Examples in an evaluation batch, on all devices; more if they are short.", ge=1), _NOT_IN_SQUAD
    ] = 8
    predict_batch_size: Annotated[
        int, about("Examples in a prediction batch, on all devices; more if they are short.", ge=1), PROGRAMS
    ] = 8
    original_format: Annotated[
        bool, about("Write test_results.tsv without a header."), _NOT_TAGGING, PROGRAMS, _NOT_IN_SQUAD
    ] = False
    explain: Annotated[
        bool,
        about("Write a score of each word for each prediction of --do_predict."),
        only_with("do_predict"),
        _HAS_LAYERS,
        PROGRAMS,
        _NOT_IN_SQUAD,
    ] = False
    num_workers: Annotated[int, about("Number of processes that tokenize; 0 for one per core.", ge=0), PROGRAMS] = 1
    num_train_epochs: Annotated[
        FiniteAboveZero, about("Number of passes over the training set or over each training file.", group="Training")
    ] = 3.0
    warmup_proportion: Annotated[float, about("Fraction of steps with rising learning rate.", ge=0, le=1)] = 0.1
    num_train_steps: Annotated[
        int, about("Number of training steps; overrides --num_train_epochs. 0 to use the epochs.", ge=0)
    ] = 0
    group_by_length: Annotated[bool | None, about("No effect. Batches have examples of all lengths.")] = None
    reinit_layers: Annotated[
        _Layers, about("Number of top layers to initialise randomly, together with the pooler.", ge=0), _NOT_IN_SQUAD
    ] = 0
    reset_head: Annotated[
        bool,
        about("Train a new output layer even if --init_checkpoint has a fine-tuned one."),
        only_with("do_train"),
        _HAS_LAYERS,
        _HAS_HEAD,
        MODEL,
    ] = False
    bilstm_layers: Annotated[
        _Layers,
        _HAS_HEAD,
        about("BiLSTM layers below the output layer (paper, Table 5); 0: as in the checkpoint's run.", ge=0),
    ] = 0
    bilstm_units: Annotated[
        int,
        about("Number of units in each direction of a BiLSTM.", ge=1),
        only_with("bilstm_layers", "feature_layers"),
        MODEL,
    ] = BiLstmConfig().units
    training: TrainingConfig = TrainingConfig()
    selection: Annotated[SelectionConfig, _NOT_IN_SQUAD] = SelectionConfig()
    trials: Annotated[TrialsConfig, PROGRAMS, _NOT_IN_SQUAD] = TrialsConfig()
    distribution: Annotated[DistributionConfig, MODEL] = DistributionConfig()
    flags: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.do_train and not self.trials.sweep:
            self.training.check_batch()
        for size in self.trials.sweep_batch_sizes if self.trials.sweep else ():
            self.training.replace(train_batch_size=size).check_batch(name="sweep_batch_sizes")
        for rate in self.trials.sweep_learning_rates if self.trials.sweep else ():
            warn_of_rate("sweep_learning_rates", rate)

    def check_model(self, config: BertConfig) -> None:
        """Checks that a model has as many positions and layers as the settings need.

        Raises:
          InputError: if the model has fewer.
        """
        config.check_sequence_length(self.max_seq_length)
        config.check_layers(self.reinit_layers, "--reinit_layers")
        config.check_layers(self.training.freeze_layers, "--freeze_layers")

    @property
    def bilstm(self) -> BiLstmConfig | None:
        """The requested BiLSTM, or None."""
        return BiLstmConfig(self.bilstm_layers, self.bilstm_units) if self.bilstm_layers else None

    @property
    def flags_for_one_worker(self) -> list[str]:
        """The given flags that need predictions. With several workers, a model can't predict."""
        uses = {
            "--do_eval": self.do_eval,
            "--do_predict": self.do_predict,
            "--use_best_checkpoint": self.selection.use_best_checkpoint,
            "--early_stopping_patience": self.selection.early_stopping_patience,
            "--sweep and --num_restarts": self.trials.sweep or self.trials.num_restarts > 1,
        }
        return [flag for flag, is_used in uses.items() if is_used]

    @property
    def runs_steps(self) -> bool:
        """Whether the run trains, evaluates or predicts the splits of its data."""
        return self.do_train or self.do_eval or self.do_predict

    @property
    def evaluates_while_training(self) -> bool:
        """Whether the dev set is needed during training."""
        return self.do_train and any(flag != "--do_predict" for flag in self.flags_for_one_worker)

    def in_directory(self, output_dir: str) -> "FinetuningConfig":
        """Returns the settings of a run in another directory."""
        return self.replace(training=self.training.replace(output_dir=output_dir))

    def starting_from(self, init_checkpoint: str | None, output_dir: str) -> "FinetuningConfig":
        """Returns the settings of a run in another directory that starts from a model, including its output layer."""
        files = self.model.replace(init_checkpoint=init_checkpoint)
        return self.in_directory(output_dir).replace(model=files, reinit_layers=0, reset_head=False)

    def for_steps(self, num_examples: int) -> TrainingConfig:
        """Returns the training settings with the numbers of steps, which are counted as in the original code.

        Args:
          num_examples: the size of the training set.

        Raises:
          InputError: if the number of steps is less than 1.
        """
        training = self.training
        steps = self.num_train_steps or int(num_examples / training.train_batch_size * self.num_train_epochs)
        if steps < 1:
            raise InputError(
                f"--num_train_epochs={self.num_train_epochs} of {num_examples} examples with --train_batch_size="
                f"{training.train_batch_size} is less than one step. Use a smaller batch or more epochs."
            )
        warmup = int(steps * self.warmup_proportion)
        optimizer = training.optimizer.replace(num_train_steps=steps, num_warmup_steps=warmup)
        return training.replace(optimizer=optimizer)

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """The values that differ between trials."""
        training = self.training
        return {
            "train_batch_size": training.train_batch_size,
            "learning_rate": training.optimizer.learning_rate,
            "num_train_epochs": self.num_train_epochs,
            "seed": training.seed,
        }

    @property
    def trial_name(self) -> str:
        """The name of the trial in files and tables, made of its hyperparameters."""
        batch_size, rate, epochs, seed = self.hyperparameters.values()
        return f"batch{batch_size}_lr{rate:g}_epochs{epochs:g}_seed{seed}"

    def candidates(self) -> "list[FinetuningConfig]":
        """Returns the settings of each trial. Trials that differ only in the seed are adjacent.

        If there are several trials, `sweep` is set in each of them, because trials are evaluated during training.
        """
        trials, training = self.trials, self.training
        values = [(training.train_batch_size,), (training.optimizer.learning_rate,), (self.num_train_epochs,)]
        if trials.sweep:
            values = [trials.sweep_batch_sizes, trials.sweep_learning_rates, trials.sweep_epochs]
        seeds = range(training.seed, training.seed + trials.num_restarts)
        combinations = list(dict.fromkeys(itertools.product(*values, seeds)))
        return [self._candidate(*values, is_trial=len(combinations) > 1) for values in combinations]

    def _candidate(
        self, batch_size: int, learning_rate: float, num_train_epochs: float, seed: int, is_trial: bool
    ) -> "FinetuningConfig":
        optimizer = self.training.optimizer.replace(learning_rate=learning_rate)
        return self.replace(
            training=self.training.replace(train_batch_size=batch_size, optimizer=optimizer, seed=seed),
            num_train_epochs=num_train_epochs,
            trials=TrialsConfig(is_trial, (batch_size,), (learning_rate,), (num_train_epochs,)),
        )
