"""The flags that several programs share; an entry script defines a group by making an object of its class.

Names and defaults are the release's; what is new stands behind them.
"""

import dataclasses
from typing import Any

from absl import flags

from bert_tf.config import RELEASED_SIZES, BertConfig
from bert_tf.finetuning.feature_sets import MIN_BATCHES_TO_GROUP
from bert_tf.model.bilstm import BiLstmConfig
from bert_tf.optimization import OPTIMIZERS, OptimizerConfig
from bert_tf.runtime.distribution import STRATEGIES, DistributionConfig
from bert_tf.runtime.files import InputError
from bert_tf.serving import saved_model
from bert_tf.serving.saved_model import ExportConfig
from bert_tf.tokenization.vocabulary import load_vocab
from bert_tf.training.contract import DTYPES, TrainingConfig

flags.disclaim_key_flags()

# The paper's pre-training (section 3.1 and appendix A.2); learning rate decay, L2 rate and dropout are fixed or in the
# config anyway.
_PAPER = {"train_batch_size": 256, "num_train_steps": 1_000_000, "num_warmup_steps": 10_000, "learning_rate": 1e-4}
RECIPES = {f"bert_{size}": {"model_size": size, **_PAPER} for size in ("base", "large")}


def apply_recipe(name: str | None) -> None:
    """Sets the flags of a recipe that weren't given."""
    for flag, value in RECIPES.get(name, {}).items():
        flags.FLAGS.set_default(flag, value)


class ModelSizeFlags:
    """Defines the flags that give a model's size where there is no config file."""

    def __init__(self) -> None:
        self._size = flags.DEFINE_enum(
            "model_size", None, list(RELEASED_SIZES), "A released size, in place of --bert_config_file."
        )
        integer = flags.DEFINE_integer
        self._changes = {
            "num_hidden_layers": integer("num_hidden_layers", None, "Blocks, other than those of --model_size."),
            "hidden_size": integer("hidden_size", None, "Width, other than that of --model_size."),
            "num_attention_heads": integer("num_attention_heads", None, "Heads, other than those of --model_size."),
            "max_position_embeddings": integer("max_position_embeddings", None, "Positions, other than 512."),
        }

    def config(self, config_file: str | None, vocab_file: str | None) -> BertConfig:
        """The config file's, or that of the size (the paper's Table 6 varies layers, width and heads).

        A config file goes before the size of a recipe.

        Raises:
          InputError: if both are given, or neither, or the size of the vocabulary isn't known.
        """
        changes = {name: flag.value for name, flag in self._changes.items() if flag.value is not None}
        if config_file and not (self._size.present or changes):
            return BertConfig.from_json_file(config_file)
        if config_file or not self._size.value:
            raise InputError("Either --bert_config_file or --model_size (with the flags that change it) must be given.")
        if not vocab_file:
            raise InputError("--model_size needs --vocab_file, whose length is the model's vocab_size.")
        config = BertConfig.named(self._size.value, vocab_size=len(load_vocab(vocab_file)))
        if "hidden_size" in changes:
            changes["intermediate_size"] = 4 * changes["hidden_size"]
        return dataclasses.replace(config, **changes)


class DistributionFlags:
    """Defines the flags that say where to run."""

    def __init__(self) -> None:
        string = flags.DEFINE_string
        self._use_tpu = flags.DEFINE_bool("use_tpu", False, "Run on a TPU; as --distribution_strategy=tpu.")
        self._tpu_name = string("tpu_name", None, "Name or grpc:// address of the TPU, or 'local' on a TPU VM.")
        self._tpu_zone = string("tpu_zone", None, "Zone of the TPU, where it isn't found out by itself.")
        self._gcp_project = string("gcp_project", None, "Project of the TPU, where it isn't found out by itself.")
        self._master = string("master", None, "grpc:// address of the TPU, where --tpu_name is not given.")
        self._num_tpu_cores = flags.DEFINE_integer("num_tpu_cores", 8, "Cores the TPU must have; 0 for any number.")
        self._strategy = flags.DEFINE_enum("distribution_strategy", "one_device", STRATEGIES, "Where to run.")

    def config(self) -> DistributionConfig:
        """The flags' values, once they are parsed."""
        return DistributionConfig(
            distribution_strategy="tpu" if self._use_tpu.value else self._strategy.value,
            tpu_name=self._tpu_name.value or self._master.value or "",
            tpu_zone=self._tpu_zone.value or "",
            gcp_project=self._gcp_project.value or "",
            num_tpu_cores=self._num_tpu_cores.value,
        )


class TrainingFlags:
    """Defines the flags that say how to train."""

    def __init__(self) -> None:
        integer, boolean = flags.DEFINE_integer, flags.DEFINE_bool
        self._train_batch_size = integer("train_batch_size", 32, "Examples in a training step, over all devices.")
        self._learning_rate = flags.DEFINE_float("learning_rate", 5e-5, "Peak learning rate.")
        self._save_checkpoints_steps = integer("save_checkpoints_steps", 1000, "Steps between checkpoints.")
        self._iterations_per_loop = integer("iterations_per_loop", 1000, "Most steps that a TPU runs in one go.")
        self._optimizer = flags.DEFINE_enum("optimizer", "adamw", OPTIMIZERS, "The release's, or LAMB.")
        self._bias_correction = boolean("bias_correction", False, "Correct Adam's means for their zero start.")
        self._dtype = flags.DEFINE_enum("dtype", "float32", list(DTYPES), "What products are computed in.")
        self._jit_compile = boolean("jit_compile", False, "Compile the training step with XLA.")
        self._accumulation = integer("gradient_accumulation_steps", 1, "Parts that a batch is computed in.")
        self._recompute = boolean("recompute_gradients", False, "Compute blocks twice to save memory.")
        self._keep_checkpoint_max = integer("keep_checkpoint_max", 5, "Checkpoints that are kept; 0 for all.")
        self._log_steps = integer("log_steps", 100, "Steps between lines of metrics.jsonl and TensorBoard.")
        self._peak_tflops = flags.DEFINE_float("peak_tflops", 0.0, "TFLOP/s of all devices, to report utilisation.")
        self._random_seed = integer("random_seed", 12345, "Seed of initial values, data order and dropout.")

    @property
    def train_batch_size(self) -> int:
        """Examples in a step, from which fine-tuning counts its steps."""
        return self._train_batch_size.value

    @property
    def learning_rate(self) -> float:
        """The peak."""
        return self._learning_rate.value

    @property
    def random_seed(self) -> int:
        """The first, where several are tried."""
        return self._random_seed.value

    def config(self, output_dir: str, num_train_steps: int, num_warmup_steps: int) -> TrainingConfig:
        """The flags' values, once they are parsed."""
        return TrainingConfig(
            output_dir=output_dir,
            optimizer=OptimizerConfig(
                self._learning_rate.value,
                num_train_steps,
                num_warmup_steps,
                bias_correction=self._bias_correction.value,
                optimizer=self._optimizer.value,
            ),
            train_batch_size=self._train_batch_size.value,
            save_checkpoints_steps=self._save_checkpoints_steps.value,
            keep_checkpoint_max=self._keep_checkpoint_max.value,
            iterations_per_loop=self._iterations_per_loop.value,
            log_steps=self._log_steps.value,
            seed=self._random_seed.value,
            dtype=self._dtype.value,
            jit_compile=self._jit_compile.value,
            gradient_accumulation_steps=self._accumulation.value,
            recompute_gradients=self._recompute.value,
            peak_tflops=self._peak_tflops.value,
        )


def define_group_by_length() -> flags.FlagHolder[bool | None]:
    """Defines the flag that says whether fine-tuning makes batches of examples of similar length."""
    return flags.DEFINE_bool(
        "group_by_length",
        None,
        "Put training examples of similar length into the same batch, which saves padding; by default where an epoch "
        f"has at least {MIN_BATCHES_TO_GROUP} batches, since it costs accuracy on small training sets.",
    )


class BiLstmFlags:
    """Defines the flags that put a BiLSTM on the encoder."""

    def __init__(self) -> None:
        self._layers = flags.DEFINE_integer(
            "bilstm_layers",
            0,
            "Layers of a BiLSTM between encoder and output layer (paper, Table 5); 0 for none, or for those of the run "
            "that the weights come from.",
            lower_bound=0,
        )
        self._units = flags.DEFINE_integer(
            "bilstm_units", BiLstmConfig.units, "Units of each direction of a BiLSTM.", lower_bound=1
        )

    @property
    def units(self) -> int:
        """Of each direction."""
        return self._units.value

    def config(self) -> BiLstmConfig | None:
        """The flags' values, once they are parsed; None if no BiLSTM is asked for."""
        return BiLstmConfig(self._layers.value, self.units) if self._layers.value else None


class ExportFlags:
    """Defines the flags that say how a model is exported."""

    def __init__(self) -> None:
        self._export_dir = flags.DEFINE_string("export_dir", None, "A new folder for the model that can be served.")
        self._dtype = flags.DEFINE_enum(
            "export_dtype", "float32", saved_model.DTYPES, "What exported weights are stored and computed in."
        )
        self._quantize = flags.DEFINE_enum(
            "export_quantize", "none", saved_model.QUANTIZATIONS, "int8: write a LiteRT model of bytes besides."
        )
        self._onnx = flags.DEFINE_bool("export_onnx", False, "Write an ONNX model besides; needs tf2onnx.")
        self._text = flags.DEFINE_bool(
            "export_text", True, "Take raw strings; without, only ids are taken, and tensorflow-text isn't needed."
        )

    @property
    def export_dir(self) -> str:
        """The folder."""
        return self._export_dir.value

    def config(self, **settings: Any) -> ExportConfig:
        """The flags' values, once they are parsed, with what else is set.

        Raises:
          InputError: if the folder is not given, or isn't new.
        """
        saved_model.check_export_dir(self.export_dir)
        return ExportConfig(self._dtype.value, self._quantize.value, self._onnx.value, self._text.value, **settings)


def numbers(flag: flags.FlagHolder, kind: type[int] | type[float]) -> list:
    """The values of a list flag, as numbers.

    Raises:
      InputError: if one is none, or there are none.
    """
    try:
        values = [kind(value) for value in flag.value]
    except ValueError:
        values = []
    if not values:
        raise InputError(f"--{flag.name} is {','.join(flag.value)!r}, but numbers with commas between are expected.")
    return values
