"""The texts of answers, given by their first and last piece: as the context says it, or as the release finds it.

Pieces are numbered through all documents.
"""

import functools
from collections.abc import Sequence

import numpy as np

from bert_tf.tasks.squad.realignment import get_final_text, join_pieces
from bert_tf.tasks.squad.windows import Document
from bert_tf.tokenization import FullTokenizer


def document_begins(documents: Sequence[Document]) -> np.ndarray:
    """The number of each document's first piece."""
    lengths = np.array([len(document.ids) for document in documents], dtype=np.int64)
    return np.cumsum(lengths) - lengths


class OffsetTexts:
    """Answers as they stand in the contexts; pieces are numbered through all documents."""

    def __init__(self, documents: Sequence[Document]) -> None:
        if any(document.spans is None for document in documents):
            raise ValueError("these windows were made without answer_text='offsets'")
        self._spans = [span for document in documents for span in document.spans]
        self._context_of_piece = [document.context for document in documents for _ in document.ids]

    def text(self, first_piece: int, last_piece: int) -> str:
        return self._context_of_piece[first_piece][self._spans[first_piece][0] : self._spans[last_piece][1]]


class ReleaseTexts:
    """`get_final_text` without tokenizing the words of each span again; pieces are numbered through all documents.

    A word is regular if its pieces have as many characters as the word. In regular words the characters before and
    behind the answer are counted off; only where the answer could also begin earlier in its first word, or a word isn't
    regular (accents that are characters of their own, [UNK]...), the text is searched as the release does it.
    """

    def __init__(self, documents: Sequence[Document], tokenizer: FullTokenizer, verbose_logging: bool = False) -> None:
        self._tokenizer = tokenizer
        self._verbose_logging = verbose_logging
        self._words = [word for document in documents for word in document.words]
        self._ids = [piece_id for document in documents for piece_id in document.ids]
        begins = document_begins(documents).tolist()
        self._first_piece = [
            begin + piece for begin, document in zip(begins, documents, strict=True) for piece in document.first_piece
        ]
        self._first_piece.append(len(self._ids))
        first_piece = np.array(self._first_piece)  # [words + 1]
        word_of_piece = np.repeat(np.arange(len(self._words)), np.diff(first_piece))
        length, is_opaque = self._lengths_of_pieces()
        ends = np.cumsum(np.append(0, length))  # [P + 1]
        word_ends = ends[first_piece]
        irregular = np.diff(word_ends) != [len(word) for word in self._words]
        irregular[word_of_piece[is_opaque]] = True
        self._word_of_piece = word_of_piece.tolist()
        self._characters_before = (ends[:-1] - word_ends[word_of_piece]).tolist()
        self._characters_behind = (word_ends[word_of_piece + 1] - ends[1:]).tolist()
        self._may_begin_earlier = functools.cache(self._may_begin_earlier)  # many candidates begin at the same piece
        self._irregular_before = np.cumsum(np.append(0, irregular)).tolist()  # for each word how many before it

    def text(self, first_piece: int, last_piece: int) -> str:
        first_word, last_word = self._word_of_piece[first_piece], self._word_of_piece[last_piece]
        orig_text = " ".join(self._words[first_word : last_word + 1])
        if not self._verbose_logging:  # otherwise all of them go the long way, which names what it can't align
            before, behind = self._characters_before[first_piece], self._characters_behind[last_piece]
            if not before and not behind:
                return orig_text  # whole words are the answer; and if they can't be aligned they are kept whole
            regular = self._irregular_before[first_word] == self._irregular_before[last_word + 1]
            if regular and not (before and self._may_begin_earlier(first_piece, first_word)):
                return orig_text[before : len(orig_text) - behind]
        pred_text = join_pieces(self._tokenizer.convert_ids_to_tokens(self._ids[first_piece : last_piece + 1]))
        return get_final_text(pred_text, orig_text, self._tokenizer.do_lower_case, self._verbose_logging)

    def _lengths_of_pieces(self) -> tuple[np.ndarray, np.ndarray]:
        """[P] the characters of each piece; whether it is [UNK] or the like, which doesn't say what it stands for."""
        ids, which = np.unique(np.array(self._ids, dtype=np.int64), return_inverse=True)
        pieces = [piece.removeprefix("##") for piece in self._tokenizer.convert_ids_to_tokens(ids.tolist())]
        lengths = np.array([len(piece) for piece in pieces], dtype=np.int64)
        is_opaque = np.array([len(piece) > 1 and piece.startswith("[") for piece in pieces], dtype=bool)
        return lengths[which], is_opaque[which]

    def _may_begin_earlier(self, first_piece: int, first_word: int) -> bool:
        *before, first = self._tokenizer.convert_ids_to_tokens(
            self._ids[self._first_piece[first_word] : first_piece + 1]
        )
        return any(first.removeprefix("##")[0] in piece for piece in before)
