"""Text embeddings."""

import os
from typing import Any, Self

import numpy as np
import tensorflow as tf

from bert_tf.api import in_memory
from bert_tf.checkpoints import pretrained
from bert_tf.checkpoints.pretrained import LoadedBert
from bert_tf.encoder import EncoderOutput
from bert_tf.finetuning import feature_sets
from bert_tf.finetuning.feature_sets import FeatureSet
from bert_tf.runtime.errors import InputError, require_choice
from bert_tf.runtime.reporting import report_truncation
from bert_tf.sequences import packing

POOLINGS = ("mean", "max", "cls", "pooled")


class SentenceEncoder:
    """Computes a vector for each text or pair of texts.

        encoder = bert_tf.SentenceEncoder.from_pretrained("models/bert-base")
        vectors = encoder.encode(["a text", ("a text", "and a second one")], pooling="mean")

    Args:
      bert: the model.
      max_seq_length: longer sequences are truncated to this number of tokens. The default is the model's maximum.
    """

    def __init__(self, bert: LoadedBert, max_seq_length: int | None = None) -> None:
        self.bert = bert
        self.max_seq_length = max_seq_length or bert.config.max_position_embeddings
        bert.config.check_sequence_length(self.max_seq_length)
        packing.check_max_seq_length(self.max_seq_length)

    def __repr__(self) -> str:
        return f"SentenceEncoder({self.bert.source.path!r}, max_seq_length={self.max_seq_length})"

    @classmethod
    def from_pretrained(
        cls,
        path: str | os.PathLike[str],
        *,
        max_seq_length: int | None = None,
        do_lower_case: bool | None = None,
        dtype: str | None = None,
    ) -> Self:
        """Returns an encoder with a model's weights.

        Args:
          path: see `bert_tf.load_model`.
          max_seq_length: longer sequences are truncated. Default: the model's maximum.
          do_lower_case: see `bert_tf.load_model`.
          dtype: see `bert_tf.load_model`.

        Raises:
          InputError: if a file is missing, or the files do not match each other.
        """
        bert = pretrained.load_model(path, do_lower_case, dtype)
        pretrained.required_tokenizer(bert.tokenizer, bert.source.path, "from_pretrained()")
        return cls(bert, max_seq_length)

    def encode(self, x: Any, *, pooling: str = "mean", normalize: bool = False, batch_size: int = 32) -> np.ndarray:
        """Returns a vector for each text, float32 [num_texts, hidden_size], in the order of the texts.

        Args:
          x: texts and pairs of texts: a list, an array, a pandas object, or a `tf.data.Dataset`.
          pooling: "mean" or "max" over the last hidden states of all tokens, including [CLS] and [SEP]; "cls": the last
            hidden state of [CLS]; "pooled": the pooler's output, which was trained with next sentence prediction.
          normalize: if True, scale each vector to length 1, so that dot products are cosine similarities.
          batch_size: number of texts per batch.

        Raises:
          InputError: if there are no texts, or the pooling is unknown or unavailable.
        """
        require_choice("pooling", pooling, POOLINGS)
        if pooling == "pooled" and self.bert.encoder.pooler is None:
            raise InputError(
                f"pooling='pooled': {self.bert.source.path} has no pooler. Use another pooling.", "pooling='pooled'"
            )
        texts = [
            in_memory.text_columns(value, f"text {number}") for number, value in enumerate(in_memory.as_list(x, "x"))
        ]
        if not texts:
            raise InputError("x has no texts. Give some.")
        tokenizer, longest = self.bert.tokenizer, self.max_seq_length
        packed = [tokenizer.pack(text["text"], text.get("text_b"), longest) for text in texts]
        features = FeatureSet.from_sequences(packed)
        report_truncation(features.num_truncated, len(features), "x", longest)
        buckets = feature_sets.bucket_lengths(self.max_seq_length, compiled=False)
        vectors = np.zeros((len(texts), self.bert.config.hidden_size), np.float32)
        for numbers, batch in feature_sets.batches_by_length(features, batch_size, buckets):
            vectors[numbers] = self._pooled(batch, pooling)[: len(numbers)]
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if normalize else vectors

    @tf.function(reduce_retracing=True, autograph=False)
    def _pooled(self, batch: dict[str, tf.Tensor], pooling: str) -> tf.Tensor:
        output: EncoderOutput = self.bert.encoder(batch["input_ids"], batch["input_mask"], batch["segment_ids"])
        if pooling == "pooled":
            return tf.cast(output.pooled_output, tf.float32)
        states = tf.cast(output.sequence_output, tf.float32)
        if pooling == "cls":
            return states[:, 0]
        is_piece = tf.cast(batch["input_mask"], tf.bool)[:, :, tf.newaxis]
        if pooling == "max":
            return tf.reduce_max(tf.where(is_piece, states, states.dtype.min), axis=1)
        weights = tf.cast(is_piece, tf.float32)
        return tf.reduce_sum(weights * states, axis=1) / tf.reduce_sum(weights, axis=1)
