"""Converts texts to input sequences. A long text is truncated at the end or in the middle, or split into windows.

Functions with an argument `ops` work on NumPy arrays (module `numpy`) and on tensors (module `tensorflow`).

Axis letters: D documents, W windows.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np

from bert_tf.runtime.settings import Condition, Settings, about, only_with
from bert_tf.sequences import packing
from bert_tf.sequences.packing import Packed
from bert_tf.text import Tokenizer

Mode = Literal["truncate", "head_tail", "windows"]
TRUNCATE, HEAD_TAIL, WINDOWS = MODES = get_args(Mode)
DOC_STRIDE = 128

# A NumPy array or a TensorFlow tensor.
Array = Any


class LongDocuments(Settings, frozen=True):
    """How to read texts that are longer than `max_seq_length`.

    Attributes:
      long_documents: "truncate" keeps the first tokens. "head_tail" keeps tokens from both ends: a quarter of the
        tokens that fit from the start, and three quarters from the end (128 + 382 in Sun et al., 2019, "How to
        Fine-Tune BERT for Text Classification?"). With "windows", each window is a training example, and a prediction
        is computed from the mean logits of the windows.
      doc_stride: number of tokens between the starts of two windows. A stride longer than a window is shortened, so
        that every token is in a window.

    Raises:
      InputError: if `doc_stride` is given without windows.
    """

    needs: ClassVar[tuple[Condition, ...]] = (only_with("task_name", values=("text",)),)

    long_documents: Annotated[Mode, about("Part of long texts to read: first tokens, both ends, or all.")] = TRUNCATE
    doc_stride: Annotated[
        int, about("Tokens between the starts of two windows.", ge=1), only_with("long_documents", values=(WINDOWS,))
    ] = DOC_STRIDE

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_needs()

    @property
    def record(self) -> dict[str, Any]:
        """The settings that have an effect, as an argument for `from_flags`."""
        stride = {"doc_stride": self.doc_stride} if self.has_windows else {}
        return {"long_documents": self.long_documents, **stride}

    @property
    def has_windows(self) -> bool:
        """Whether a text can become several sequences."""
        return self.long_documents == WINDOWS

    @property
    def keeps_ends(self) -> bool:
        """Whether tokens are removed from the middle of a text."""
        return self.long_documents == HEAD_TAIL

    def windows(self, lengths: Array, max_seq_length: int, ops: ModuleType = np) -> "TextSpans":
        """Returns the windows of documents, at least one per document.

        Args:
          lengths: [D], the number of tokens in each document (int64).
          max_seq_length: longest sequence, including [CLS] and [SEP].
          ops: `numpy` or `tensorflow`.
        """
        room = ops.ones_like(lengths) * (max_seq_length - 2)
        return cut_texts(lengths, room, self.doc_stride, ops, windows_of_empty=1)


TRUNCATED = LongDocuments()


class TextPacker(NamedTuple):
    """Tokenizes and packs texts or pairs of texts. `GraphTextReader` does the same inside a graph.

    Attributes:
      tokenizer: the model's tokenizer.
      max_seq_length: the largest number of tokens in a sequence. In a pair, the longer text is truncated first.
      documents: how to read longer texts.
    """

    tokenizer: Tokenizer
    max_seq_length: int
    documents: LongDocuments = TRUNCATED

    def pack(self, text_a: str, text_b: str | None = None) -> Packed:
        """Returns the sequence of a text or a pair. A text that is too long is truncated, even with windows."""
        return self.tokenizer.pack(text_a, text_b, self.max_seq_length, self.documents.keeps_ends)

    def pack_document(self, text_a: str, text_b: str | None = None) -> list[Packed]:
        """Returns the sequences of a text or a pair: one, or one for each window. Pairs can't have windows."""
        if not self.documents.has_windows:
            return [self.pack(text_a, text_b)]
        ids = self.tokenizer.encode(text_a)
        _, begins, lengths = self.documents.windows(np.array([len(ids)]), self.max_seq_length)
        return [
            packing.pack((ids[begin : begin + length], []), (length, 0), self.tokenizer.ends)
            for begin, length in zip(begins, lengths, strict=True)
        ]


class TextSpans(NamedTuple):
    """The text spans of windows, ordered by document.

    Attributes:
      counts: [D], the number of windows of each document.
      begins: [W], the index in the document of the first token of each window.
      lengths: [W], the number of document tokens in each window.
    """

    counts: Array
    begins: Array
    lengths: Array


def cut_texts(lengths: Array, room: Array, doc_stride: int, ops: ModuleType, windows_of_empty: int = 0) -> TextSpans:
    """Splits documents into spans that begin `doc_stride` tokens apart. The last span contains the last token.

    As in the original code, a stride longer than the room is shortened to the room, so all tokens are covered.

    Args:
      lengths: [D], the number of tokens in each document (int64).
      room: [D], the longest span of each document (int64).
      doc_stride: number of tokens between the starts of two spans.
      ops: `numpy` or `tensorflow`.
      windows_of_empty: the number of spans of a document without tokens.
    """
    step = ops.minimum(room, doc_stride)
    counts = ops.where(lengths > 0, (ops.maximum(lengths - room, 0) + step - 1) // step + 1, windows_of_empty)
    steps, rooms, lengths, before = (
        ops.repeat(x, counts) for x in (step, room, lengths, ops.cumsum(counts) - counts)
    )  # [W]
    begins = (ops.cumsum(ops.ones_like(steps)) - 1 - before) * steps
    return TextSpans(counts, begins, ops.minimum(rooms, lengths - begins))


def document_means(values: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """Returns the mean [D, C] over the windows of each document.

    Args:
      values: [W, C].
      counts: [D], the number of windows of each document, at least 1.
    """
    sums = np.add.reduceat(values, np.cumsum(counts) - counts, axis=0)
    return sums / np.array(counts, values.dtype)[:, None]
