"""From a question and its paragraph to windows of the length that the model reads, one at a time as in the release.

A long paragraph is cut into overlapping windows, each behind the question: [CLS] question [SEP] window [SEP]. The
program itself uses `squad_windows`, which makes the same windows for a whole file at once.
"""

import dataclasses
import os
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from bert_tf.runtime import files
from bert_tf.runtime.files import InputError
from bert_tf.sequences import packing
from bert_tf.sequences.example_format import serialize, squad_features
from bert_tf.tasks.squad.examples import SquadExample
from bert_tf.tokenization import FullTokenizer

FIRST_UNIQUE_ID = 1_000_000_000
# What stands around question and window: [CLS], [SEP], [SEP].
_SPECIAL_TOKENS = 3
# A span that no window holds, so that questions without an answer point at [CLS].
NO_ANSWER = (-1, -1)


@dataclasses.dataclass
class InputFeatures:
    """One window, with what is needed to find its tokens in the paragraph again.

    Attributes:
      unique_id: numbers all windows of a file from 1,000,000,000 on.
      example_index: the question's place in the file.
      doc_span_index: which of the question's windows this is.
      tokens: [CLS] question [SEP] window [SEP], without padding.
      token_to_orig_map: position in `tokens` -> index of the paragraph's word.
      token_is_max_context: position in `tokens` -> whether no other window shows more around this piece.
      input_ids: ids of `tokens`, padded.
      input_mask: 1 for tokens, 0 for padding.
      segment_ids: 1 for the window and its [SEP], 0 elsewhere.
      start_position: the answer's first token; 0 if the window doesn't hold the answer, None when predicting.
      end_position: the answer's last token.
      is_impossible: the example's.
    """

    unique_id: int
    example_index: int
    doc_span_index: int
    tokens: list[str]
    token_to_orig_map: dict[int, int]
    token_is_max_context: dict[int, bool]
    input_ids: list[int]
    input_mask: list[int]
    segment_ids: list[int]
    start_position: int | None = None
    end_position: int | None = None
    is_impossible: bool | None = None


class DocSpan(NamedTuple):
    """A window's stretch of the paragraph's pieces: [start, start + length)."""

    start: int
    length: int


def check_window_lengths(max_seq_length: int, max_query_length: int) -> None:
    """Checks the flags before anything is read.

    Raises:
      InputError: if a question of `max_query_length` leaves no room for text.
    """
    if max_query_length < 0:
        raise InputError(f"--max_query_length is {max_query_length}, but it can't be negative.")
    if max_seq_length <= max_query_length + _SPECIAL_TOKENS:
        raise InputError(
            f"--max_seq_length is {max_seq_length}, but a question of --max_query_length={max_query_length} takes "
            f"{max_query_length + _SPECIAL_TOKENS} with its special tokens, and the text needs room too."
        )


def room_for_text(qas_id: str, query_length: int, max_seq_length: int, doc_stride: int) -> int:
    """How many pieces of the paragraph fit into a window behind the question.

    Raises:
      InputError: if none does, or the windows don't advance, so that they could never cover the paragraph.
    """
    room = max_seq_length - query_length - _SPECIAL_TOKENS
    if room < 1:
        raise InputError(
            f"question {qas_id!r} takes {query_length} tokens, and with its {_SPECIAL_TOKENS} special tokens leaves no "
            f"room for text in --max_seq_length={max_seq_length}. Lower --max_query_length."
        )
    if doc_stride < 1:
        raise InputError(
            f"question {qas_id!r}: --doc_stride is {doc_stride}, but windows that never advance can't cover a text."
        )
    return room


def cut_windows(num_pieces: int, room: int, doc_stride: int) -> list[DocSpan]:
    """Stretches of at most `room` pieces, each `doc_stride` after the one before, until the last piece is covered.

    As in the release, a stride longer than the room advances by the room, so that nothing is left out.
    """
    step = min(room, doc_stride)
    overhang = max(0, num_pieces - room)
    starts = range(0, overhang + step, step) if num_pieces else ()
    return [DocSpan(start, min(room, num_pieces - start)) for start in starts]


def improve_answer_span(pieces: Sequence, start: int, end: int, answer: Sequence) -> tuple[int, int]:
    """Narrows a span of whole words, pieces[start..end], to the answer's own pieces, if they stand in it.

    The answer "1895" stands in the word "(1895-1943)."; but "Japan" doesn't in "Japanese", and then the word is kept.
    Works on pieces and on ids alike.
    """
    length = len(answer)
    if length:
        for first in range(start, end - length + 2):
            if pieces[first : first + length] == answer:
                return first, first + length - 1
    return start, end


def answer_in_window(answer: tuple[int, int], span: DocSpan, query_length: int) -> tuple[int, int]:
    """The answer's first and last token in a window; (0, 0), the place of [CLS], if the window cuts it off."""
    if answer[0] < span.start or answer[1] >= span.start + span.length:
        return 0, 0
    shift = first_text_position(query_length) - span.start
    return answer[0] + shift, answer[1] + shift


def first_text_position(query_length: int) -> int:
    """Where a window's text begins: behind [CLS] question [SEP]."""
    return query_length + 2


def convert_examples_to_features(
    examples: Iterable[SquadExample],
    tokenizer: FullTokenizer,
    max_seq_length: int,
    doc_stride: int,
    max_query_length: int,
    is_training: bool,
    output_fn: Callable[[InputFeatures], object],
) -> None:
    """Cuts every example into windows and hands each one to `output_fn`.

    Args:
      examples: see `read_squad_examples`.
      tokenizer: of the model.
      max_seq_length: tokens of a window, with padding.
      doc_stride: pieces between the starts of two windows.
      max_query_length: the question's pieces after these are cut off.
      is_training: whether the examples' answers are wanted.
      output_fn: called with each `InputFeatures`.

    Raises:
      InputError: if a question leaves no room for text, or the windows don't advance (names the question).
    """
    unique_id = FIRST_UNIQUE_ID
    for example_index, example in enumerate(examples):
        query = tokenizer.tokenize(example.question_text)[:max_query_length]
        room = room_for_text(example.qas_id, len(query), max_seq_length, doc_stride)
        pieces: list[str] = []
        word_of_piece: list[int] = []
        first_piece: list[int] = []
        for word_index, word in enumerate(example.doc_tokens):
            first_piece.append(len(pieces))
            pieces += tokenizer.tokenize(word)
            word_of_piece += [word_index] * (len(pieces) - len(word_of_piece))
        answer = _answer_pieces(example, pieces, first_piece, tokenizer) if is_training else None
        spans = cut_windows(len(pieces), room, doc_stride)
        offset = first_text_position(len(query))
        for span_index, span in enumerate(spans):
            text = range(span.start, span.start + span.length)
            tokens, segment_ids = packing.join_segments(query, [pieces[i] for i in text], "[CLS]", "[SEP]")
            packed = packing.pad(tokenizer.convert_tokens_to_ids(tokens), segment_ids, max_seq_length)
            feature = InputFeatures(
                unique_id=unique_id,
                example_index=example_index,
                doc_span_index=span_index,
                tokens=tokens,
                token_to_orig_map={offset + i - span.start: word_of_piece[i] for i in text},
                token_is_max_context={offset + i - span.start: _is_max_context(spans, span_index, i) for i in text},
                **packed._asdict(),
                is_impossible=example.is_impossible,
            )
            if answer is not None:
                feature.start_position, feature.end_position = answer_in_window(answer, span, len(query))
            output_fn(feature)
            unique_id += 1


def _answer_pieces(
    example: SquadExample, pieces: list[str], first_piece: list[int], tokenizer: FullTokenizer
) -> tuple[int, int]:
    if example.is_impossible:
        return NO_ANSWER
    start, end = word_span_to_pieces(example, first_piece, len(pieces))
    return improve_answer_span(pieces, start, end, tokenizer.tokenize(example.orig_answer_text))


def word_span_to_pieces(example: SquadExample, first_piece: Sequence[int], num_pieces: int) -> tuple[int, int]:
    """The first and the last piece of the answer's words.

    Args:
      example: with its positions in words.
      first_piece: for each word its first piece.
      num_pieces: of the whole paragraph.
    """
    after = example.end_position + 1
    end = first_piece[after] if after < len(first_piece) else num_pieces
    return first_piece[example.start_position], end - 1


def _is_max_context(spans: Sequence[DocSpan], span_index: int, piece: int) -> bool:
    """Whether this window shows the most around a piece: the smaller of what stands left and right of it.

    A hundredth of the window's length is added, so the longer of two windows wins, and then the earlier.
    """
    scores = [
        min(piece - span.start, span.start + span.length - 1 - piece) + 0.01 * span.length
        if span.start <= piece < span.start + span.length
        else -1.0
        for span in spans
    ]
    return scores.index(max(scores)) == span_index


class FeatureWriter:
    """Writes windows as TFRecords with the release's entries; the file is there once the writer is closed.

    Args:
      filename: the file.
      is_training: whether the answers are written.
    """

    def __init__(self, filename: str, is_training: bool) -> None:
        import tensorflow as tf

        self.filename = filename
        self.is_training = is_training
        self.num_features = 0
        files.make_folder(os.path.dirname(filename))
        self._temporary = files.temporary_name(filename)
        self._writer = tf.io.TFRecordWriter(self._temporary)

    def process_feature(self, feature: InputFeatures) -> None:
        """Writes one window."""
        values = {
            "unique_ids": [feature.unique_id],
            "input_ids": feature.input_ids,
            "input_mask": feature.input_mask,
            "segment_ids": feature.segment_ids,
            "start_positions": [feature.start_position],
            "end_positions": [feature.end_position],
            "is_impossible": [int(bool(feature.is_impossible))],
        }
        self._writer.write(serialize(squad_features(len(feature.input_ids), self.is_training), values))
        self.num_features += 1

    def close(self) -> None:
        """Finishes the file."""
        self._writer.close()
        files.rename(self._temporary, self.filename)
