"""Decides which documents of a corpus are left out: repeated ones, those in other languages, and short ones.

Documents are compared by their pieces, so line breaks don't matter, nor do capitals if the vocabulary has none.

    exact   documents of the same pieces
    near    documents that share most of their runs of five pieces: MinHash, and locality-sensitive hashing in 14 bands
            of 8, as for FineWeb (Penedo et al., 2024). Of the pairs with a Jaccard similarity of 0.5, 0.7, 0.8 and 0.9,
            it finds 5%, 56%, 92% and 99.96%

A document is left out if an earlier one has the same signature, of all pieces or of any band. So it doesn't matter in
which order they are compared. Documents that are too short or in another language are compared with none.
"""

import dataclasses
import functools
import hashlib
from types import TracebackType
from typing import Any

import numpy as np

from bert_tf.runtime import extras, files
from bert_tf.runtime.errors import InputError, require_whole
from data_prep.corpus.sorted_runs import RunWriter

REMOVE_DUPLICATES = ("none", "exact", "near")
# Why a document was left out, in the order of the numbers that stand for it.
REASONS = ("", "too short", "in another language", "a duplicate")
KEPT, SHORT, OTHER_LANGUAGE, DUPLICATE = range(len(REASONS))

# What is kept of each document: the piece of a file and the line where it begins, see `bad_lines.LinePlace`; why it is
# left out, as a number, and its language.
DOCUMENT = np.dtype([("piece", "<u4"), ("line", "<u8"), ("reason", "u1"), ("language", "S8")])
# A signature, whose first half is its key in the sorted runs, and the key of its document (see `document_keys`).
SIGNATURE = np.dtype([("rest", "<u8"), ("document", "<u8")])

_BANDS, _ROWS = 14, 8
_SHINGLE = 5
# How much of a document is looked at to find its language, and how many pieces are hashed together.
_LANGUAGE_CHARS = 2000
_PIECES_TOGETHER = 1 << 11
# Signatures are handed over in arrays of this length: an array for each document would take many times their room.
_SIGNATURES_TOGETHER = 1 << 12
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


@dataclasses.dataclass(frozen=True)
class CleaningOptions:
    """Which documents are left out.

    Attributes:
      remove_duplicates: "none", "exact" or "near".
      keep_languages: codes of the languages of which documents are kept; empty for all.
      min_document_chars: the fewest characters of a document.

    Raises:
      InputError: if a language is unknown, a number is below 0, or a package is not installed.
    """

    remove_duplicates: str = "none"
    keep_languages: tuple[str, ...] = ()
    min_document_chars: int = 0

    def __post_init__(self) -> None:
        require_whole("--min_document_chars", self.min_document_chars, 0)
        if self.remove_duplicates == "near":
            _datasketch()
        if self.keep_languages:
            known = sorted(_language_identifier().labels)
            unknown = set(self.keep_languages).difference(known)
            if unknown:
                raise InputError(
                    f"--keep_languages: {', '.join(sorted(unknown))} is not known. Codes of languages are expected: "
                    f"{', '.join(known)}."
                )

    @property
    def is_needed(self) -> bool:
        """False if all documents are kept."""
        return self != CleaningOptions()


def _datasketch() -> Any:
    return extras.require("datasketch", "--remove_duplicates=near")


@functools.cache
def _language_identifier() -> Any:
    langid = extras.require("py3langid.langid", "--keep_languages")
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE)


def document_keys(part: int, parts: int) -> tuple[int, int]:
    """Returns the key of the first document of a part, and that behind its last one.

    They rise in the order of the corpus, and are spread evenly enough for sorted runs.
    """
    return (part << 64) // parts, (part + 1 << 64) // parts


def part_of_key(key: int, parts: int) -> int:
    """Returns the part of the document with a key."""
    return ((key + 1) * parts - 1) >> 64


def documents_file(part: str) -> str:
    """Returns the path of what is kept of each document of a part, see `DOCUMENT`."""
    return f"{part}.documents"


class DocumentExaminer:
    """Examines the documents of a part of the corpus while it is tokenized; memory doesn't grow with their length.

    Args:
      options: what is left out.
      part: the path of the part; what is found stands in `documents_file`, and the signatures in runs beside it.
      id_dtype: type of the pieces.
      first_key: the key of the first document.
      run_records: number of signatures that are sorted in memory.

    Attributes:
      signatures: writes the signatures.
    """

    def __init__(
        self, options: CleaningOptions, part: str, id_dtype: np.dtype, first_key: int, run_records: int
    ) -> None:
        self._options = options
        self._replacing = files.replacing(documents_file(part), "wb")
        self._id_dtype = id_dtype
        self._key = first_key
        self.signatures = RunWriter(part, SIGNATURE, run_records)
        self._signers = {"none": _NoSignatures, "exact": _ExactSignature, "near": _NearSignatures}
        self._digests: list[bytes] = []
        self._documents: list[int] = []
        self._begin()

    def __enter__(self) -> "DocumentExaminer":
        self._file = self._replacing.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._hand_over_signatures()
            self.signatures.finish()
        self._replacing.__exit__(kind, error, trace)

    def _begin(self) -> None:
        self._place: tuple[int, int] | None = None
        self._chars = 0
        self._sample = ""
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._signer = self._signers[self._options.remove_duplicates]()

    def add(self, sentence: str, ids: bytes, place: tuple[int, int]) -> None:
        """Takes the next sentence of a document.

        Args:
          sentence: its text.
          ids: its pieces.
          place: the piece of a file and the line in which it stands.
        """
        self._place = self._place or place
        self._chars += len(sentence)
        if len(self._sample) < _LANGUAGE_CHARS and self._options.keep_languages:
            self._sample += sentence[:_LANGUAGE_CHARS] + "\n"
        self._waiting.append(ids)
        self._waiting_bytes += len(ids)
        if self._waiting_bytes >= _PIECES_TOGETHER * self._id_dtype.itemsize:
            self._sign()

    def _sign(self) -> None:
        self._signer.add(np.frombuffer(b"".join(self._waiting), self._id_dtype))
        self._waiting.clear()
        self._waiting_bytes = 0

    def end_document(self) -> None:
        """Ends a document of at least one sentence."""
        self._sign()
        reason, language = KEPT, ""
        if self._chars < self._options.min_document_chars:
            reason = SHORT
        elif self._options.keep_languages:
            language, _ = _language_identifier().classify(self._sample)
            reason = KEPT if language in self._options.keep_languages else OTHER_LANGUAGE
        self._file.write(np.array((*self._place, reason, language), DOCUMENT).tobytes())
        if reason == KEPT:
            digests = self._signer.signatures()
            self._digests += digests
            self._documents += [self._key] * len(digests)
            if len(self._digests) >= _SIGNATURES_TOGETHER:
                self._hand_over_signatures()
        self._key += 1
        self._begin()

    def _hand_over_signatures(self) -> None:
        halves = np.frombuffer(b"".join(self._digests), np.uint64).reshape(-1, 2)
        records = np.empty(len(halves), SIGNATURE)
        records["rest"], records["document"] = halves[:, 1], np.array(self._documents, np.uint64)
        self.signatures.add(halves[:, 0], records)
        self._digests.clear()
        self._documents.clear()


class _NoSignatures:
    def add(self, ids: np.ndarray) -> None:
        pass

    def signatures(self) -> list[bytes]:
        return []


class _ExactSignature:
    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, ids: np.ndarray) -> None:
        self._hash.update(ids)

    def signatures(self) -> list[bytes]:
        return [self._hash.digest()]


class _NearSignatures:
    def __init__(self) -> None:
        self._sketch = _empty_sketch().copy()
        self._last = np.empty(0, np.uint64)
        self._is_hashed = False

    def add(self, ids: np.ndarray) -> None:
        ids = np.concatenate([self._last, ids])
        if len(ids) >= _SHINGLE:
            self._update(np.lib.stride_tricks.sliding_window_view(ids, _SHINGLE))
        self._last = ids[1 - _SHINGLE :]

    def _update(self, shingles: np.ndarray) -> None:
        hashes = np.zeros(len(shingles), np.uint64)
        for column in shingles.T:
            hashes = (hashes ^ column) * _FACTOR
            hashes ^= hashes >> np.uint64(29)
        self._sketch.update_batch((hashes >> np.uint64(32)).tolist())
        self._is_hashed = True

    def signatures(self) -> list[bytes]:
        if not self._is_hashed:  # a document of fewer pieces
            self._update(self._last[np.newaxis])
        bands = self._sketch.hashvalues.reshape(_BANDS, _ROWS)
        return [
            hashlib.blake2b(band.tobytes(), digest_size=16, salt=bytes([number])).digest()
            for number, band in enumerate(bands)
        ]


@functools.cache
def _empty_sketch() -> Any:
    return _datasketch().MinHash(_BANDS * _ROWS, hashfunc=int, scheme="affine32")


def find_duplicates(keys: np.ndarray, records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the keys [m] of documents whose signature an earlier document has, and the keys [m] of the earliest ones.

    Args:
      keys: [n] the first halves of all signatures in a range, in ascending order.
      records: [n] of type `SIGNATURE`.
    """
    order = np.lexsort((records["document"], records["rest"], keys))
    keys, records = keys[order], records[order]
    repeats = np.flatnonzero((keys[1:] == keys[:-1]) & (records["rest"][1:] == records["rest"][:-1])) + 1
    earliest = np.arange(len(keys))
    earliest[repeats] = 0
    earliest = np.maximum.accumulate(earliest)
    documents = records["document"]
    return documents[repeats], documents[earliest[repeats]]


def first_of_each(documents: np.ndarray, earliest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns different documents in ascending order, and the earliest of the documents that each of them repeats."""
    order = np.lexsort((earliest, documents))
    found, first = np.unique(documents[order], return_index=True)
    return found, earliest[order][first]
