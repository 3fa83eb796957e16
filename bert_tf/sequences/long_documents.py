"""What the model reads of a text that is longer than a sequence: its beginning, its ends, or windows of all of it.

A function that takes `ops` works on NumPy arrays with the module `numpy`, and on tensors with the module `tensorflow`.

Axis letters: D documents, W windows.
"""

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np

from bert_tf.runtime.errors import InputError
from bert_tf.runtime.settings import Settings, about
from bert_tf.sequences import packing
from bert_tf.tokenization import Tokenizer
from bert_tf.tokenization.vocabulary import CLS, SEP

TRUNCATE, HEAD_TAIL, WINDOWS = MODES = ("truncate", "head_tail", "windows")
DOC_STRIDE = 128

# A NumPy array or a TensorFlow tensor.
Array = Any


class LongDocuments(Settings, frozen=True):
    """How texts are read that are longer than `max_seq_length`.

    Attributes:
      long_documents: "truncate" keeps the first tokens. "head_tail" keeps the first quarter and the last three quarters
        of the tokens that fit (Sun et al., 2019, "How to Fine-Tune BERT for Text Classification?": 128 + 382). With
        "windows", each window is a training example, and a prediction is made from the mean of the windows' logits.
      doc_stride: a stride that is too long is shortened, so that all tokens are in a window.

    Raises:
      InputError: if there is a stride, but no windows.
    """

    long_documents: Annotated[
        Literal[MODES], about("Your own data: what is read of long texts: the first tokens, both ends, or all.")
    ] = TRUNCATE
    doc_stride: Annotated[
        int, about("Your own data: number of tokens between the starts of two --long_documents=windows.", ge=1)
    ] = DOC_STRIDE

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.doc_stride != DOC_STRIDE and not self.has_windows:
            raise InputError(f"--doc_stride: not used with --long_documents={self.long_documents}. Omit it.")

    @classmethod
    def recorded(cls, values: Mapping[str, Any]) -> Self:
        """Returns the settings of a `record`, which may be part of a larger one."""
        return cls(**{name: values[name] for name in cls.__struct_fields__ if name in values})

    @property
    def record(self) -> dict[str, Any]:
        """The settings that have an effect."""
        stride = {"doc_stride": self.doc_stride} if self.has_windows else {}
        return {"long_documents": self.long_documents, **stride}

    @property
    def has_windows(self) -> bool:
        """Whether a text may become several sequences."""
        return self.long_documents == WINDOWS

    @property
    def keeps_ends(self) -> bool:
        """Whether tokens are removed from within a text."""
        return self.long_documents == HEAD_TAIL

    def windows(self, lengths: Array, max_seq_length: int, ops: ModuleType = np) -> "TextSpans":
        """Returns the windows of documents with these numbers of tokens [D], int64, at least one of each."""
        room = ops.ones_like(lengths) * (max_seq_length - 2)
        return cut_texts(lengths, room, self.doc_stride, ops, windows_of_empty=1)

    def pack(
        self, tokenizer: Tokenizer, text_a: str, text_b: str | None, max_seq_length: int
    ) -> list[tuple[list[int], list[int], bool]]:
        """Returns the sequences of a text or a pair, as `Tokenizer.pack` does; pairs have no windows."""
        if not self.has_windows:
            return [tokenizer.pack(text_a, text_b, max_seq_length, self.keeps_ends)]
        ids, (cls, sep) = tokenizer.encode(text_a), (tokenizer.vocab[token] for token in (CLS, SEP))
        _, begins, lengths = self.windows(np.array([len(ids)]), max_seq_length)
        windows = (ids[begin : begin + length] for begin, length in zip(begins, lengths, strict=True))
        return [(*packing.join_segments(window, [], cls, sep), False) for window in windows]


TRUNCATED = LongDocuments()


class TextSpans(NamedTuple):
    """The parts of the documents that the windows show, all windows of the first document first.

    Attributes:
      counts: [D] the number of each document's windows.
      begins: [W] the document's token with which a window's text begins.
      lengths: [W] the number of tokens in a window's text.
    """

    counts: Array
    begins: Array
    lengths: Array


def cut_texts(lengths: Array, room: Array, doc_stride: int, ops: ModuleType, windows_of_empty: int = 0) -> TextSpans:
    """Cuts documents into spans that begin `doc_stride` tokens apart, until the last token is covered.

    As in the original, a stride longer than the room is shortened to the room, so no token is left out.

    Args:
      lengths: [D] the number of tokens in each document (int64).
      room: [D] the longest span of each document (int64).
      doc_stride: tokens between the begins of two spans.
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
    """Values [W, C] of windows -> their means [D, C], for documents of `counts` [D] windows, at least one."""
    sums = np.add.reduceat(values, np.cumsum(counts) - counts, axis=0)
    return sums / np.array(counts, values.dtype)[:, None]
