"""The flags that several programs share; a program defines a group of flags by creating an object of its class.

Each group has first the release's flags with their names and defaults, and then the new ones.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from absl import flags

from bert_tf.checkpoints import pretrained
from bert_tf.config import RELEASED_SIZES, BertConfig
from bert_tf.finetuning.feature_sets import MIN_BATCHES_TO_GROUP
from bert_tf.model.bilstm import BiLstmConfig
from bert_tf.optimization import CLIPPINGS, OPTIMIZERS, OptimizerConfig
from bert_tf.runtime import files
from bert_tf.runtime.distribution import STRATEGIES, DistributionConfig
from bert_tf.runtime.files import InputError
from bert_tf.serving import saved_model
from bert_tf.serving.saved_model import ExportConfig
from bert_tf.tokenization import FullTokenizer
from bert_tf.tokenization.vocabulary import load_vocab
from bert_tf.training.contract import DTYPES, TrainingConfig

flags.disclaim_key_flags()


def set_defaults(values: Mapping[str, Any]) -> None:
    """Sets flags, except those that were given: to the settings of a recipe, for example."""
    for flag, value in values.items():
        flags.FLAGS.set_default(flag, value)


class ModelFlags:
    """Defines the flags for the model that a program begins with, and finds the files that belong to it.

    Args:
      with_casing: whether the program tokenizes, and so has --do_lower_case.
    """

    def __init__(self, with_casing: bool = True) -> None:
        string = flags.DEFINE_string
        self._config_file = string(
            "bert_config_file", None, "The model's bert_config.json; by default the one in the model's folder."
        )
        self._vocab_file = string(
            "vocab_file", None, "The model's vocab.txt; by default the one in the model's folder."
        )
        self._init_checkpoint = string(
            "init_checkpoint",
            None,
            "The pre-trained model: a checkpoint, or a folder of the release, of a training run or of Hugging Face; a "
            "released zip file or its URL; or a repository on the Hugging Face Hub: owner/name, or "
            "hf://owner/name@revision.",
        )
        self._do_lower_case = None
        if with_casing:
            self._do_lower_case = flags.DEFINE_bool(
                "do_lower_case", None, "True for uncased models, False for cased ones; by default what the model is."
            )

    @property
    def bert_config_file(self) -> str | None:
        """The config that was given."""
        return self._config_file.value

    @property
    def init_checkpoint(self) -> str | None:
        """The pre-trained model, as the flag names it."""
        return self._init_checkpoint.value

    def find(self, output_dir: str = "") -> pretrained.FoundFiles:
        """Finds the config and the vocabulary; see `pretrained.find_files`."""
        return pretrained.find_files(self.init_checkpoint, output_dir, self._config_file.value, self._vocab_file.value)

    def read(self, output_dir: str = "") -> tuple[BertConfig, FullTokenizer]:
        """Reads the model's config, and makes its tokenizer.

        Args:
          output_dir: the run's folder; see `pretrained.find_files`.

        Raises:
          InputError: if one of them is neither given nor in the model's folder, or if they don't fit together.
        """
        found = self.find(output_dir)
        why = f"there is no such file in {found.folder}" if found.folder else "--init_checkpoint is not given"
        for flag, path in ((self._config_file, found.config_file), (self._vocab_file, found.vocab_file)):
            if not path:
                raise InputError(f"--{flag.name} is needed, because {why}.")
        config = BertConfig.from_json_file(found.config_file)
        return config, pretrained.tokenizer_of(
            found.folder, config, found.vocab_file, self._do_lower_case.value, self.init_checkpoint
        )


class ModelSizeFlags:
    """Defines the flags for a model's size, which replace a config file."""

    def __init__(self) -> None:
        self._size = flags.DEFINE_enum(
            "model_size", None, list(RELEASED_SIZES), "A released size, instead of --bert_config_file."
        )
        integer = flags.DEFINE_integer
        self._changes = {
            "num_hidden_layers": integer("num_hidden_layers", None, "Number of blocks, instead of --model_size's."),
            "hidden_size": integer("hidden_size", None, "Hidden size, instead of --model_size's."),
            "num_attention_heads": integer("num_attention_heads", None, "Number of heads, instead of --model_size's."),
            "max_position_embeddings": integer("max_position_embeddings", None, "Number of positions, instead of 512."),
        }

    def config(self, config_file: str | None, vocab_file: str | None, found: str | None = None) -> BertConfig:
        """Returns the config of the file, or of the size flags (the paper's Table 6 varies layers, width and heads).

        A config file has priority over the size that a recipe sets.

        Args:
          config_file: the config that was given.
          vocab_file: the vocabulary, the size of which the size flags need.
          found: the config in the model's folder, for use if neither a config nor a size is given.

        Raises:
          InputError: if both a config and a size are given, or neither, or there is no vocabulary to count.
        """
        changes = {name: flag.value for name, flag in self._changes.items() if flag.value is not None}
        if (config_file or found) and not (self._size.present or changes):
            return BertConfig.from_json_file(config_file or found)
        if config_file or not self._size.value:
            raise InputError("Either --bert_config_file or --model_size (with the flags that change it) must be given.")
        if not vocab_file:
            raise InputError("--model_size needs --vocab_file, because it determines the vocab_size of the model.")
        config = BertConfig.named(self._size.value, vocab_size=len(load_vocab(vocab_file)))
        if "hidden_size" in changes:
            changes["intermediate_size"] = 4 * changes["hidden_size"]
        return dataclasses.replace(config, **changes)


class DistributionFlags:
    """Defines the flags for the devices."""

    def __init__(self) -> None:
        string = flags.DEFINE_string
        self._use_tpu = flags.DEFINE_bool("use_tpu", False, "Run on a TPU, like --distribution_strategy=tpu.")
        self._tpu_name = string("tpu_name", None, "The TPU's name or grpc:// address, or 'local' on a TPU VM.")
        self._tpu_zone = string("tpu_zone", None, "The TPU's zone, if it can't be detected.")
        self._gcp_project = string("gcp_project", None, "The TPU's project, if it can't be detected.")
        self._master = string("master", None, "The TPU's grpc:// address, if --tpu_name is not given.")
        self._num_tpu_cores = flags.DEFINE_integer("num_tpu_cores", 8, "Expected number of TPU cores; 0 for any.")
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
        """Returns the values of the flags, which must have been parsed."""
        return DistributionConfig(
            distribution_strategy="tpu" if self._use_tpu.value else self._strategy.value,
            tpu_name=self._tpu_name.value or self._master.value or "",
            tpu_zone=self._tpu_zone.value or "",
            gcp_project=self._gcp_project.value or "",
            num_tpu_cores=self._num_tpu_cores.value,
            worker_timeout=self._worker_timeout.value,
            allow_tf32=self._allow_tf32.value,
            deterministic=self._deterministic.value,
        )


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
            profile_steps=step_range(self._profile_steps),
            **{name: flag.value for name, flag in self._training.items()},
        )


def define_group_by_length() -> flags.FlagHolder[bool | None]:
    """Defines the flag for batches of examples of similar length in fine-tuning."""
    return flags.DEFINE_bool(
        "group_by_length",
        None,
        "Put training examples of similar length into the same batch, which saves padding. By default this is done "
        f"if an epoch has at least {MIN_BATCHES_TO_GROUP} batches, because it reduces accuracy on small training sets.",
    )


def define_max_steps() -> flags.FlagHolder[int]:
    """Defines the flag for the number of fine-tuning steps."""
    return flags.DEFINE_integer(
        "max_steps",
        0,
        "End fine-tuning after this number of steps, whatever --num_train_epochs says; 0 for no such end.",
    )


class FreshHeadFlag:
    """Defines the flag for a new output layer on a model that was fine-tuned before."""

    def __init__(self) -> None:
        self._flag = flags.DEFINE_bool(
            "fresh_head",
            False,
            "Train a new output layer, although --init_checkpoint was fine-tuned and has one. Otherwise its output "
            "layer is reused, with its classes matched by name.",
        )

    def value(self, do_train: bool) -> bool:
        """Returns the flag's value.

        Raises:
          InputError: if a new output layer would be used without training.
        """
        if self._flag.value and not do_train:
            raise InputError("--fresh_head: a new output layer must be trained, but --do_train is not given.")
        return self._flag.value


class BiLstmFlags:
    """Defines the flags for a BiLSTM on top of the encoder."""

    def __init__(self) -> None:
        self._layers = flags.DEFINE_integer(
            "bilstm_layers",
            0,
            "Number of layers of a BiLSTM between the encoder and the output layer (paper, Table 5); 0 for the BiLSTM "
            "of the run that the weights come from, or for none if it has none.",
            lower_bound=0,
        )
        self._units = flags.DEFINE_integer(
            "bilstm_units", BiLstmConfig.units, "Number of units in each direction of a BiLSTM.", lower_bound=1
        )

    @property
    def units(self) -> int:
        """The number of units in each direction."""
        return self._units.value

    def config(self) -> BiLstmConfig | None:
        """Returns the values of the flags, which must have been parsed; None without --bilstm_layers."""
        return BiLstmConfig(self._layers.value, self.units) if self._layers.value else None


class ExportFlags:
    """Defines the flags for exporting a model."""

    def __init__(self) -> None:
        self._export_dir = flags.DEFINE_string("export_dir", None, "A new folder for the exported model.")
        self._dtype = flags.DEFINE_enum(
            "export_dtype", "float32", saved_model.DTYPES, "The type of exported weights and of matrix products."
        )
        self._quantize = flags.DEFINE_enum(
            "export_quantize", "none", saved_model.QUANTIZATIONS, "int8: write also a LiteRT model with 8-bit weights."
        )
        self._onnx = flags.DEFINE_bool("export_onnx", False, "Write also an ONNX model; needs tf2onnx.")
        self._text = flags.DEFINE_bool(
            "export_text",
            True,
            "The exported model takes raw strings. If not, it takes only ids, and does not need tensorflow-text.",
        )

    @property
    def export_dir(self) -> str:
        """The folder of the exported model."""
        return self._export_dir.value

    def config(self, **settings: Any) -> ExportConfig:
        """Returns the values of the flags, which must have been parsed, and other settings of `ExportConfig`.

        Raises:
          InputError: if the folder is not given, or is not new.
        """
        files.check_new_folder(self.export_dir, "--export_dir")
        return ExportConfig(self._dtype.value, self._quantize.value, self._onnx.value, self._text.value, **settings)


def numbers(flag: flags.FlagHolder, kind: type[int] | type[float]) -> list:
    """Returns the values of a list flag as numbers.

    Raises:
      InputError: if there are no values, or one of them is not a number.
    """
    try:
        values = [kind(value) for value in flag.value]
    except ValueError:
        values = []
    if not values:
        raise InputError(f"--{flag.name} is {','.join(flag.value)!r}, but numbers separated by commas are expected.")
    return values


def step_range(flag: flags.FlagHolder[str | None]) -> tuple[int, int] | None:
    """Returns the two steps of a flag, such as 100:105; None if it is not given.

    Raises:
      InputError: if its value is something else.
    """
    if not flag.value:
        return None
    first, _, last = flag.value.partition(":")
    if not (first.isdecimal() and last.isdecimal()):
        raise InputError(f"--{flag.name} is {flag.value!r}, but two steps are expected, as in 100:105.")
    return int(first), int(last)
