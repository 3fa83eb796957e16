"""The blocks of the encoder, one after another.

Axis letters: B batch, T tokens, H hidden, N heads.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.distribution import hardware
from bert_tf.model.base_layers import BertLayer, serializable
from bert_tf.model.dropout import fold_in
from bert_tf.model.fusion import recomputed_by_xla
from bert_tf.model.layers import TransformerBlock


@serializable
class BlockStack(BertLayer):
    """The blocks, named layer_0, layer_1...

    Args:
      gradient_checkpointing: see `BertEncoder`.
      jit_compile: see `BertEncoder`.
    """

    saved_arguments = ("gradient_checkpointing", "jit_compile")

    def __init__(
        self,
        config: BertConfig,
        gradient_checkpointing: bool = False,
        jit_compile: bool = False,
        name: str = "encoder",
        **kwargs: Any,
    ) -> None:
        super().__init__(config, name=name, **kwargs)
        self.gradient_checkpointing = gradient_checkpointing
        self.jit_compile = jit_compile
        # Each call passes seeds to the blocks. With seed=None, a block would draw from Python's random generator here.
        self.blocks = [
            TransformerBlock(config, seed=0, name=f"layer_{i}", **self.shared) for i in range(config.num_hidden_layers)
        ]

    def build(self, input_shape: tuple) -> None:
        """Creates the variables for inputs of shape [n, H]."""
        for block in self.blocks:
            block.build(input_shape)

    def call(
        self,
        x: tf.Tensor,
        attention_bias: tf.Tensor,
        seed: tf.Tensor | None = None,
        output_positions: tf.Tensor | None = None,
        is_frozen: bool = False,
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Applies all blocks.

        Args:
          x: [B*T, H].
          attention_bias: see `TransformerBlock.call`.
          seed: [2], integers, the seed of the dropout; None for no dropout.
          output_positions: [n], the positions whose states the last block computes; all if None.
          is_frozen: if True, x depends on no trained variable, and no gradient is computed below the lowest trained
            block.

        Returns:
          The outputs of the blocks and their attention probabilities. An output has the shape of x; with
          output_positions, the last output is [n, H]. Probabilities are [B, N, T, T]. The list of probabilities is
          empty with gradient checkpointing or output_positions.
        """
        outputs, probabilities = [], []
        traced: dict[Any, Callable] = {}
        for i, block in enumerate(self.blocks):
            options = {"attention_bias": attention_bias}
            if output_positions is not None and block is self.blocks[-1]:
                options["output_positions"] = output_positions
            jit_compile = self.jit_compile and seed is not None
            run = functools.partial(_traced_once(block, options, traced, jit_compile), seed=fold_in(seed, i))
            if self.gradient_checkpointing and seed is not None:
                recomputed = recomputed_by_xla if hardware.compiles_all() else tf.recompute_grad
                x = recomputed(lambda x, run=run: run(x)[0])(x)
            else:
                x, probs = run(x)
                probabilities.append(probs)
            is_frozen = is_frozen and not block.trainable
            x = tf.stop_gradient(x) if is_frozen else x
            outputs.append(x)
        # Keras's functional models expect the same number of outputs in training and in inference.
        return outputs, [] if self.gradient_checkpointing or output_positions is not None else probabilities


def _traced_once(
    block: TransformerBlock, options: Mapping[str, Any], traced: dict[Any, Callable], jit_compile: bool
) -> Callable:
    """Returns a function that calls a block. In a graph, blocks with equal variable names and shapes share one trace.

    Tracing a block takes longer than many training steps of the block. A shared trace computes the same result. If XLA
    compiles the complete function, each block is traced separately. Otherwise, XLA would evaluate the call of a block
    during compilation, with the weights as constants, to find shapes for the gradient, and compile after each step.

    Args:
      block: the block.
      options: other arguments of the call. Only the last block may have `output_positions`.
      traced: the functions traced so far; a new function is added.
      jit_compile: whether XLA compiles the function.
    """
    if not tf.inside_function() or hardware.compiles_all():
        return functools.partial(block, **options)

    @functools.partial(tf.function, autograph=False, jit_compile=jit_compile or None)
    def function(x: tf.Tensor, seed: tf.Tensor | None, values: list[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor | None]:
        with keras.StatelessScope(zip(block.weights, values, strict=True), initialize_variables=False):
            return block(x, seed=seed, **options)

    names = tuple((weight.path.partition(f"/{block.name}/")[2], *weight.shape) for weight in block.weights)
    function = traced.setdefault((names, *options), function)
    # Read the values here: a distribution strategy would replace variable arguments by the first block's variables.
    return lambda x, seed: function(x, seed, [tf.convert_to_tensor(weight.value) for weight in block.weights])
