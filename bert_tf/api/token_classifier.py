"""Token classification: a tag for each word, and named entities."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self, Unpack

import numpy as np
import tensorflow as tf

from bert_tf.api import in_memory
from bert_tf.api.arguments import Labels, PathLike
from bert_tf.api.base import Estimator
from bert_tf.api.setting_types import TokenClassifierSettings
from bert_tf.checkpoints import class_names, run_record
from bert_tf.runtime.errors import InputError
from bert_tf.runtime.messages import say
from bert_tf.runtime.settings import Settings, about
from bert_tf.tasks import hf_names
from bert_tf.tasks.data_config import DataConfig, LossConfig, TagScheme
from bert_tf.tasks.tagging import annotations, schemes, tagged_tables
from bert_tf.tasks.tagging.schemes import Sentence
from bert_tf.tasks.task_names import TAGGING


class TaggedEntity(NamedTuple):
    """An entity found in a sentence.

    Attributes:
      type: the type, such as "PER".
      text: the words of the entity, joined by spaces.
      start: index of the first word in the sentence.
      end: index of the last word plus 1.
      score: the lowest probability of the words' tags.
    """

    type: str
    text: str
    start: int
    end: int
    score: float


class TokenClassifierOptions(Settings, frozen=True):
    """The settings of a `TokenClassifier`."""

    tag_scheme: Annotated[TagScheme, about("Tagging scheme. auto detects it in the training data.")] = schemes.AUTO
    loss: LossConfig = LossConfig()


class TokenClassifier(Estimator):
    """Tags words and finds entities in sentences (paper, section 5.3).

    Examples are lists of words, or rows of a table with a column `words` or `tokens`. Labels are lists of tags, one for
    each word: entity tags in any scheme ("B-PER", "I-PER", "O"), or plain tags, such as parts of speech. The argument
    `labels` of `from_pretrained` contains the entity types ("PER") or the tags. Default: the tags of the training data.
    If it contains all tags, the tags of a sentence may also be their indices.

    `from_pretrained` also accepts the settings of `TokenClassifierOptions`.

    Examples:
      >>> tagger = bert_tf.TokenClassifier.from_pretrained("build/quickstart/pretrained", max_seq_length=32)
      >>> words, tags = ["Ada", "lives", "in", "Rome"], ["B-PER", "O", "O", "B-LOC"]
      >>> scores = tagger.fit([words] * 16, [tags] * 16, epochs=5, batch_size=4, learning_rate=1e-3, verbose=0)
      >>> tagger.predict([words])
      [['B-PER', 'O', 'O', 'B-LOC']]
      >>> tagger.predict_entities([words])[0][1]
      TaggedEntity(type='LOC', text='Rome', start=3, end=4, score=0.9971953630447388)
    """

    _ARCHITECTURE = hf_names.TOKENS
    _RANK = 1
    _OPTIONS = TokenClassifierOptions
    _LABEL_COLUMNS = tagged_tables.TAG_COLUMNS

    if TYPE_CHECKING:

        @classmethod
        def from_pretrained(  # noqa: D102 (inherited)
            cls, path: PathLike, labels: Labels = None, **settings: Unpack[TokenClassifierSettings]
        ) -> Self: ...

    def _labelled(
        self, x: Any, y: Any, name: str, columns: Sequence[str] = (), sample_weight: Any = None
    ) -> tuple[list[Any], list[Any], list[float] | None]:
        if y is None and not isinstance(x, tf.data.Dataset):
            x = _as_lists(in_memory.as_list(x, name, self._RANK), name, has_tags=True)
        return super()._labelled(x, y, name, columns, sample_weight)

    def _examples(self, values: Sequence[Any], labels: Sequence[Any] | None) -> list[Sentence]:
        table = []
        if labels is None:
            values = _as_lists(values, "x", has_tags=False)
        for number, words in enumerate(values):
            where = f"sentence {number}"
            if isinstance(words, Mapping):
                words = next((words[name] for name in tagged_tables.WORD_COLUMNS if name in words), words)
            if not isinstance(words, list | tuple) or not words:
                raise InputError(f"{where} is {str(words)[:60]!r}. Use lists of words.")
            tags = None if labels is None else labels[number]
            if labels is not None and not isinstance(tags, list | tuple):
                raise InputError(f"the label of {where} is {str(tags)[:60]!r}. Use a list of tags.")
            if self._labels and tags:
                tags = [self._labels[x] if type(x) is int and 0 <= x < len(self._labels) else x for x in tags]
            if labels is not None and len(words) != len(tags):
                raise InputError(f"{where} has {len(words)} words, but {len(tags)} tags. Give one tag for each word.")
            for name, texts in (("word", words), ("tag", tags or ())):
                for i, text in enumerate(texts):
                    in_memory.text(text, f"{name} {i} of {where}")
            table.append(Sentence.in_row("", words, tags, number))
        return table

    def _data_config(self, examples: Mapping[str, Sequence[Any]]) -> DataConfig:
        scheme = self._options.tag_scheme if "train" in examples else self._scheme
        classes = {"labels": self._requested_types, "tag_classes": self._own_classes}
        return DataConfig(TAGGING, tag_scheme=scheme, loss=self._options.loss, **classes)

    @property
    def _own_classes(self) -> tuple[str, ...] | None:
        """The model's classes, if they are not exactly the IOB2 tags of the entity types; else None."""
        if self._tuned_before is None or self._scheme == schemes.PLAIN:
            return None
        classes = _usual(class_names.recorded_classes(self._tuned_before) or ())
        has_iob2 = sorted(classes) == sorted(class_names.tag_classes(_types(classes)))
        return classes if classes and not has_iob2 else None

    @property
    def _requested_types(self) -> Sequence[str] | None:
        labels = self._labels and _usual(list(map(str, self._labels)))
        return _types(labels) if labels and all(map(schemes.TAG.fullmatch, labels)) else self._labels

    @property
    def _scheme(self) -> str:
        """The tagging scheme of the trained model or, before training, of the initial model's classes."""
        if self._trained_checkpoint:
            recorded = run_record.read(self._directory)
            return (recorded["flags"] | recorded["resume_settings"]).get("tag_scheme", schemes.AUTO)
        if self._options.tag_scheme != schemes.AUTO or self._tuned_before is None:
            return self._options.tag_scheme
        return schemes.detect_scheme([class_names.recorded_classes(self._tuned_before) or ()])

    def _labels_before(self) -> list[str]:
        if self._requested_types:
            return self._requested_types
        tags = class_names.recorded_classes(self._tuned_before) or ()
        if not tags:
            raise InputError(
                f"from_pretrained(): the output layer of {self._tuned_before.path} does not name its classes. Set "
                "id2label in config.json, or pass reset_head=True and call fit()."
            )
        return list(tags) if self._scheme == schemes.PLAIN else sorted(_types(_usual(tags)))

    @property
    def labels(self) -> list[str]:
        """The tags, in the order of the columns of `predict_proba`."""
        default = class_names.tag_classes(self._labels_now(), self._scheme == schemes.PLAIN)
        return list(self._own_classes or default)

    def predict_proba(self, x: Any, *, batch_size: int = 8) -> list[np.ndarray]:
        """Returns the tag probabilities of each sentence's words, [num_words, num_tags], in the order of `labels`.

        Args:
          x: the sentences, as in `fit`, without tags.
          batch_size: number of sequences per batch, across all devices.

        Raises:
          InputError: if there is no trained model, or a sentence can't be used.
        """
        return [probabilities for _, probabilities in self._decoded(x, batch_size)]

    def predict(self, x: Any, *, batch_size: int = 8) -> list[list[str]]:
        """Returns the tags of each sentence's words. Entity tags are in the IOB2 scheme.

        Args:
          x: see `predict_proba`.
          batch_size: see `predict_proba`.

        Raises:
          InputError: if there is no trained model, or a sentence can't be used.
        """
        return [tags for tags, _ in self._decoded(x, batch_size)]

    def predict_entities(self, x: Any, *, batch_size: int = 8) -> list[list[TaggedEntity]]:
        """Returns the entities of each sentence, in the order of the text.

        Args:
          x: see `predict_proba`.
          batch_size: see `predict_proba`.

        Returns:
          A list of `TaggedEntity` for each sentence, with the fields `type`, `text`, `start`, `end` and `score`.

        Raises:
          InputError: if there is no trained model, or a sentence can't be used.
        """
        task, sentences, *predicted = self._predicted(x, batch_size)
        return [
            [
                TaggedEntity(
                    kind,
                    " ".join(sentence.words[first : last + 1]),
                    first,
                    last + 1,
                    float(best[first : last + 1].min()),
                )
                for kind, first, last in schemes.entities_of(tags, self._scheme == schemes.PLAIN)
            ]
            for sentence, (tags, probabilities) in zip(sentences, task.decode(sentences, *predicted), strict=True)
            for best in [probabilities.max(axis=-1)]
        ]


def _as_lists(rows: Sequence[Any], name: str, has_tags: bool) -> Sequence[Any]:
    """Converts tables with one word a row, and texts with spans, to rows of lists. See `tagged_tables.sentences_of`.

    Other examples are returned unchanged.
    """
    first = rows[0] if rows else None
    columns = {str(column).casefold() for column in first} if isinstance(first, Mapping) else set()
    has_spans = tagged_tables.TEXT in columns and (not has_tags or not columns.isdisjoint(annotations.SPAN_COLUMNS))
    has_lists = isinstance(first, Mapping) and any(isinstance(first.get(x), list) for x in tagged_tables.WORD_COLUMNS)
    if has_lists or not (has_spans or not columns.isdisjoint(tagged_tables.SENTENCE_COLUMNS)):
        return rows
    sentences = list(tagged_tables.sentences_of(list(enumerate(rows)), name, ("", ""), has_tags, say))
    if unusable := next((sentence for sentence in sentences if sentence.problem), None):
        raise InputError(f"{unusable.where}: {unusable.problem}")
    return [
        {"words": list(sentence.words)} | ({"tags": list(sentence.tags)} if sentence.tags else {})
        for sentence in sentences
    ]


def _usual(tags: Sequence[str]) -> tuple[str, ...]:
    return tuple(map(schemes.spelling(tags), tags))


def _types(tags: Sequence[str]) -> list[str]:
    """Returns the distinct entity types of tags: "PER" for "B-PER" and "I-PER"."""
    return list(dict.fromkeys(tag.partition("-")[2] for tag in tags if "-" in tag))
