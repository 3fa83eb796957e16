"""From predicted pieces back to the text as it was written.

Pieces are lower-cased, stripped of accents and separated from punctuation, so an answer made of pieces isn't yet the
paragraph's own text. The release tokenizes the words around the answer, finds the answer there, and counts characters
without spaces to get from the tokenized words to the original ones. Where the counts differ it keeps those words whole.
"""

import functools
from collections.abc import Sequence

import numpy as np
from absl import logging

from bert_tf.tasks.squad.windows import Document
from bert_tf.tokenization import BasicTokenizer, FullTokenizer


def join_pieces(pieces: Sequence[str]) -> str:
    """Joins pieces to basic tokens, with spaces between the tokens."""
    return " ".join(pieces).replace(" ##", "").replace("##", "")


def get_final_text(pred_text: str, orig_text: str, do_lower_case: bool, verbose_logging: bool = False) -> str:
    """Finds the part of the original words that a predicted text stands for.

    The words "Steve Smith's" and the prediction "steve smith" give "Steve Smith".

    Args:
      pred_text: the predicted pieces, joined to basic tokens.
      orig_text: the words of the paragraph that the pieces come from.
      do_lower_case: whether the pieces are lower-cased.
      verbose_logging: whether the log names predictions that can't be aligned.

    Returns:
      The part of `orig_text`. If the prediction isn't found in the tokenized words, or these differ from the original
      words in more than spaces, the whole of `orig_text`.
    """
    return _final_text(pred_text, orig_text, BasicTokenizer(do_lower_case=do_lower_case), verbose_logging)


def _final_text(pred_text: str, orig_text: str, tokenizer: BasicTokenizer, verbose_logging: bool) -> str:
    tokenized_text = " ".join(tokenizer.tokenize(orig_text))
    start = tokenized_text.find(pred_text)
    is_text = bool(pred_text) and pred_text == pred_text.strip(" ")
    if start < 0 or not is_text or _count_solid(orig_text) != _count_solid(tokenized_text):
        if verbose_logging:
            logging.info("Can't align the prediction %r with the words %r; they are kept whole.", pred_text, orig_text)
        return orig_text
    first = _find_solid(orig_text, _count_solid(tokenized_text, start), 0)
    last = _find_solid(orig_text, _count_solid(pred_text) - 1, first)
    return orig_text[first : last + 1]


def _count_solid(text: str, end: int | None = None) -> int:
    """The number of characters before `end` that aren't spaces."""
    end = len(text) if end is None else end
    return end - text.count(" ", 0, end)


def _find_solid(text: str, number: int, begin: int) -> int:
    """The place of the character that has `number` characters between `begin` and itself, not counting spaces."""
    place = begin + number
    while place != (further := begin + number + text.count(" ", begin, place + 1)):
        place = further
    return place


def document_begins(documents: Sequence[Document]) -> np.ndarray:
    """The number of each document's first piece."""
    lengths = np.array([len(document.ids) for document in documents], dtype=np.int64)
    return np.cumsum(lengths) - lengths


class ContextTexts:
    """Answers as they stand in the contexts; pieces are numbered through all documents."""

    def __init__(self, documents: Sequence[Document]) -> None:
        if any(document.spans is None for document in documents):
            raise ValueError("these windows were made without answer_text='offsets'")
        self._spans = [span for document in documents for span in document.spans]
        self._context_of_piece = [document.context for document in documents for _ in document.ids]

    def text(self, first_piece: int, last_piece: int) -> str:
        return self._context_of_piece[first_piece][self._spans[first_piece][0] : self._spans[last_piece][1]]


class RealignedTexts:
    """Gives the same texts as `get_final_text`, mostly without tokenizing the words of each answer again.

    Pieces are numbered through all documents. A word is regular if its pieces have as many characters as the word. In
    regular words it is enough to cut off as many characters as the pieces before and after the answer have. Only if the
    answer could also begin earlier in its first word, or a word isn't regular (an accent that is a character of its
    own, [UNK]...), `get_final_text` is called.
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
        self._characters_after = (word_ends[word_of_piece + 1] - ends[1:]).tolist()
        self._may_begin_earlier = functools.cache(self._may_begin_earlier)  # many candidates begin at the same piece
        # For each word, the number of irregular words before it.
        self._irregular_before = np.cumsum(np.append(0, irregular)).tolist()

    def text(self, first_piece: int, last_piece: int) -> str:
        first_word, last_word = self._word_of_piece[first_piece], self._word_of_piece[last_piece]
        orig_text = " ".join(self._words[first_word : last_word + 1])
        if not self._verbose_logging:  # `_final_text` logs the answers that it can't align
            before, after = self._characters_before[first_piece], self._characters_after[last_piece]
            if not before and not after:
                return orig_text  # the answer consists of whole words, which are kept even if they can't be aligned
            regular = self._irregular_before[first_word] == self._irregular_before[last_word + 1]
            if regular and not (before and self._may_begin_earlier(first_piece, first_word)):
                return orig_text[before : len(orig_text) - after]
        pred_text = join_pieces(self._tokenizer.convert_ids_to_tokens(self._ids[first_piece : last_piece + 1]))
        return _final_text(pred_text, orig_text, self._tokenizer.basic_tokenizer, self._verbose_logging)

    def _lengths_of_pieces(self) -> tuple[np.ndarray, np.ndarray]:
        """[P] the number of each piece's characters; whether it is a special token, which hides its characters."""
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
