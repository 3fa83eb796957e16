"""Splits questions and paragraphs into the model's input windows.

A long paragraph is split into overlapping spans. A window contains the question and a span:
[CLS] question [SEP] span [SEP]. Each paragraph is tokenized only once. Windows are concatenated without padding.
Several processes may share the work, and the result is the same.

`bert_tf/graphs/answers.py` does the same inside a TensorFlow graph. `rules.py` contains the common rules.

Axis letters: W windows, T tokens, P tokens of a paragraph, Q questions, E tokens of all windows' texts.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_tf.finetuning.feature_sets import FeatureSet
from bert_tf.runtime import parallel
from bert_tf.runtime.errors import InputError, first_of
from bert_tf.sequences.text_packer import TextSpans, cut_texts
from bert_tf.tasks.squad.questions import SquadExample
from bert_tf.tasks.squad.rules import SquadConfig, first_text_position, shows_most_context, text_room
from bert_tf.text import Tokenizer

# The id of the first window of a file in the original code.
FIRST_UNIQUE_ID = 1_000_000_000
# The span of a question without an answer. No window contains it, so the positions are 0, the position of [CLS].
_NO_ANSWER = (-1, -1)
# The smallest number of paragraphs for each process.
_CHUNK_PARAGRAPHS = 200


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """A tokenized paragraph.

    Attributes:
      words: the words, split as in the original code.
      ids: [P], token ids.
      first_piece: index of the first token of each word.
      context: the paragraph as written in the file; None if only the words are known.
      spans: [P], the characters [start, end) of each token in `context`; None unless `answer_text` is "offsets".
    """

    words: list[str]
    ids: list[int]
    first_piece: list[int]
    context: str | None
    spans: list[tuple[int, int]] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadWindows(FeatureSet):
    """The windows of the questions of a file, in order.

    `per_example` contains `start_positions` and `end_positions` [W]. They are 0 in prediction, and if a window does not
    contain the answer. The text of a window begins at position `first_lengths`.

    Attributes:
      is_max_context: for each token in `input_ids`, whether it belongs to the text and has the most context in this
        window; see `shows_most_context`.
      text_start: [W], index in the paragraph of the first token of the window's text.
      example_index: [W], index of the question; ascending.
      documents: the paragraphs.
      document_of_example: index of the paragraph of each question.
      tokenizer: the tokenizer that made the windows.
      truncated_questions: the number of truncated questions.
    """

    is_max_context: np.ndarray
    text_start: np.ndarray
    example_index: np.ndarray
    documents: list[Paragraph]
    document_of_example: np.ndarray
    tokenizer: Tokenizer | None = None
    truncated_questions: int = 0

    @property
    def unique_ids(self) -> np.ndarray:
        """The original ids of the windows [W]."""
        return np.arange(FIRST_UNIQUE_ID, FIRST_UNIQUE_ID + len(self))

    def examples_without_windows(self) -> list[int]:
        """Returns the indices of questions without windows: the text or the answer has no tokens."""
        return np.setdiff1d(np.arange(len(self.document_of_example)), self.example_index).tolist()

    def report(self, examples: Sequence[SquadExample]) -> list[str]:
        """Returns lines about the truncated questions and the questions without windows."""
        ids, lines = [examples[i].qas_id for i in self.examples_without_windows()], []
        if self.truncated_questions:
            lines.append(
                f"{self.truncated_questions} of {len(examples)} questions were truncated (--max_query_length)."
            )
        if ids:
            what = "have no window, because their text or their answer has no tokens"
            lines.append(f"{len(ids)} of {len(examples)} questions {what}: {first_of(ids)}")
        return lines

    def padded(self, windows: slice, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns two masks of selected windows, both [W, T]: True for tokens, and `is_max_context`."""
        lengths = self.lengths[windows]
        is_token = np.arange(length) < lengths[:, None]
        is_max_context = np.zeros(is_token.shape, dtype=bool)
        begin = int(self.lengths[: windows.start].sum())
        is_max_context[is_token] = self.is_max_context[begin : begin + int(lengths.sum())]
        return is_token, is_max_context


def featurize(
    examples: Sequence[SquadExample],
    tokenizer: Tokenizer,
    config: SquadConfig,
    is_training: bool,
    num_workers: int = 1,
) -> SquadWindows:
    """Splits all examples into windows.

    Args:
      examples: see `read_squad`.
      tokenizer: the model's tokenizer.
      config: the lengths. With `answer_text="offsets"`, the character span of each token is kept for decoding.
      is_training: whether to compute the positions of the answers.
      num_workers: number of processes; see `parallel.map_chunks`.

    Raises:
      InputError: if a question leaves no room for text; the message names the question.
    """
    paragraphs = [list(group) for _, group in itertools.groupby(examples, key=lambda example: id(example.doc_tokens))]

    def tokenize(chunk: Sequence[list[SquadExample]]) -> list[tuple[Paragraph, list[_Question]]]:
        return [_tokenize(paragraph, tokenizer, config, is_training) for paragraph in chunk]

    chunks = parallel.map_chunks(
        tokenize, paragraphs, num_workers, "tokenize", "paragraph", smallest_chunk=_CHUNK_PARAGRAPHS
    )
    documents: list[Paragraph] = []
    document_of_example: list[int] = []
    questions: list[_Question] = []
    for document, its_questions in itertools.chain.from_iterable(chunks):
        document_of_example += [len(documents)] * len(its_questions)
        documents.append(document)
        questions += its_questions
    query_lengths = np.array([len(question.ids) for question in questions], dtype=np.int64)
    # If the answer of a training question has no tokens, the question gets no window.
    text_lengths = np.array(
        [
            len(documents[i].ids) if question.answer else 0
            for i, question in zip(document_of_example, questions, strict=True)
        ],
        dtype=np.int64,
    )
    spans = cut_texts(text_lengths, text_room(query_lengths, config.max_seq_length), config.doc_stride, np)
    example_index = np.repeat(np.arange(len(examples)), spans.counts)
    first_lengths = first_text_position(query_lengths)[example_index]
    lengths = first_lengths + spans.lengths + 1
    cls, sep = tokenizer.ends
    texts = zip(*(x.tolist() for x in (example_index, spans.begins, spans.lengths)), strict=True)
    sequences = (
        [cls, *questions[i].ids, sep, *documents[document_of_example[i]].ids[begin : begin + length], sep]
        for i, begin, length in texts
    )
    is_max_context = np.zeros(int(lengths.sum()), dtype=bool)
    text_tokens = _ranges(np.cumsum(lengths) - lengths + first_lengths, spans.lengths)
    is_max_context[text_tokens] = _is_max_context(spans, np.cumsum(text_lengths) - text_lengths)
    answers = [question.answer or _NO_ANSWER for question in questions]
    answer = np.array(answers, dtype=np.int64).reshape(-1, 2)[example_index]
    is_inside = (answer[:, 0] >= spans.begins) & (answer[:, 1] < spans.begins + spans.lengths)
    positions = np.where(is_inside[:, None], answer + (first_lengths - spans.begins)[:, None], 0).astype(np.int32)
    return SquadWindows(
        input_ids=np.fromiter(itertools.chain.from_iterable(sequences), np.int32, count=len(is_max_context)),
        lengths=lengths.astype(np.int32),
        first_lengths=first_lengths.astype(np.int32),
        per_example={"start_positions": positions[:, 0], "end_positions": positions[:, 1]},
        is_max_context=is_max_context,
        text_start=spans.begins,
        example_index=example_index,
        documents=documents,
        document_of_example=np.array(document_of_example, dtype=np.int64),
        tokenizer=tokenizer,
        truncated_questions=sum(question.is_truncated for question in questions),
    )


class _Question(NamedTuple):
    """The tokens of a question, and the indices of the answer's first and last token, or None."""

    ids: list[int]
    answer: tuple[int, int] | None
    is_truncated: bool


def _tokenize(
    paragraph: Sequence[SquadExample], tokenizer: Tokenizer, config: SquadConfig, is_training: bool
) -> tuple[Paragraph, list[_Question]]:
    """Returns the tokens of a paragraph and of its questions."""
    ids: list[int] = []
    first_piece: list[int] = []
    for word in paragraph[0].doc_tokens:
        first_piece.append(len(ids))
        ids += tokenizer.encode(word)
    context = paragraph[0].context
    # Tokenizing the context gives the same tokens, because the tokenizer also splits at the white space between words.
    spans = tokenizer.tokenize_with_offsets(context)[1] if config.by_offsets else None
    document = Paragraph(paragraph[0].doc_tokens, ids, first_piece, context, spans)
    questions = []
    for example in paragraph:
        whole = tokenizer.encode(example.question_text)
        query = whole[: config.max_query_length]
        if text_room(len(query), config.max_seq_length) < 1:
            raise InputError(
                f"question {example.qas_id!r} leaves no room for text in --max_seq_length={config.max_seq_length}. "
                "Lower --max_query_length."
            )
        needs_answer = is_training and not example.is_impossible
        answer = _answer(example, document, tokenizer) if needs_answer else _NO_ANSWER
        questions.append(_Question(query, answer, len(query) < len(whole)))
    return document, questions


def _answer(example: SquadExample, document: Paragraph, tokenizer: Tokenizer) -> tuple[int, int] | None:
    """Returns the indices of the first and last token of the answer; None if the answer has no tokens."""
    if document.spans is not None:
        begin, end = example.answer_offset, example.answer_offset + len(example.orig_answer_text)
        pieces = [i for i, span in enumerate(document.spans) if span[0] < end and begin < span[1]]
        return (pieces[0], pieces[-1]) if pieces else None
    start = document.first_piece[example.start_position]
    end = [*document.first_piece, len(document.ids)][example.end_position + 1] - 1
    return _narrow_to_answer(document.ids, start, end, tokenizer.encode(example.orig_answer_text))


def _narrow_to_answer(ids: list[int], start: int, end: int, answer: list[int]) -> tuple[int, int]:
    """Narrows a span of complete words, ids[start..end], to the tokens of the answer, if the span contains them.

    For example, the answer "1895" is found in the word "(1895-1943).". The answer "Japan" is not found in the token
    "Japanese", so the complete word is used.
    """
    length = len(answer)
    if length:
        for first in range(start, end - length + 2):
            if ids[first : first + length] == answer:
                return first, first + length - 1
    return start, end


def _is_max_context(spans: TextSpans, pieces_before: np.ndarray) -> np.ndarray:
    """Returns `shows_most_context` [E] for all windows.

    Args:
      spans: the text spans of the windows.
      pieces_before: [Q], the number of text tokens of all earlier questions.
    """
    piece = _ranges(np.repeat(pieces_before, spans.counts) + spans.begins, spans.lengths)
    num_left = _ranges(np.zeros_like(spans.lengths), spans.lengths)

    def highest_of_piece(values: np.ndarray) -> np.ndarray:
        highest = np.full(piece.max(initial=-1) + 1, -math.inf)
        np.maximum.at(highest, piece, values)
        return highest[piece]

    window = np.repeat(np.arange(len(spans.lengths), dtype=np.float64), spans.lengths)
    return shows_most_context(num_left, np.repeat(spans.lengths, spans.lengths), window, highest_of_piece, np)


def _ranges(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns the concatenated ranges begin, begin + 1, ... of the given lengths."""
    return np.arange(int(lengths.sum())) + np.repeat(begins - (np.cumsum(lengths) - lengths), lengths)
