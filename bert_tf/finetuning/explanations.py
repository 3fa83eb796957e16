"""Which words caused a prediction: integrated gradients (Sundararajan et al., 2017, "Axiomatic Attribution").

The scores of a text's words add up to the difference between the logit of the text and the logit of the baseline. The
baseline is the same sequence with [MASK] for each token of the text.

Axis letters: T tokens, H hidden, M points between baseline and text.
"""

import html
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from bert_tf.finetuning.models import EncoderModel
from bert_tf.runtime.messages import say
from bert_tf.sequences.text_packer import TextPacker
from bert_tf.text import Tokenizer
from bert_tf.text.vocabulary import MASK

# The smallest and the largest number of points, and the accepted error. The error is a fraction of the logits'
# difference, or of 1 if the difference is smaller than 1.
_FEWEST, _MOST, _TOLERANCE = 16, 4096, 0.02
# The largest number of points in a batch.
_BATCH = 16


class WordScore(NamedTuple):
    """A word, and how much it increases the logit.

    Attributes:
      word: the word.
      start: position of the first character in the text; in a list of words, as if they were joined by spaces.
      end: position after the last character.
      score: the score; negative if the word reduces the logit.
      text: 0, or 1 for the second text of a pair.
    """

    word: str
    start: int
    end: int
    score: float
    text: int = 0


class Explanation(NamedTuple):
    """The scores of the words of an example. A word without tokens in the sequence has the score 0.

    Attributes:
      label: the class, label or tag whose logit is explained; "score" for a number.
      difference: the logit of the text minus the logit of the baseline. The scores add up to it.
      words: the words.
      index: for a tag, the index of the tagged word; else None.
    """

    label: Any
    difference: float
    words: list[WordScore]
    index: int | None = None

    def _repr_html_(self) -> str:
        """Returns a table for notebooks: green words increase the logit, and red words reduce it."""
        largest = max([1e-9, *(abs(word.score) for word in self.words)])
        cells = [f"<th>{html.escape(str(self.label))}: {self.difference:+.2f}</th>"]
        for word in self.words:
            color = f"rgba({'0, 160, 0' if word.score > 0 else '220, 0, 0'}, {abs(word.score) / largest:.2f})"
            title = f'style="background: {color}" title="{word.score:.3f}"'
            cells.append(f"<td {title}>{html.escape(word.word)}</td>")
        return f"<table><tr>{''.join(cells)}</tr></table>"


class _TokenNumbers:
    """Takes the place of the tokenizer in a `TextPacker`, and returns the numbers of tokens instead of their ids.

    Attributes:
      words: the words of all texts so far, with the score 0.
      ids: the ids of the tokens.
      word_numbers: the number of the word of each token.
    """

    ends = (-1, -2)
    pack = Tokenizer.pack

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.words: list[WordScore] = []
        self.ids: list[int] = []
        self.word_numbers: list[int] = []

    def encode(self, text: str | Sequence[str]) -> list[int]:
        """Returns the numbers of the tokens of the first or the second text."""
        number, first = int(bool(self.words)), len(self.ids)
        for word, start, ids in self._tokenizer.encode_words(text):
            self.word_numbers += [len(self.words)] * len(ids)
            self.ids += ids
            self.words.append(WordScore(word, start, start + len(word), 0.0, number))
        return list(range(first, len(self.ids)))


class ExplainedText:
    """A text for the model, packed as for training and prediction.

    Args:
      packer: makes the sequences. If there are windows, the logit is the mean over the windows.
      text_a: the text, or its words.
      text_b: the second text of a pair; else None.

    Attributes:
      words: the words, with the score 0.
      sequences: the sequences: ids, segment ids, and the number of the word of each token, or -1 for [CLS] and [SEP].
    """

    def __init__(self, packer: TextPacker, text_a: str | Sequence[str], text_b: str | None = None) -> None:
        tokens = _TokenNumbers(packer.tokenizer)
        packed = packer._replace(tokenizer=tokens).pack_document(text_a, text_b)
        self._mask_id = packer.tokenizer.vocab[MASK]
        self.words = tokens.words
        # [CLS] and [SEP] have the numbers -1 and -2.
        ids = np.array([*tokens.ids, *reversed(packer.tokenizer.ends)])
        word_numbers = np.array([*tokens.word_numbers, -1, -1])
        self.sequences = [(ids[numbers], np.array(segments), word_numbers[numbers]) for numbers, segments, _ in packed]

    def explained(
        self, model: EncoderModel, label: str, logit: Callable[[tf.Tensor], tf.Tensor], index: int | None = None
    ) -> Explanation:
        """Returns an explanation.

        Args:
          model: the model, which computes in float32.
          label: the label of the logit.
          logit: selects the logit [M] of each sequence from the logits of the model.
          index: see `Explanation`.
        """
        gradients = [
            _gradients(model, logit, ids, np.where(numbers >= 0, self._mask_id, ids), segment_ids)
            for ids, segment_ids, numbers in self.sequences
        ]
        difference = float(np.mean([np.diff(function(np.array([0.0, 1.0]))[0]) for function in gradients]))
        count, limit, scores = _FEWEST // 2, _TOLERANCE * max(1.0, abs(difference)), np.full(1, np.inf)
        while (is_inexact := abs(scores.sum() - difference) > limit) and count < _MOST:
            count, scores = 2 * count, np.zeros(len(self.words))
            for function, (*_, numbers) in zip(gradients, self.sequences, strict=True):
                token_scores = function((np.arange(count) + 0.5) / count)[1].mean(axis=0, dtype=np.float64)
                np.add.at(scores, numbers[numbers >= 0], token_scores[numbers >= 0] / len(gradients))
        if is_inexact:
            say(f"Warning: the scores add up to {scores.sum():.3f}, but the logits differ by {difference:.3f}.")
        words = [word._replace(score=float(score)) for word, score in zip(self.words, scores, strict=True)]
        return Explanation(label, difference, words, index)


def _gradients(
    model: EncoderModel,
    logit: Callable[[tf.Tensor], tf.Tensor],
    ids: np.ndarray,
    baseline: np.ndarray,
    segment_ids: np.ndarray,
) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Returns a function of points from 0 (the baseline) to 1 (the text) of a sequence [T].

    The function returns the logits [M], and their derivatives with respect to each token's share of the difference
    between the word embeddings of text and baseline [M, T]. Word and position embeddings are added. A point is
    therefore computed with the ids of the baseline, and position embeddings that include a share of the difference.
    """
    embeddings, words, length = model.encoder.embeddings, model.encoder.embedding_table, len(ids)
    change = tf.gather(words, ids) - tf.gather(words, baseline)  # [T, H]
    table = tf.convert_to_tensor(embeddings.position_embeddings.value)
    batch_size = min(_BATCH, table.shape[0] // length)
    rows = {"input_ids": baseline, "segment_ids": segment_ids, "input_mask": np.ones_like(ids)}

    def of_batch(points: np.ndarray) -> tuple[tf.Tensor, tf.Tensor]:
        count = len(points)
        shares = tf.tile(tf.constant(points, tf.float32)[:, tf.newaxis], [1, length])
        batch = {name: tf.constant(np.tile(row, (count, 1)), tf.int32) for name, row in rows.items()}
        batch["position_ids"] = tf.reshape(tf.range(count * length), [count, length])
        with tf.GradientTape() as tape:
            tape.watch(shares)
            positions = tf.reshape(table[:length] + shares[..., tf.newaxis] * change, [-1, table.shape[1]])
            moved = tf.pad(positions, [[0, table.shape[0] - count * length], [0, 0]])
            with keras.StatelessScope(state_mapping=[(embeddings.position_embeddings, moved)]):
                logits = logit(model.logits(batch))
        return logits, tape.gradient(logits, shares)

    def of_points(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        batches = (of_batch(points[start : start + batch_size]) for start in range(0, len(points), batch_size))
        logits, derivatives = zip(*batches, strict=True)
        return np.concatenate(logits), np.concatenate(derivatives)

    return of_points
