"""Answers to questions, served: from a question and its context to the answer's text and its place.

What `tasks.squad_windows` and `tasks.squad_answers` do to files, done inside a graph with `answer_text="offsets"`.

Axis letters: B questions, W windows of all questions, S windows of a question, T tokens of the longest window,
n tokens of all windows, P pieces of all contexts, E pieces of all windows' texts, K positions that are paired.
"""

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from bert_tf.encoder import MASKED_SCORE
from bert_tf.model.heads import SpanHead
from bert_tf.sequences.graph_packing import TokenBatch
from bert_tf.serving.bilstm import TextEncoder
from bert_tf.serving.output_layer import OutputLayer
from bert_tf.serving.reader import TEXTS, Signature, check_equally_many, ids_signature, in_parts, read_ids, signature
from bert_tf.tokenization import FullTokenizer
from bert_tf.tokenization.graph_tokenization import GraphTokenizer, TokenizedText, valid_utf8

# Odds for no answer that are as high as a threshold are not above it, though summed in another order they may seem so.
_ROUNDING = 1e-5
_NOWHERE = -1


@dataclasses.dataclass(frozen=True)
class AnswerRules:
    """How answers are found; the names are those of run_squad.py's flags.

    Attributes:
      max_seq_length: the longest window.
      doc_stride: pieces between the starts of two windows.
      max_query_length: the question's pieces after these are cut off.
      n_best_size: how many start and end positions of a window are paired.
      max_answer_length: longest answer, in pieces.
      null_score_diff_threshold: odds above it mean that there is no answer; None for SQuAD 1.1, where there always is.
    """

    max_seq_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64
    n_best_size: int = 20
    max_answer_length: int = 30
    null_score_diff_threshold: float | None = None


class _Windows(NamedTuple):
    """Windows of all questions, one question's after the other's.

    Attributes:
      counts: [B] windows of each question.
      begins: [W] the context's piece that a window's text begins with.
      text_places: [W] the position in the window of that piece.
      is_max_context: [n] whether a token is a piece of the text that no other window shows more around.
      is_text: [n] whether a token is a piece of the text.
      tokens: what the model reads.
    """

    counts: tf.Tensor
    begins: tf.Tensor
    text_places: tf.Tensor
    is_max_context: tf.Tensor
    is_text: tf.Tensor
    tokens: TokenBatch


class _Spans(NamedTuple):
    """[B] each: the best span of a question, as pieces of its context, both included, and its score; -inf if none."""

    first_piece: tf.Tensor
    last_piece: tf.Tensor
    score: tf.Tensor


class ServedAnswerer(tf.Module):
    """Answers questions from contexts of any length.

    Args:
      encoder: the model.
      head: its output layer.
      tokenizer: of the model.
      rules: how answers are found.
    """

    def __init__(
        self,
        encoder: TextEncoder,
        head: SpanHead,
        tokenizer: FullTokenizer,
        rules: AnswerRules,
    ) -> None:
        super().__init__(name="answerer")
        self._encoder = encoder
        self._output = OutputLayer(head)
        self._tokenizer = GraphTokenizer(tokenizer.vocab, tokenizer.do_lower_case)
        self._cls, self._sep = tokenizer.vocab["[CLS]"], tokenizer.vocab["[SEP]"]
        self.rules = rules

    def signatures(self) -> dict[str, Signature]:
        """`serving_default`: question and context [B]; `ids`: input_ids, input_mask, segment_ids [B, T].

        From texts, [B] each: `answer`, as the context says it, or "" for none; `start` and `end`, its characters
        [start, end) in the context, counted in code points, -1 for none; `score`, the sum of the two logits of the
        best span, whether it is the answer or not, and the lowest float where there is none; `null_score`, the same of
        [CLS], the lowest over all windows. From ids: `start_logits` and `end_logits` [B, T], -10000 for padding.
        """
        return {
            "serving_default": signature(self._from_texts, question=TEXTS, context=TEXTS),
            "ids": ids_signature(self._from_ids),
        }

    def _from_ids(self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        batch = read_ids(self._encoder.config, input_ids, input_mask, segment_ids)
        logits = batch.padded(self._logits(batch), MASKED_SCORE, tf.shape(input_ids)[1])
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}

    def _from_texts(self, question: tf.Tensor, context: tf.Tensor) -> dict[str, tf.Tensor]:
        check_equally_many(question=question, context=context)
        query = self._tokenizer.tokenize(question)[:, : self.rules.max_query_length]
        pieces = self._tokenizer.tokenize_with_offsets(context)
        windows = self._cut(query, pieces.ids)
        logits = in_parts(self._logits, windows.tokens, width=2)
        spans = self._best_spans(windows, logits)
        null_score = _null_scores(windows, logits)
        return self._answers(context, pieces, spans, null_score)

    def _logits(self, batch: TokenBatch) -> tf.Tensor:
        """Sequences -> [n, 2], for start and end."""
        return self._output(self._encoder.token_states(batch))

    def _cut(self, query: tf.RaggedTensor, context: tf.RaggedTensor) -> _Windows:
        """Ids [B, (pieces)] of questions and contexts -> windows; see `squad_features.cut_windows`."""
        query_lengths, lengths = query.row_lengths(), context.row_lengths()
        room = self.rules.max_seq_length - 3 - query_lengths
        step = tf.minimum(room, self.rules.doc_stride)
        overhang = tf.maximum(lengths - room, 0)
        counts = tf.where(lengths > 0, (overhang + step - 1) // step + 1, 0)

        def of_windows(values: tf.Tensor) -> tf.Tensor:  # [B] -> [W]
            return tf.repeat(values, counts)

        number = tf.ragged.range(counts).flat_values
        begins = number * of_windows(step)
        text_lengths = tf.minimum(of_windows(room), of_windows(lengths) - begins)
        first = of_windows(context.row_starts()) + begins
        places = tf.ragged.range(first, first + text_lengths)  # [W, (pieces)] in all contexts' pieces
        is_max_context = _is_max_context(places, tf.size(context.flat_values))
        question = of_windows(tf.range(tf.size(counts, out_type=tf.int64)))
        cls, sep = (tf.fill([tf.size(number), 1], token) for token in (self._cls, self._sep))
        text = places.with_flat_values(tf.gather(context.flat_values, places.flat_values))
        ids = tf.concat([cls, tf.gather(query, question), sep, text, sep], axis=1)
        # [CLS], question and [SEP], then the text, then [SEP].
        head_lengths = of_windows(query_lengths) + 2
        token_lengths = ids.row_lengths()
        position = tf.ragged.range(token_lengths).flat_values
        segments = tf.cast(position >= tf.repeat(head_lengths, token_lengths), tf.int32)
        is_text = (segments > 0) & (position < tf.repeat(token_lengths - 1, token_lengths))
        return _Windows(
            counts=counts,
            begins=begins,
            text_places=head_lengths,
            is_max_context=tf.tensor_scatter_nd_update(is_text, tf.where(is_text), is_max_context),
            is_text=is_text,
            tokens=TokenBatch(ids.flat_values, segments, tf.ones_like(segments), tf.cast(token_lengths, tf.int32)),
        )

    def _best_spans(self, windows: _Windows, logits: tf.Tensor) -> _Spans:
        """Each question's best span; see `squad_answers`."""
        tokens = windows.tokens
        longest = tf.reduce_max(tf.concat([tokens.lengths, [1]], axis=0))
        padded = tokens.padded(tf.cast(logits, tf.float64), -float("inf"), longest)  # [W, T, 2]
        count = tf.minimum(self.rules.n_best_size, longest)
        start_logits, starts = tf.math.top_k(padded[..., 0], count)  # [W, K], of equal ones the first
        end_logits, ends = tf.math.top_k(padded[..., 1], count)
        start_fits = tf.gather(tokens.padded(windows.is_max_context, False, longest), starts, batch_dims=1)
        end_fits = tf.gather(tokens.padded(windows.is_text, False, longest), ends, batch_dims=1)
        more_pieces = ends[:, tf.newaxis, :] - starts[:, :, tf.newaxis]  # [W, K, K]
        fits = (more_pieces >= 0) & (more_pieces < self.rules.max_answer_length)
        fits &= start_fits[:, :, tf.newaxis] & end_fits[:, tf.newaxis, :]
        scores = start_logits[:, :, tf.newaxis] + end_logits[:, tf.newaxis, :]
        scores = tf.reshape(tf.where(fits, scores, -float("inf")), [tf.shape(scores)[0], count * count])
        best_score, best = _highest(scores)
        first = tf.gather(starts, best // count, batch_dims=1)
        last = tf.gather(ends, best % count, batch_dims=1)
        to_piece = windows.begins - windows.text_places
        # The best of a question's windows, of equal ones the first.
        score, window = _highest(_by_question(best_score, windows.counts, -float("inf")))
        window = tf.cast(window, tf.int64) + tf.cumsum(windows.counts, exclusive=True)
        # A window more, for questions that have none.
        first, last = (tf.pad(tf.cast(x, tf.int64) + to_piece, [[0, 1]]) for x in (first, last))
        return _Spans(tf.gather(first, window), tf.gather(last, window), score)

    def _answers(
        self, context: tf.Tensor, pieces: TokenizedText, spans: _Spans, null_score: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        threshold = self.rules.null_score_diff_threshold
        is_answer = spans.score > -float("inf")
        if threshold is not None:
            is_answer &= null_score - spans.score <= threshold + _ROUNDING
            if self.rules.n_best_size == 1:  # an n-best list of one has no answer beside the null answer
                is_answer &= spans.score >= null_score

        def at(places: tf.RaggedTensor, piece: tf.Tensor) -> tf.Tensor:
            """[B, (pieces)], [B] -> [B]; 0 where there is no piece."""
            values = tf.pad(places.flat_values, [[0, 1]])
            return tf.where(is_answer, tf.gather(values, places.row_starts() + piece), 0)

        first_byte, behind = at(pieces.byte_starts, spans.first_piece), at(pieces.byte_ends, spans.last_piece)
        lowest = tf.float32.min
        return {
            "answer": valid_utf8(tf.strings.substr(context, first_byte, behind - first_byte)),
            "start": tf.where(is_answer, tf.cast(at(pieces.starts, spans.first_piece), tf.int32), _NOWHERE),
            "end": tf.where(is_answer, tf.cast(at(pieces.ends, spans.last_piece), tf.int32), _NOWHERE),
            "score": tf.maximum(tf.cast(spans.score, tf.float32), lowest),
            "null_score": tf.cast(null_score, tf.float32),
        }


def _is_max_context(places: tf.RaggedTensor, num_pieces: tf.Tensor) -> tf.Tensor:
    """Whether a window shows the most around each of its pieces; the release's rule, see `squad_features`.

    Args:
      places: [W, (pieces)] which pieces of all contexts a window shows.
      num_pieces: of all contexts.

    Returns:
      [E].
    """
    piece, lengths = places.flat_values, places.row_lengths()
    left = tf.ragged.range(lengths).flat_values
    length = tf.repeat(lengths, lengths)
    around = tf.cast(tf.minimum(left, length - 1 - left), tf.float64) + 0.01 * tf.cast(length, tf.float64)
    most = tf.math.unsorted_segment_max(around, piece, num_pieces)
    window = places.value_rowids()
    shows_most = around == tf.gather(most, piece)
    first = tf.math.unsorted_segment_min(tf.where(shows_most, window, window.dtype.max), piece, num_pieces)
    return window == tf.gather(first, piece)


def _null_scores(windows: _Windows, logits: tf.Tensor) -> tf.Tensor:
    """[B] the lowest score of [CLS] over a question's windows: no answer only if every window says so; else 0."""
    scores = tf.reduce_sum(tf.cast(windows.tokens.first(logits), tf.float64), axis=1)
    lowest = tf.reduce_min(_by_question(scores, windows.counts, float("inf")), axis=1)
    return tf.where(windows.counts > 0, lowest, 0.0)


def _by_question(values: tf.Tensor, counts: tf.Tensor, padding: float) -> tf.Tensor:
    """[W] -> [B, S], with a column more than the question of most windows has."""
    rows = tf.RaggedTensor.from_row_lengths(values, counts, validate=False).to_tensor(padding)
    return tf.pad(rows, [[0, 0], [0, 1]], constant_values=padding)


def _highest(scores: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """[rows, columns] -> [rows] the highest of each row and its column, the first of equal ones."""
    values, places = tf.math.top_k(scores, 1)
    return values[:, 0], places[:, 0]
