"""The BERT encoder: embeddings, blocks and the pooler.

Axis letters: B batch, T tokens, H hidden, N heads.
"""

from collections.abc import Mapping
from typing import Any

from bert_tf.runtime import lazy_imports

lazy_imports.require_backend()

import keras
import numpy as np
import tensorflow as tf

from bert_tf.config import DTYPES, BertConfig
from bert_tf.model.base_layers import BertLayer, Dense, serializable, variable_scope
from bert_tf.model.block_stack import BlockStack
from bert_tf.model.dropout import fold_in, seed_of_call
from bert_tf.model.gathering import last_tokens
from bert_tf.model.layers import MASKED_SCORE, Embeddings
from bert_tf.model.outputs import EncoderOutput
from bert_tf.runtime.errors import require_whole

# Maps the names of the inputs in this and other libraries to this library's names.
_INPUT_NAMES = {
    "input_ids": "input_ids",
    "token_ids": "input_ids",
    "input_mask": "input_mask",
    "attention_mask": "input_mask",
    "padding_mask": "input_mask",
    "segment_ids": "segment_ids",
    "token_type_ids": "segment_ids",
    "position_ids": "position_ids",
    "sequence_ids": "sequence_ids",
}


@serializable
class Pooler(BertLayer):
    """A tanh layer over the state that represents the sequence. Variables: dense."""

    def __init__(self, config: BertConfig, name: str = "pooler", **kwargs: Any) -> None:
        super().__init__(config, name=name, **kwargs)
        self.dense = Dense(config, config.hidden_size, "tanh", name="dense", **self.shared)

    def build(self, input_shape: tuple) -> None:
        """Creates the variables for inputs of shape [B, H]."""
        self.dense.build(input_shape)

    def call(self, token: tf.Tensor) -> tf.Tensor:
        """Returns the pooled output [B, H] for states [B, H]."""
        return self.dense(token)


@serializable
class BertEncoder(BertLayer):
    """The original `BertModel` as a Keras layer. The constructor creates the variables.

    Examples:
      >>> from bert_tf.config import BertConfig
      >>> from bert_tf.encoder import BertEncoder
      >>> encoder = BertEncoder(BertConfig.named("tiny", vocab_size=30522))
      >>> output = encoder(tf.constant([[101, 7592, 102]]))
      >>> output.sequence_output.shape, output.pooled_output.shape
      (TensorShape([1, 3, 128]), TensorShape([1, 128]))
      >>> inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in ("input_ids", "input_mask")}
      >>> model = keras.Model(inputs, keras.layers.Dense(2)(encoder(inputs).pooled_output))
      >>> model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
      >>> batch = {"input_ids": np.array([[101, 2204, 102]]), "input_mask": np.ones([1, 3])}
      >>> history = model.fit(batch, np.array([1]), verbose=0)

    Args:
      config: sizes, activation, dropout.
      use_one_hot_embeddings: look up embeddings with a one-hot matrix multiplication (see `Embeddings`).
      gradient_checkpointing: in training, keep only the input of each block, and recompute the block when its gradient
        is needed (Chen et al., 2016). The gradients are the same, with a fraction of the memory and about a third more
        computation.
      causal: each position attends only to itself and earlier positions (the left-to-right ablation of Table 5).
      seed: seed of the dropout in calls with training=True; random if None.
      use_pooler: whether there is a pooler. Without one, `pooled_output` is None.
      jit_compile: in training in a graph, compile each block with XLA, once for each shape. This is faster on a GPU.
        With XLA, dropout draws different random numbers.
      dtype: "float32", "bfloat16" or "float16", the dtype of matrix multiplications; or a Keras policy, such as
        "mixed_bfloat16".
      **kwargs: Keras arguments, such as `name`. The name does not change the names of the variables
        (bert/embeddings/word_embeddings).
    """

    saved_arguments = (
        *("use_one_hot_embeddings", "gradient_checkpointing", "causal", "seed", "use_pooler", "jit_compile"),
    )

    def __init__(
        self,
        config: BertConfig,
        use_one_hot_embeddings: bool = False,
        gradient_checkpointing: bool = False,
        causal: bool = False,
        seed: int | None = None,
        use_pooler: bool = True,
        jit_compile: bool = False,
        dtype: str | keras.DTypePolicy | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(config, dtype=DTYPES.get(dtype, dtype) if isinstance(dtype, str) else dtype, **kwargs)
        self.use_pooler = use_pooler
        self.use_one_hot_embeddings = use_one_hot_embeddings
        self.gradient_checkpointing = gradient_checkpointing
        self.jit_compile = jit_compile
        self.causal = causal
        self.seed = seed
        self.embeddings = Embeddings(config, use_one_hot_embeddings, **self.shared)
        self.encoder = BlockStack(config, gradient_checkpointing, jit_compile, **self.shared)
        self.pooler = Pooler(config, **self.shared) if use_pooler else None
        with variable_scope("bert"):
            self.embeddings.build()
            self.encoder.build((None, config.hidden_size))
            if self.pooler is not None:
                self.pooler.build((None, config.hidden_size))
        self.built = True
        self.seed_generator = keras.random.SeedGenerator(seed)  # created last, because it draws if seed is None

    @property
    def embedding_table(self) -> tf.Tensor:
        """The word embeddings [V, H], float32."""
        table = self.embeddings.word_embeddings.value
        return table if self.embeddings.trainable else tf.stop_gradient(table)

    def __call__(
        self,
        input_ids: tf.Tensor | Mapping[str, tf.Tensor] | None = None,
        input_mask: tf.Tensor | None = None,
        segment_ids: tf.Tensor | None = None,
        **kwargs: Any,
    ) -> EncoderOutput:
        """Same as `call`. Joins all inputs in one dict, because Keras passes only one argument to `compute_mask`."""
        others = {name: kwargs.pop(name) for name in list(kwargs) if name in _INPUT_NAMES}
        return super().__call__(_named_inputs(input_ids, input_mask, segment_ids, others), **kwargs)

    def call(
        self,
        input_ids: tf.Tensor | Mapping[str, tf.Tensor],
        input_mask: tf.Tensor | None = None,
        segment_ids: tf.Tensor | None = None,
        training: bool | None = None,
        seed: tf.Tensor | None = None,
        position_ids: tf.Tensor | None = None,
        sequence_ids: tf.Tensor | None = None,
        output_positions: tf.Tensor | None = None,
    ) -> EncoderOutput:
        """Encodes a batch of sequences.

        Several sequences can share a row (packed rows). `sequence_ids` then separates them, and `position_ids` are
        counted from the start of each sequence.

        Args:
          input_ids: [B, T], integers; or a dict of all inputs by name. The names that other libraries use
            (`token_ids`, `attention_mask`, `padding_mask` and `token_type_ids`) are accepted as keys and as arguments.
          input_mask: [B, T], 1 for tokens and 0 for positions that must not be attended to. Default: all ones or, in
            packed rows, ones where `sequence_ids` are not 0.
          segment_ids: [B, T]; all zeros if None.
          training: whether dropout is active, with new masks in each call.
          seed: [2], integers. If given, dropout is active with the masks of this seed, regardless of `training`.
          position_ids: [B, T], the number of the position embedding; 0 to T - 1 if None.
          sequence_ids: [B, T], the number of the sequence at each position; 0 for padding. A position attends only to
            positions of the same sequence. If None, each row is a sequence.
          output_positions: [n], positions in the flattened batch (0 to B*T - 1). If given, the last block computes
            only the states at these positions. The sequence output and the pooled output are [n, H].

        Returns:
          The hidden states, the pooled output and the attention probabilities.

        Raises:
          ValueError: if the dict has an unknown key or lacks input_ids, an input is not [B, T] numbers, shapes differ,
            or the sequences have more tokens than the model has positions. Outside of graphs, also if an id is out of
            range. In a graph, the outputs of a sequence with such an id are NaN.
        """
        others = {"position_ids": position_ids, "sequence_ids": sequence_ids}
        inputs = _named_inputs(input_ids, input_mask, segment_ids, others)
        # Keras inputs are float32 by default, and masks may be bool.
        inputs = {name: x if x.dtype.is_integer else tf.cast(x, tf.int32) for name, x in inputs.items()}
        input_ids, sequence_ids = inputs["input_ids"], inputs.get("sequence_ids")
        input_mask = inputs.get("input_mask")
        if input_mask is None:
            input_mask = tf.ones_like(input_ids) if sequence_ids is None else tf.cast(sequence_ids > 0, tf.int32)
        segment_ids = inputs["segment_ids"] if "segment_ids" in inputs else tf.zeros_like(input_ids)
        length = input_ids.shape[1] or tf.shape(input_ids)[1]
        positions = self.config.max_position_embeddings
        if "position_ids" not in inputs and isinstance(length, int) and length > positions:
            raise ValueError(f"{length} tokens exceed the model's {positions} positions. Shorten the sequences.")
        sizes = {
            "input_ids": self.config.vocab_size,
            "segment_ids": self.config.type_vocab_size,
            "position_ids": positions,
        }
        is_eager = tf.executing_eagerly() and not tf.config.functions_run_eagerly()
        for name, size in sizes.items() if is_eager else ():
            ids = inputs.get(name, 0)
            if not tf.reduce_all((ids >= 0) & (ids < size)):
                raise ValueError(f"{name} must be from 0 to {size - 1}, the ids that have an embedding.")
        seed = seed_of_call(self.seed_generator, training, seed)

        x = self.embeddings(input_ids, segment_ids, seed=fold_in(seed, 0), position_ids=inputs.get("position_ids"))
        is_frozen = not self.embeddings.trainable
        x = tf.stop_gradient(x) if is_frozen else x
        bias = self._attention_bias(input_mask, sequence_ids)
        options = {"output_positions": output_positions, "is_frozen": is_frozen}
        outputs, probabilities = self.encoder(x, bias, seed=fold_in(seed, 1), **options)

        def sequences(states: tf.Tensor) -> tf.Tensor:  # [B*T, H] -> [B, T, H]
            return tf.reshape(states, [-1, length, self.config.hidden_size])

        *lower, last = outputs
        last = sequences(last) if output_positions is None else last
        summary = self._summary(last, input_mask) if output_positions is None else last
        return EncoderOutput(
            embedding_output=sequences(x),
            all_encoder_layers=(*map(sequences, lower), last),
            sequence_output=last,
            pooled_output=None if self.pooler is None else self.pooler(summary),
            attention_probs=tuple(probabilities),
            input_mask=input_mask,
        )

    def compute_mask(self, inputs: Mapping[str, tf.Tensor], previous_mask: object = None) -> EncoderOutput | None:
        """Returns the input_mask as bool [B, T] for all outputs [B, T, H], so Keras losses ignore padding."""
        mask = _named_inputs(inputs, None, None).get("input_mask")
        if mask is None:
            return None
        mask = keras.ops.cast(mask, "bool")
        return EncoderOutput(mask, (mask,) * self.config.num_hidden_layers, mask, None, (), None)

    def freeze(self, layers: int) -> None:
        """Freezes the embeddings and the lowest blocks. No gradient is computed for frozen layers.

        To freeze the complete encoder, set `trainable` to False.

        Args:
          layers: the number of blocks to freeze; 0 freezes only the embeddings.

        Raises:
          InputError: if the encoder has fewer blocks.
        """
        self.config.check_layers(layers, "--freeze_layers")
        for layer in (self.embeddings, *self.encoder.blocks[:layers]):
            layer.trainable = False

    def enable_lora(self, rank: int) -> None:
        """Freezes the encoder and adds trainable low-rank (LoRA) adapters to the query and value projections.

        Args:
          rank: the rank of the adapters; Hu et al. (2021) use 1 to 64.

        Raises:
          InputError: if the rank is not a positive integer.
        """
        require_whole("rank", rank, 1)
        self.trainable = True  # otherwise the adapters of a frozen encoder would be frozen too
        for variable in self.weights:
            variable.trainable = False
        for block in self.encoder.blocks:
            block.attention.self_attention.query.enable_lora(rank)
            block.attention.self_attention.value.enable_lora(rank)

    def merge_lora(self) -> None:
        """Adds the LoRA adapters of `enable_lora` to the weights, so that the encoder can be saved as a checkpoint.

        Removes the variables of the adapters. The encoder is frozen until you set `trainable`. The outputs do not
        change. Compile the model again before you continue training.
        """
        for block in self.encoder.blocks:
            block.attention.self_attention.query.merge_lora()
            block.attention.self_attention.value.merge_lora()
        self.trainable = False  # otherwise Keras would ignore a later `trainable = True`

    @property
    def trained_share(self) -> float:
        """The fraction of the blocks that are not frozen."""
        return sum(block.trainable for block in self.encoder.blocks) / len(self.encoder.blocks)

    def flops(self, lengths: tf.Tensor) -> tf.Tensor:
        """Returns the floating-point operations of the matrix multiplications in a forward pass, a scalar.

        Padding is not counted. All operations of all blocks are counted.

        Args:
          lengths: the number of tokens of each sequence [S].
        """
        return tf.reduce_sum(self.config.flops(tf.cast(lengths, tf.float32)))

    def _summary(self, states: tf.Tensor, input_mask: tf.Tensor) -> tf.Tensor:
        """Returns the states [B, H] that the pooler reads, for states [B, T, H]: [CLS], or [SEP] if causal."""
        if not self.causal:
            return states[:, 0]
        # [CLS] comes first and attends only to itself. The paper does not define how left-to-right models classify.
        return last_tokens(states, input_mask)

    def _attention_bias(self, input_mask: tf.Tensor, sequence_ids: tf.Tensor | None) -> tf.Tensor:
        """Returns the bias [B, 1, 1 or T, T] of the attention scores for a mask and sequence ids [B, T]."""
        # Add one axis at a time, because LiteRT's converter supports only this form.
        visible = tf.expand_dims(tf.expand_dims(tf.cast(input_mask, tf.float32), 1), 1)
        if sequence_ids is not None:
            is_same = sequence_ids[:, :, tf.newaxis] == sequence_ids[:, tf.newaxis]
            visible *= tf.cast(tf.expand_dims(is_same, 1), tf.float32)
        if self.causal:
            length = input_mask.shape[1] or tf.shape(input_mask)[1]
            visible *= tf.linalg.band_part(tf.ones([length, length]), -1, 0)
        return (1.0 - visible) * MASKED_SCORE


def _named_inputs(
    input_ids: tf.Tensor | Mapping[str, tf.Tensor] | None,
    input_mask: tf.Tensor | None,
    segment_ids: tf.Tensor | None,
    others: Mapping[str, tf.Tensor] | None = None,
) -> dict[str, tf.Tensor]:
    """Maps the given inputs to this library's input names."""
    pairs = list(input_ids.items()) if isinstance(input_ids, Mapping) else [("input_ids", input_ids)]
    inputs = {}
    for key, value in [*pairs, ("input_mask", input_mask), ("segment_ids", segment_ids), *(others or {}).items()]:
        name = _INPUT_NAMES.get(key)
        if name is None:
            raise ValueError(f"unknown input {key!r}. Known inputs: {', '.join(_INPUT_NAMES)}.")
        if value is not None and name in inputs:
            raise ValueError(f"{name} is given twice, also as {key}. Pass it once.")
        if value is not None:
            inputs[name] = np.array(value) if isinstance(value, list) else value
            if not hasattr(inputs[name], "shape"):
                raise ValueError(f"{key} is a {type(value).__name__}. Pass a tensor, an array, or a dict.")
            if len(inputs[name].shape) != 2:
                raise ValueError(f"{key} has the shape {list(inputs[name].shape)}. Pass [batch, tokens].")
    if "input_ids" not in inputs:
        raise ValueError(f"input_ids are missing. Given: {', '.join(map(str, inputs)) or 'nothing'}.")
    expected = inputs["input_ids"].shape
    for name, value in inputs.items():
        if not tf.TensorShape(value.shape).is_compatible_with(expected):
            raise ValueError(f"{name} has the shape {list(value.shape)}, but input_ids have {list(expected)}.")
    return inputs
