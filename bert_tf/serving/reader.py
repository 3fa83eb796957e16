"""From raw strings to what the encoder reads: what all served models do with their texts.

A served model is a `tf.Module` whose variables and constants make the SavedModel, and whose `signatures` are what can
be called there. Texts are UTF-8; bytes that aren't are left out, as the release leaves them out.

Axis letters: B batch, T tokens of the longest sequence, n tokens of all sequences.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.sequences.graph_packing import GraphPacker, KeptPieces, TokenBatch
from bert_tf.tokenization import FullTokenizer
from bert_tf.tokenization.graph_tokenization import GraphTokenizer

Signature = Callable[..., Mapping[str, tf.Tensor]]


class ServedModel(Protocol):
    """What can be exported."""

    def signatures(self) -> dict[str, Signature]:
        """The functions that can be called, by name; "serving_default" takes raw text, "ids" takes ids."""


def signature(function: Signature, **inputs: tf.TensorSpec) -> Signature:
    """A function with named inputs, as a SavedModel keeps it."""
    specs = [tf.TensorSpec(spec.shape, spec.dtype, name) for name, spec in inputs.items()]
    return tf.function(function, input_signature=specs, autograph=False)


# Texts [B]; texts of which each example has several [B, C].
TEXTS = tf.TensorSpec([None], tf.string)
TEXT_LISTS = tf.TensorSpec([None, None], tf.string)
# [B, T] each: what the signature "ids" takes.
IDS = {name: tf.TensorSpec([None, None], tf.int32, name) for name in ("input_ids", "input_mask", "segment_ids")}


def ids_signature(function: Signature) -> Signature:
    """A function of `input_ids`, `input_mask` and `segment_ids`, as a SavedModel keeps it."""
    return signature(function, **IDS)


class TextReader(tf.Module):
    """Tokenizes and packs texts, or pairs of them.

    Args:
      tokenizer: of the model.
      max_seq_length: longer sequences are cut, pairs from the end of the longer text.
    """

    def __init__(self, tokenizer: FullTokenizer, max_seq_length: int) -> None:
        super().__init__(name="texts")
        self.tokenizer = GraphTokenizer(tokenizer.vocab, tokenizer.do_lower_case)
        self.packer = GraphPacker(tokenizer.vocab, max_seq_length)

    def read(self, text_a: tf.Tensor, text_b: tf.Tensor | None = None) -> tuple[TokenBatch, tf.Tensor]:
        """[B] texts -> their sequences; [B] whether they were cut.

        As in the release, a second text without pieces makes a single-text sequence.
        """
        first = self.tokenizer.tokenize(text_a)
        if text_b is None:
            second = tf.zeros_like(first[:, :0])
        else:
            check_equally_many(text_a=text_a, text_b=text_b)
            second = self.tokenizer.tokenize(text_b)
        kept: KeptPieces = self.packer.fit(first, second)
        return self.packer.pack(first, second, kept), kept.truncated


def check_equally_many(**inputs: tf.Tensor) -> None:
    """Stops a signature whose inputs are of different batch sizes."""
    (first_name, first), *others = inputs.items()
    for name, values in others:
        message = f"{first_name} and {name} must have as many elements; an element is one example."
        tf.debugging.assert_equal(tf.shape(values)[0], tf.shape(first)[0], message)


def read_ids(config: BertConfig, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> TokenBatch:
    """[B, T] each -> their sequences; stops a signature whose inputs the model can't read."""
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
        message = f"{name} must lie between 0 and {size - 1}."
        checks.append(tf.debugging.Assert(tf.reduce_all((values >= 0) & (values < size)), [message]))
    with tf.control_dependencies(checks):  # so that nothing else fails first and says less
        return TokenBatch.from_padded(*map(tf.identity, (input_ids, input_mask, segment_ids)))


# Sequences that the encoder sees at once where a text may have any number of them, which bounds the memory.
_SEQUENCES_AT_ONCE = 32


def in_parts(
    function: Callable[[TokenBatch], tf.Tensor], batch: TokenBatch, width: int, kept: tf.Tensor | None = None
) -> tf.Tensor:
    """Applies a function of a batch [n] -> [n, width], float32, to some sequences at a time.

    Args:
      function: what is applied.
      batch: the sequences.
      width: of what it gives.
      kept: [n], the tokens whose results are wanted; None for all.

    Returns:
      [n, width], or of the tokens that are kept.
    """
    total = tf.size(batch.lengths)
    behind = tf.concat([[0], tf.cumsum(batch.lengths)], axis=0)

    def next_part(begin: tf.Tensor, results: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
        end = tf.minimum(begin + _SEQUENCES_AT_ONCE, total)
        tokens = slice(behind[begin], behind[end])
        part = TokenBatch(batch.ids[tokens], batch.segments[tokens], batch.visible[tokens], batch.lengths[begin:end])
        found = function(part) if kept is None else tf.boolean_mask(function(part), kept[tokens])
        return end, results.write(begin // _SEQUENCES_AT_ONCE, found)

    results = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[None, width], infer_shape=False)
    empty = results.write(0, tf.zeros([0, width]))
    _, results = tf.while_loop(
        lambda begin, _: begin < total, next_part, (tf.constant(0), empty), parallel_iterations=1
    )
    return results.concat()
