"""The tokenized corpus on the disk: written once, read many times, never loaded as a whole.

The corpus consists of parts, each in one file:

    ids of all tokens                  16 or 32 bits each, padded to a multiple of 8 bytes
    token offsets of the sentences     64 bits each, one more than sentences
    sentence offsets of the documents  64 bits each, one more than documents

Offsets in a part count from its start; the store numbers the documents, sentences and tokens of all parts
consecutively. Memory stays bounded: tokens and sentences are read when they are needed, and the 8 bytes per document
are memory-mapped.
"""

import dataclasses
import functools
import os
import shutil
import sys
import tempfile
from array import array
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import BinaryIO

import numpy as np

from bert_tf.runtime import files
from bert_tf.runtime.parallel import available_memory

# With a word segmenter, tokens have 32 bits, and the top bit marks a token that continues a word.
CONTINUES_WORD = np.uint32(1 << 31)

_OFFSET_BYTES = 8
_FLUSH_BYTES = 1 << 20
# The number of spans that are announced to the system before they are read.
_ANNOUNCED_SPANS = 1024


class PartWriter:
    """Writes one part; its file appears when the block ends without an error.

    Args:
      path: the part's file.
      id_bytes: size of a token in bytes.
    """

    def __init__(self, path: str, id_bytes: int) -> None:
        self._id_bytes = id_bytes
        self._replacing = files.replacing(path, "wb")
        self._sentences = _OffsetColumn(os.path.dirname(path))
        self._documents = _OffsetColumn(os.path.dirname(path))
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self.tokens = 0

    def __enter__(self) -> "PartWriter":
        self._file = self._replacing.__enter__()
        return self

    def add_sentence(self, ids: bytes) -> None:
        """Adds a sentence of at least one token."""
        self._sentences.append(self.tokens)
        self.tokens += len(ids) // self._id_bytes
        self._waiting.append(ids)
        self._waiting_bytes += len(ids)
        if self._waiting_bytes >= _FLUSH_BYTES:
            self._flush()

    def end_document(self) -> int:
        """Ends a document and returns its number of sentences. A document without sentences is not stored."""
        sentences = self._sentences.count - self._documents.next_offset
        if sentences:
            self._documents.append(self._documents.next_offset)
            self._documents.next_offset = self._sentences.count
        return sentences

    @property
    def sizes(self) -> dict[str, int]:
        """The numbers of documents, sentences and tokens that were stored."""
        return {"documents": self._documents.count, "sentences": self._sentences.count, "tokens": self.tokens}

    def _flush(self) -> None:
        self._file.write(b"".join(self._waiting))
        self._waiting.clear()
        self._waiting_bytes = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._flush()
                self._file.write(bytes(-self._file.tell() % _OFFSET_BYTES))
                self._sentences.finish(self._file, self.tokens)
                self._documents.finish(self._file, self._sentences.count)
        finally:
            self._sentences.close()
            self._documents.close()
            self._replacing.__exit__(kind, error, trace)


class _OffsetColumn:
    """A growing column of offsets, in a temporary file until its place in the part is known."""

    def __init__(self, folder: str) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (open as long as the part is written)
        self._waiting = array("Q")
        self.count = 0
        self.next_offset = 0

    def append(self, offset: int) -> None:
        self._waiting.append(offset)
        self.count += 1
        if len(self._waiting) * _OFFSET_BYTES >= _FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._waiting.tofile(self._file)
        del self._waiting[:]

    def finish(self, target: BinaryIO, end: int) -> None:
        self._waiting.append(end)
        self._flush()
        self._file.seek(0)
        shutil.copyfileobj(self._file, target)

    def close(self) -> None:
        self._file.close()


@dataclasses.dataclass(frozen=True)
class Part:
    """A part and its size.

    Attributes:
      path: its file.
      documents: its number of documents.
      sentences: its number of sentences.
      tokens: its number of tokens.
    """

    path: str
    documents: int
    sentences: int
    tokens: int


class TokenStore:
    """Reads all parts as one corpus.

    Args:
      parts: the parts, in the order of the corpus.
      id_dtype: the type of the tokens.

    Attributes:
      parts: the parts.
      id_dtype: the type of the tokens.
    """

    def __init__(self, parts: Sequence[Part], id_dtype: np.dtype | str) -> None:
        self.parts = list(parts)
        self.id_dtype = np.dtype(id_dtype)
        self._first_document = _cumulated(part.documents for part in parts)
        self._first_sentence = _cumulated(part.sentences for part in parts)
        self._first_token = _cumulated(part.tokens for part in parts)
        self._sentence_column = [-(-p.tokens * self.id_dtype.itemsize // _OFFSET_BYTES) * _OFFSET_BYTES for p in parts]

    def __getstate__(self) -> dict:
        """Leaves out open files; another process opens its own."""
        return {k: v for k, v in self.__dict__.items() if k not in ("_descriptors", "_document_columns")}

    def close(self) -> None:
        """Closes the files; a later read opens them again."""
        for descriptor in self.__dict__.pop("_descriptors", ()):
            os.close(descriptor)
        self.__dict__.pop("_document_columns", None)

    @property
    def documents(self) -> int:
        """The number of documents."""
        return int(self._first_document[-1])

    @property
    def sentences(self) -> int:
        """The number of sentences."""
        return int(self._first_sentence[-1])

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return int(self._first_token[-1])

    @functools.cached_property
    def _descriptors(self) -> list[int]:
        _allow_open_files(len(self.parts))
        return [os.open(part.path, os.O_RDONLY) for part in self.parts]

    @functools.cached_property
    def _document_columns(self) -> list[np.ndarray]:
        return [
            np.asarray(
                np.memmap(
                    part.path, np.int64, "r", column + (part.sentences + 1) * _OFFSET_BYTES, (part.documents + 1,)
                )
            )
            for part, column in zip(self.parts, self._sentence_column, strict=True)
        ]

    def first_document(self, part: int) -> int:
        """Returns the number of a part's first document."""
        return int(self._first_document[part])

    def document_offsets(self, part: int) -> np.ndarray:
        """Returns the sentence offsets [documents + 1] of a part's documents, counted from the part's start."""
        return self._document_columns[part]

    def sentence_offsets(self, part: int, first: int, count: int) -> np.ndarray:
        """Returns the token offsets [count + 1] in the store of a part's sentences, from its sentence `first`."""
        data = os.pread(
            self._descriptors[part], (count + 1) * _OFFSET_BYTES, self._sentence_column[part] + first * _OFFSET_BYTES
        )
        return np.frombuffer(data, np.int64) + self._first_token[part]

    def sentence_ranges(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the first sentences and the ends [n] of documents [n], all as numbers in the store."""
        parts = self._part_of(self._first_document, documents)
        ranges = np.empty((2, len(documents)), np.int64)
        for part in np.unique(parts):
            rows = np.flatnonzero(parts == part)
            local = documents[rows] - self._first_document[part]
            column = self._document_columns[part]
            ranges[:, rows] = (column[local], column[local + 1]) + self._first_sentence[part]
        return ranges[0], ranges[1]

    def offset_windows(self, sentences: np.ndarray, width: int) -> np.ndarray:
        """Returns the token offsets [n, width + 1] of `width` sentences, beginning with each of `sentences` [n].

        Offsets behind the end of a sentence's document have no meaning.
        """
        parts = self._part_of(self._first_sentence, sentences)
        at = (sentences - self._first_sentence[parts]) * _OFFSET_BYTES + np.array(self._sentence_column)[parts]
        size = (width + 1) * _OFFSET_BYTES
        descriptors, pread = self._descriptors, os.pread
        data = b"".join(
            [
                pread(descriptors[p], size, o).ljust(size, b"\0")
                for p, o in zip(parts.tolist(), at.tolist(), strict=True)
            ]
        )
        return np.frombuffer(data, np.int64).reshape(-1, width + 1) + self._first_token[parts][:, None]

    def read_tokens(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Returns the tokens of spans [n], one after the other; `starts` are numbers in the store.

        Where the store is larger than the memory, spans are read in the order in which they lie on the disk, and the
        system is told of the next ones while some are read, so that the disk works on many of them at once.
        """
        if not self._is_larger_than_memory:
            return np.frombuffer(b"".join(self._read_spans(starts, lengths)), self.id_dtype)
        order = np.argsort(starts, kind="stable")
        found = self._read_spans(starts[order], lengths[order])
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        return np.frombuffer(b"".join(map(found.__getitem__, places.tolist())), self.id_dtype)

    def _read_spans(self, starts: np.ndarray, lengths: np.ndarray) -> list[bytes]:
        parts = self._part_of(self._first_token, starts)
        size = self.id_dtype.itemsize
        at = (starts - self._first_token[parts]) * size
        descriptors, pread = self._descriptors, os.pread
        requests = list(zip(parts.tolist(), (lengths * size).tolist(), at.tolist(), strict=True))
        found: list[bytes] = []
        for first in range(0, len(requests), _ANNOUNCED_SPANS):
            if self._is_larger_than_memory:
                for part, count, place in requests[first + _ANNOUNCED_SPANS : first + 2 * _ANNOUNCED_SPANS]:
                    os.posix_fadvise(descriptors[part], place, count, os.POSIX_FADV_WILLNEED)
            found += [pread(descriptors[p], n, o) for p, n, o in requests[first : first + _ANNOUNCED_SPANS]]
        return found

    @functools.cached_property
    def _is_larger_than_memory(self) -> bool:
        return hasattr(os, "posix_fadvise") and self.tokens * self.id_dtype.itemsize > available_memory() / 2

    @staticmethod
    def _part_of(firsts: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        return np.searchsorted(firsts, numbers, side="right") - 1


def _cumulated(counts: Iterable[int]) -> np.ndarray:
    return np.cumsum([0, *counts], dtype=np.int64)


def _allow_open_files(count: int) -> None:
    """Raises the process's limit of open files, as far as the system allows."""
    if sys.platform != "win32":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = count + 256
        if soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard) if hard > 0 else wanted, hard))
