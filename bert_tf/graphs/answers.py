"""The served model: finds the text and the position of the answer to a question in a context, in a TensorFlow graph.

The functions follow the same rules as `windows.featurize` and `decoding.decode` with `answer_text="offsets"`.

Axis letters: B questions, W windows of all questions, S windows of a question, T tokens of the longest window, n tokens
of all windows, E tokens of all windows' texts, K paired positions, M compared spans, N listed answers.
"""

from typing import NamedTuple

import tensorflow as tf

from bert_tf.encoder import MASKED_SCORE
from bert_tf.finetuning.models import SpanModel
from bert_tf.graphs.encoder import InferenceEncoder, in_parts
from bert_tf.graphs.exportable import Exportable, FinishedRun
from bert_tf.graphs.packing import TokenBatch, by_row, window_positions
from bert_tf.graphs.text_reader import IDS, TEXTS, Signature, check_equally_many, read_ids, signature
from bert_tf.graphs.tokenization import GraphTokenizer, TokenizedText, valid_utf8
from bert_tf.sequences.text_packer import cut_texts
from bert_tf.tasks.squad.answerer import describe_model, find_null_threshold
from bert_tf.tasks.squad.rules import (
    SquadConfig,
    first_text_position,
    means_no_answer,
    pairs_fit,
    shows_most_context,
    text_room,
)
from bert_tf.text import Tokenizer

# Added to the threshold. The graph sums in a different order than Python, so odds equal to the threshold may be higher.
_ROUNDING = 1e-5
# The number of spans to compare for each listed answer, because several spans may have the same text.
_SPANS_PER_ANSWER = 8
_NOWHERE = -1


class GraphWindows(NamedTuple):
    """The windows of all questions, all windows of the first question first.

    Attributes:
      counts: [B], the number of windows of each question.
      text_start: [W], index in the context of the first token of a window's text.
      first_lengths: [W], position in the window at which the text begins.
      is_max_context: [n], whether a token belongs to the text and has the most context in this window; see
        `shows_most_context`.
      is_text: [n], whether a token belongs to the text.
      tokens: the model's input.
    """

    counts: tf.Tensor
    text_start: tf.Tensor
    first_lengths: tf.Tensor
    is_max_context: tf.Tensor
    is_text: tf.Tensor
    tokens: TokenBatch


class BestSpans(NamedTuple):
    """The best spans of each question [B, M], best first, padded with the score -inf.

    Attributes:
      first_piece: index of the first token in the context.
      last_piece: index of the last token in the context.
      score: the sum of the two logits.
    """

    first_piece: tf.Tensor
    last_piece: tf.Tensor
    score: tf.Tensor


class ServedPredictor(tf.Module):
    """Answers questions from contexts of any length.

    Args:
      encoder: the encoder with the output layer.
      tokenizer: the model's tokenizer.
      config: the rules for windows and answers.
      null_score_diff_threshold: SQuAD 2.0: the answer is empty if the null odds exceed this value.

    Raises:
      InputError: if a question may leave no room for text.
    """

    def __init__(
        self,
        encoder: InferenceEncoder,
        tokenizer: Tokenizer,
        config: SquadConfig,
        null_score_diff_threshold: float = 0.0,
    ) -> None:
        config.check_lengths()
        super().__init__(name="predictor")
        self._encoder = encoder
        self._tokenizer = GraphTokenizer.of(tokenizer)
        self._cls, self._sep = tokenizer.ends
        self.config = config
        self.null_score_diff_threshold = null_score_diff_threshold

    def signatures(self) -> dict[str, Signature]:
        """Returns the signatures.

        `serving_default` takes question [B] and context [B], and returns:

        - `answer` [B]: the answer, as written in the context; "" for no answer.
        - `start` and `end` [B]: the characters [start, end) of the answer in the context, in code points; -1 for no
          answer.
        - `score` [B]: the sum of the two logits of the best span, even if there is no answer; the lowest float if there
          is no span.
        - `null_score` [B]: the sum of the two logits of [CLS]; the lowest sum among the windows of the question.
        - `answers`, `answer_starts`, `answer_ends`, `answer_scores` and `answer_probabilities` [B, N]: the n best
          answers, best first, padded after the first `num_answers` [B]. The probabilities are a softmax over the listed
          scores, as in nbest_predictions.json.
        - `null_probability` [B], for SQuAD 2.0 only: the probability of the null score in this softmax.
        - `null_threshold` [B], for SQuAD 2.0 only: there is no answer if `null_score` minus `score` exceeds this value.

        `token_ids` takes input_ids, input_mask and segment_ids [B, T]. It returns `start_logits` and `end_logits`
        [B, T], -10000 for padding.
        """
        return {
            "serving_default": signature(self._from_texts, question=TEXTS, context=TEXTS),
            "token_ids": signature(self._from_ids, **IDS),
        }

    def _from_ids(self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        batch = read_ids(self._encoder.config, input_ids, input_mask, segment_ids)
        logits = batch.padded(self._encoder.token_logits(batch), MASKED_SCORE, tf.shape(input_ids)[1])
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}

    def _from_texts(self, question: tf.Tensor, context: tf.Tensor) -> dict[str, tf.Tensor]:
        check_equally_many(question=question, context=context)
        pieces = self._tokenizer.tokenize_with_offsets(context)
        windows = cut_windows(self._tokenizer.tokenize(question), pieces.ids, self._cls, self._sep, self.config)
        logits = in_parts(self._encoder.token_logits, windows.tokens, width=2)
        spans = best_spans(windows, logits, self.config)
        null_score = null_scores(windows, logits)
        threshold = self.null_score_diff_threshold if self.config.version_2_with_negative else None
        size = self.config.n_best_size
        return place_answers(context, pieces, spans, null_score, n_best_size=size, threshold=threshold)


def cut_windows(
    query: tf.RaggedTensor, context: tf.RaggedTensor, cls: int, sep: int, config: SquadConfig
) -> GraphWindows:
    """Splits contexts into windows; see `windows.featurize`. Takes ids [B, (tokens)] of questions and contexts."""
    query = query[:, : config.max_query_length]
    query_lengths = query.row_lengths()
    spans = cut_texts(context.row_lengths(), text_room(query_lengths, config.max_seq_length), config.doc_stride, tf)
    token_indices = window_positions(context, spans)
    is_max_context = _is_max_context(token_indices, tf.size(context.flat_values))
    question = tf.repeat(tf.range(tf.size(spans.counts)), spans.counts)
    cls, sep = (tf.fill([tf.size(question), 1], token) for token in (cls, sep))
    text = token_indices.with_flat_values(tf.gather(context.flat_values, token_indices.flat_values))
    ids = tf.concat([cls, tf.gather(query, question), sep, text, sep], axis=1)
    first_lengths = first_text_position(tf.gather(query_lengths, question))
    lengths = ids.row_lengths()
    position = tf.ragged.range(lengths).flat_values
    segments = tf.cast(position >= tf.repeat(first_lengths, lengths), tf.int32)
    is_text = (segments > 0) & (position < tf.repeat(lengths - 1, lengths))
    return GraphWindows(
        counts=spans.counts,
        text_start=spans.begins,
        first_lengths=first_lengths,
        is_max_context=tf.tensor_scatter_nd_update(is_text, tf.where(is_text), is_max_context),
        is_text=is_text,
        tokens=TokenBatch(ids.flat_values, segments, tf.ones_like(segments), tf.cast(lengths, tf.int32)),
    )


def _is_max_context(indices: tf.RaggedTensor, num_pieces: tf.Tensor) -> tf.Tensor:
    """Returns `shows_most_context` [E] for the tokens of all windows.

    Args:
      indices: [W, (tokens)], the index of each token in the flat tokens of all contexts.
      num_pieces: the number of tokens of all contexts.
    """

    def highest_of_piece(values: tf.Tensor) -> tf.Tensor:
        return tf.gather(tf.math.unsorted_segment_max(values, indices.flat_values, num_pieces), indices.flat_values)

    lengths = indices.row_lengths()
    of_pieces = tf.ragged.range(lengths).flat_values, tf.repeat(lengths, lengths), indices.value_rowids()
    return shows_most_context(*(tf.cast(values, tf.float64) for values in of_pieces), highest_of_piece, tf)


def best_spans(windows: GraphWindows, logits: tf.Tensor, config: SquadConfig) -> BestSpans:
    """Returns the best spans of each question, from the logits [n, 2] of all windows. See `decoding.decode`."""
    tokens = windows.tokens
    longest = tf.reduce_max(tf.concat([tokens.lengths, [1]], axis=0))
    padded = tokens.padded(tf.cast(logits, tf.float64), -float("inf"), longest)  # [W, T, 2]
    count = tf.minimum(config.n_best_size, longest)
    start_logits, starts = tf.math.top_k(padded[..., 0], count)  # [W, K]; the first of equal values
    end_logits, ends = tf.math.top_k(padded[..., 1], count)
    start_fits = tf.gather(tokens.padded(windows.is_max_context, False, longest), starts, batch_dims=1)
    end_fits = tf.gather(tokens.padded(windows.is_text, False, longest), ends, batch_dims=1)
    fits = pairs_fit(starts, ends, start_fits, end_fits, max_answer_length=config.max_answer_length, ops=tf)
    scores = start_logits[:, :, tf.newaxis] + end_logits[:, tf.newaxis, :]
    scores = tf.reshape(tf.where(fits, scores, -float("inf")), [tf.shape(scores)[0], count * count])
    span_count = tf.minimum(config.n_best_size * _SPANS_PER_ANSWER, count * count)
    score, best = tf.math.top_k(scores, span_count)  # [W, M]; the first of equal values
    to_piece = tf.cast(windows.text_start - windows.first_lengths, tf.int64)[:, tf.newaxis]
    first = tf.cast(tf.gather(starts, best // count, batch_dims=1), tf.int64) + to_piece
    last = tf.cast(tf.gather(ends, best % count, batch_dims=1), tf.int64) + to_piece
    score, order = tf.math.top_k(_by_question(score, windows.counts, -float("inf")), span_count)  # [B, M]
    first, last = (tf.gather(_by_question(x, windows.counts, 0), order, batch_dims=1) for x in (first, last))
    return BestSpans(first, last, score)


def null_scores(windows: GraphWindows, logits: tf.Tensor) -> tf.Tensor:
    """Returns the lowest score of [CLS] among the windows of each question [B]; 0 for a question without windows."""
    scores = tf.reduce_sum(tf.cast(windows.tokens.first(logits), tf.float64), axis=1)
    lowest = tf.reduce_min(_by_question(scores[:, tf.newaxis], windows.counts, float("inf")), axis=1)
    return tf.where(windows.counts > 0, lowest, 0.0)


def place_answers(
    context: tf.Tensor,
    pieces: TokenizedText,
    spans: BestSpans,
    null_score: tf.Tensor,
    *,
    n_best_size: int,
    threshold: float | None,
) -> dict[str, tf.Tensor]:
    """Returns the outputs of `serving_default`; see `ServedPredictor.signatures`. `threshold` is None for SQuAD 1.1."""
    is_span = spans.score > -float("inf")

    def at(token_values: tf.RaggedTensor, piece: tf.Tensor) -> tf.Tensor:
        """Returns the values [B, M] of tokens [B, (tokens)] at indices [B, M]; 0 if there is no span."""
        values = tf.pad(token_values.flat_values, [[1, 0]])
        return tf.gather(values, tf.where(is_span, token_values.row_starts()[:, tf.newaxis] + piece + 1, 0))

    first_byte, end_byte = at(pieces.byte_starts, spans.first_piece), at(pieces.byte_ends, spans.last_piece)
    texts = tf.strings.substr(context[:, tf.newaxis], first_byte, end_byte - first_byte)
    texts = tf.reshape(valid_utf8(tf.reshape(texts, [-1])), tf.shape(texts))
    is_listed = is_span & _is_first(texts)
    rank = tf.cumsum(tf.cast(is_listed, tf.int32), axis=1)  # 1 for the best text
    size = tf.fill([tf.shape(context)[0]], n_best_size)
    if threshold is not None:
        # As in the original code, the null answer is always listed. If it is not one of the n best, it is added.
        better = tf.math.count_nonzero(is_listed & (spans.score >= null_score[:, tf.newaxis]), axis=1, dtype=tf.int32)
        size = tf.where(better >= n_best_size, size, size - 1)
    is_listed &= rank <= size[:, tf.newaxis]

    def listed(values: tf.Tensor, padding: str | float) -> tf.Tensor:
        """Returns the values of the listed spans, [B, M] -> [B, N]."""
        return tf.ragged.boolean_mask(values, is_listed).to_tensor(tf.constant(padding, values.dtype))

    starts = tf.cast(at(pieces.starts, spans.first_piece), tf.int32)
    ends = tf.cast(at(pieces.ends, spans.last_piece), tf.int32)
    scores = tf.where(is_listed, spans.score, -float("inf"))
    outputs = {}
    is_answer, probabilities = is_span[:, 0], tf.nn.softmax(scores)
    if threshold is not None:
        probabilities = tf.nn.softmax(tf.concat([scores, null_score[:, tf.newaxis]], axis=1))
        is_answer &= ~means_no_answer(null_score - spans.score[:, 0], threshold + _ROUNDING)
        if n_best_size == 1:  # if the null answer is best, the list contains no other answer
            is_answer &= spans.score[:, 0] >= null_score
        outputs["null_probability"] = tf.cast(probabilities[:, -1], tf.float32)
        outputs["null_threshold"] = tf.fill(tf.shape(null_score), tf.constant(threshold, tf.float32))
        probabilities = probabilities[:, :-1]
    return outputs | {
        "answer": tf.where(is_answer, texts[:, 0], ""),
        "start": tf.where(is_answer, starts[:, 0], _NOWHERE),
        "end": tf.where(is_answer, ends[:, 0], _NOWHERE),
        "score": tf.maximum(tf.cast(spans.score[:, 0], tf.float32), tf.float32.min),
        "null_score": tf.cast(null_score, tf.float32),
        "num_answers": tf.math.count_nonzero(is_listed, axis=1, dtype=tf.int32),
        "answers": listed(texts, ""),
        "answer_starts": listed(starts, _NOWHERE),
        "answer_ends": listed(ends, _NOWHERE),
        "answer_scores": listed(tf.cast(spans.score, tf.float32), 0.0),
        "answer_probabilities": listed(tf.cast(probabilities, tf.float32), 0.0),
    }


def _is_first(texts: tf.Tensor) -> tf.Tensor:
    """Returns True for each text [B, M] that differs from all previous texts in its row."""
    equal = texts[:, :, tf.newaxis] == texts[:, tf.newaxis, :]
    count = tf.shape(texts)[1]
    before = tf.range(count)[tf.newaxis, :] < tf.range(count)[:, tf.newaxis]
    return ~tf.reduce_any(equal & before, axis=2)


def _by_question(values: tf.Tensor, counts: tf.Tensor, padding: float) -> tf.Tensor:
    """Groups the values of windows by question, [W, M] -> [B, S*M]. Adds one window of padding, so S is at least 1."""
    padded = tf.pad(
        by_row(values, counts).to_tensor(padding),
        [[0, 0], [0, 1], [0, 0]],
        constant_values=tf.cast(padding, values.dtype),
    )
    shape = tf.shape(padded)
    return tf.reshape(padded, [shape[0], shape[1] * shape[2]])


def exportable_predictor(run: FinishedRun) -> Exportable:
    """Returns the exportable model of a SQuAD run. It answers like run_squad.py with --answer_text=offsets."""
    model, step = run.restored(SpanModel)
    config = SquadConfig.from_flags({**run.flags, **run.settings, **run.export_config.answers})
    threshold = run.export_config.null_score_diff_threshold
    if threshold is None and run.settings["version_2_with_negative"]:
        threshold = find_null_threshold([run.directory], describe_model(step, model))
    config = config.replace(max_seq_length=run.max_seq_length, answer_text="offsets")
    served = ServedPredictor(run.encoder(model), run.tokenizer, config, null_score_diff_threshold=threshold or 0.0)
    return run.exportable(served, model)
