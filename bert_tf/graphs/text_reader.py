"""The inputs of served models: converts raw texts and ids to the input of the encoder.

A served model is a `tf.Module`. The SavedModel contains the variables and constants of the module, and its `signatures`
as callable functions. Texts are UTF-8. Invalid bytes are dropped, as in the original code.

Axis letters: B batch, T tokens of the longest sequence, n tokens of all sequences.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.graphs.packing import FittedLengths, GraphPacker, TokenBatch, window_positions
from bert_tf.graphs.tokenization import GraphTokenizer
from bert_tf.sequences.text_packer import TRUNCATED, LongDocuments
from bert_tf.serving.answering import TEXT_INPUTS
from bert_tf.text import Tokenizer

Signature = Callable[..., Mapping[str, tf.Tensor]]


class ServedModel(Protocol):
    """The interface of a served model."""

    def signatures(self) -> dict[str, Signature]:
        """Returns the signatures by name: "serving_default" takes raw text, "token_ids" takes ids."""


def signature(function: Signature, **inputs: tf.TensorSpec) -> Signature:
    """Returns a function with named inputs that can be saved in a SavedModel."""
    specs = [tf.TensorSpec(spec.shape, spec.dtype, name) for name, spec in inputs.items()]
    return tf.function(function, input_signature=specs, autograph=False)


# Types of inputs: one text for each example [B], and several texts for each example [B, C].
TEXTS = tf.TensorSpec([None], tf.string)
TEXT_LISTS = tf.TensorSpec([None, None], tf.string)
# The inputs of the signature "token_ids", each [B, T].
IDS = {name: tf.TensorSpec([None, None], tf.int32, name) for name in ("input_ids", "input_mask", "segment_ids")}


def ids_function(function: Callable[[TokenBatch], tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Returns a compiled function that takes padded `IDS`, and calls `function` with the sequences."""

    def compute(input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> tf.Tensor:
        return function(TokenBatch.from_padded(input_ids, input_mask, segment_ids))

    return signature(compute, **IDS)


class GraphTextReader(tf.Module):
    """Tokenizes and packs texts or pairs of texts.

    Args:
      tokenizer: the model's tokenizer.
      max_seq_length: the largest number of tokens in a sequence. In a pair, the longer text is truncated first.
      kept_tokens: tokens in brackets that are not split; see `GraphTokenizer`.
      documents: how to read longer texts.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        max_seq_length: int,
        kept_tokens: Sequence[str] = (),
        documents: LongDocuments = TRUNCATED,
    ) -> None:
        super().__init__(name="texts")
        self.tokenizer: GraphTokenizer = GraphTokenizer.of(tokenizer, kept_tokens)
        self.packer: GraphPacker = GraphPacker(tokenizer.vocab, max_seq_length, documents.keeps_ends)
        self.documents = documents

    def read(
        self, text_a: tf.Tensor, text_b: tf.Tensor | None = None, names: Sequence[str] = TEXT_INPUTS
    ) -> tuple[TokenBatch, tf.Tensor]:
        """Returns the sequences of texts [B], and whether each was truncated [B].

        As in the original code, if the second text has no tokens, the sequence contains only the first text.

        Args:
          text_a: the first texts [B].
          text_b: the second texts [B], or None.
          names: the names of the two inputs, for messages.
        """
        first = self.tokenizer.tokenize(text_a)
        if text_b is None:
            second = tf.zeros_like(first[:, :0])
        else:
            check_equally_many(**dict(zip(names, (text_a, text_b), strict=True)))
            second = self.tokenizer.tokenize(text_b)
        fitted = self.packer.fit(first, second)
        return self.packer.pack(first, second, fitted), fitted.truncated

    def read_windows(self, text: tf.Tensor) -> tuple[TokenBatch, tf.Tensor]:
        """Returns the windows [W] of texts [B], and the index of the text for each window [W], ascending."""
        pieces = self.tokenizer.tokenize(text)
        spans = self.documents.windows(pieces.row_lengths(), self.packer.max_seq_length, tf)
        positions = window_positions(pieces, spans)
        windows = positions.with_flat_values(tf.gather(pieces.flat_values, positions.flat_values))
        fitted = FittedLengths(spans.lengths, tf.zeros_like(spans.lengths), tf.zeros_like(spans.lengths, tf.bool))
        batch = self.packer.pack(windows, windows[:, :0], fitted)
        return batch, tf.repeat(tf.range(tf.size(spans.counts)), spans.counts)


def check_equally_many(**inputs: tf.Tensor) -> None:
    """Checks in the graph that all inputs have the same batch size."""
    (first_name, first), *others = inputs.items()
    for name, values in others:
        message = f"{first_name} and {name} must have the same number of elements; an element is one example."
        tf.debugging.assert_equal(tf.shape(values)[0], tf.shape(first)[0], message)


def read_ids(config: BertConfig, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> TokenBatch:
    """Returns the sequences of ids, mask and segments [B, T]. The graph checks that the model can use them."""
    checks = []
    for name, values in (("input_mask", input_mask), ("segment_ids", segment_ids)):
        message = f"input_ids and {name} must have the same shape."
        checks.append(tf.debugging.assert_equal(tf.shape(values), tf.shape(input_ids), message))
    length = tf.shape(input_ids)[1]
    message = f"input_ids must have between 1 and {config.max_position_embeddings} columns."
    checks.append(tf.debugging.Assert((length >= 1) & (length <= config.max_position_embeddings), [message, length]))
    for name, values, size in (
        ("input_ids", input_ids, config.vocab_size),
        ("segment_ids", segment_ids, config.type_vocab_size),
    ):
        message = f"{name} must be between 0 and {size - 1}."
        checks.append(tf.debugging.Assert(tf.reduce_all((values >= 0) & (values < size)), [message]))
    with tf.control_dependencies(checks):  # otherwise, another operation could fail first with a less clear message
        return TokenBatch.from_padded(*map(tf.identity, (input_ids, input_mask, segment_ids)))
