"""The model's configuration: the released `bert_config.json`, read strictly.

`hidden_act` is kept in the release's words. There "gelu" is the tanh form. Hugging Face calls the tanh form
"gelu_new" or "gelu_pytorch_tanh" and says "gelu" for the erf form, which is "gelu_erf" here. Reading and
writing either format keeps the function and changes the word.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from bert_tf.runtime import files
from bert_tf.runtime.files import InputError

RELEASED_LAYER_NORM_EPSILON = 1e-12

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

# Keys that some released bert_config.json files (Chinese, multilingual cased) carry and no released code reads.
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

# Hugging Face's keys that change nothing in what an encoder computes.
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
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "use_bfloat16",
    "use_cache",
}

# Hugging Face's keys that would change what is computed: the values that make the model BERT.
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
}

# Keys that only a config written by Hugging Face has.
_HF_MARKS = frozenset({"model_type", "architectures", "transformers_version"})


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Configuration of a BERT encoder; names and defaults are the release's.

    Attributes:
      vocab_size: entries of the vocabulary.
      hidden_size: width of the encoder layers and the pooler (H in the paper).
      num_hidden_layers: encoder blocks (L).
      num_attention_heads: attention heads in each block (A).
      intermediate_size: width of the feed-forward layer.
      hidden_act: "gelu" (tanh form), "gelu_erf", "relu", "tanh" or "linear".
      hidden_dropout_prob: dropout of the embeddings and of both residual branches.
      attention_probs_dropout_prob: dropout of the attention probabilities.
      max_position_embeddings: longest sequence the model can read.
      type_vocab_size: number of segment ids. The constructor's default is 16, as released; every released
        checkpoint has 2.
      initializer_range: standard deviation of the truncated normal initializer.
      layer_norm_eps: epsilon under the square root of layer normalisation. The release has no such key (it is
        1e-12); other values come from Hugging Face's configs, and are written only when they differ.

    Raises:
      InputError: if a value is out of range or of the wrong type, or the heads do not divide `hidden_size`.
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
            if field.type is int and not (is_number and isinstance(value, int) and value >= 1):
                raise InputError(f"{field.name} is {value!r}, but a whole number above 0 is expected.")
            if field.type is float and not (is_number and value >= 0):
                raise InputError(f"{field.name} is {value!r}, but a number of at least 0 is expected.")
        # The release takes an empty or null activation for the identity, and any case of the word.
        act = (self.hidden_act or "linear").lower() if isinstance(self.hidden_act, str | None) else self.hidden_act
        if act not in ACTIVATIONS:
            raise InputError(f"hidden_act is {self.hidden_act!r}, but one of {', '.join(ACTIVATIONS)} is expected.")
        object.__setattr__(self, "hidden_act", act)
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            if getattr(self, name) >= 1:
                raise InputError(f"{name} is {getattr(self, name)!r}, but a probability below 1 is expected.")
        if self.hidden_size % self.num_attention_heads:
            raise InputError(
                f"hidden_size ({self.hidden_size}) is not a multiple of num_attention_heads "
                f"({self.num_attention_heads})."
            )

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "config") -> "BertConfig":
        """Reads the release's keys, or Hugging Face's if one of its marks is among them.

        Args:
          values: the parsed JSON object.
          source: where it came from, for messages.

        Raises:
          InputError: names unknown keys, a missing `vocab_size`, and values that can't be used.
        """
        if not isinstance(values, Mapping):
            raise InputError(f"{source}: a JSON object is expected, but a {type(values).__name__} was found.")
        from_hf = not _HF_MARKS.isdisjoint(values)
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
            if act not in _ACTIVATION_FROM_HF:
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
          flag_name: how the user knows it, for messages.

        Raises:
          InputError: see `from_dict`; also if the file is missing, empty or not JSON.
        """
        return cls.from_dict(files.read_json(path, flag_name), source=f"{flag_name} ({path})")

    @classmethod
    def named(cls, name: str, vocab_size: int = 30522) -> "BertConfig":
        """One of the released sizes: tiny, mini, small, medium, base, large.

        Raises:
          InputError: if there is no such size.
        """
        if name not in RELEASED_SIZES:
            raise InputError(f"there is no model size {name!r}; the released ones are {', '.join(RELEASED_SIZES)}.")
        layers, hidden = RELEASED_SIZES[name]
        return cls(
            vocab_size=vocab_size,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=hidden // 64,
            intermediate_size=4 * hidden,
            type_vocab_size=2,
        )

    def to_dict(self) -> dict[str, Any]:
        """The release's keys; `layer_norm_eps` only where it is not the release's."""
        values = dataclasses.asdict(self)
        if self.layer_norm_eps == RELEASED_LAYER_NORM_EPSILON:
            del values["layer_norm_eps"]
        return values

    def to_json_string(self) -> str:
        """The text of `bert_config.json`, as the release writes it."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"

    def to_hf_dict(self, architecture: str = "BertModel") -> dict[str, Any]:
        """The object of Hugging Face's `config.json`."""
        return self.to_dict() | {
            "architectures": [architecture],
            "model_type": "bert",
            "hidden_act": _ACTIVATION_TO_HF[self.hidden_act],
            "layer_norm_eps": self.layer_norm_eps,
            "pad_token_id": 0,
            "position_embedding_type": "absolute",
        }

    def check_sequence_length(self, max_seq_length: int) -> None:
        """Raises an InputError if the model has too few positions for `max_seq_length`."""
        if max_seq_length > self.max_position_embeddings:
            raise InputError(
                f"--max_seq_length is {max_seq_length}, but the model has only {self.max_position_embeddings} "
                "positions (max_position_embeddings). Use a shorter length."
            )

    def check_vocabulary(self, size: int, vocab_file: str) -> None:
        """Raises an InputError if a vocabulary has ids that the model does not.

        A vocabulary smaller than the model's is fine: released models round theirs up.
        """
        if size > self.vocab_size:
            raise InputError(
                f"--vocab_file ({vocab_file}) has {size} entries, but the model's vocab_size is {self.vocab_size}. "
                "Use the vocabulary that the model was trained with."
            )


# Layers and hidden size; heads are hidden/64 and the feed-forward layer is four times as wide (paper, section 3).
RELEASED_SIZES: dict[str, tuple[int, int]] = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}
