"""A pre-trained model for serving: hidden states, vectors of texts, predictions for each [MASK], and sentence scores.

Axis letters: B batch, T tokens of the longest sequence, n tokens of all sequences, L layers, H hidden, V vocabulary,
M largest number of masks in a text, C masked copies of all sequences.
"""

import tensorflow as tf

from bert_tf import sentence_vectors
from bert_tf.checkpoints import pretrained
from bert_tf.graphs.encoder import InferenceEncoder, concatenated, in_parts
from bert_tf.graphs.exportable import Exportable
from bert_tf.graphs.packing import TokenBatch, by_row
from bert_tf.graphs.text_reader import IDS, TEXTS, GraphTextReader, Signature, read_ids, signature
from bert_tf.sentence_vectors import VectorConfig
from bert_tf.sequences.packing import check_max_seq_length
from bert_tf.serving.export_config import ExportConfig
from bert_tf.text import Tokenizer

_MASK = "[MASK]"
# The number of predictions for each mask.
_TOP = 5
# The largest numbers of masked copies and of tokens in masked copies to compute at a time.
_COPIES_PER_PART = 256
_TOKENS_PER_PART = 4096


def states_of(encoder: InferenceEncoder, batch: TokenBatch, config: VectorConfig) -> tf.Tensor:
    """Returns the concatenated hidden states of the selected layers, float32 [B, T, H * number of layers]."""
    layers = encoder.layers(batch)
    return batch.padded(tf.concat([tf.cast(layers[number], tf.float32) for number in config.layers], axis=-1))


def vectors_of(encoder: InferenceEncoder, batch: TokenBatch, config: VectorConfig) -> tf.Tensor:
    """Returns the vectors of texts, float32 [B, H * number of layers] or shorter (see `VectorConfig.truncate_dim`)."""
    mask = tf.sequence_mask(batch.lengths)
    if config.pooling == "pooled":
        return config.vectors(encoder.pooled_output(batch), mask)
    return config.vectors(states_of(encoder, batch, config), mask)


def pseudo_log_likelihoods(encoder: InferenceEncoder, batch: TokenBatch, mask_id: int) -> tf.Tensor:
    """Returns the pseudo-log-likelihood [B] of each sequence, float32 (Salazar et al., 2020).

    This is the sum of the natural logarithms of the probabilities of all tokens except [CLS] and [SEP]. Each token is
    predicted from a copy of the sequence in which only this token is masked. Memory does not depend on the number of
    copies, because only a part of the copies is computed at a time.

    Args:
      encoder: an encoder with a masked-LM head.
      batch: the sequences.
      mask_id: the id of [MASK].
    """
    counts = tf.maximum(batch.lengths - 2, 0)
    rows = tf.repeat(tf.range(tf.size(counts)), counts)  # [C], the sequence of each copy
    masked = tf.ragged.range(1, counts + 1).flat_values  # [C], the position of its [MASK]
    columns = [batch.ragged(values) for values in (batch.ids, batch.segments, batch.visible)]

    def log_probabilities(begin: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
        ids, segments, visible = (tf.gather(column, rows[begin:end]).flat_values for column in columns)
        lengths = tf.gather(batch.lengths, rows[begin:end])
        positions = tf.cumsum(lengths, exclusive=True) + masked[begin:end]
        labels = tf.gather(ids, positions)
        ids = tf.tensor_scatter_nd_update(ids, positions[:, tf.newaxis], tf.fill(tf.shape(positions), mask_id))
        states = encoder.token_states(TokenBatch(ids, segments, visible, lengths))
        logits = encoder.masked_lm_logits(tf.gather(states, positions))
        return -tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)[:, tf.newaxis]

    longest = tf.reduce_max(tf.concat([batch.lengths, [1]], axis=0))
    size = tf.clip_by_value(_TOKENS_PER_PART // longest, 1, _COPIES_PER_PART)
    values = concatenated(log_probabilities, tf.size(rows), size, 1)
    return tf.math.unsorted_segment_sum(values[:, 0], rows, tf.size(counts))


class ServedEncoder(tf.Module):
    """Encodes texts and pairs of texts. If the encoder has a masked-LM head, also fills in masks and scores texts.

    Args:
      encoder: the encoder.
      tokenizer: the model's tokenizer.
      max_seq_length: longer sequences are truncated.
      vectors: how to compute the vectors of texts; None for the defaults, and without vectors in `token_ids`.
    """

    def __init__(
        self,
        encoder: InferenceEncoder,
        tokenizer: Tokenizer,
        max_seq_length: int,
        vectors: VectorConfig | None = None,
    ) -> None:
        super().__init__(name="encoder")
        self._encoder, self._vector_config, self._has_vectors = encoder, vectors or VectorConfig(), bool(vectors)
        self._texts = GraphTextReader(tokenizer, max_seq_length)
        ids = range(encoder.config.vocab_size)
        self._pieces = tf.constant([tokenizer.inv_vocab.get(number, "[UNK]") for number in ids])
        if encoder.has_masked_lm:
            self._masked_texts = GraphTextReader(tokenizer, max_seq_length, [_MASK])
            self._mask = tokenizer.vocab[_MASK]

    def signatures(self) -> dict[str, Signature]:
        """Returns the signatures.

        - `serving_default` (text_a [B]), `pairs` (text_a and text_b [B]) and `token_ids` (input_ids, input_mask,
          segment_ids [B, T]) return `sequence_output` [B, T, H], with zeros after the end of a text, and, if there is a
          pooler, `pooled_output` [B, H]. `serving_default` and `pairs` also return `tokens` and `input_ids` [B, T],
          padded after the first `num_tokens` [B], and `truncated` [B]. `token_ids` also returns `vectors` if the model
          was trained for sentence vectors.
        - `sentence_vectors` (text_a [B]) returns `vectors` [B, H × layers] and `truncated` [B].
        - `all_layers` (text_a [B]) returns `all_encoder_layers` [B, L, T, H], and `tokens`, `input_ids`, `num_tokens`
          and `truncated`.
        - `fill_mask` (text_a [B]), if there is a masked-LM head, returns the best predictions for each [MASK] of a
          text, best first: `guesses` and `probabilities` [B, M, 5], padded after the first `num_masks` [B]. It also
          returns `truncated` [B].
        - `sentence_scores` (text_a [B]), if there is a masked-LM head, returns `pseudo_log_likelihood` [B] (see
          `pseudo_log_likelihoods`), `num_tokens` [B] without [CLS] and [SEP], and `truncated` [B].
        """
        signatures = {
            "serving_default": signature(self._from_texts, text_a=TEXTS),
            "pairs": signature(self._from_texts, text_a=TEXTS, text_b=TEXTS),
            "sentence_vectors": signature(self._sentence_vectors, text_a=TEXTS),
            "all_layers": signature(self._all_layers, text_a=TEXTS),
            "token_ids": signature(self._from_ids, **IDS),
        }
        if self._encoder.has_masked_lm:
            signatures["fill_mask"] = signature(self._fill_mask, text_a=TEXTS)
            signatures["sentence_scores"] = signature(self._sentence_scores, text_a=TEXTS)
        return signatures

    def _from_ids(self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        batch = read_ids(self._encoder.config, input_ids, input_mask, segment_ids)
        outputs = self._outputs(batch, tf.shape(input_ids)[1])
        return outputs | (_vectors(outputs, input_mask, self._vector_config) if self._has_vectors else {})

    def _from_texts(self, text_a: tf.Tensor, text_b: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        batch, truncated = self._texts.read(text_a, text_b)
        return self._outputs(batch) | self._tokens(batch) | {"truncated": truncated}

    def _sentence_vectors(self, text_a: tf.Tensor) -> dict[str, tf.Tensor]:
        batch, truncated = self._texts.read(tf.strings.join([self._vector_config.prompt, text_a]))
        width = self._encoder.config.hidden_size * len(self._vector_config.layers)
        width = min(width, self._vector_config.truncate_dim or width)
        vectors = in_parts(lambda subset: vectors_of(self._encoder, subset, self._vector_config), batch, width)
        return {"vectors": vectors, "truncated": truncated}

    def _all_layers(self, text_a: tf.Tensor) -> dict[str, tf.Tensor]:
        batch, truncated = self._texts.read(text_a)
        count, width = self._encoder.config.num_hidden_layers, self._encoder.config.hidden_size
        states = in_parts(
            lambda subset: tf.concat([tf.cast(layer, tf.float32) for layer in self._encoder.layers(subset)], axis=-1),
            batch,
            count * width,
        )
        layers = [batch.padded(layer) for layer in tf.split(states, count, axis=-1)]
        return {"all_encoder_layers": tf.stack(layers, axis=1), "truncated": truncated} | self._tokens(batch)

    def _outputs(self, batch: TokenBatch, length: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        last = self._last_states(batch)
        outputs = {"sequence_output": batch.padded(last, length=length)}
        return outputs | ({"pooled_output": self._encoder.pool(batch, last)} if self._encoder.has_pooler else {})

    def _last_states(self, batch: TokenBatch, is_needed: tf.Tensor | None = None) -> tf.Tensor:
        """Returns the last hidden states [n, H] of the tokens, float32. See `in_parts`."""
        width = self._encoder.config.hidden_size
        return in_parts(lambda subset: tf.cast(self._encoder.token_states(subset), tf.float32), batch, width, is_needed)

    def _tokens(self, batch: TokenBatch) -> dict[str, tf.Tensor]:
        return {
            "tokens": batch.padded(tf.gather(self._pieces, batch.ids), ""),
            "input_ids": batch.padded(batch.ids),
            "num_tokens": batch.lengths,
        }

    def _fill_mask(self, text_a: tf.Tensor) -> dict[str, tf.Tensor]:
        batch, truncated = self._masked_texts.read(text_a)
        is_mask = batch.ids == self._mask
        logits = self._encoder.masked_lm_logits(self._last_states(batch, is_mask))
        probabilities, guesses = tf.math.top_k(tf.nn.softmax(logits), min(_TOP, self._pieces.shape[0]))
        counts = tf.reduce_sum(batch.ragged(tf.cast(is_mask, tf.int64)), axis=1)

        def by_text(values: tf.Tensor, padding: str | float) -> tf.Tensor:
            return by_row(values, counts).to_tensor(tf.constant(padding, values.dtype))

        return {
            "guesses": by_text(tf.gather(self._pieces, guesses), ""),
            "probabilities": by_text(probabilities, 0.0),
            "num_masks": counts,
            "truncated": truncated,
        }

    def _sentence_scores(self, text_a: tf.Tensor) -> dict[str, tf.Tensor]:
        batch, truncated = self._texts.read(text_a)
        scores = pseudo_log_likelihoods(self._encoder, batch, self._mask)
        return {"pseudo_log_likelihood": scores, "num_tokens": batch.lengths - 2, "truncated": truncated}


def _vectors(outputs: dict[str, tf.Tensor], input_mask: tf.Tensor, config: VectorConfig) -> dict[str, tf.Tensor]:
    """Returns the vectors of texts [B, W] for the last hidden states [B, T, H] or the pooled output [B, H]."""
    states = outputs["pooled_output" if config.pooling == "pooled" else "sequence_output"]
    return {"vectors": config.vectors(states, input_mask)}


def exportable_encoder(model_dir: str, config: ExportConfig) -> Exportable:
    """Returns the exportable model of a pre-trained model that `bert_tf.load_model` can read.

    Raises:
      InputError: if the model can't be loaded or has no vocabulary, or `max_seq_length` exceeds the maximum.
    """
    source = sentence_vectors.find(model_dir, "--model_dir")
    loaded = pretrained.load_model(source.path, dtype="float32")
    tokenizer = pretrained.required_tokenizer(loaded.tokenizer, model_dir, "--model_dir")
    longest = loaded.config.max_position_embeddings
    max_seq_length = config.max_seq_length or min(source.max_seq_length or longest, longest)
    check_max_seq_length(max_seq_length)
    loaded.config.check_sequence_length(max_seq_length)
    encoder = InferenceEncoder(loaded.encoder, config.dtype, loaded.masked_lm("--model_dir"))
    vectors = source.config.with_prompt(source.config.prompt, tokenizer) if source.is_recorded else None
    served = ServedEncoder(encoder, tokenizer, max_seq_length, vectors)

    def states(input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        output = loaded.encoder(input_ids, input_mask, segment_ids)
        outputs = {"sequence_output": output.sequence_output, "pooled_output": output.pooled_output}
        outputs = {name: value for name, value in outputs.items() if value is not None}
        return outputs | (_vectors(outputs, input_mask, vectors) if vectors else {})

    return Exportable(served, states, tokenizer, max_seq_length)
