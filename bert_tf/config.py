"""The model's configuration, in the format of the original `bert_config.json`. Unknown keys are errors.

As in the original code, the value "gelu" of `hidden_act` is the tanh form. Hugging Face's names for the tanh form are
"gelu_new" and "gelu_pytorch_tanh", and the name for the erf form is "gelu". This project's name for the erf form is
"gelu_erf". If a config is converted, the name changes and the function stays the same.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta

from bert_tf import hf_config
from bert_tf.runtime import json_files
from bert_tf.runtime.errors import InputError, check
from bert_tf.runtime.messages import say_once
from bert_tf.runtime.settings import MODEL, PROGRAMS, AbsentFrom, Field, FiniteFromZero, Settings, about

RELEASED_LAYER_NORM_EPSILON = 1e-12
# No machine can store more weights. If a config has more, a size is wrong.
_MAX_PARAMETERS = 10**12

Activation = Literal["gelu", "gelu_erf", "relu", "tanh", "linear"]
# How to compute the vector of a text from the hidden states of the tokens; see `sentence_vectors.VectorConfig`.
Pooling = Literal["mean", "max", "cls", "pooled"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
# The vector of a word: the mean of the hidden states of the tokens, or the hidden state of the first token.
WORD_POOLINGS = ("mean", "first")

_Size = Annotated[int, Meta(ge=1, le=10**9)]
_Probability = Annotated[float, Meta(ge=0, lt=1)]


class BertConfig(Settings, frozen=True):
    """The configuration of a BERT encoder, with the original names and defaults.

    Attributes:
      vocab_size: number of entries in the vocabulary.
      hidden_size: width of the encoder layers and the pooler (H in the paper).
      num_hidden_layers: number of encoder blocks (L in the paper).
      num_attention_heads: number of attention heads in each block (A in the paper).
      intermediate_size: width of the feed-forward layer.
      hidden_act: "gelu" (tanh form), "gelu_erf", "relu", "tanh" or "linear".
      hidden_dropout_prob: dropout rate of the embeddings and of both residual branches.
      attention_probs_dropout_prob: dropout rate of the attention probabilities.
      max_position_embeddings: longest sequence in tokens.
      type_vocab_size: number of segment ids. The original default is 16; all released checkpoints have 2.
      initializer_range: standard deviation of the truncated normal initializer.
      layer_norm_eps: epsilon under the square root of layer normalisation. The original code has no such key and uses
        1e-12. The value is written only if it is not 1e-12.
      mlm_hidden_act: the activation in the masked-LM head; None for `hidden_act`. KerasHub's models have another one.
      mlm_layer_norm_eps: the epsilon in the masked-LM head; None for `layer_norm_eps`.

    Raises:
      InputError: if a value is out of bounds or has the wrong type, or if the heads don't divide `hidden_size`.
    """

    vocab_size: _Size
    hidden_size: Annotated[_Size, about("Hidden size; overrides --model_size.")] = 768
    num_hidden_layers: Annotated[_Size, about("Number of layers; overrides --model_size.")] = 12
    num_attention_heads: Annotated[_Size, about("Number of attention heads; overrides --model_size.")] = 12
    intermediate_size: _Size = 3072
    hidden_act: Activation = "gelu"
    hidden_dropout_prob: Annotated[_Probability, about("Dropout rate of hidden states. Default: 0.1.")] = 0.1
    attention_probs_dropout_prob: Annotated[
        _Probability, about("Dropout rate of attention probabilities. Default: 0.1.")
    ] = 0.1
    max_position_embeddings: Annotated[_Size, about("Number of positions. Default: 512.")] = 512
    type_vocab_size: _Size = 16
    initializer_range: Annotated[FiniteFromZero, about("Standard deviation of the initial weights. Default: 0.02.")] = (
        0.02
    )
    layer_norm_eps: FiniteFromZero = RELEASED_LAYER_NORM_EPSILON
    mlm_hidden_act: Activation | None = None
    mlm_layer_norm_eps: FiniteFromZero | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_parameters > _MAX_PARAMETERS:
            raise InputError(f"the model would have {self.num_parameters:.1e} weights. Correct the sizes.")
        if self.hidden_size % self.num_attention_heads:
            problem = f"{self.hidden_size} is not a multiple of num_attention_heads ({self.num_attention_heads})"
            raise InputError(f"{problem}. Change one of them.", "hidden_size")

    @staticmethod
    def where(field: Field) -> str:
        """Returns the name of a field for messages."""
        return field.name

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def num_parameters(self) -> int:
        """The number of weights in embeddings and blocks, without biases and layer normalisations."""
        rows = self.vocab_size + self.max_position_embeddings + self.type_vocab_size
        return self.hidden_size * rows + self.num_hidden_layers * self._block_weights

    @property
    def _block_weights(self) -> int:
        return self.hidden_size * (4 * self.hidden_size + 2 * self.intermediate_size)

    def flops(self, length: Any, predictions: Any = 0) -> Any:
        """Returns the floating-point operations of the matrix multiplications in a forward pass over a sequence.

        A multiplication and an addition count as two operations. A training step takes three times as many: the forward
        pass, the gradients of inputs, and the gradients of weights.

        Args:
          length: the number of tokens, a number or a tensor.
          predictions: the number of predicted tokens, a number or a tensor.
        """
        of_token = self.num_hidden_layers * (self._block_weights + 2 * self.hidden_size * length)
        of_prediction = self.hidden_size * (self.hidden_size + self.vocab_size)
        return 2.0 * (length * of_token + predictions * of_prediction)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "config") -> "BertConfig":
        """Reads a config in the original format, or in Hugging Face's format if a key occurs only in that format.

        Args:
          values: the parsed JSON object.
          source: the source of the config, for messages.

        Raises:
          InputError: if a key of the original format is unknown, `vocab_size` is missing, or a value is invalid; the
            message names the key.
        """
        check(values, dict, source)
        if hf_config.is_hf(values):
            return check(hf_config.to_released(values, cls.__struct_fields__, source), cls, source)
        fields = {key: value for key, value in values.items() if key not in hf_config.UNREAD_RELEASED_KEYS}
        act = fields.get("hidden_act", "gelu")
        if isinstance(act, str | None):  # in the original code, None is the identity, and case does not matter
            fields["hidden_act"] = (act or "linear").lower()
        return check(fields, cls, source)

    @classmethod
    def from_json_file(cls, path: str, flag_name: str = "--bert_config_file") -> "BertConfig":
        """Reads `bert_config.json` (original format) or `config.json` (Hugging Face format).

        PyTorch models of 2018 have configs in the original format, but their "gelu" is the erf form.

        Args:
          path: the file.
          flag_name: the flag with the path, for messages.

        Raises:
          InputError: see `from_dict`; also if the file is missing, empty or not JSON.
        """
        values, source = json_files.read(path, flag_name), f"{flag_name} ({path})"
        check(values, dict, source)
        if (
            values.get("hidden_act", "gelu") == "gelu"
            and not hf_config.is_hf(values)
            and hf_config.is_next_to_pytorch(path)
        ):
            say_once(f"{source}: hidden_act gelu is the erf form, as in PyTorch, because the weights are PyTorch's.")
            values["hidden_act"] = "gelu_erf"
        return cls.from_dict(values, source)

    @classmethod
    def named(cls, size: str, vocab_size: int = 30522, **changes: Any) -> "BertConfig":
        """Returns the config of a released size: tiny, mini, small, medium, base or large.

        Args:
          size: the name of the size.
          vocab_size: the number of tokens in the vocabulary.
          **changes: values that replace values of the size. `intermediate_size` defaults to 4 * `hidden_size`.

        Raises:
          InputError: if the size or the name of a change is unknown, or a value is invalid.
        """
        if size not in RELEASED_SIZES:
            raise InputError(f"unknown model size {size!r}. Use one of {', '.join(RELEASED_SIZES)}.")
        layers, hidden = RELEASED_SIZES[size]
        sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": hidden // 64}
        values = {"vocab_size": vocab_size, **sizes, "type_vocab_size": 2, **changes}
        values.setdefault("intermediate_size", 4 * check(values["hidden_size"], int, f"size {size}, at hidden_size"))
        return cls.from_dict(values, source=f"size {size}")

    def to_dict(self) -> dict[str, Any]:
        """Returns the config with the original keys. Other keys are included if they differ from the original code."""
        omitted = {"layer_norm_eps": RELEASED_LAYER_NORM_EPSILON, "mlm_hidden_act": None, "mlm_layer_norm_eps": None}
        return {name: value for name, value in super().to_dict().items() if value != omitted.get(name, ...)}

    def to_json_string(self) -> str:
        """Returns the content of `bert_config.json` in the original format."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"

    def to_hf_dict(self, architecture: str = "BertModel") -> dict[str, Any]:
        """Returns the content of `config.json` in Hugging Face's format."""
        return self.to_dict() | {
            "architectures": [architecture],
            "model_type": "bert",
            "hidden_act": hf_config.ACTIVATION_TO_HF[self.hidden_act],
            "layer_norm_eps": self.layer_norm_eps,
            "pad_token_id": 0,
            "position_embedding_type": "absolute",
        }

    def check_sequence_length(self, max_seq_length: int) -> None:
        """Checks that the model has enough positions.

        Raises:
          InputError: if `max_seq_length` is larger than `max_position_embeddings`.
        """
        if max_seq_length > self.max_position_embeddings:
            positions = f"{self.max_position_embeddings} positions (max_position_embeddings)"
            problem = f"--max_seq_length is {max_seq_length}, but the model has only {positions}"
            raise InputError(f"{problem}. Use a shorter length.")

    def check_layers(self, count: int, flag_name: str) -> None:
        """Checks that the model has at least a number of layers.

        Args:
          count: the number.
          flag_name: the flag with the number, for messages.

        Raises:
          InputError: if the model has fewer layers.
        """
        if count > self.num_hidden_layers:
            message = f"{flag_name}={count}: the model has only {self.num_hidden_layers} layers. Use fewer."
            raise InputError(message, flag_name)

    def check_segments(self, are_pairs: bool) -> None:
        """Checks that the model has an embedding for the second text of a pair.

        Raises:
          InputError: if there are pairs, and `type_vocab_size` is 1.
        """
        if are_pairs and self.type_vocab_size < 2:
            problem = "the examples are pairs of texts, but the model has an embedding for one segment only"
            remedy = "Use single texts, or a model with two segments, such as the released models."
            raise InputError(f"{problem} (type_vocab_size is 1). {remedy}")

    def check_vocabulary(self, size: int, vocab_file: str) -> None:
        """Checks that the model has an embedding for every entry of a vocabulary.

        The vocabulary may be smaller than `vocab_size`, because some models round `vocab_size` up. In this case, a
        message is printed.

        Raises:
          InputError: if the vocabulary is larger than `vocab_size`.
        """
        if size > self.vocab_size:
            raise InputError(
                f"--vocab_file ({vocab_file}) has {size} entries, but the model's vocab_size is {self.vocab_size}. "
                "Use the vocabulary that the model was trained with, and remove added tokens that the model doesn't "
                "have. To add tokens to a model, use bert_tf.convert_checkpoint --added_tokens."
            )
        if size < self.vocab_size:
            say_once(
                f"{vocab_file}: {size} tokens; the model has {self.vocab_size} embeddings. The other embeddings are "
                "not used."
            )


# Maps the dtype of matrix multiplications to a Keras policy. Both names are accepted.
DTYPES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}
# Number of layers and hidden size H. There are H/64 heads, and the feed-forward size is 4H (paper, section 3).
RELEASED_SIZES: dict[str, tuple[int, int]] = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}


class ModelFiles(Settings, frozen=True):
    """The files of the model that a run starts from. By default, all files are in the directory of the model."""

    init_checkpoint: Annotated[
        str | None,
        about(
            "Pre-trained model: checkpoint, directory, released zip file or its URL, or Hugging Face name.",
            group="Model and directories",
        ),
        PROGRAMS,
    ] = None
    bert_config_file: Annotated[
        str | None, about("The model's bert_config.json. Default: the one in the model's directory."), PROGRAMS
    ] = None
    vocab_file: Annotated[
        str | None, about("The model's vocab.txt. Default: the one in the model's directory."), PROGRAMS
    ] = None
    do_lower_case: Annotated[
        bool | None,
        about("True for uncased models, False for cased ones. Default: the model's own setting."),
        MODEL,
        AbsentFrom("run_pretraining"),
    ] = None


class BiLstmConfig(Settings, frozen=True):
    """The sizes of a BiLSTM on top of the encoder.

    The defaults are the paper's values for feature-based tagging. The paper gives no values for fine-tuning.

    Attributes:
      layers: number of layers.
      units: U, per direction. The paper does not define whether its 768 dimensions are per direction or in total.
    """

    layers: Annotated[int, about(ge=1, flag="bilstm_layers")] = 2
    units: Annotated[int, about(ge=1, flag="bilstm_units")] = 768

    def resume_settings(self) -> dict[str, int]:
        """Returns the sizes to record in the run directory."""
        return {"bilstm_layers": self.layers, "bilstm_units": self.units}
