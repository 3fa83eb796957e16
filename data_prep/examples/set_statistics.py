"""Statistics of a set of pre-training examples, computed batch by batch."""

import collections
from collections.abc import Mapping

import numpy as np

from bert_tf.sequences.masking import MaskingVocabulary
from data_prep.examples.set_page import NEXT_SENTENCES, Histogram, Shares


class SetStatistics:
    """Adds up properties of examples.

    Args:
      vocabulary: the special ids.
      unk_id: id of [UNK]; None if the vocabulary has none.
    """

    def __init__(self, vocabulary: MaskingVocabulary, unk_id: int | None) -> None:
        self._vocabulary = vocabulary
        self._unk_id = unk_id
        self._sums: collections.Counter[str] = collections.Counter()
        self._lengths: collections.Counter[int] = collections.Counter()
        self._lengths_a: collections.Counter[int] = collections.Counter()
        self._predictions: collections.Counter[int] = collections.Counter()
        self._is_masked = False

    def add(self, batch: Mapping[str, np.ndarray]) -> None:
        """Adds a batch of examples: features [B, length] or [B]."""
        is_token = batch["input_mask"] > 0
        self._lengths.update(is_token.sum(axis=1).tolist())
        self._lengths_a.update((is_token & (batch["segment_ids"] == 0)).sum(axis=1).tolist())
        ids = batch["input_ids"]
        is_text = is_token & self._vocabulary.is_text(ids)
        self._sums.update(
            {
                "places": ids.size,
                "text": int(is_text.sum()),
                "unknown": int((is_token & (ids == self._unk_id)).sum()),
                "continuations": int((is_text & self._vocabulary.continues_word[ids]).sum()),
                "in A": int((is_text & (batch["segment_ids"] == 0)).sum()),
                "random next": int(batch["next_sentence_labels"].sum()),
            }
        )
        if "masked_lm_ids" in batch:
            self._add_predictions(batch)

    def _add_predictions(self, batch: Mapping[str, np.ndarray]) -> None:
        self._is_masked = True
        is_prediction = batch["masked_lm_weights"] > 0
        self._predictions.update(is_prediction.sum(axis=1).tolist())
        found = np.take_along_axis(batch["input_ids"], batch["masked_lm_positions"], axis=1)[is_prediction]
        labels = batch["masked_lm_ids"][is_prediction]
        is_mask, is_same = found == self._vocabulary.mask_id, found == labels
        self._sums.update({"mask": int(is_mask.sum()), "same": int((is_same & ~is_mask).sum())})

    def figures(self) -> list[Histogram | Shares]:
        """Returns what is drawn of the statistics."""
        sums, random_next = self._sums, self._sums["random next"]
        next_sentences = zip(NEXT_SENTENCES, (self._lengths.total() - random_next, random_next), strict=True)
        figures = [
            Shares("Next sentences", dict(next_sentences)),
            Histogram("Tokens of an example", self._lengths),
            Histogram("Tokens of [CLS], A and [SEP]", self._lengths_a),
        ]
        if self._is_masked:
            other = _total(self._predictions) - sums["mask"] - sums["same"]
            kinds = {"replaced by [MASK]": sums["mask"], "left as it is": sums["same"], "another piece": other}
            figures += [Histogram("Predictions of an example", self._predictions), Shares("Predictions", kinds)]
        return figures

    def rows(self) -> list[dict[str, object]]:
        """Returns the statistics as rows of a table."""
        sums, examples, tokens = self._sums, self._lengths.total(), _total(self._lengths)
        longest = max(self._lengths)
        rows = {
            "examples": examples,
            "tokens": tokens,
            "padding": _share(sums["places"] - tokens, sums["places"]),
            "tokens an example": _spread(self._lengths),
            f"examples of {longest} tokens": _share(self._lengths[longest], examples),
            "text in A": _share(sums["in A"], sums["text"]),
            "random next sentences": _share(sums["random next"], examples),
            "pieces that continue a word": _share(sums["continuations"], sums["text"]),
            "unknown words": _share(sums["unknown"], sums["text"]),
        }
        if self._is_masked:
            predictions = _total(self._predictions)
            rows |= {
                "predictions": predictions,
                "predictions an example": _spread(self._predictions),
                "share of the tokens": _share(predictions, tokens),
                "of these, [MASK]": _share(sums["mask"], predictions),
                "the same": _share(sums["same"], predictions),
                "another piece": _share(predictions - sums["mask"] - sums["same"], predictions),
            }
        else:
            rows["predictions"] = "none: not masked, or while training"
        return [{"statistics": name, "value": value} for name, value in rows.items()]


def _total(counts: Mapping[int, int]) -> int:
    return sum(number * count for number, count in counts.items())


def _spread(counts: collections.Counter[int]) -> str:
    return f"{min(counts)} to {max(counts)}, mean {_total(counts) / counts.total():.2f}"


def _share(count: int, of: int) -> str:
    return f"{count / max(1, of):.2%}"
