"""The tokenized corpus on the disk: written once, read many times, never loaded completely.

The corpus consists of parts, each in three files:

    PART.ids         ids of all tokens, 16 or 32 bits each
    PART.sentences   token offsets of the sentences, 64 bits each, one more than sentences
    PART.documents   sentence offsets of the documents, 64 bits each, one more than documents

Offsets in a part start at 0. The store numbers the documents, sentences and tokens of all parts consecutively. Memory
is bounded: tokens and sentences are read on demand, and the 8 bytes per document are memory-mapped.
"""

import collections
import contextlib
import dataclasses
import functools
import os
import resource
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_tf.runtime import files
from bert_tf.runtime.parallel import available_memory
from bert_tf.text import Tokenizer
from bert_tf.text.vocabulary import MAX_CHARS_PER_WORD, load_vocab
from data_prep.corpus.files import FileRange
from data_prep.corpus.reader import BadLines, CorpusOptions, CorpusReader
from data_prep.corpus.word_segmentation import SegmentedTokenizer

_OFFSET = struct.Struct("<q")
# Number of spans to announce to the operating system before they are read.
_ANNOUNCED_SPANS = 1024


@dataclasses.dataclass(frozen=True)
class TokenizerOptions:
    """How text is converted to tokens.

    Attributes:
      vocab_file: a file with one token per line.
      do_lower_case: whether to convert to lower case and remove accents.
      word_segmenter: "module:function" that splits a text into words; "" for words formed by "##" tokens.
      strip_accents: see `BasicTokenizer`.
      tokenize_chinese_chars: see `BasicTokenizer`.
      max_input_chars_per_word: see `WordpieceTokenizer`.
    """

    vocab_file: str
    do_lower_case: bool
    word_segmenter: str = ""
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool = True
    max_input_chars_per_word: int = MAX_CHARS_PER_WORD

    @functools.cached_property
    def vocab(self) -> Mapping[str, int]:
        """Maps tokens to ids."""
        return load_vocab(self.vocab_file)

    @property
    def rules(self) -> tuple[dict[str, Any], str]:
        """The settings that determine the tokens."""
        return self.make().record, self.word_segmenter

    def make(self) -> Tokenizer:
        """Returns the tokenizer, which is made once in each process."""
        return self._tokenizer

    @functools.cached_property
    def _tokenizer(self) -> Tokenizer:
        return Tokenizer(
            self.vocab_file,
            self.do_lower_case,
            strip_accents=self.strip_accents,
            tokenize_chinese_chars=self.tokenize_chinese_chars,
            max_input_chars_per_word=self.max_input_chars_per_word,
        )

    @functools.cached_property
    def id_dtype(self) -> np.dtype:
        """The type of the tokens in the store."""
        if self.word_segmenter or max(self.vocab.values()) >= 1 << 16:
            return np.dtype(np.uint32)
        return np.dtype(np.uint16)

    def __getstate__(self) -> dict[str, object]:
        """Returns the state to pickle, without the vocabulary, which another process reads again."""
        return {name: value for name, value in self.__dict__.items() if name not in ("vocab", "_tokenizer")}


# A process keeps its tokenizer, which caches words.
@functools.lru_cache(maxsize=1)
def _encoder(options: TokenizerOptions) -> Callable[[str], bytes]:
    tokenizer = options.make()
    if options.word_segmenter:
        return SegmentedTokenizer(tokenizer, options.word_segmenter).encode_to_bytes
    return tokenizer.encode_to_bytes


class CorpusTokenizer:
    """Tokenizes the files of a corpus.

    Args:
      corpus: how files are split into sentences.
      tokenizer: how sentences are converted to tokens.

    Attributes:
      counts: numbers of documents, sentences, tokens, and unusual items.
    """

    def __init__(self, corpus: CorpusOptions, tokenizer: TokenizerOptions) -> None:
        self._reader = CorpusReader(corpus)
        self._encode = _encoder(tokenizer)
        self._id_bytes = tokenizer.id_dtype.itemsize
        self.counts: collections.Counter[str] = collections.Counter(documents=0, sentences=0, tokens=0)

    @property
    def bad_lines(self) -> BadLines:
        """See `CorpusReader.bad_lines`."""
        return self._reader.bad_lines

    def sentences(
        self, ranges: Iterable[FileRange], advance: Callable[[int], None] | None = None
    ) -> Iterator[bytes | None]:
        """Yields the ids of each sentence; None ends a document. Empty sentences and documents are skipped."""
        counts = self.counts
        before = 0
        for file_range in ranges:
            for sentence in self._reader.sentences(file_range, advance):
                if sentence is None:
                    of_document = counts["sentences"] - before
                    before = counts["sentences"]
                    if of_document:
                        counts["documents"] += 1
                        yield None
                    counts["documents_of_one_sentence"] += of_document == 1
                    counts["empty_documents"] += of_document == 0
                elif ids := self._encode(sentence):
                    counts["sentences"] += 1
                    counts["tokens"] += len(ids) // self._id_bytes
                    yield ids
                else:
                    counts["lines_without_tokens"] += 1


def write_part(path: str, text: CorpusTokenizer, ranges: Iterable[FileRange], advance: Callable[[int], None]) -> None:
    """Tokenizes ranges of files and writes a part. Each file of the part appears only when it is complete."""
    counts = text.counts
    with contextlib.ExitStack() as stack:
        ids_file, sentences_file, documents_file = (
            stack.enter_context(files.replacing(path + suffix, "wb")) for suffix in (".ids", ".sentences", ".documents")
        )
        sentences_file.write(_OFFSET.pack(0))
        documents_file.write(_OFFSET.pack(0))
        for ids in text.sentences(ranges, advance):
            if ids is None:
                documents_file.write(_OFFSET.pack(counts["sentences"]))
            else:
                ids_file.write(ids)
                sentences_file.write(_OFFSET.pack(counts["tokens"]))


class Part(NamedTuple):
    """A part and its size.

    Attributes:
      path: the path of the part's files, without suffix.
      documents: the number of documents.
      sentences: the number of sentences.
      tokens: the number of tokens.
    """

    path: str
    documents: int
    sentences: int
    tokens: int


class TokenStore(contextlib.ExitStack):
    """Reads all parts as one corpus. A context manager that closes the files.

    Args:
      parts: the parts, in the order of the corpus.
      id_dtype: the type of the tokens.

    Attributes:
      parts: the parts.
      documents: the number of documents.
      tokens: the number of tokens.
    """

    def __init__(self, parts: Sequence[Part], id_dtype: np.dtype) -> None:
        super().__init__()
        self.parts = parts
        self._id_dtype = id_dtype
        self._first_document = _cumulated(part.documents for part in parts)
        self._first_sentence = _cumulated(part.sentences for part in parts)
        self._first_token = _cumulated(part.tokens for part in parts)
        self.documents: int = int(self._first_document[-1])
        self.tokens: int = int(self._first_token[-1])
        _allow_open_files(3 * len(parts) + 256)
        self._ids = [self._open(f"{part.path}.ids") for part in parts]
        self._sentences = [self._open(f"{part.path}.sentences") for part in parts]
        self._documents = [np.memmap(f"{part.path}.documents", np.int64, "r") for part in parts]

    def _open(self, path: str) -> int:
        descriptor = os.open(path, os.O_RDONLY)
        self.callback(os.close, descriptor)
        return descriptor

    def first_document(self, part_index: int) -> int:
        """Returns the index of a part's first document."""
        return int(self._first_document[part_index])

    def document_offsets(self, part_index: int) -> np.ndarray:
        """Returns the sentence offsets [documents + 1] of a part's documents, relative to the part."""
        return self._documents[part_index]

    def sentence_offsets(self, part_index: int, first: int, count: int) -> np.ndarray:
        """Returns the token offsets [count + 1], in the store, of `count` sentences of a part, starting at `first`."""
        data = os.pread(self._sentences[part_index], (count + 1) * _OFFSET.size, first * _OFFSET.size)
        return np.frombuffer(data, np.int64) + self._first_token[part_index]

    def sentence_ranges(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the first and the end [n] of the sentences of `documents` [n], as sentence indices in the store."""
        part_indices = _part_of(self._first_document, documents)
        ranges = np.empty((2, len(documents)), np.int64)
        for part_index in np.unique(part_indices):
            rows = np.flatnonzero(part_indices == part_index)
            local = documents[rows] - self._first_document[part_index]
            column = self._documents[part_index]
            ranges[:, rows] = (column[local], column[local + 1]) + self._first_sentence[part_index]
        return ranges[0], ranges[1]

    def offset_windows(self, sentences: np.ndarray, width: int) -> np.ndarray:
        """Returns the token offsets [n, width + 1] of `width` sentences, starting at each of `sentences` [n].

        Offsets after the end of the document are undefined.
        """
        part_indices = _part_of(self._first_sentence, sentences)
        at = (sentences - self._first_sentence[part_indices]) * _OFFSET.size
        size = (width + 1) * _OFFSET.size
        requests = zip(part_indices.tolist(), at.tolist(), strict=True)
        data = b"".join([os.pread(self._sentences[p], size, o).ljust(size, b"\0") for p, o in requests])
        return np.frombuffer(data, np.int64).reshape(-1, width + 1) + self._first_token[part_indices][:, None]

    def read_tokens(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Returns the concatenated tokens of spans [n]. `starts` are indices in the store.

        If the store is larger than half of the memory, spans are read in their order on the disk. The next spans are
        announced to the operating system, so the disk processes many spans at once.
        """
        if not self._is_larger_than_memory:
            return np.frombuffer(b"".join(self._read_spans(starts, lengths)), self._id_dtype)
        order = np.argsort(starts, kind="stable")
        spans = self._read_spans(starts[order], lengths[order])
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        return np.frombuffer(b"".join(map(spans.__getitem__, ranks.tolist())), self._id_dtype)

    def _read_spans(self, starts: np.ndarray, lengths: np.ndarray) -> list[bytes]:
        part_indices = _part_of(self._first_token, starts)
        size = self._id_dtype.itemsize
        at = (starts - self._first_token[part_indices]) * size
        descriptors, pread = self._ids, os.pread
        requests = list(zip(part_indices.tolist(), (lengths * size).tolist(), at.tolist(), strict=True))
        spans: list[bytes] = []
        for first in range(0, len(requests), _ANNOUNCED_SPANS):
            if self._is_larger_than_memory:
                for part_index, count, offset in requests[first + _ANNOUNCED_SPANS : first + 2 * _ANNOUNCED_SPANS]:
                    os.posix_fadvise(descriptors[part_index], offset, count, os.POSIX_FADV_WILLNEED)
            spans += [pread(descriptors[p], n, o) for p, n, o in requests[first : first + _ANNOUNCED_SPANS]]
        return spans

    @functools.cached_property
    def _is_larger_than_memory(self) -> bool:
        return self.tokens * self._id_dtype.itemsize > available_memory() / 2


def _part_of(firsts: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    return np.searchsorted(firsts, numbers, side="right") - 1


def _cumulated(counts: Iterable[int]) -> np.ndarray:
    return np.cumsum([0, *counts], dtype=np.int64)


def _allow_open_files(count: int) -> None:
    """Increases the process's limit of open files to `count`, or as far as possible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard) if hard >= 0 else count, hard))
