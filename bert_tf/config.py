"""The model's configuration, in the format of the released `bert_config.json`. Unknown keys are errors.

The values of `hidden_act` are the release's, where "gelu" means the tanh form. Hugging Face calls the tanh form
"gelu_new" or "gelu_pytorch_tanh", and the erf form "gelu"; this project calls the erf form "gelu_erf". When a config is
converted, the name changes and the function stays the same.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from bert_tf.runtime import json_files
from bert_tf.runtime.errors import InputError, require_whole
from bert_tf.tokenization.tokenizer_config import TOKENIZER_CLASSES

RELEASED_LAYER_NORM_EPSILON = 1e-12
# More weights than any machine holds, so one of the sizes is wrong.
_MAX_PARAMETERS = 10**12
_MAX_SIZE = 10**9

ACTIVATIONS = ("gelu", "gelu_erf", "relu", "tanh", "linear")

_ACTIVATION_FROM_HF = {
    "gelu": "gelu_erf",
    "gelu_python": "gelu_erf",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "tanh": "tanh",
    "linear": "linear",
}
_ACTIVATION_TO_HF = {
    "gelu": "gelu_pytorch_tanh",
    "gelu_erf": "gelu",
    "relu": "relu",
    "tanh": "tanh",
    "linear": "linear",
}

# Keys in some released bert_config.json files (Chinese, multilingual cased) that the released code never reads.
_UNREAD_RELEASED_KEYS = frozenset(
    {
        "directionality",
        "pooler_fc_size",
        "pooler_num_attention_heads",
        "pooler_num_fc_layers",
        "pooler_size_per_head",
        "pooler_type",
    }
)

# Keys of Hugging Face that don't change the computation of an encoder.
_UNREAD_HF_KEYS = _UNREAD_RELEASED_KEYS | {
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_name_or_path",
    "architectures",
    "attn_implementation",
    "bos_token_id",
    "chunk_size_feed_forward",
    "classifier_dropout",
    "cls_token_id",
    "dtype",
    "eos_token_id",
    "finetuning_task",
    "gradient_checkpointing",
    "id2label",
    "label2id",
    "num_labels",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "problem_type",
    "return_dict",
    "sep_token_id",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "use_bfloat16",
    "use_cache",
}

# Keys of Hugging Face that change the computation, and the values with which the model is BERT.
_REQUIRED_HF_VALUES: dict[str, tuple] = {
    "model_type": ("bert",),
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "tie_word_embeddings": (True,),
    "pad_token_id": (0, None),
    "pruned_heads": ({},),
    "tokenizer_class": (*TOKENIZER_CLASSES, None),
}

# Keys that occur only in the configs of Hugging Face.
_HF_ONLY_KEYS = frozenset({"model_type", "architectures", "transformers_version"})


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """The configuration of a BERT encoder, with the names and the defaults of the release.

    Attributes:
      vocab_size: number of entries in the vocabulary.
      hidden_size: width of the encoder layers and the pooler (H in the paper).
      num_hidden_layers: number of encoder blocks (L in the paper).
      num_attention_heads: number of attention heads in each block (A in the paper).
      intermediate_size: width of the feed-forward layer.
      hidden_act: "gelu" (tanh form), "gelu_erf", "relu", "tanh" or "linear".
      hidden_dropout_prob: dropout rate of the embeddings and of both residual branches.
      attention_probs_dropout_prob: dropout rate of the attention probabilities.
      max_position_embeddings: length of the longest sequence that the model accepts.
      type_vocab_size: number of segment ids. The default is 16, as in the release, but all released checkpoints have 2.
      initializer_range: standard deviation of the truncated normal initializer.
      layer_norm_eps: epsilon under the square root of layer normalisation. The release has no such key and uses 1e-12;
        Hugging Face's configs can have other values. Only these are written.

    Raises:
      InputError: if a value is out of range or has the wrong type, or if the heads don't divide `hidden_size`.
    """

    vocab_size: int
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 16
    initializer_range: float = 0.02
    layer_norm_eps: float = RELEASED_LAYER_NORM_EPSILON

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if field.type is int and not (is_number and isinstance(value, int) and 1 <= value <= _MAX_SIZE):
                raise InputError(f"{field.name} is {value!r}, but a whole number from 1 to {_MAX_SIZE} is expected.")
            if field.type is float and not (is_number and 0 <= value < math.inf):
                raise InputError(f"{field.name} is {value!r}, but a finite number of at least 0 is expected.")
        # In the release an empty or null activation means the identity, and upper or lower case makes no difference.
        act = (self.hidden_act or "linear").lower() if isinstance(self.hidden_act, str | None) else self.hidden_act
        if act not in ACTIVATIONS:
            raise InputError(f"hidden_act is {self.hidden_act!r}, but one of {', '.join(ACTIVATIONS)} is expected.")
        object.__setattr__(self, "hidden_act", act)
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            if getattr(self, name) >= 1:
                raise InputError(f"{name} is {getattr(self, name)!r}, but a probability below 1 is expected.")
        if self.num_parameters > _MAX_PARAMETERS:
            sizes = "vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size", "max_position_embeddings"
            raise InputError(
                f"a model with {', '.join(f'{name}={getattr(self, name)}' for name in sizes)} would have "
                f"{self.num_parameters:.1e} weights, but at most {_MAX_PARAMETERS:.0e} are possible. Correct the sizes."
            )
        if self.hidden_size % self.num_attention_heads:
            raise InputError(
                f"hidden_size ({self.hidden_size}) is not a multiple of num_attention_heads "
                f"({self.num_attention_heads})."
            )

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def num_parameters(self) -> int:
        """The number of weights in embeddings and blocks, without biases and layer normalisations, which are few."""
        rows = self.vocab_size + self.max_position_embeddings + self.type_vocab_size
        return self.hidden_size * rows + self.num_hidden_layers * self._block_weights

    @property
    def _block_weights(self) -> int:
        return self.hidden_size * (4 * self.hidden_size + 2 * self.intermediate_size)

    def flops(self, length: Any, predictions: Any = 0) -> Any:
        """Floating-point operations of the matrix products in a forward pass over a sequence; numbers or tensors.

        A multiplication and its addition count as two. Training takes three times as many: forward, and backward to
        the inputs and to the weights.

        Args:
          length: the number of tokens.
          predictions: the number of tokens that are predicted.
        """
        of_token = self.num_hidden_layers * (self._block_weights + 2 * self.hidden_size * length)
        of_prediction = self.hidden_size * (self.hidden_size + self.vocab_size)
        return 2.0 * (length * of_token + predictions * of_prediction)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "config") -> "BertConfig":
        """Reads a config in the release's format, or in Hugging Face's if it has one of the keys that occur only there.

        Args:
          values: the parsed JSON object.
          source: name of the config's source, for messages.

        Raises:
          InputError: if a key is unknown, `vocab_size` is missing, or a value can't be used; names it.
        """
        if not isinstance(values, Mapping):
            raise InputError(f"{source}: a JSON object is expected, but a {type(values).__name__} was found.")
        from_hf = not _HF_ONLY_KEYS.isdisjoint(values)
        known = {field.name for field in dataclasses.fields(cls)}
        unread = _UNREAD_HF_KEYS if from_hf else _UNREAD_RELEASED_KEYS
        fields = {key: value for key, value in values.items() if key in known}
        if from_hf:
            for key, allowed in _REQUIRED_HF_VALUES.items():
                if key in values and values[key] not in allowed:
                    raise InputError(
                        f"{source}: {key} is {values[key]!r}, which is not the released BERT "
                        f"(expected {allowed[0]!r}). Such a model computes something else and can't be read."
                    )
            unread = unread | _REQUIRED_HF_VALUES.keys()
            act = values.get("hidden_act", "gelu")
            if not isinstance(act, str) or act not in _ACTIVATION_FROM_HF:
                raise InputError(
                    f"{source}: hidden_act is {act!r}, but one of {', '.join(_ACTIVATION_FROM_HF)} is expected."
                )
            fields["hidden_act"] = _ACTIVATION_FROM_HF[act]
            fields.setdefault("type_vocab_size", 2)  # Hugging Face's default, unlike the release's 16
        unknown = sorted(values.keys() - known - unread)
        if unknown:
            raise InputError(
                f"{source}: unknown {'key' if len(unknown) == 1 else 'keys'} {', '.join(map(repr, unknown))}. "
                f"Known keys: {', '.join(sorted(known))}."
            )
        if "vocab_size" not in fields:
            raise InputError(f"{source}: the key 'vocab_size' is missing.")
        try:
            return cls(**fields)
        except InputError as error:
            raise InputError(f"{source}: {error}") from None

    @classmethod
    def from_json_file(cls, path: str, flag_name: str = "--bert_config_file") -> "BertConfig":
        """Reads `bert_config.json` (the release's) or `config.json` (Hugging Face's).

        Args:
          path: the file.
          flag_name: the flag that gave the path, for messages.

        Raises:
          InputError: as in `from_dict`; also if the file is missing, empty or not JSON.
        """
        return cls.from_dict(json_files.read(path, flag_name), source=f"{flag_name} ({path})")

    @classmethod
    def named(cls, size: str, vocab_size: int = 30522, **changes: Any) -> "BertConfig":
        """The config of a released size: tiny, mini, small, medium, base or large.

        Args:
          size: its name.
          vocab_size: the number of pieces.
          **changes: other values than the size's. Without a value of its own, `intermediate_size` is 4 * `hidden_size`.

        Raises:
          InputError: if the size or the name of a change is unknown, or a value can't be used.
        """
        if size not in RELEASED_SIZES:
            raise InputError(f"there is no model size {size!r}; the released ones are {', '.join(RELEASED_SIZES)}.")
        layers, hidden = RELEASED_SIZES[size]
        sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": hidden // 64}
        values = {"vocab_size": vocab_size, **sizes, "type_vocab_size": 2, **changes}
        if isinstance(values["hidden_size"], int):
            values.setdefault("intermediate_size", 4 * values["hidden_size"])
        return cls.from_dict(values, source=f"size {size}")

    def to_dict(self) -> dict[str, Any]:
        """The config with the release's keys, and with `layer_norm_eps` if it differs from the release's."""
        values = dataclasses.asdict(self)
        if self.layer_norm_eps == RELEASED_LAYER_NORM_EPSILON:
            del values["layer_norm_eps"]
        return values

    def to_json_string(self) -> str:
        """The content of `bert_config.json` in the release's format."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"

    def to_hf_dict(self, architecture: str = "BertModel") -> dict[str, Any]:
        """The content of `config.json` in Hugging Face's format."""
        return self.to_dict() | {
            "architectures": [architecture],
            "model_type": "bert",
            "hidden_act": _ACTIVATION_TO_HF[self.hidden_act],
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
            raise InputError(
                f"--max_seq_length is {max_seq_length}, but the model has only {self.max_position_embeddings} "
                "positions (max_position_embeddings). Use a shorter length."
            )

    def check_segments(self, are_pairs: bool) -> None:
        """Checks that the model has an embedding for the second text of a pair.

        Raises:
          InputError: if there are pairs, and `type_vocab_size` is 1.
        """
        if are_pairs and self.type_vocab_size < 2:
            raise InputError(
                "the examples are pairs of texts, but the model has an embedding for one segment only (type_vocab_size "
                "is 1). Use a model with two, as all released ones, or examples of one text."
            )

    def check_vocabulary(self, size: int, vocab_file: str) -> None:
        """Checks that the model has an embedding for every entry of a vocabulary.

        The vocabulary may be smaller than `vocab_size`, which is rounded up in some released models.

        Raises:
          InputError: if the vocabulary is larger than `vocab_size`.
        """
        if size > self.vocab_size:
            raise InputError(
                f"--vocab_file ({vocab_file}) has {size} entries, but the model's vocab_size is {self.vocab_size}. "
                "Use the vocabulary that the model was trained with."
            )


# Number of layers and hidden size H. There are H/64 heads, and the feed-forward size is 4H (paper, section 3).
RELEASED_SIZES: dict[str, tuple[int, int]] = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}


@dataclasses.dataclass(frozen=True)
class BiLstmConfig:
    """The sizes of a BiLSTM on top of the encoder.

    The defaults are the paper's for tagging by features; for fine-tuning it gives none.

    Attributes:
      layers: number of layers.
      units: U, per direction; the paper doesn't say whether its 768 dimensions are per direction or for both together.
    """

    layers: int = 2
    units: int = 768

    def __post_init__(self) -> None:
        require_whole("--bilstm_layers", self.layers, 1)
        require_whole("--bilstm_units", self.units, 1)

    def resume_settings(self) -> dict[str, int]:
        """The sizes, as a run records them."""
        return {"bilstm_layers": self.layers, "bilstm_units": self.units}
