"""A Keras layer that converts texts to the inputs of `BertEncoder`, for models that take raw text.

Axis letters: B batch, T tokens of the longest sequence.
"""

import json
import types
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from bert_tf.graphs.text_reader import GraphTextReader
from bert_tf.runtime.errors import InputError
from bert_tf.text import Tokenizer


@keras.saving.register_keras_serializable(package="bert_tf")
class TextToInputs(keras.layers.Layer):
    """Tokenizes and packs texts or pairs of texts, as in fine-tuning.

    The vocabulary is saved with the model. The layer has no variables. A model with this layer is not compiled by XLA.

    Examples:
      >>> bert = bert_tf.load_model("build/quickstart/pretrained")
      >>> text_to_inputs = bert_tf.TextToInputs(bert.tokenizer, max_seq_length=32)
      >>> text_to_inputs(tf.constant(["The whale was great."]))["input_ids"].numpy()
      array([[  2,  64, 194,  71, 149,  10,   3]], dtype=int32)

    Args:
      tokenizer: the model's tokenizer, or a dictionary with its `vocab`, `added_tokens` and `rules`.
      max_seq_length: longest sequence in tokens; longer ones are truncated.
      pad_to_max_seq_length: if True, pad all sequences to `max_seq_length` (required on TPUs); if False, to the longest
        sequence of the batch.
      **kwargs: see `keras.layers.Layer`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | Mapping[str, Any],
        max_seq_length: int = 128,
        pad_to_max_seq_length: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.supports_jit = False
        self.max_seq_length = max_seq_length
        self.pad_to_max_seq_length = pad_to_max_seq_length
        names = ("vocab", "added_tokens", "rules")
        fields = tokenizer if isinstance(tokenizer, Mapping) else {name: getattr(tokenizer, name) for name in names}
        self._tokenizer = json.dumps(fields)  # as JSON, because Keras would track a dictionary as part of the model
        self._reader = GraphTextReader(types.SimpleNamespace(**fields), max_seq_length)

    def call(self, texts: tf.Tensor, second_texts: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """Returns the inputs of the encoder.

        Args:
          texts: strings [B] or [B, 1].
          second_texts: the second texts of pairs, with the same shape, or None.

        Returns:
          `input_ids`, `input_mask` and `segment_ids`, each [B, T], int32.

        Raises:
          InputError: if the texts have another shape or type.
        """
        second = None if second_texts is None else _flat(second_texts)
        batch, _ = self._reader.read(_flat(texts), second)
        length = self.max_seq_length if self.pad_to_max_seq_length else None
        columns = {"input_ids": batch.ids, "input_mask": batch.visible, "segment_ids": batch.segments}
        return {name: tf.ensure_shape(batch.padded(x, length=length), [None, length]) for name, x in columns.items()}

    def compute_output_spec(
        self, texts: keras.KerasTensor, second_texts: keras.KerasTensor | None = None
    ) -> dict[str, keras.KerasTensor]:
        """Returns the shapes and types of the outputs of `call`."""
        shape = (texts.shape[0], self.max_seq_length if self.pad_to_max_seq_length else None)
        return {name: keras.KerasTensor(shape, "int32") for name in ("input_ids", "input_mask", "segment_ids")}

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor as JSON values."""
        names = ("max_seq_length", "pad_to_max_seq_length")
        arguments = {name: getattr(self, name) for name in names} | {"tokenizer": json.loads(self._tokenizer)}
        return super().get_config() | arguments


def _flat(texts: tf.Tensor) -> tf.Tensor:
    """Returns the texts [B] or [B, 1] with shape [B]."""
    texts = tf.convert_to_tensor(texts)
    if texts.dtype != tf.string or texts.shape.rank not in (1, 2) or (texts.shape.rank == 2 and texts.shape[1] != 1):
        actual = f"{texts.dtype.name} values with shape {list(texts.shape)}"
        raise InputError(f"TextToInputs got {actual}. Pass strings with shape [batch] or [batch, 1].")
    return tf.reshape(texts, [-1])
