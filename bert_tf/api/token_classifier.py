"""Entities in sentences, by tags of words."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from bert_tf.api import in_memory
from bert_tf.api.row_estimator import RowEstimator
from bert_tf.checkpoints import output_layers, run_directory
from bert_tf.runtime.errors import InputError
from bert_tf.runtime.settings import Settings, about
from bert_tf.tasks import architectures
from bert_tf.tasks.data_config import TAG_SCHEMES, TAGGING, DataConfig
from bert_tf.tasks.tagging import schemes


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


class TokenClassifierOptions(Settings, frozen=True):
    """The settings of a `TokenClassifier`."""

    tag_scheme: Annotated[
        Literal[(schemes.AUTO, *TAG_SCHEMES)], about("Scheme of the tags; auto detects it in the training data.")
    ] = schemes.AUTO


class TokenClassifier(RowEstimator):
    """Entities in sentences (paper, section 5.3).

    Examples are lists of words; labels are lists of tags, one for each word: of entities in any scheme ("B-PER",
    "I-PER", "O"), or plain tags, such as parts of speech. `labels` of `from_pretrained` are the types of entities
    ("PER"), or the tags, by default those of the training data.

    The settings of `from_pretrained` are also those of `TokenClassifierOptions`.
    """

    _ARCHITECTURE = architectures.TOKENS
    _RANK = 1
    _OPTIONS = TokenClassifierOptions
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

    def _data_config(self, table: Sequence[Mapping[str, Any]], **data: Any) -> DataConfig:
        is_training = bool(data.get("train_file"))
        scheme = self._options.tag_scheme if is_training else self._scheme
        return DataConfig(TAGGING, labels=self._given_types, tag_scheme=scheme, **data)

    @property
    def _given_types(self) -> Sequence[str] | None:
        labels = self._labels
        return _types(labels) if labels and all(schemes.TAG.fullmatch(str(label)) for label in labels) else labels

    @property
    def _scheme(self) -> str:
        """The scheme of the trained model or, for a model of `from_pretrained`, that of its classes."""
        if self._trained_checkpoint:
            recorded = run_directory.read(self._folder)
            return (recorded["flags"] | recorded["resume_settings"]).get("tag_scheme", schemes.AUTO)
        if self._options.tag_scheme != schemes.AUTO or self._tuned_before is None:
            return self._options.tag_scheme
        return schemes.detect_scheme([output_layers.recorded_classes(self._tuned_before) or ()])

    def _learned_settings(self, labels: Sequence[Any]) -> dict[str, Any]:
        scheme = self._options.tag_scheme
        return {"tag_scheme": schemes.detect_scheme(labels) if scheme == schemes.AUTO else scheme}

    def _labels_before(self) -> list[str]:
        if self._given_types:
            return self._given_types
        tags = output_layers.recorded_classes(self._tuned_before) or ()
        if not tags:
            raise InputError(
                f"from_pretrained(): the output layer of {self._tuned_before.path} has no names of its classes. Set "
                "id2label in config.json, or pass reset_head=True and call fit()."
            )
        return list(tags) if self._scheme == schemes.PLAIN else sorted(_types(tags))

    @property
    def labels(self) -> list[str]:
        """The tags, in the order of the columns of `predict_proba`."""
        return list(output_layers.tag_classes(self._labels_now(), self._scheme == schemes.PLAIN))

    def predict_proba(self, x: Any, *, batch_size: int = 8) -> list[np.ndarray]:
        """The probability of each tag for the words of each sentence, [words, tags], in the order of `labels`."""
        return [probabilities for _, _, probabilities in self._tagged(x, batch_size)]

    def predict(self, x: Any, *, batch_size: int = 8) -> list[list[str]]:
        """The tags of the words of each sentence, in the IOB2 scheme if they are not plain."""
        return [tags for _, tags, _ in self._tagged(x, batch_size)]

    def predict_entities(self, x: Any, *, batch_size: int = 8) -> list[list[TaggedEntity]]:
        """The entities of each sentence, in the order of their places."""
        return [
            [
                TaggedEntity(
                    kind, " ".join(words[first : last + 1]), first, last + 1, float(best[first : last + 1].min())
                )
                for kind, first, last in schemes.entities_of(tags, self._scheme == schemes.PLAIN)
            ]
            for words, tags, probabilities in self._tagged(x, batch_size)
            for best in [probabilities.max(axis=-1)]
        ]

    def _tagged(self, x: Any, batch_size: int) -> list[tuple[tuple[str, ...], list[str], np.ndarray]]:
        """The words of each sentence, their tags, and the probabilities of all tags, [words, tags]."""
        task, sentences, features, outputs = self._predicted(x, batch_size)
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
