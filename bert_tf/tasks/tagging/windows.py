"""Input windows of tagged text, and the positions of the words in the windows."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_tf.finetuning.feature_sets import FeatureSet


@dataclasses.dataclass(frozen=True)
class TaggingFeatures(FeatureSet):
    """Windows of tagged text, and the positions of the words in the windows.

    Attributes:
      word_windows: [W], for each word in order, the index of the window in which the word is tagged.
      word_positions: [W], the position of the word's first token in this window.
      sentence_lengths: [S], the number of words in each sentence.
    """

    word_windows: np.ndarray = dataclasses.field(kw_only=True)
    word_positions: np.ndarray = dataclasses.field(kw_only=True)
    sentence_lengths: np.ndarray = dataclasses.field(kw_only=True)

    def at_words(self, values: np.ndarray) -> np.ndarray:
        """Selects the values at the positions of the words: [windows, T] -> [W]."""
        return values[self.word_windows, self.word_positions]

    def word_values(self, per_token: np.ndarray) -> np.ndarray:
        """Selects the values of the first token of each word from an array like `input_ids`: [tokens] -> [W]."""
        starts = np.cumsum(self.lengths) - self.lengths
        return per_token[starts[self.word_windows] + self.word_positions]

    def word_tag_ids(self) -> np.ndarray:
        """Returns the tag ids of the words [W]."""
        return self.word_values(self.per_token["tag_ids"][0])

    def by_sentence(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        """Splits a sequence with one value per word [W] by sentence."""
        ends = np.cumsum(self.sentence_lengths)
        return [values[end - length : end] for end, length in zip(ends, self.sentence_lengths, strict=True)]


class Window(NamedTuple):
    """A window of a text, and the words that are tagged in this window.

    Attributes:
      begin: index of the first token of the window in the text.
      end: index of the last token plus 1.
      words: indices of the words.
    """

    begin: int
    end: int
    words: Sequence[int]


def windows(sentence_lengths: Sequence[int], first_pieces: Sequence[int], num_pieces: int, room: int) -> list[Window]:
    """Returns the windows of a text: one for each sentence, with as much text on both sides as fits.

    A sentence that is too long is split into parts that are half as long as a window. Each part has a window, with as
    much text on both sides as fits.

    Args:
      sentence_lengths: the number of words in each sentence.
      first_pieces: the position in the text of the first token of each word.
      num_pieces: the number of tokens in the text.
      room: the number of tokens in a window.
    """
    result: list[Window] = []
    word = 0
    for length in sentence_lengths:
        words = range(word, word + length)
        word += length
        stop = first_pieces[word] if word < len(first_pieces) else num_pieces
        start = first_pieces[words[0]]
        step = stop - start if stop - start <= room else max(1, room // 2)
        by_part = itertools.groupby(words, key=lambda w, start=start, step=step: (first_pieces[w] - start) // step)
        for part, members in by_part:
            part_start = start + part * step
            context = room - (min(part_start + step, stop) - part_start)
            begin = max(0, min(part_start - context // 2, num_pieces - room))
            result.append(Window(begin, min(begin + room, num_pieces), list(members)))
    return result
