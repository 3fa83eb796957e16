"""The encoder's outputs, as the heads read them.

Axis letters: B batch, T tokens, H hidden, N heads, L blocks.
"""

from typing import NamedTuple

import tensorflow as tf


class EncoderOutput(NamedTuple):
    """The outputs of `BertEncoder`; hidden states and probabilities are in its compute dtype.

    Attributes:
      embedding_output: [B, T, H], the input of the first block.
      all_encoder_layers: L tensors [B, T, H], first block first.
      sequence_output: [B, T, H], the output of the last block.
      pooled_output: [B, H], a tanh layer over the last hidden state of the first token, [CLS]; in a causal encoder over
        that of the last token, [SEP].
      attention_probs: L tensors [B, N, T, T], before dropout; empty with `gradient_checkpointing`.
      input_mask: [B, T], integers: 1 for the tokens and 0 for the padding of the other outputs.
    """

    embedding_output: tf.Tensor
    all_encoder_layers: tuple[tf.Tensor, ...]
    sequence_output: tf.Tensor
    pooled_output: tf.Tensor | None
    attention_probs: tuple[tf.Tensor, ...]
    input_mask: tf.Tensor

    def __repr__(self) -> str:
        """Shapes and dtypes instead of numbers, which would fill pages."""
        return f"EncoderOutput({', '.join(f'{name}={_shape(value)}' for name, value in self._asdict().items())})"


def _shape(value: object) -> str:
    if isinstance(value, tuple):
        return f"{len(value)} x {_shape(value[0])}" if value else "()"
    if not hasattr(value, "shape"):
        return repr(value)
    return f"{list(value.shape)} {getattr(value.dtype, 'name', value.dtype)}"


def is_encoder_output(x: object) -> bool:
    """Whether x is an `EncoderOutput`, or the list that Keras makes of it when it saves and loads a model."""
    return isinstance(x, tuple | list)


def sequence_states(x: tf.Tensor | EncoderOutput) -> tf.Tensor:
    """The states of all tokens [B, T, H], from the encoder's outputs or given as they are."""
    return EncoderOutput(*x).sequence_output if is_encoder_output(x) else x


def pooled_state(x: tf.Tensor | EncoderOutput) -> tf.Tensor:
    """The state that stands for the sequence [B, H], from the encoder's outputs or given as it is."""
    return EncoderOutput(*x).pooled_output if is_encoder_output(x) else x
