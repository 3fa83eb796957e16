"""The served model of a feature-based tagger: a frozen encoder, and a BiLSTM over the words (see `served`).

Axis letters: B texts, W words of all texts, F layers that are read, H hidden, C classes, T tokens of the longest
sequence, n tokens of all sequences.
"""

from collections.abc import Sequence

import tensorflow as tf

from bert_tf.features import EMBEDDINGS
from bert_tf.sequences.graph_packing import TokenBatch
from bert_tf.serving.bilstm import InferenceBiLstm
from bert_tf.serving.encoder import InferenceEncoder
from bert_tf.serving.reader import IDS, Signature, read_ids, signature
from bert_tf.tasks.tagging.feature_tagger import FeatureTagger
from bert_tf.tasks.tagging.served import ServedTagger
from bert_tf.tokenization import FullTokenizer


class ServedFeatureTagger(ServedTagger):
    """Tags words and finds entities with the same features as `tagging.by_features`.

    It has the signatures of `ServedTagger`, but `ids` also takes `first_pieces` [B, T], which are 1 for the first piece
    of each word, because ids alone do not show where words begin. The logits of all other pieces are zeros.

    Args:
      encoder: the frozen encoder.
      layers: the layers that are read: numbers, or "embeddings".
      tagger: the tagger that was trained on these layers.
      tokenizer: the model's tokenizer.
      types: see `ServedTagger`.
      max_seq_length: longer texts are split into several windows; the BiLSTM's sequence is always the whole text.
    """

    def __init__(
        self,
        encoder: InferenceEncoder,
        layers: Sequence[int | str],
        tagger: FeatureTagger,
        tokenizer: FullTokenizer,
        *,
        types: Sequence[str],
        max_seq_length: int,
    ) -> None:
        super().__init__(encoder, tagger.head, tokenizer, types, max_seq_length)
        self._bilstm = InferenceBiLstm(tagger.bilstm)
        self._value_width = tagger.width
        blocks = encoder.config.num_hidden_layers
        self._places = tuple(0 if layer == EMBEDDINGS else layer % blocks + 1 for layer in layers)
        self._layer_weights = None
        if tagger.layer_scores is not None:
            self._layer_weights = tf.Variable(tf.nn.softmax(tagger.layer_scores.value), trainable=False)

    def _ids_signature(self) -> Signature:
        return signature(self._from_marked_ids, **IDS, first_pieces=IDS["input_ids"])

    def _from_marked_ids(
        self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor, first_pieces: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        message = "input_ids and first_pieces must have the same shape."
        with tf.control_dependencies([tf.debugging.assert_equal(tf.shape(first_pieces), tf.shape(input_ids), message)]):
            batch = read_ids(self._encoder.config, input_ids, input_mask, segment_ids)
        length = tf.shape(input_ids)[1]
        is_first = tf.boolean_mask(first_pieces, tf.sequence_mask(batch.lengths, length)) > 0
        is_word = is_first & (batch.visible > 0)
        counts = tf.reduce_sum(batch.ragged(tf.cast(is_word, tf.int64)), axis=1)
        logits = self._word_logits(tf.boolean_mask(self._token_values(batch), is_word), counts)
        shape = tf.stack([tf.size(is_word, tf.int64), self._tags.shape[0]])
        return {"logits": batch.padded(tf.scatter_nd(tf.where(is_word), logits, shape), 0, length)}

    def _token_values(self, batch: TokenBatch) -> tf.Tensor:
        """Sequences -> the combined activations of the layers: [n, F*H], or [n, H] if they are summed."""
        states = self._encoder.states(batch)
        read = [tf.cast(states[place], tf.float32) for place in self._places]
        if self._layer_weights is None:
            return tf.concat(read, axis=-1)
        return tf.einsum("fnh,f->nh", tf.stack(read), self._layer_weights)

    def _word_logits(self, values: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        states = self._bilstm(values, tf.ones_like(values[:, 0], tf.int32), tf.cast(counts, tf.int32))
        return self._output(states)
