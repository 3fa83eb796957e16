"""Named entities, and other spans of words: a tag for each word (paper, section 5.3).

As in the paper, a word's first piece gets the word's tag, the other pieces get none, and a sentence is seen with as
much of its document as fits. A word keeps its tag whatever the length: a sentence longer than the model is spread over
several windows.
"""

import dataclasses
import functools
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from seqeval.metrics.sequence_labeling import get_entities
from sklearn.metrics import confusion_matrix

from bert_tf.config import BertConfig
from bert_tf.finetuning.feature_sets import FeatureSet
from bert_tf.finetuning.models import NO_TAG, TokenModel
from bert_tf.finetuning.task import ModelOutputs
from bert_tf.runtime import files, parallel
from bert_tf.runtime.files import InputError
from bert_tf.tasks import metrics, tables
from bert_tf.tasks.tagging import conll
from bert_tf.tasks.tagging.conll import Sentence
from bert_tf.tokenization import FullTokenizer

# Names that published sets, and people, give their files.
FILE_NAMES = {
    "train": ("train.txt", "train.conll", "train.tsv", "eng.train", "wnut17train.conll"),
    "dev": ("dev.txt", "dev.conll", "dev.tsv", "valid.txt", "eng.testa", "emerging.dev.conll"),
    "test": ("test.txt", "test.conll", "test.tsv", "eng.testb", "emerging.test.annotated"),
}


@dataclasses.dataclass(frozen=True)
class TaggingFeatures(FeatureSet):
    """Windows of tagged text, and where in them each word is.

    Attributes:
      word_windows: the window that has a word's tag, for all words of all sentences in order [W].
      word_places: the place of its first piece in that window [W].
      sentence_lengths: how many words each sentence has [S].
    """

    word_windows: np.ndarray = dataclasses.field(kw_only=True)
    word_places: np.ndarray = dataclasses.field(kw_only=True)
    sentence_lengths: np.ndarray = dataclasses.field(kw_only=True)

    def of_words(self, values: np.ndarray) -> np.ndarray:
        """What stands at the words' places: [windows, T] -> [W]."""
        return values[self.word_windows, self.word_places]

    def word_values(self, per_token: np.ndarray) -> np.ndarray:
        """What is stored for the words' first pieces, of something that is stored for every token: [tokens] -> [W]."""
        starts = np.cumsum(self.lengths) - self.lengths
        return per_token[starts[self.word_windows] + self.word_places]

    def word_tag_ids(self) -> np.ndarray:
        """The words' tags [W]."""
        return self.word_values(self.per_token["tag_ids"][0])

    def by_sentence(self, values: Sequence) -> list[Sequence]:
        """Cuts what there is for each word into sentences."""
        ends = np.cumsum(self.sentence_lengths)
        return [values[end - length : end] for end, length in zip(ends, self.sentence_lengths, strict=True)]


class Window(NamedTuple):
    """A stretch of a text, and the words in it that have their tags there.

    Attributes:
      begin: its first piece.
      end: the piece behind its last one.
      words: numbers of words.
    """

    begin: int
    end: int
    words: Sequence[int]


def windows(sentence_lengths: Sequence[int], first_pieces: Sequence[int], num_pieces: int, room: int) -> list[Window]:
    """Windows over a text: for each sentence one, with as much text on both sides as fits.

    A sentence that is too long has several: each for half a window's length of it, with what is around.

    Args:
      sentence_lengths: the words of each sentence.
      first_pieces: the place of each word's first piece in the text.
      num_pieces: of the text.
      room: pieces in a window.
    """
    found: list[Window] = []
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
            around = room - (min(part_start + step, stop) - part_start)
            begin = max(0, min(part_start - around // 2, num_pieces - room))
            found.append(Window(begin, min(begin + room, num_pieces), list(members)))
    return found


class TaggingTask:
    """Entities in sentences.

    Args:
      paths: split ("train", "dev", "test") -> file.
      types: the types of entities; None to learn them from the training file.
      use_documents: whether a sentence is seen within its document, where the file says where documents start.
      on_bad_row: "error" stops at a sentence that can't be used; "skip" counts it.
    """

    name = "ner"
    selection_metric = "f1"
    independent = False  # a sentence is seen within its document
    dev_splits = ("dev",)
    test_splits = ("test",)

    def __init__(
        self,
        paths: Mapping[str, str],
        types: Sequence[str] | None = None,
        use_documents: bool = True,
        on_bad_row: str = "error",
    ) -> None:
        self.paths = dict(paths)
        self.use_documents = use_documents
        self.on_bad_row = on_bad_row
        self._types = None if types is None else tuple(types)
        self.examples = functools.cache(self.examples)

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """The types of entities."""
        if self._types is not None:
            return self._types
        return tuple(sorted({kind for sentence in self.examples("train") for kind, *_ in sentence.entities()}))

    @functools.cached_property
    def tags(self) -> tuple[str, ...]:
        """The model's classes: IOB2, whatever the files have."""
        return ("O", *(f"{prefix}-{kind}" for kind in self.labels for prefix in "BI"))

    @functools.cached_property
    def _numbers(self) -> dict[str, int]:
        return {tag: i for i, tag in enumerate(self.tags)}

    @functools.cached_property
    def scheme(self) -> str:
        """How the training file writes entities, and how predictions are written; IOB2 without a training file."""
        has_training_file = "train" in self.paths and files.exists(self.path("train"))
        return conll.detect_scheme(self.examples("train")) if has_training_file else "iob2"

    def path(self, split: str) -> str:
        """The file of a split."""
        return tables.split_file(self.paths, split)

    def examples(self, split: str) -> list[Sentence]:
        """The sentences of a split; those of "test" are read without their tags, if they have any.

        Raises:
          InputError: if the file is missing or a sentence can't be used; names file and line.
        """
        sentences = conll.read_sentences(self.path(split), has_tags=split != "test")
        # What is learned from the training file is known in it.
        known = None if split == "test" or (split == "train" and self._types is None) else frozenset(self.labels)

        def checked(sentence: Sentence) -> Sentence:
            for kind, start, _ in sentence.entities() if known is not None else ():
                if kind not in known:
                    raise InputError(
                        f"{sentence.path}, line {sentence.lines[start]}: the entity type {kind!r} is unknown; "
                        f"{', '.join(map(repr, self.labels))} are expected."
                    )
            return sentence

        return tables.convert_rows(sentences, checked, self.path(split), self.on_bad_row)

    def resume_settings(self) -> dict[str, Any]:
        """The types of entities, and what a sentence is seen with."""
        return {"labels": list(self.labels), "use_documents": self.use_documents}

    def check_training_set(self, examples: Sequence[Sentence]) -> None:
        """Raises an InputError if there is nothing to find."""
        if not any(sentence.entities() for sentence in examples):
            raise InputError(f"{self.path('train')}: every tag is O, so there is nothing to learn.")

    def featurize(
        self, examples: Sequence[Sentence], tokenizer: FullTokenizer, max_seq_length: int, num_workers: int = 1
    ) -> TaggingFeatures:
        """A window for each sentence, or several for one that is too long; see `windows`.

        Args:
          examples: the sentences.
          tokenizer: of the model.
          max_seq_length: the length of a window, with [CLS] and [SEP].
          num_workers: see `parallel.map_chunks`.
        """
        unknown = [tokenizer.vocab["[UNK]"]]

        def encode(sentences: Sequence[Sentence]) -> list[list[list[int]]]:
            return [[tokenizer.encode(word) or unknown for word in sentence.words] for sentence in sentences]

        chunks = parallel.map_chunks(encode, examples, num_workers, "tokenize", unit="sentence")
        encoded = itertools.chain.from_iterable(chunks)
        cls, sep, room = tokenizer.vocab["[CLS]"], tokenizer.vocab["[SEP]"], max_seq_length - 2
        ids: list[list[int]] = []
        tag_ids: list[np.ndarray] = []
        word_windows: list[int] = []
        word_places: list[int] = []
        for sentences in self._texts(examples):
            words = list(itertools.chain.from_iterable(itertools.islice(encoded, len(sentences))))
            tags = list(itertools.chain.from_iterable(map(self._tag_ids, sentences)))
            pieces = list(itertools.chain.from_iterable(words))
            first_pieces = [0, *itertools.accumulate(map(len, words))][:-1]
            lengths = [len(sentence.words) for sentence in sentences]
            for window in windows(lengths, first_pieces, len(pieces), room):
                places = [first_pieces[word] - window.begin + 1 for word in window.words]
                row = np.full(window.end - window.begin + 2, NO_TAG, np.int32)
                row[places] = [tags[word] for word in window.words]
                word_windows += [len(ids)] * len(places)
                word_places += places
                ids.append([cls, *pieces[window.begin : window.end], sep])
                tag_ids.append(row)
        packed = FeatureSet.from_sequences([(row, [0] * len(row)) for row in ids])
        return TaggingFeatures(
            packed.input_ids,
            packed.lengths,
            packed.first_lengths,
            per_token={"tag_ids": (np.concatenate(tag_ids), NO_TAG)},
            word_windows=np.array(word_windows),
            word_places=np.array(word_places),
            sentence_lengths=np.array([len(sentence.words) for sentence in examples]),
        )

    def _texts(self, examples: Sequence[Sentence]) -> Iterator[list[Sentence]]:
        """What is seen as one text: the sentences of a document, or each sentence for itself."""
        for document, sentences in itertools.groupby(examples, key=lambda sentence: sentence.document):
            if document is None or not self.use_documents:
                yield from ([sentence] for sentence in sentences)
            else:
                yield list(sentences)

    def _tag_ids(self, sentence: Sentence) -> list[int]:
        """The numbers of a sentence's tags; those of O where it has none."""
        if sentence.tags is None:
            return [0] * len(sentence.words)
        return [self._numbers[tag] for tag in conll.tags_of(sentence.entities(), len(sentence.words), "iob2")]

    def build_model(self, config: BertConfig, **options) -> TokenModel:
        """A class a tag on each token."""
        return TokenModel(config, len(self.tags), **options)

    def scores(self, outputs: ModelOutputs, features: TaggingFeatures) -> dict[str, float]:
        """Precision, recall and F1 of entities, over all and by type; the share of right tags; the loss of a word."""
        predicted, gold = features.of_words(outputs["tags"]), features.word_tag_ids()
        tags = np.array(self.tags)
        return {
            **metrics.entity_scores(*([list(row) for row in features.by_sentence(tags[x])] for x in (predicted, gold))),
            "accuracy": float(np.mean(predicted == gold)),
            "loss": float(np.sum(outputs["loss_sum"]) / len(gold)),
        }

    def results(self, outputs: ModelOutputs, features: TaggingFeatures, batch_size: int) -> dict[str, float]:
        """The scores under names like those of the release's eval_results.txt."""
        scores = self.scores(outputs, features)
        return {f"eval_{name}": value for name, value in scores.items()} | {"loss": scores["loss"]}

    def confusion(self, outputs: ModelOutputs, features: TaggingFeatures) -> tuple[np.ndarray, Sequence[str]]:
        """How often a word of each type (row) was taken for each (column), and the types with O."""
        types = np.array([0, *(i for i in range(1, len(self.labels) + 1) for _ in "BI")])
        rows, columns = types[features.word_tag_ids()], types[features.of_words(outputs["tags"])]
        return confusion_matrix(rows, columns, labels=range(len(self.labels) + 1)), ("O", *self.labels)

    def write_predictions(
        self,
        output_dir: str,
        split: str,
        examples: Sequence[Sentence],
        outputs: ModelOutputs,
        features: TaggingFeatures,
        *,
        release_format: bool = False,
    ) -> list[str]:
        """Writes the split's file again, with the predicted tag as one more column; see `conll.write_predictions`."""
        tags = np.array(self.tags)[features.of_words(outputs["tags"])]
        behind: dict[int, str] = {}
        for sentence, predicted in zip(examples, features.by_sentence(tags), strict=True):
            written = conll.tags_of(get_entities(list(predicted)), len(sentence.words), self.scheme)
            behind |= zip(sentence.lines, written, strict=True)
        path = os.path.join(output_dir, f"{split}_predictions.conll")
        conll.write_predictions(path, self.path(split), behind)
        return [path]
