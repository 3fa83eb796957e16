"""The flags for devices and training."""

from absl import flags

from bert_tf.distribution.devices import STRATEGIES, DistributionConfig
from bert_tf.finetuning.feature_sets import MIN_BATCHES_TO_GROUP
from bert_tf.optimization.settings import CLIPPINGS, OPTIMIZERS, OptimizerConfig
from bert_tf.program_flags import values
from bert_tf.training.settings import DTYPES, GRADIENT_SUM_DTYPES, TrainingConfig

flags.disclaim_key_flags()


class DistributionFlags:
    """Defines the flags for the devices."""

    def __init__(self) -> None:
        string = flags.DEFINE_string
        self._use_tpu = flags.DEFINE_bool("use_tpu", False, "Run on a TPU, like --distribution_strategy=tpu.")
        self._tpu_name = string("tpu_name", None, "The TPU's name or grpc:// address, or 'local' on a TPU VM.")
        self._tpu_zone = string("tpu_zone", None, "The TPU's zone, if it can't be detected.")
        self._gcp_project = string("gcp_project", None, "The TPU's project, if it can't be detected.")
        self._master = string("master", None, "The TPU's grpc:// address, if --tpu_name is not given.")
        self._num_tpu_cores = flags.DEFINE_integer("num_tpu_cores", 0, "Number of cores the TPU must have; 0 for any.")
        self._worker_timeout = flags.DEFINE_integer(
            "worker_timeout",
            DistributionConfig.worker_timeout,
            "With several workers, the seconds without a sign of life after which one is taken for dead.",
            lower_bound=1,
        )
        self._allow_tf32 = flags.DEFINE_bool(
            "allow_tf32", False, "Let GPUs multiply float32 numbers with the precision of TensorFloat-32."
        )
        self._deterministic = flags.DEFINE_bool(
            "deterministic", False, "Compute the same numbers in each run on GPUs too, which is slower there."
        )
        self._strategy = flags.DEFINE_enum("distribution_strategy", "one_device", STRATEGIES, "The devices to run on.")

    def config(self) -> DistributionConfig:
        """Returns the values of the flags, which must have been parsed.

        Raises:
          InputError: if TF_CONFIG doesn't fit them.
        """
        config = DistributionConfig(
            distribution_strategy="tpu" if self._use_tpu.value else self._strategy.value,
            tpu_name=self._tpu_name.value or self._master.value or "",
            tpu_zone=self._tpu_zone.value or "",
            gcp_project=self._gcp_project.value or "",
            num_tpu_cores=self._num_tpu_cores.value,
            worker_timeout=self._worker_timeout.value,
            allow_tf32=self._allow_tf32.value,
            deterministic=self._deterministic.value,
        )
        config.check_tf_config()
        return config


class TrainingFlags:
    """Defines the flags for training."""

    def __init__(self) -> None:
        integer, boolean, number = flags.DEFINE_integer, flags.DEFINE_bool, flags.DEFINE_float
        # By the names of the fields of OptimizerConfig and TrainingConfig.
        self._optimizer = {
            "learning_rate": number("learning_rate", 5e-5, "Peak learning rate."),
            "optimizer": flags.DEFINE_enum("optimizer", "adamw", list(OPTIMIZERS), "The release's AdamW, or LAMB."),
            "bias_correction": boolean("bias_correction", False, "Correct the bias of Adam's means."),
            "beta_1": number("adam_beta_1", OptimizerConfig.beta_1, "Decay rate of the mean of the gradients."),
            "beta_2": number("adam_beta_2", OptimizerConfig.beta_2, "Decay rate of the mean of their squares."),
            "epsilon": number("adam_epsilon", OptimizerConfig.epsilon, "Added to the root of this mean."),
            "weight_decay_rate": number("weight_decay_rate", OptimizerConfig.weight_decay_rate, "Weight decay."),
            "clip_norm": number("clip_norm", OptimizerConfig.clip_norm, "Largest norm of the gradients; inf for any."),
            "layerwise_lr_decay": number(
                "layerwise_lr_decay",
                OptimizerConfig.layerwise_lr_decay,
                "Factor of the rate from a block to the one below.",
            ),
            "lr_decay_power": number("lr_decay_power", OptimizerConfig.lr_decay_power, "1: linear decay; 0: none."),
            "clip_gradients": flags.DEFINE_enum(
                "clip_gradients",
                "global",
                CLIPPINGS,
                "global: clip the gradient of the whole batch; per_replica: each device clips the gradient of its own "
                "part of the batch, and the results are added up, as in the release on a TPU.",
            ),
        }
        self._training = {
            "train_batch_size": integer("train_batch_size", 32, "Examples in a training step, on all devices."),
            "save_checkpoints_steps": integer("save_checkpoints_steps", 1000, "Number of steps between checkpoints."),
            "iterations_per_loop": integer("iterations_per_loop", 1000, "Most steps that a TPU runs in one call."),
            "dtype": flags.DEFINE_enum("dtype", "float32", list(DTYPES), "The type of matrix products."),
            "gradient_sum_dtype": flags.DEFINE_enum(
                "gradient_sum_dtype",
                "float32",
                list(GRADIENT_SUM_DTYPES),
                "The type in which replicas add up their gradients.",
            ),
            "jit_compile": boolean("jit_compile", False, "Compile the training step with XLA."),
            "gradient_accumulation_steps": integer(
                "gradient_accumulation_steps", 1, "Number of parts into which a batch is split."
            ),
            "recompute_gradients": boolean("recompute_gradients", False, "Compute blocks twice, which saves memory."),
            "keep_checkpoint_max": integer("keep_checkpoint_max", 5, "Number of checkpoints that are kept; 0 for all."),
            "log_steps": integer("log_steps", 100, "Steps between records in metrics.jsonl and TensorBoard."),
            "max_nonfinite_steps": integer(
                "max_nonfinite_steps", 0, "Number of steps with a loss or gradient that is not finite that are skipped."
            ),
            "peak_tflops": number("peak_tflops", 0.0, "Peak TFLOP/s of all devices, for the utilisation."),
            "detailed_metrics": boolean(
                "detailed_metrics",
                False,
                "Log also the gradient's norm in each part of the model, the largest loss, the share of the time that "
                "is spent waiting for input, and the memory of the process.",
            ),
            "seed": integer("random_seed", 12345, "The seed of initial values, data order and dropout."),
        }
        self._profile_steps = flags.DEFINE_string(
            "profile_steps", None, "Write a trace for TensorBoard; 100:105 for five steps after step 100."
        )

    @property
    def train_batch_size(self) -> int:
        """The number of examples in a step."""
        return self._training["train_batch_size"].value

    @property
    def learning_rate(self) -> float:
        """The peak learning rate."""
        return self._optimizer["learning_rate"].value

    @property
    def random_seed(self) -> int:
        """The seed; if several seeds are tried, the first one."""
        return self._training["seed"].value

    def config(self, output_dir: str, num_train_steps: int, num_warmup_steps: int) -> TrainingConfig:
        """Returns the values of the flags, which must have been parsed.

        Raises:
          InputError: if a number is out of range.
        """
        optimizer = OptimizerConfig(
            num_train_steps=num_train_steps,
            num_warmup_steps=num_warmup_steps,
            **{name: flag.value for name, flag in self._optimizer.items()},
        )
        return TrainingConfig(
            output_dir=output_dir,
            optimizer=optimizer,
            profile_steps=values.step_range(self._profile_steps),
            **{name: flag.value for name, flag in self._training.items()},
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
            "max_steps",
            0,
            "End fine-tuning after this number of steps, whatever --num_train_epochs says; 0 for no such end.",
        )
        flags.DEFINE_bool(
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
    def max_steps(self) -> int:
        """The number of steps, whatever the number of epochs says; 0 for no such end."""
        return self._max_steps.value
