"""The settings of a pre-training run."""

from typing import Annotated, Any, ClassVar

import msgspec

from bert_tf.config import ModelFiles
from bert_tf.data_report.findings import AllowUnusualData
from bert_tf.distribution.devices import DistributionConfig
from bert_tf.optimization.settings import SecondSchedule
from bert_tf.pretraining.recipes import Objective
from bert_tf.runtime.errors import InputError
from bert_tf.runtime.settings import (
    FIT,
    MODEL,
    PROGRAMS,
    Condition,
    FiniteAboveZero,
    Settings,
    about,
    not_with,
    only_with,
)
from bert_tf.training.settings import SecondBatch, TrainingConfig

_EVALUATES, _HAS_TWO_SCHEDULES = only_with("eval_input_file"), only_with("second_learning_rate")


class PretrainingData(Settings, frozen=True):
    """Examples of the same length.

    Attributes:
      flag_name: the flag that gives the files, for messages.
    """

    input_file: Annotated[
        str,
        about("TFRecord files: names and glob patterns, separated by commas.", group="Model, data and directories"),
        PROGRAMS,
    ]
    max_seq_length: Annotated[int, about("Length of the sequences in tokens, as in the data.")] = 128
    max_predictions_per_seq: Annotated[int, about("Masked positions per sequence, as in the data.")] = 20
    flag_name: str = "--input_file"

    @property
    def predictions_flag(self) -> str:
        """The flag of `max_predictions_per_seq`, for messages."""
        return self.flag_name.replace("input_file", "max_predictions_per_seq")


class SecondPhase(Settings, frozen=True):
    """The second phase of pre-training, with longer sequences (the last 10% of the steps in the paper).

    Attributes:
      reset_moments: by default, the moments are kept.
    """

    needs: ClassVar[tuple[Condition, ...]] = (only_with("second_input_file"),)

    flag_prefix: ClassVar[str] = "second_"

    input_file: Annotated[
        str | None, about("TFRecord files of a second phase with longer sequences.", group="Second phase")
    ] = None
    max_seq_length: Annotated[int, about("Length of the second phase's sequences.")] = 512
    max_predictions_per_seq: Annotated[int, about("Masked positions per sequence in the second phase.")] = 77
    proportion: Annotated[
        float, about("Fraction of the steps in the second phase.", flag="second_phase_proportion", ge=0, le=1)
    ] = 0.1
    train_batch_size: Annotated[
        int | None, about("Examples in a step of the second phase. Default: as in the first phase.")
    ] = None
    gradient_accumulation_steps: Annotated[
        int | None, about("Micro-batches per batch in the second phase. Default: as in the first phase.")
    ] = None
    learning_rate: Annotated[
        FiniteAboveZero | None, about("Peak learning rate of the second phase. Default: one schedule for both phases.")
    ] = None
    num_warmup_steps: Annotated[
        int | None, about("Warm-up steps of --second_learning_rate. Default: 0."), _HAS_TWO_SCHEDULES
    ] = None
    reset_moments: Annotated[
        bool | None, about("Set the optimizer's moments to 0 before the second phase."), _HAS_TWO_SCHEDULES
    ] = None


class HeldOutConfig(Settings, frozen=True):
    """Settings of evaluations during and after training.

    Attributes:
      input_file: held-out data.
    """

    flag_prefix: ClassVar[str] = "eval_"

    input_file: Annotated[
        str | None,
        about("Held-out TFRecord files to evaluate during training.", group="What to do"),
        only_with("do_train"),
        PROGRAMS,
    ] = None
    max_seq_length: Annotated[
        int | None, about("Sequence length of --eval_input_file. Default: as in training."), _EVALUATES
    ] = None
    max_predictions_per_seq: Annotated[
        int | None, about("Masked positions per sequence of --eval_input_file. Default: as in training."), _EVALUATES
    ] = None
    steps: Annotated[
        int, about("Training steps between two evaluations on --eval_input_file.", ge=1), PROGRAMS, _EVALUATES
    ] = 1000
    batch_size: Annotated[int, about("Examples in an evaluation batch, on all devices.", ge=1), PROGRAMS] = 8
    max_steps: Annotated[
        int, about("Largest number of batches in an evaluation.", flag="max_eval_steps", ge=1), PROGRAMS
    ] = 100
    use_best_checkpoint: Annotated[
        bool,
        about("Use the weights with the lowest loss on --eval_input_file.", flag="use_best_checkpoint"),
        _EVALUATES,
    ] = False


class PretrainingConfig(Settings, frozen=True, kw_only=True):
    """The settings of pre-training.

    Attributes:
      objective: mlm_nsp is masked LM and next sentence prediction, mlm is masked LM only, and ltr is a left-to-right LM
        (paper, Table 5).

    Raises:
      InputError: if a value is out of bounds, or a setting has no effect because of other settings.
    """

    data: PretrainingData
    model: Annotated[ModelFiles, PROGRAMS] = ModelFiles()
    objective: Annotated[
        Objective,
        about(
            "Masked LM with or without next sentence prediction, or left-to-right LM.",
            group="Model, data and directories",
        ),
        MODEL,
    ] = "mlm_nsp"
    allow_changed_settings: Annotated[bool, about("Resume a run even if its settings have changed.")] = False
    allow_unusual_data: AllowUnusualData = False
    do_train: Annotated[bool, about("Train.", group="What to do"), PROGRAMS] = False
    do_eval: Annotated[
        bool, about("After training, evaluate on --second_input_file if given, or else on --input_file."), PROGRAMS
    ] = False
    held_out: Annotated[HeldOutConfig, FIT] = HeldOutConfig()
    num_train_steps: Annotated[int, about("Step at which training ends.", group="Training"), FIT] = 100000
    num_train_epochs: Annotated[
        FiniteAboveZero | None,
        about("Number of passes over --input_file; overrides --num_train_steps."),
        not_with("second_input_file"),
        FIT,
    ] = None
    num_warmup_steps: Annotated[int, about("Steps during which the learning rate rises."), PROGRAMS] = 10000
    warmup_proportion: Annotated[
        Annotated[float, msgspec.Meta(ge=0, le=1)] | None,
        about("Fraction of steps with rising learning rate; overrides --num_warmup_steps."),
    ] = None
    training: TrainingConfig = TrainingConfig()
    second: Annotated[SecondPhase, PROGRAMS] = SecondPhase()
    distribution: Annotated[DistributionConfig, MODEL] = DistributionConfig()
    flags: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.second.learning_rate is not None and not self.second.input_file:
            raise InputError(
                "--second_input_file: required by --second_learning_rate, or by the --recipe that sets it. Pass it."
            )
        if self.do_train:
            self.training_config.check_batch()

    @property
    def phases(self) -> list[PretrainingData]:
        """The data of each phase."""
        second = self.second
        lengths = (second.max_seq_length, second.max_predictions_per_seq)
        more = [PretrainingData(second.input_file, *lengths, "--second_input_file")] if second.input_file else []
        return [self.data, *more]

    @property
    def phase_ends(self) -> list[int]:
        """The step at which each phase ends."""
        first = [round(self.num_train_steps * (1 - self.second.proportion))] if self.second.input_file else []
        return [*first, self.num_train_steps]

    @property
    def held_out_data(self) -> PretrainingData | None:
        """The data that is evaluated during training."""
        held_out, data = self.held_out, self.data
        if not held_out.input_file:
            return None
        return PretrainingData(
            held_out.input_file,
            held_out.max_seq_length or data.max_seq_length,
            held_out.max_predictions_per_seq or data.max_predictions_per_seq,
            "--eval_input_file",
        )

    @property
    def training_config(self) -> TrainingConfig:
        """The training settings, with the numbers of steps and the second phase."""
        training, second, start = self.training, self.second, self.phase_ends[0]
        steps = {"num_train_steps": self.num_train_steps, "num_warmup_steps": self.num_warmup_steps}
        schedule, batch = None, None
        if second.learning_rate is not None:
            warmup, resets = second.num_warmup_steps or 0, bool(second.reset_moments)
            schedule = SecondSchedule(start, second.learning_rate, warmup, resets)
        if second.train_batch_size is not None or second.gradient_accumulation_steps is not None:
            sizes = [
                getattr(training if getattr(second, name) is None else second, name)
                for name in ("train_batch_size", "gradient_accumulation_steps")
            ]
            batch = SecondBatch(start, *sizes)
        optimizer = training.optimizer.replace(**steps, second_schedule=schedule)
        return training.replace(optimizer=optimizer, second_batch=batch)
