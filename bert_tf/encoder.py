"""The BERT encoder: embeddings, the stack of blocks, and the pooler.

Axis letters: B batch, T tokens, H hidden, N heads.
"""

import functools
from collections.abc import Callable, Mapping

import keras
import numpy as np
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from bert_tf.config import DTYPES, BertConfig
from bert_tf.distribution import strategies
from bert_tf.model.dropout import fold_in, seed_of_call
from bert_tf.model.gathering import last_tokens
from bert_tf.model.layers import BertLayer, Dense, Embeddings, TransformerBlock, serializable, variable_scope
from bert_tf.model.outputs import EncoderOutput
from bert_tf.model.token_rows import TokenRows, Unpadded
from bert_tf.runtime.errors import InputError, require_whole

# Added to the score of a position that may not be seen: as released, not minus infinity.
MASKED_SCORE = -10000.0

# The names of the encoder's inputs, and those under which other libraries know them.
_INPUT_NAMES = {
    "input_ids": "input_ids",
    "token_ids": "input_ids",
    "input_mask": "input_mask",
    "attention_mask": "input_mask",
    "padding_mask": "input_mask",
    "segment_ids": "segment_ids",
    "token_type_ids": "segment_ids",
}


@serializable
class BlockStack(BertLayer):
    """The blocks, named layer_0, layer_1...

    Args:
      gradient_checkpointing: see `BertEncoder`.
    """

    saved_arguments = ("gradient_checkpointing",)

    def __init__(
        self, config: BertConfig, gradient_checkpointing: bool = False, name: str = "encoder", **kwargs
    ) -> None:
        super().__init__(config, name=name, **kwargs)
        self.gradient_checkpointing = gradient_checkpointing
        # The blocks are given the seed of each call; one of their own, unused, must not come from Python's generator.
        self.blocks = [
            TransformerBlock(config, seed=0, name=f"layer_{i}", **self.shared) for i in range(config.num_hidden_layers)
        ]

    def build(self, input_shape: tuple) -> None:
        for block in self.blocks:
            block.build(input_shape)

    def call(
        self,
        x: tf.Tensor,
        attention_bias: tf.Tensor,
        seed: tf.Tensor | None = None,
        unpadded: Unpadded | None = None,
        is_frozen: bool = False,
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """x [B*T or n, H] -> for each block its output, of x's shape, and its attention probabilities [B, N, T, T].

        There are no probabilities if gradients are recomputed or x has no padding. If `unpadded` has `firsts`, the
        last output is [B, H]. If `is_frozen`, x depends on no trained variable, and no gradient is computed below the
        lowest trained block.
        """
        outputs, probabilities = [], []
        for i, block in enumerate(self.blocks):
            own = unpadded and unpadded.of_block(is_last=block is self.blocks[-1])
            run = functools.partial(block, attention_bias=attention_bias, seed=fold_in(seed, i), unpadded=own)
            if self.gradient_checkpointing and seed is not None:
                recomputed = _recomputed_by_xla if strategies.computes_on_tpu() else tf.recompute_grad
                x = recomputed(lambda x, run=run: run(x)[0])(x)
            else:
                x, probs = run(x)
                probabilities.append(probs)
            is_frozen = is_frozen and not block.trainable
            x = tf.stop_gradient(x) if is_frozen else x
            outputs.append(x)
        # Keras's functional models expect the same number of outputs in training and in inference.
        return outputs, [] if self.gradient_checkpointing or unpadded else probabilities


def _recomputed_by_xla(block: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    """`tf.recompute_grad` for XLA, which otherwise may compute a block again before its gradient is needed."""

    @tf.custom_gradient
    def recomputed(x: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        def gradient(upstream: tf.Tensor, variables: list[tf.Variable]) -> tuple[tf.Tensor, list[tf.Tensor]]:
            # The block is computed again when the gradient arrives, and no earlier.
            again, upstream = gen_xla_ops.xla_optimization_barrier([x, upstream])
            with tf.GradientTape() as tape:
                tape.watch(again)
                y = block(again)
            of_x, *of_variables = tape.gradient(y, [again, *variables], upstream)
            return of_x, of_variables

        return block(x), gradient

    return recomputed


@serializable
class Pooler(BertLayer):
    """A tanh layer over the token that stands for the sequence. Variables: dense."""

    def __init__(self, config: BertConfig, name: str = "pooler", **kwargs) -> None:
        super().__init__(config, name=name, **kwargs)
        self.dense = Dense(config, config.hidden_size, "tanh", name="dense", **self.shared)

    def build(self, input_shape: tuple) -> None:
        self.dense.build(input_shape)

    def call(self, token: tf.Tensor) -> tf.Tensor:  # [B, H] -> [B, H]
        return self.dense(token)


@serializable
class BertEncoder(BertLayer):
    """The released `BertModel` as a Keras layer; its variables exist once it is constructed.

    Example:
      config = BertConfig.named("tiny", vocab_size=30522)
      inputs = {name: keras.Input((None,), dtype="int32") for name in ("input_ids", "input_mask")}
      logits = ClassificationHead(config, outputs=2)(BertEncoder(config)(inputs))
      model = keras.Model(inputs, logits)
      model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
      model.fit({"input_ids": np.array([[101, 2204, 102]]), "input_mask": np.ones([1, 3])}, np.array([1]))

    Args:
      config: sizes, activation, dropout.
      use_one_hot_embeddings: look words up by a matrix multiplication with one-hot rows (see `Embeddings`).
      gradient_checkpointing: in training, keep only the input of each block, and compute the block again when its
        gradient is needed (Chen et al., 2016): the same gradients with a fraction of the memory, for about a third more
        work.
      causal: each position sees only itself and the positions before it (the left-to-right ablation of Table 5).
      seed: of the dropout in calls with training=True; random if None.
      use_pooler: whether there is a pooler; without one, `pooled_output` is None.
      name: of the layer. The variables have their released names (bert/embeddings/word_embeddings) whatever it is.
      dtype: "float32", "bfloat16" or "float16", the type of matrix multiplications; or a Keras policy, such as
        "mixed_bfloat16".
    """

    saved_arguments = ("use_one_hot_embeddings", "gradient_checkpointing", "causal", "seed", "use_pooler")

    def __init__(
        self,
        config: BertConfig,
        use_one_hot_embeddings: bool = False,
        gradient_checkpointing: bool = False,
        causal: bool = False,
        seed: int | None = None,
        use_pooler: bool = True,
        dtype: str | keras.DTypePolicy | None = None,
        **kwargs,
    ) -> None:
        super().__init__(config, dtype=DTYPES.get(dtype, dtype) if isinstance(dtype, str) else dtype, **kwargs)
        self.use_pooler = use_pooler
        self.use_one_hot_embeddings = use_one_hot_embeddings
        self.gradient_checkpointing = gradient_checkpointing
        self.causal = causal
        self.seed = seed
        self.embeddings = Embeddings(config, use_one_hot_embeddings, **self.shared)
        self.encoder = BlockStack(config, gradient_checkpointing, **self.shared)
        self.pooler = Pooler(config, **self.shared) if use_pooler else None
        with variable_scope("bert"):
            self.embeddings.build()
            self.encoder.build((None, config.hidden_size))
            if self.pooler is not None:
                self.pooler.build((None, config.hidden_size))
        self.built = True
        self.seed_generator = keras.random.SeedGenerator(seed)  # last: without a seed, it uses up a random number

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
        **kwargs,
    ) -> EncoderOutput:
        """See `call`. Keras passes only the first argument to `compute_mask`, so all inputs go into it."""
        others = {name: kwargs.pop(name) for name in list(kwargs) if name in _INPUT_NAMES}
        return super().__call__(_named_inputs(input_ids, input_mask, segment_ids, others), **kwargs)

    def call(
        self,
        input_ids: tf.Tensor | Mapping[str, tf.Tensor],
        input_mask: tf.Tensor | None = None,
        segment_ids: tf.Tensor | None = None,
        training: bool | None = None,
        seed: tf.Tensor | None = None,
        token_positions: tf.Tensor | None = None,
        short_mask: tf.Tensor | None = None,
        first_only: bool = False,
    ) -> EncoderOutput:
        """Encodes a batch of sequences.

        Args:
          input_ids: [B, T], integers; or a dict of all inputs by their names. There `token_ids`, `attention_mask`,
            `padding_mask` and `token_type_ids`, the names of other libraries, are understood too, also as arguments.
          input_mask: [B, T], 1 for tokens and 0 for positions that may not be attended to; all ones if None.
          segment_ids: [B, T], all zeros if None.
          training: whether dropout is active, with new masks in each call.
          seed: [2], integers; dropout is active with the masks of this seed, whatever `training` says.
          token_positions: [n], integers, the positions of all tokens in the batch, counted row by row (from 0 to
            B*T - 1), and B*T in any other place. If given, the blocks compute these tokens only, and all outputs are
            zero at the other positions. Only attention still costs B*T*T.
          short_mask: [S, U], the input_mask of the first S sequences and U positions, if these sequences have no tokens
            at later positions. With token_positions, attention then costs S*U*U + (B - S)*T*T.
          first_only: With token_positions and a known B, whether the last block computes only the first token of each
            sequence. Its output is zero at the other positions.

        Raises:
          ValueError: if the dict has an unknown key or lacks the input_ids, an input isn't [B, T] numbers or has
            another shape than input_ids, the sequences are longer than the model's positions, or (outside of graphs) a
            segment id is not one of the model's.
        """
        inputs = _named_inputs(input_ids, input_mask, segment_ids)
        # Keras's inputs are float32 by default, and masks may be bool.
        inputs = {name: x if x.dtype.is_integer else tf.cast(x, tf.int32) for name, x in inputs.items()}
        input_ids = inputs["input_ids"]
        input_mask = inputs["input_mask"] if "input_mask" in inputs else tf.ones_like(input_ids)
        segment_ids = inputs["segment_ids"] if "segment_ids" in inputs else tf.zeros_like(input_ids)
        length = input_ids.shape[1] or tf.shape(input_ids)[1]
        positions = self.config.max_position_embeddings
        if isinstance(length, int) and length > positions:
            raise ValueError(f"the sequences have {length} tokens, but the model has only {positions} positions.")
        segments = self.config.type_vocab_size
        if tf.executing_eagerly() and not tf.reduce_all((segment_ids >= 0) & (segment_ids < segments)):
            raise ValueError(f"segment_ids must be from 0 to {segments - 1}, the segments of the model.")
        seed = seed_of_call(self.seed_generator, training, seed)

        x = self.embeddings(input_ids, segment_ids, seed=fold_in(seed, 0))
        rows, unpadded = None, None
        bias = self._attention_bias(input_mask)
        if token_positions is not None:
            rows = TokenRows.at(token_positions, input_ids.shape.num_elements() or tf.size(input_ids))
            x = rows.unpad(x)
            unpadded = Unpadded(rows, [bias])
            if first_only and input_ids.shape[0]:
                first_rows = tf.reshape(rows.rows, [input_ids.shape[0], length])[:, 0]
                count = token_positions.shape[0] or tf.size(token_positions)
                unpadded = unpadded._replace(firsts=TokenRows.at(first_rows, count))
            if short_mask is not None:
                unpadded = unpadded.split(self._attention_bias(short_mask))
        is_frozen = not self.embeddings.trainable
        x = tf.stop_gradient(x) if is_frozen else x
        options = {"unpadded": unpadded, "is_frozen": is_frozen}
        outputs, probabilities = self.encoder(x, bias, seed=fold_in(seed, 1), **options)

        def sequences(states: tf.Tensor) -> tf.Tensor:  # [B*T or n, H] -> [B, T, H]
            padded = states if rows is None else rows.pad(states)
            return tf.reshape(padded, [-1, length, self.config.hidden_size])

        if unpadded and unpadded.firsts:
            outputs[-1] = unpadded.firsts.pad(outputs[-1])
        layers = tuple(map(sequences, outputs))
        pooled = None if self.pooler is None else self.pooler(self._summary(layers[-1], input_mask))
        return EncoderOutput(
            embedding_output=sequences(x),
            all_encoder_layers=layers,
            sequence_output=layers[-1],
            pooled_output=pooled,
            attention_probs=tuple(probabilities),
            input_mask=input_mask,
        )

    def compute_mask(self, inputs: Mapping[str, tf.Tensor], previous_mask: object = None) -> EncoderOutput | None:
        """The input_mask as bool [B, T] for all outputs [B, T, H]; with it, Keras's losses leave out the padding."""
        mask = _named_inputs(inputs, None, None).get("input_mask")
        if mask is None:
            return None
        mask = keras.ops.cast(mask, "bool")
        return EncoderOutput(mask, (mask,) * self.config.num_hidden_layers, mask, None, (), None)

    def freeze(self, layers: int) -> None:
        """Freezes the embeddings and the lowest blocks. No gradient is computed for them or below them.

        To freeze the whole encoder, set `trainable` to False.

        Args:
          layers: the number of blocks to freeze; 0 freezes only the embeddings.

        Raises:
          InputError: if the encoder has fewer blocks.
        """
        if layers > len(self.encoder.blocks):
            raise InputError(
                f"--freeze_layers={layers}: the model has {len(self.encoder.blocks)} layers. Use at most that number.",
                "--freeze_layers",
            )
        for part in (self.embeddings, *self.encoder.blocks[:layers]):
            part.trainable = False

    def enable_lora(self, rank: int) -> None:
        """Freezes the encoder, and trains updates of low rank for the queries' and values' projections (see `Dense`).

        Args:
          rank: of the updates; Hu et al. (2021) use 1 to 64.

        Raises:
          InputError: if the rank is no whole number of at least 1.
        """
        require_whole("rank", rank, 1)
        self.trainable = True  # or no update would be trained in an encoder that was frozen
        for variable in self.weights:
            variable.trainable = False
        for block in self.encoder.blocks:
            block.attention.self_attention.query.enable_lora(rank)
            block.attention.self_attention.value.enable_lora(rank)

    def merge_lora(self) -> None:
        """Adds the updates of `enable_lora` to the weights they belong to, so that these are a checkpoint to write.

        The encoder has its released variables again, frozen until `trainable` is set, and gives what it gave. A model
        that goes on with training must be compiled anew.
        """
        for block in self.encoder.blocks:
            block.attention.self_attention.query.merge_lora()
            block.attention.self_attention.value.merge_lora()
        self.trainable = False  # as its variables are; Keras ignores what is set to the value that it has

    @property
    def trained_share(self) -> float:
        """The share of the blocks that are not frozen."""
        return sum(block.trainable for block in self.encoder.blocks) / len(self.encoder.blocks)

    def flops(self, input_ids: tf.Tensor, token_positions: tf.Tensor | None = None) -> tf.Tensor:
        """Floating-point operations of the matrix multiplications in a forward pass; see `call` for the arguments.

        All blocks are counted in full.
        """
        batch, length = (tf.cast(size, tf.float32) for size in tf.unstack(tf.shape(input_ids)))
        rows = batch * length if token_positions is None else tf.cast(tf.size(token_positions), tf.float32)
        return rows / length * self.config.flops(length)

    def _summary(self, states: tf.Tensor, input_mask: tf.Tensor) -> tf.Tensor:
        """The states of the token that has seen its whole sequence: [B, T, H], [B, T] -> [B, H]."""
        if not self.causal:
            return states[:, 0]
        # [CLS] comes first and sees only itself. The paper doesn't say how its left-to-right models classify.
        return last_tokens(states, input_mask)

    def _attention_bias(self, input_mask: tf.Tensor) -> tf.Tensor:
        """[B, T] -> [B, 1, 1 or T, T], added to the scores."""
        # One axis at a time, the form that LiteRT's converter knows.
        visible = tf.expand_dims(tf.expand_dims(tf.cast(input_mask, tf.float32), 1), 1)
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
    """The inputs that are given, by our names for them."""
    given = list(input_ids.items()) if isinstance(input_ids, Mapping) else [("input_ids", input_ids)]
    inputs = {}
    for key, value in [*given, ("input_mask", input_mask), ("segment_ids", segment_ids), *(others or {}).items()]:
        name = _INPUT_NAMES.get(key)
        if name is None:
            raise ValueError(f"the input {key!r} is unknown; BertEncoder knows {', '.join(_INPUT_NAMES)}.")
        if value is not None and name in inputs:
            raise ValueError(f"{name} is given twice, the second time as {key}.")
        if value is not None:
            inputs[name] = np.array(value) if isinstance(value, list) else value
            if not hasattr(inputs[name], "shape"):
                raise ValueError(f"{key} is a {type(value).__name__}, but a tensor, an array, or a dict is expected.")
            if len(inputs[name].shape) != 2:
                raise ValueError(f"{key} has the shape {list(inputs[name].shape)}, but [batch, tokens] is expected.")
    if "input_ids" not in inputs:
        raise ValueError(f"input_ids are missing; BertEncoder was given {', '.join(map(str, inputs)) or 'nothing'}.")
    expected = inputs["input_ids"].shape
    for name, value in inputs.items():
        if not tf.TensorShape(value.shape).is_compatible_with(expected):
            raise ValueError(f"{name} has the shape {list(value.shape)}, but that of input_ids is {list(expected)}.")
    return inputs
