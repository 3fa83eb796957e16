"""The flags for the model: its files, its size, and what is put on top of it."""

from typing import TYPE_CHECKING

from absl import flags

from bert_tf.config import RELEASED_SIZES, BertConfig, BiLstmConfig
from bert_tf.program_flags import values
from bert_tf.runtime.files import InputError
from bert_tf.tokenization import FullTokenizer
from bert_tf.tokenization.vocabulary import load_vocab

if TYPE_CHECKING:
    from bert_tf.checkpoints import pretrained

flags.disclaim_key_flags()


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

    def find(self, output_dir: str = "") -> "pretrained.FoundFiles":
        """Finds the config and the vocabulary; see `pretrained.find_files`."""
        from bert_tf.checkpoints import pretrained

        return pretrained.find_files(self.init_checkpoint, output_dir, self._config_file.value, self._vocab_file.value)

    def read(self, output_dir: str = "") -> tuple[BertConfig, FullTokenizer]:
        """Reads the model's config, and makes its tokenizer.

        Args:
          output_dir: the run's folder; see `pretrained.find_files`.

        Raises:
          InputError: if one of them is neither given nor in the model's folder, or if they don't fit together.
        """
        from bert_tf.checkpoints import pretrained

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
        self._changes = values.SettingsFlags(BertConfig, **dict.fromkeys(BertConfig.__struct_fields__))

    def config(self, config_file: str | None, vocab_file: str | None, found: str | None = None) -> BertConfig:
        """Returns the config of the file, or of the size flags (the paper's Table 6 varies layers, width and heads).

        A config file has priority over what a recipe sets.

        Args:
          config_file: the config that was given.
          vocab_file: the vocabulary, the size of which the size flags need.
          found: the config in the model's folder, for use if neither a config nor a size is given.

        Raises:
          InputError: if both a config and a size are given, or neither, or there is no vocabulary to count.
        """
        is_given = self._size.present or self._changes.are_present
        if (config_file or found) and not is_given:
            return BertConfig.from_json_file(config_file or found)
        if config_file or not self._size.value:
            raise InputError("Either --bert_config_file or --model_size (with the flags that change it) must be given.")
        if not vocab_file:
            raise InputError("--model_size needs --vocab_file, because it determines the vocab_size of the model.")
        changes = {name: value for name, value in self._changes.given().items() if value is not None}
        return BertConfig.named(self._size.value, vocab_size=len(load_vocab(vocab_file)), **changes)


class FreshHeadFlag:
    """Defines the flag for a new output layer on a model that was fine-tuned before."""

    def __init__(self) -> None:
        self._flag = flags.DEFINE_bool(
            "reset_head",
            False,
            "Train a new output layer, although --init_checkpoint was fine-tuned and has one. Otherwise its output "
            "layer is reused, with its classes matched by name.",
        )

    @property
    def value(self) -> bool:
        """The flag's value."""
        return self._flag.value

    def check(self, do_train: bool) -> None:
        """Raises an InputError if a new output layer would be used without training."""
        if self.value and not do_train:
            raise InputError("--reset_head: a new output layer must be trained, but --do_train is not given.")


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
            "bilstm_units", BiLstmConfig().units, "Number of units in each direction of a BiLSTM.", lower_bound=1
        )

    @property
    def units(self) -> int:
        """The number of units in each direction."""
        return self._units.value

    def config(self) -> BiLstmConfig | None:
        """Returns the sizes of the BiLSTM; None if there is none."""
        return BiLstmConfig(self._layers.value, self._units.value) if self.is_given else None

    @property
    def is_given(self) -> bool:
        """Whether there is to be such a BiLSTM."""
        return self._layers.value > 0
