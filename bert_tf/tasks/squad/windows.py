"""The windows of a whole file at once: what `squad_features` makes one at a time, the same numbers, much faster.

Each paragraph is tokenized once, not once for each of its questions; windows are stored end to end, unpadded, and what
decoding needs to know of them is kept as numbers. Several processes may share the work; the result is the same.

Axis letters: W windows, T tokens, P pieces of a paragraph, S windows of a question.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from bert_tf.finetuning.feature_sets import FeatureSet
from bert_tf.runtime import parallel
from bert_tf.sequences import packing
from bert_tf.tasks.squad.examples import SquadExample, check_answer_text, name_ids
from bert_tf.tasks.squad.released_features import (
    FIRST_UNIQUE_ID,
    NO_ANSWER,
    DocSpan,
    answer_in_window,
    cut_windows,
    first_text_position,
    improve_answer_span,
    room_for_text,
    word_span_to_pieces,
)
from bert_tf.tokenization import FullTokenizer

# Paragraphs that are worth a process.
_CHUNK_PARAGRAPHS = 200


@dataclasses.dataclass(frozen=True)
class Document:
    """A paragraph's pieces.

    Attributes:
      words: its words, as the release splits it.
      ids: [P] piece ids.
      first_piece: for each word the index of its first piece.
      context: the paragraph as it stands in the file; None if only its words are known.
      spans: [P] for each piece its characters [start, end) in `context`; None unless answers are taken from there.
    """

    words: list[str]
    ids: list[int]
    first_piece: list[int]
    context: str | None
    spans: list[tuple[int, int]] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadWindows(FeatureSet):
    """The windows of a file's questions, in order, as the model reads them and as decoding needs them.

    `per_example` has `start_positions` and `end_positions` [W], which are 0 where a window doesn't hold the answer, and
    when predicting. A window's text begins at position `first_lengths`.

    Attributes:
      is_max_context: like `input_ids`: whether a piece of the text is shown with no more around it in another window.
      text_start: [W] index of the paragraph's piece that a window's text begins with.
      example_index: [W] the question; ascending.
      documents: the paragraphs.
      document_of_example: for each question the index of its paragraph.
    """

    is_max_context: np.ndarray
    text_start: np.ndarray
    example_index: np.ndarray
    documents: list[Document]
    document_of_example: np.ndarray

    @property
    def unique_ids(self) -> np.ndarray:
        """[W] the release's numbers for the windows."""
        return np.arange(FIRST_UNIQUE_ID, FIRST_UNIQUE_ID + len(self))

    def examples_without_windows(self) -> list[int]:
        """The questions that no window shows, because their text, or their answer, has no tokens."""
        return np.setdiff1d(np.arange(len(self.document_of_example)), self.example_index).tolist()

    def report(self, examples: Sequence[SquadExample]) -> list[str]:
        """Lines that count and name the questions that no window shows."""
        ids = [examples[i].qas_id for i in self.examples_without_windows()]
        what = "have no window, because their text or their answer has no tokens"
        return [f"{len(ids)} of {len(examples)} questions {what}: {name_ids(ids)}"] if ids else []

    def padded(self, windows: slice, length: int) -> tuple[np.ndarray, np.ndarray]:
        """[W, T] each, for some windows: whether a position is one of its tokens; `is_max_context`."""
        lengths = self.lengths[windows]
        is_token = np.arange(length) < lengths[:, None]
        is_max_context = np.zeros(is_token.shape, dtype=bool)
        begin = int(self.lengths[: windows.start].sum())
        is_max_context[is_token] = self.is_max_context[begin : begin + int(lengths.sum())]
        return is_token, is_max_context


def featurize(
    examples: Sequence[SquadExample],
    tokenizer: FullTokenizer,
    max_seq_length: int,
    doc_stride: int,
    max_query_length: int,
    is_training: bool,
    answer_text: str = "release",
    num_workers: int = 1,
) -> SquadWindows:
    """Cuts all examples into windows.

    Args:
      examples: see `read_squad`.
      tokenizer: of the model.
      max_seq_length: the longest window.
      doc_stride: pieces between the starts of two windows.
      max_query_length: the question's pieces after these are cut off.
      is_training: whether the examples' answers are wanted.
      answer_text: "release" seeks an answer's pieces within its words; "offsets" takes those that share a character
        with it, and each piece's characters are kept for decoding.
      num_workers: processes that share the work; see `parallel.map_chunks`.

    Raises:
      InputError: if a question leaves no room for text, or the windows don't advance (names the question).
    """
    check_answer_text(answer_text)
    maker = _WindowMaker(tokenizer, max_seq_length, doc_stride, max_query_length, is_training, answer_text)
    paragraphs = [list(same) for _, same in itertools.groupby(examples, key=lambda example: id(example.doc_tokens))]

    def make(some: Sequence[list[SquadExample]]) -> SquadWindows:
        return maker.make(list(itertools.chain.from_iterable(some)))

    return _join(
        parallel.map_chunks(make, paragraphs, num_workers, "tokenize", "paragraph", smallest_chunk=_CHUNK_PARAGRAPHS)
    )


def _join(parts: list[SquadWindows]) -> SquadWindows:
    if len(parts) == 1:
        return parts[0]
    examples_before = _counts_before([len(part.document_of_example) for part in parts])
    documents_before = _counts_before([len(part.documents) for part in parts])

    def join(name: str, added: Sequence[int] | None = None) -> np.ndarray:
        arrays = [getattr(part, name) for part in parts]
        return np.concatenate(arrays if added is None else [x + n for x, n in zip(arrays, added, strict=True)])

    return SquadWindows(
        input_ids=join("input_ids"),
        lengths=join("lengths"),
        first_lengths=join("first_lengths"),
        per_example={name: np.concatenate([part.per_example[name] for part in parts]) for name in parts[0].per_example},
        is_max_context=join("is_max_context"),
        text_start=join("text_start"),
        example_index=join("example_index", examples_before),
        documents=[document for part in parts for document in part.documents],
        document_of_example=join("document_of_example", documents_before),
    )


def _counts_before(counts: Sequence[int]) -> list[int]:
    return [0, *itertools.accumulate(counts[:-1])]


@dataclasses.dataclass
class _Gathered:
    """What is known of a chunk's windows before it becomes arrays; one entry per window."""

    sequences: list[list[int]] = dataclasses.field(default_factory=list)
    first_lengths: list[int] = dataclasses.field(default_factory=list)
    spans: list[DocSpan] = dataclasses.field(default_factory=list)
    answers: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    example_index: list[int] = dataclasses.field(default_factory=list)
    # Only of windows that share pieces with others: which of their pieces they show best.
    shown_best: dict[int, np.ndarray] = dataclasses.field(default_factory=dict)

    def windows(self, documents: list[Document], document_of_example: list[int]) -> SquadWindows:
        lengths = np.array([len(sequence) for sequence in self.sequences], dtype=np.int32)
        first_lengths = np.array(self.first_lengths, dtype=np.int32)
        spans = np.array(self.spans, dtype=np.int64).reshape(-1, 2)
        answers = np.array(self.answers, dtype=np.int32).reshape(-1, 2)
        total = int(lengths.sum())
        text_begins = _counts_before(lengths.tolist()) + first_lengths
        is_max_context = np.zeros(total, dtype=bool)
        for window, (begin, length) in enumerate(zip(text_begins.tolist(), spans[:, 1].tolist(), strict=True)):
            is_max_context[begin : begin + length] = self.shown_best.get(window, True)
        return SquadWindows(
            input_ids=np.fromiter(itertools.chain.from_iterable(self.sequences), dtype=np.int32, count=total),
            lengths=lengths,
            first_lengths=first_lengths,
            per_example={"start_positions": answers[:, 0], "end_positions": answers[:, 1]},
            is_max_context=is_max_context,
            text_start=spans[:, 0],
            example_index=np.array(self.example_index, dtype=np.int64),
            documents=documents,
            document_of_example=np.array(document_of_example, dtype=np.int64),
        )


class _WindowMaker:
    """Cuts examples into windows."""

    def __init__(
        self,
        tokenizer: FullTokenizer,
        max_seq_length: int,
        doc_stride: int,
        max_query_length: int,
        is_training: bool,
        answer_text: str,
    ) -> None:
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length
        self.doc_stride = doc_stride
        self.max_query_length = max_query_length
        self.is_training = is_training
        self.by_offsets = answer_text == "offsets"

    def make(self, examples: Sequence[SquadExample]) -> SquadWindows:
        """The windows of some examples, which are numbered from 0."""
        gathered = _Gathered()
        documents: list[Document] = []
        index_of_words: dict[int, int] = {}
        document_of_example: list[int] = []
        ids_of_word: dict[str, list[int]] = {}
        for example_index, example in enumerate(examples):
            index = index_of_words.setdefault(id(example.doc_tokens), len(documents))
            if index == len(documents):
                documents.append(self._document(example, ids_of_word))
            document_of_example.append(index)
            self._gather(gathered, example_index, example, documents[index])
        return gathered.windows(documents, document_of_example)

    def _gather(self, gathered: _Gathered, example_index: int, example: SquadExample, document: Document) -> None:
        query = self.tokenizer.encode(example.question_text)[: self.max_query_length]
        room = room_for_text(example.qas_id, len(query), self.max_seq_length, self.doc_stride)
        answer = self._answer_pieces(example, document)
        if answer is None:
            return
        cls, sep = self.tokenizer.vocab["[CLS]"], self.tokenizer.vocab["[SEP]"]
        spans = cut_windows(len(document.ids), room, self.doc_stride)
        best_window = _window_with_most_context(spans, len(document.ids)) if len(spans) > 1 else None
        for span_index, span in enumerate(spans):
            if best_window is not None:
                shown = best_window[span.start : span.start + span.length]
                gathered.shown_best[len(gathered.spans)] = shown == span_index
            text = document.ids[span.start : span.start + span.length]
            gathered.sequences.append(packing.join_segments(query, text, cls, sep)[0])
            gathered.first_lengths.append(first_text_position(len(query)))
            gathered.answers.append(answer_in_window(answer, span, len(query)))
            gathered.example_index.append(example_index)
            gathered.spans.append(span)

    def _document(self, example: SquadExample, ids_of_word: dict[str, list[int]]) -> Document:
        ids: list[int] = []
        first_piece: list[int] = []
        for word in example.doc_tokens:
            first_piece.append(len(ids))
            if word not in ids_of_word:
                ids_of_word[word] = self.tokenizer.encode(word)
            ids += ids_of_word[word]
        spans = None
        if self.by_offsets:
            if example.context is None:
                raise ValueError(f"question {example.qas_id!r} has no context to take the answer's characters from")
            # The same pieces: the release's words end at white space, where the tokenizer starts anew as well.
            spans = self.tokenizer.tokenize_with_offsets(example.context)[1]
        return Document(example.doc_tokens, ids, first_piece, example.context, spans)

    def _answer_pieces(self, example: SquadExample, document: Document) -> tuple[int, int] | None:
        """The answer's first and last piece; None if it has no pieces."""
        if not self.is_training or example.is_impossible:
            return NO_ANSWER
        if self.by_offsets:
            return _pieces_at(document.spans, example.answer_offset, len(example.orig_answer_text))
        start, end = word_span_to_pieces(example, document.first_piece, len(document.ids))
        return improve_answer_span(document.ids, start, end, self.tokenizer.encode(example.orig_answer_text))


def _pieces_at(spans: Sequence[tuple[int, int]], offset: int, length: int) -> tuple[int, int] | None:
    """The first and the last piece that share a character with a stretch of the context."""
    pieces = [i for i, (start, end) in enumerate(spans) if start < offset + length and offset < end]
    return (pieces[0], pieces[-1]) if pieces else None


def _window_with_most_context(spans: Sequence[DocSpan], num_pieces: int) -> np.ndarray:
    """[P] for each piece the window that shows the most around it; the release's rule, see `squad_features`."""
    start, length = np.array(spans).T[:, :, None]  # [S, 1] each
    left = np.arange(num_pieces) - start  # [S, P]
    right = length - 1 - left
    around = np.minimum(left, right)
    return np.where(around >= 0, around + 0.01 * length, -1.0).argmax(axis=0)
