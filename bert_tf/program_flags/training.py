"""The flags for devices and training."""

from absl import flags

from bert_tf.distribution.devices import DistributionConfig
from bert_tf.finetuning.feature_sets import MIN_BATCHES_TO_GROUP
from bert_tf.optimization.settings import OptimizerConfig
from bert_tf.program_flags import values
from bert_tf.training.settings import TrainingConfig

flags.disclaim_key_flags()


class DistributionFlags:
    """Defines the flags for the devices."""

    def __init__(self) -> None:
        self._use_tpu = flags.DEFINE_bool("use_tpu", False, "Run on a TPU, like --distribution_strategy=tpu.")
        self._tpu_name = flags.DEFINE_string("tpu_name", None, "The TPU's name or address, or 'local' on a TPU VM.")
        self._master = flags.DEFINE_string("master", None, "The TPU's grpc:// address, if --tpu_name is not given.")
        self._settings = values.SettingsFlags(DistributionConfig)

    def config(self) -> DistributionConfig:
        """Returns the values of the flags, which must have been parsed.

        Raises:
          InputError: if a value can't be used, or TF_CONFIG doesn't fit them.
        """
        given = self._settings.given() | {"tpu_name": self._tpu_name.value or self._master.value or ""}
        config = DistributionConfig(**given | ({"distribution_strategy": "tpu"} if self._use_tpu.value else {}))
        config.check_tf_config()
        return config


class TrainingFlags:
    """Defines the flags for training."""

    def __init__(self) -> None:
        self._optimizer = values.SettingsFlags(OptimizerConfig, learning_rate=5e-5)
        self._training = values.SettingsFlags(TrainingConfig)
        self._profile_steps = flags.DEFINE_string(
            "profile_steps", None, "Write a trace for TensorBoard; 100:105 for five steps after step 100."
        )

    @property
    def train_batch_size(self) -> int:
        """The number of examples in a step."""
        return self._training.given()["train_batch_size"]

    @property
    def learning_rate(self) -> float:
        """The peak learning rate."""
        return self._optimizer.given()["learning_rate"]

    @property
    def random_seed(self) -> int:
        """The seed; if several seeds are tried, the first one."""
        return self._training.given()["seed"]

    def config(self, output_dir: str, num_train_steps: int, num_warmup_steps: int) -> TrainingConfig:
        """Returns the values of the flags, which must have been parsed.

        Raises:
          InputError: if a value can't be used.
        """
        steps = {"num_train_steps": num_train_steps, "num_warmup_steps": num_warmup_steps}
        return TrainingConfig(
            output_dir=output_dir,
            optimizer=OptimizerConfig(**self._optimizer.given(), **steps),
            profile_steps=values.step_range(self._profile_steps),
            **self._training.given(),
        )


class FinetuningFlags:
    """Defines the flags of how long fine-tuning trains, and on which batches."""

    def __init__(self) -> None:
        self._num_train_epochs = flags.DEFINE_float(
            "num_train_epochs", 3.0, "Number of passes over the training set, or over each training file."
        )
        self._warmup_proportion = flags.DEFINE_float(
            "warmup_proportion", 0.1, "Share of steps with rising learning rate.", lower_bound=0, upper_bound=1
        )
        self._max_steps = flags.DEFINE_integer(
            "num_train_steps",
            0,
            "End fine-tuning after this number of steps, whatever --num_train_epochs says; 0 for no such end.",
        )
        self._group_by_length = flags.DEFINE_bool(
            "group_by_length",
            None,
            "Put training examples of similar length into the same batch, which saves padding. By default this is done "
            f"if an epoch has at least {MIN_BATCHES_TO_GROUP} batches, because it reduces accuracy on small training "
            "sets.",
        )

    @property
    def num_train_epochs(self) -> float:
        """Passes over the training set."""
        return self._num_train_epochs.value

    @property
    def warmup_proportion(self) -> float:
        """The share of the steps in which the learning rate rises."""
        return self._warmup_proportion.value

    @property
    def group_by_length(self) -> bool | None:
        """Whether training examples of similar length share a batch; None if this depends on the training set."""
        return self._group_by_length.value

    @property
    def num_train_steps(self) -> int:
        """The number of steps, whatever the number of epochs says; 0 for no such end."""
        return self._max_steps.value
