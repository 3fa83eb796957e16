"""Entities in sentences, by tags of words."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from seqeval.metrics.sequence_labeling import get_entities

from bert_tf.api import in_memory
from bert_tf.api.row_estimator import RowEstimator
from bert_tf.checkpoints import output_layers
from bert_tf.runtime.files import InputError
from bert_tf.tasks import architectures
from bert_tf.tasks.data_config import TAGGING, DataConfig
from bert_tf.tasks.tagging import conll


class TaggedEntity(NamedTuple):
    """An entity that was found in a sentence.

    Attributes:
      type: such as "PER".
      text: its words, with spaces between them.
      start: the number of its first word in the sentence.
      end: the number of the word after its last one.
      score: the lowest of the probabilities of its words' tags.
    """

    type: str
    text: str
    start: int
    end: int
    score: float


class TokenClassifier(RowEstimator):
    """Entities in sentences (paper, section 5.3).

    Examples are lists of words; labels are lists of tags such as "B-PER", "I-PER" and "O", one for each word. Tags that
    are not those of entities, such as parts of speech, are not taken. `labels` of `from_pretrained` are the types of
    entities ("PER") or their tags, by default those of the training data.
    """

    _ARCHITECTURE = architectures.TOKENS
    _RANK = 1
    _HAS_LABELS = True

    def _table(self, examples: Sequence[Any], labels: Sequence[Any] | None) -> list[dict[str, Any]]:
        table = []
        for number, words in enumerate(examples):
            place = f"sentence {number}"
            if not isinstance(words, list | tuple) or not words:
                raise InputError(f"{place} is {str(words)[:60]!r}. Use a list of words.")
            tags = ["O"] * len(words) if labels is None else labels[number]
            if not isinstance(tags, list | tuple):
                raise InputError(f"the label of {place} is {str(tags)[:60]!r}. Use a list of tags.")
            if len(words) != len(tags):
                raise InputError(f"{place} has {len(words)} words, but {len(tags)} tags. Give one tag for each word.")
            for i, (word, tag) in enumerate(zip(words, tags, strict=True)):
                in_memory.text(word, f"word {i} of {place}")
                in_memory.text(tag, f"tag {i} of {place}")
            table.append({"words": words, "tags": tags})
        return table

    def _data_config(self, **data: Any) -> DataConfig:
        labels = self._labels
        if labels and all(conll.TAG.fullmatch(str(label)) for label in labels):
            labels = _types(labels)
        return DataConfig(TAGGING, None, labels=labels, **data)

    def _labels_before(self) -> list[str]:
        if labels := self._data_config().labels:
            return labels
        tags = output_layers.recorded_classes(self._tuned_before) or ()
        types = sorted(_types(tags))
        if not types or sorted(tags) != sorted(output_layers.tags_of_types(types)):
            raise InputError(
                f"from_pretrained(): the output layer of {self._tuned_before.path} has the classes "
                f"{', '.join(tags) or 'LABEL_0, ... (no names)'}. Only O and pairs of B- and I- of entities can be "
                "used. Rename them in id2label of config.json, or pass reset_head=True and call fit()."
            )
        return types

    @property
    def labels(self) -> list[str]:
        """The tags, in the order of the columns of `predict_proba`."""
        return list(output_layers.tags_of_types(self._labels_now()))

    def predict_proba(self, x: Any, *, batch_size: int = 8) -> list[np.ndarray]:
        """The probability of each tag for the words of each sentence, [words, tags], in the order of `labels`."""
        return [probabilities for _, _, probabilities in self._tagged(x, batch_size)]

    def predict(self, x: Any, *, batch_size: int = 8) -> list[list[str]]:
        """The tags of the words of each sentence, in the IOB2 scheme."""
        return [tags for _, tags, _ in self._tagged(x, batch_size)]

    def predict_entities(self, x: Any, *, batch_size: int = 8) -> list[list[TaggedEntity]]:
        """The entities of each sentence, in the order of their places."""
        return [
            [
                TaggedEntity(
                    kind, " ".join(words[first : last + 1]), first, last + 1, float(best[first : last + 1].min())
                )
                for kind, first, last in get_entities(tags)
            ]
            for words, tags, probabilities in self._tagged(x, batch_size)
            for best in [probabilities.max(axis=-1)]
        ]

    def _tagged(self, x: Any, batch_size: int) -> list[tuple[tuple[str, ...], list[str], np.ndarray]]:
        """The words of each sentence, their tags, and the probabilities of all tags, [words, tags]."""
        task, sentences = self._read("test", self._table(in_memory.as_list(x, "x", self._RANK), None))
        outputs, features = self._outputs(task, sentences, batch_size)
        tags = np.array(task.tags)[features.at_words(outputs["tags"])]
        probabilities = features.at_words(outputs["tag_probabilities"])
        return [
            (sentence.words, list(map(str, sentence_tags)), sentence_probabilities)
            for sentence, sentence_tags, sentence_probabilities in zip(
                sentences, features.by_sentence(tags), features.by_sentence(probabilities), strict=True
            )
        ]


def _types(tags: Sequence[str]) -> list[str]:
    """The types of entities, each once, that tags name after their prefixes: "PER" for "B-PER" and "I-PER"."""
    return list(dict.fromkeys(tag.partition("-")[2] for tag in tags if "-" in tag))
