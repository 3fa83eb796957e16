"""Named entities and other tags of words, by fine-tuning (paper, section 5.3).

As in the paper, the first piece of a word gets the word's tag and its other pieces get none, and the input contains a
sentence with as much of its document as fits. A sentence that is too long for the model is split into several windows,
so that every word has a tag.
"""

import dataclasses
import functools
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from seqeval.metrics.sequence_labeling import get_entities

from bert_tf.checkpoints import output_layers
from bert_tf.config import BertConfig
from bert_tf.finetuning.feature_sets import FeatureSet
from bert_tf.finetuning.models import NO_TAG, TokenModel
from bert_tf.finetuning.task import ModelOutputs, ReportingTask
from bert_tf.runtime import files, parallel
from bert_tf.runtime.files import InputError
from bert_tf.tasks import metrics, tables
from bert_tf.tasks.tables import Source
from bert_tf.tasks.tagging import conll
from bert_tf.tasks.tagging.conll import Sentence
from bert_tf.tokenization import FullTokenizer

# Usual names of files, and those of published data sets.
FILE_NAMES = {
    "train": ("train.txt", "train.conll", "train.tsv", "eng.train", "wnut17train.conll"),
    "dev": ("dev.txt", "dev.conll", "dev.tsv", "valid.txt", "eng.testa", "emerging.dev.conll"),
    "test": ("test.txt", "test.conll", "test.tsv", "eng.testb", "emerging.test.annotated"),
}


@dataclasses.dataclass(frozen=True)
class TaggingFeatures(FeatureSet):
    """Windows of tagged text, and the positions of the words in them.

    Attributes:
      word_windows: the window in which each word has its tag, for all words of all sentences in order [W].
      word_positions: the position of each word's first piece in that window [W].
      sentence_lengths: the number of words in each sentence [S].
    """

    word_windows: np.ndarray = dataclasses.field(kw_only=True)
    word_positions: np.ndarray = dataclasses.field(kw_only=True)
    sentence_lengths: np.ndarray = dataclasses.field(kw_only=True)

    def at_words(self, values: np.ndarray) -> np.ndarray:
        """Selects the values at the words' positions: [windows, T] -> [W]."""
        return values[self.word_windows, self.word_positions]

    def word_values(self, per_token: np.ndarray) -> np.ndarray:
        """Selects the values of the words' first pieces from an array like `input_ids`: [tokens] -> [W]."""
        starts = np.cumsum(self.lengths) - self.lengths
        return per_token[starts[self.word_windows] + self.word_positions]

    def word_tag_ids(self) -> np.ndarray:
        """The words' tags [W]."""
        return self.word_values(self.per_token["tag_ids"][0])

    def by_sentence(self, values: Sequence) -> list[Sequence]:
        """Splits a sequence with one value per word into sentences."""
        ends = np.cumsum(self.sentence_lengths)
        return [values[end - length : end] for end, length in zip(ends, self.sentence_lengths, strict=True)]


class Window(NamedTuple):
    """A window of a text, and the words that have their tags in it.

    Attributes:
      begin: the number of its first piece.
      end: the number of the piece after its last one.
      words: the numbers of the words.
    """

    begin: int
    end: int
    words: Sequence[int]


def windows(sentence_lengths: Sequence[int], first_pieces: Sequence[int], num_pieces: int, room: int) -> list[Window]:
    """Returns the windows of a text: one for each sentence, with as much text on both sides as fits.

    A sentence that is too long is split into parts of half a window's length. Each part has a window, with as much text
    on both sides as fits.

    Args:
      sentence_lengths: the number of words in each sentence.
      first_pieces: the position of each word's first piece in the text.
      num_pieces: the number of pieces in the text.
      room: the number of pieces in a window.
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


class TaggingTask(ReportingTask):
    """Tagging of the words of sentences.

    Args:
      paths: split ("train", "dev", "test") -> file, or sentences in memory; see `conll.read_sentences`.
      types: the types of entities; None to take them from the training file.
      use_documents: whether the input of a sentence contains text of its document, if the file marks documents.
      on_bad_row: "error" stops at a sentence that can't be used; "skip" skips and counts it.
    """

    name = output_layers.TAGGING
    selection_metric = "f1"
    independent = False  # the input of a sentence contains other sentences of its document
    metric_names = ("precision", "recall", "f1", "accuracy")

    def __init__(
        self,
        paths: Mapping[str, Source],
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
        """The model's classes; see `output_layers.tags_of_types`."""
        return output_layers.tags_of_types(self.labels)

    @functools.cached_property
    def _numbers(self) -> dict[str, int]:
        return {tag: i for i, tag in enumerate(self.tags)}

    @functools.cached_property
    def scheme(self) -> str:
        """The scheme of the training file, which is also used for predictions; IOB2 without a training file."""
        has_training_file = "train" in self.paths and files.exists(self.paths["train"])
        return conll.detect_scheme(self.examples("train")) if has_training_file else "iob2"

    def examples(self, split: str) -> list[Sentence]:
        """Returns the sentences of a split; those of "test" have tags only if all of them are valid.

        Raises:
          InputError: if the file is missing or a sentence can't be used; the message has the file and the line.
        """
        source = tables.split_source(self.paths, split)
        has_tags = split != "test" or self._has_valid_tags(source)
        sentences = conll.read_sentences(source, has_tags)
        # Types that are taken from the training file need no check there.
        known_types = None if split == "test" or (split == "train" and self._types is None) else frozenset(self.labels)

        def checked(sentence: Sentence) -> Sentence:
            for kind, start, _ in sentence.entities() if known_types is not None else ():
                if kind not in known_types:
                    where = dataclasses.replace(sentence, line=sentence.lines[start]).where
                    raise InputError(f"{where}: the type {kind!r} is unknown. Use {', '.join(map(repr, self.labels))}.")
            return sentence

        return tables.convert_rows(sentences, checked, source, self.on_bad_row)

    def _has_valid_tags(self, source: Source) -> bool:
        """Returns whether a source has entities, all of known types, and nothing but tags."""
        found: set[str] = set()
        for sentence in conll.read_sentences(source, has_tags=True):
            if sentence.problem:
                return False
            found |= {kind for kind, *_ in sentence.entities()}
        return bool(found) and found <= set(self.labels)

    def has_labels(self, examples: Sequence[Sentence]) -> bool:
        """Returns whether the sentences of a test split have tags."""
        return all(sentence.tags is not None for sentence in examples)

    def input_settings(self) -> dict[str, Any]:
        """Returns the types of entities, and whether documents are used."""
        return {"labels": list(self.labels), "use_documents": self.use_documents}

    def check_training_set(self, examples: Sequence[Sentence]) -> None:
        """Raises an InputError if there are no entities."""
        if not any(sentence.entities() for sentence in examples):
            raise InputError(f"{tables.name_of(self.paths['train'])}: every tag is O. Add entities.")

    def featurize(
        self, examples: Sequence[Sentence], tokenizer: FullTokenizer, max_seq_length: int, num_workers: int = 1
    ) -> TaggingFeatures:
        """Returns features with one window for each sentence, or several if it is too long; see `windows`.

        Args:
          examples: the sentences.
          tokenizer: the model's tokenizer.
          max_seq_length: the length of a window, including [CLS] and [SEP].
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
        word_positions: list[int] = []
        for sentences in self._texts(examples):
            words = list(itertools.chain.from_iterable(itertools.islice(encoded, len(sentences))))
            tags = list(itertools.chain.from_iterable(map(self._tag_ids, sentences)))
            pieces = list(itertools.chain.from_iterable(words))
            first_pieces = [0, *itertools.accumulate(map(len, words))][:-1]
            lengths = [len(sentence.words) for sentence in sentences]
            for window in windows(lengths, first_pieces, len(pieces), room):
                positions = [first_pieces[word] - window.begin + 1 for word in window.words]
                row = np.full(window.end - window.begin + 2, NO_TAG, np.int32)
                row[positions] = [tags[word] for word in window.words]
                word_windows += [len(ids)] * len(positions)
                word_positions += positions
                ids.append([cls, *pieces[window.begin : window.end], sep])
                tag_ids.append(row)
        packed = FeatureSet.from_sequences([(row, [0] * len(row)) for row in ids])
        return TaggingFeatures(
            packed.input_ids,
            packed.lengths,
            packed.first_lengths,
            per_token={"tag_ids": (np.concatenate(tag_ids), NO_TAG)},
            word_windows=np.array(word_windows),
            word_positions=np.array(word_positions),
            sentence_lengths=np.array([len(sentence.words) for sentence in examples]),
        )

    def _texts(self, examples: Sequence[Sentence]) -> Iterator[list[Sentence]]:
        """Yields the sentences of each text; a text is a document, or a single sentence."""
        for document, sentences in itertools.groupby(examples, key=lambda sentence: sentence.document):
            if document is None or not self.use_documents:
                yield from ([sentence] for sentence in sentences)
            else:
                yield list(sentences)

    def _tag_ids(self, sentence: Sentence) -> list[int]:
        """Returns the numbers of a sentence's tags; without tags, all words get the number of O."""
        if sentence.tags is None:
            return [0] * len(sentence.words)
        return [self._numbers[tag] for tag in conll.tags_of(sentence.entities(), len(sentence.words), "iob2")]

    def build_model(self, config: BertConfig, **options) -> TokenModel:
        """Returns a model with one class per tag for each token."""
        return TokenModel(config, len(self.tags), classes=self.tags, **options)

    def scores(self, outputs: ModelOutputs, features: TaggingFeatures) -> dict[str, float]:
        """Returns precision, recall and F1 of all entities and of each type, the tags' accuracy, and the mean loss."""
        predicted, gold = features.at_words(outputs["tags"]), features.word_tag_ids()
        tags = np.array(self.tags)
        return {
            **metrics.entity_scores(*([list(row) for row in features.by_sentence(tags[x])] for x in (predicted, gold))),
            "accuracy": float(np.mean(predicted == gold)),
            "loss": float(np.sum(outputs["loss_sum"]) / len(gold)),
        }

    def results(self, outputs: ModelOutputs, features: TaggingFeatures, batch_size: int) -> dict[str, float]:
        """Returns the scores under names like those in the release's eval_results.txt."""
        scores = self.scores(outputs, features)
        return {f"eval_{name}": value for name, value in scores.items()} | {"loss": scores["loss"]}

    def confusion(self, outputs: ModelOutputs, features: TaggingFeatures) -> tuple[np.ndarray, Sequence[str]] | None:
        """Returns the counts of words by true type (row) and predicted type (column), and their names with O first."""
        types = np.array([0, *(i for i in range(1, len(self.labels) + 1) for _ in "BI")])
        rows, columns = types[features.word_tag_ids()], types[features.at_words(outputs["tags"])]
        counts = metrics.confusion(rows, columns, len(self.labels) + 1)
        return None if counts is None else (counts, ("O", *self.labels))

    def write_predictions(
        self,
        output_dir: str,
        split: str,
        examples: Sequence[Sentence],
        outputs: ModelOutputs,
        features: TaggingFeatures,
        *,
        original_format: bool = False,
    ) -> list[str]:
        """Writes a copy of the split's file with the predicted tags; see `conll.write_predictions`."""
        tags = np.array(self.tags)[features.at_words(outputs["tags"])]
        line_tags: dict[int, str] = {}
        for sentence, predicted in zip(examples, features.by_sentence(tags), strict=True):
            written = conll.tags_of(get_entities(list(predicted)), len(sentence.words), self.scheme)
            line_tags |= zip(sentence.lines, written, strict=True)
        path = os.path.join(output_dir, f"{self.output_names.get(split, split)}_predictions.conll")
        conll.write_predictions(path, self.paths[split], line_tags)
        return [path]
