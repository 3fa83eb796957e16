"""The encoder's outputs, and their selection by the heads.

Axis letters: B batch, T tokens, H hidden, N heads, L blocks.
"""

from typing import NamedTuple

import tensorflow as tf


class EncoderOutput(NamedTuple):
    """The outputs of `BertEncoder`. Hidden states and probabilities have the compute dtype of the encoder.

    Attributes:
      embedding_output: [B, T, H], the input of the first block.
      all_encoder_layers: L tensors [B, T, H], first block first.
      sequence_output: [B, T, H], the output of the last block; [n, H] with `output_positions`.
      pooled_output: [B, H], a tanh layer over the last hidden state of the first token, [CLS]. A causal encoder uses
        the last token, [SEP]. With `output_positions`, it is [n, H], for the states at these positions. Without a
        pooler, it is None.
      attention_probs: L tensors [B, N, T, T], before dropout; empty with `gradient_checkpointing`.
      input_mask: [B, T], integers: 1 for tokens and 0 for padding in the other outputs.
    """

    embedding_output: tf.Tensor
    all_encoder_layers: tuple[tf.Tensor, ...]
    sequence_output: tf.Tensor
    pooled_output: tf.Tensor | None
    attention_probs: tuple[tf.Tensor, ...]
    input_mask: tf.Tensor

    def __repr__(self) -> str:
        """Returns shapes and dtypes without the values."""
        return f"EncoderOutput({', '.join(f'{name}={_shape(value)}' for name, value in self._asdict().items())})"


def _shape(value: object) -> str:
    if isinstance(value, tuple):
        return f"{len(value)} x {_shape(value[0])}" if value else "()"
    if not hasattr(value, "shape"):
        return repr(value)
    return f"{list(value.shape)} {getattr(value.dtype, 'name', value.dtype)}"


def is_encoder_output(x: object) -> bool:
    """Returns True for an `EncoderOutput`, and for the list that Keras passes instead in a loaded model."""
    return isinstance(x, tuple | list)


def sequence_states(x: tf.Tensor | EncoderOutput) -> tf.Tensor:
    """Returns the sequence output [B, T, H] of an encoder's outputs; returns a tensor unchanged."""
    return EncoderOutput(*x).sequence_output if is_encoder_output(x) else x


def pooled_state(x: tf.Tensor | EncoderOutput) -> tf.Tensor:
    """Returns the pooled output [B, H] of an encoder's outputs; returns a tensor unchanged."""
    return EncoderOutput(*x).pooled_output if is_encoder_output(x) else x
