"""Named entities and other tags of words, by fine-tuning (paper, section 5.3).

As in the paper, only the first token of a word has a tag. The input contains a sentence and as much of the surrounding
document as fits. A sentence that is too long for the model is split into several windows, so every word has a tag.
"""

import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

from bert_tf.checkpoints import class_names
from bert_tf.config import BertConfig
from bert_tf.data_report import findings
from bert_tf.data_report.rows import broken_entities, unusual_classes
from bert_tf.finetuning.explanations import ExplainedText, Explanation
from bert_tf.finetuning.feature_sets import FeatureSet
from bert_tf.finetuning.models import NO_TAG, TokenModel
from bert_tf.finetuning.task import ModelOutputs, SplitOutputs, Task, TrainedRun
from bert_tf.runtime import parallel
from bert_tf.runtime.errors import InputError, first_of
from bert_tf.runtime.messages import say
from bert_tf.sequences.text_packer import TextPacker
from bert_tf.tasks import example_rows, metrics, tables
from bert_tf.tasks.data_config import DataConfig
from bert_tf.tasks.example_rows import Source
from bert_tf.tasks.setup import Setup
from bert_tf.tasks.tables import TableFile
from bert_tf.tasks.tagging import conll, schemes
from bert_tf.tasks.tagging.schemes import AUTO, Sentence
from bert_tf.tasks.tagging.windows import TaggingFeatures, windows
from bert_tf.text.vocabulary import CLS, SEP, UNK

# Common file names, and the file names of published data sets.
_PUBLISHED = {
    "train": ("train.txt", "train.conll", "eng.train", "wnut17train.conll"),
    "dev": ("dev.txt", "dev.conll", "valid.txt", "eng.testa", "emerging.dev.conll"),
    "test": ("test.txt", "test.conll", "eng.testb", "emerging.test.annotated"),
}
FILE_NAMES: dict[str, tuple[str, ...]] = {
    split: (*names, *(f"{split}{suffix}" for suffix in tables.SUFFIXES)) for split, names in _PUBLISHED.items()
}


class TaggingTask(Task):
    """Tags the words of sentences.

    Args:
      config: the settings.
      sources: maps splits ("train", "dev", "test") to files, or to sentences in memory; see `conll.read_sentences`.
      types: the entity types, or the plain tags; None to find them in the training file.
      recorded: the settings of the run that trained the model; empty to train.
    """

    name = class_names.TAGGING
    architecture = class_names.TOKENS
    explains = True

    def __init__(
        self,
        config: DataConfig,
        sources: Mapping[str, Source],
        types: Sequence[str] | None = None,
        recorded: Mapping[str, Any] = {},
    ) -> None:
        self.config = config
        self.sources = sources
        self._columns = config.word_column, config.tag_column
        self._types = types and tuple(types)
        scheme = recorded.get("tag_scheme", AUTO) if config.tag_scheme == AUTO else config.tag_scheme
        self._scheme = "iob2" if scheme == AUTO and "train" not in sources else scheme
        # The classes of the model; None for the IOB2 tags of the types.
        self._classes = recorded.get("tag_classes") if recorded else config.tag_classes

    @classmethod
    def build(cls, setup: Setup) -> Self:
        """See `Task.build`."""
        return cls(setup.config, setup.sources(FILE_NAMES), setup.labels(), setup.recorded)

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """The entity types, or the plain tags."""
        if self._types is not None:
            return self._types
        return tuple(sorted({label for sentence in self.split("train") for label, _ in sentence.labels()}))

    @functools.cached_property
    def tags(self) -> tuple[str, ...]:
        """The model's classes; see `class_names.tag_classes`."""
        return tuple(self._classes or ()) or class_names.tag_classes(self.labels, self.is_plain)

    @functools.cached_property
    def _numbers(self) -> dict[str, int]:
        return {tag: i for i, tag in enumerate(self.tags)}

    @functools.cached_property
    def _training_sentences(self) -> list[Sentence]:
        """The sentences of the training set. The examples of the split are the same objects."""
        return self._read("train")

    @functools.cached_property
    def scheme(self) -> str:
        """The tagging scheme of the training set and of predictions; IOB2 without a training set."""
        if self._scheme != AUTO:
            return self._scheme
        return next((sentence.scheme for sentence in self._training_sentences), "iob2")

    @functools.cached_property
    def _scheme_of_classes(self) -> str:
        return schemes.scheme_of_prefixes({tag[0] for tag in self.tags} - {"O"})

    @property
    def is_plain(self) -> bool:
        """Whether the labels are plain tags; otherwise they are entity types."""
        return self.scheme == schemes.PLAIN

    @property
    def has_entities(self) -> bool:
        """Whether the tags describe entities. Plain tags do if O is one of them."""
        return not self.is_plain or "O" in self.labels

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The scores that can select models."""
        return ("precision", "recall", "f1", "accuracy") if self.has_entities else ("accuracy",)

    @functools.cached_property
    def selection_metric(self) -> str:
        """The score that selects models."""
        return "f1" if self.has_entities else "accuracy"

    def examples(self, split: str) -> list[Sentence]:
        """Reads the sentences of a split. Test sentences have tags only if all tags are valid.

        Raises:
          InputError: if the file is missing or a sentence can't be used; the message has the file and the line.
        """
        if split == "test":
            sentences = self._read_tagged_test() or self._read("test", has_tags=False)
        else:
            sentences = self._training_sentences if split == "train" else self._read(split)
        # Labels that were found in the training file are not checked in the training file.
        is_checked = split != "test" and (split != "train" or self._types is not None)

        def checked(sentence: Sentence) -> Sentence:
            for label, index in sentence.labels() if is_checked else ():
                if label not in self.labels:
                    where = dataclasses.replace(sentence, line=sentence.lines[index]).where
                    raise InputError(f"{where}: unknown label {label!r}. Use {first_of(map(repr, self.labels))}.")
            return sentence

        return example_rows.convert_rows(sentences, checked, self.sources[split], self.config.on_bad_row)

    @functools.cached_property
    def _test_file(self) -> TableFile | Sequence[Sentence]:
        source = example_rows.split_source(self.sources, "test", FILE_NAMES)
        return tables.open_table(source) if isinstance(source, str) else source

    def _read(self, split: str, has_tags: bool = True, report: Callable[[str], None] = say) -> list[Sentence]:
        source = self._test_file if split == "test" else example_rows.split_source(self.sources, split, FILE_NAMES)
        scheme = self._scheme if split == "train" else self.scheme
        return list(conll.read_sentences(source, has_tags, scheme, self._columns, report, self.config.on_bad_row))

    def _read_tagged_test(self) -> list[Sentence]:
        """Returns the test sentences if they have tags, all labels are known, and one is not O; else an empty list."""
        messages: list[str] = []
        try:
            sentences = self._read("test", report=messages.append)
        except InputError:  # there is no column of tags; other errors are reported when the words are read
            return []
        usable = [sentence for sentence in sentences if sentence.tags is not None and not sentence.problem]
        labels = {label for sentence in usable for label, _ in sentence.labels()}
        if len(usable) < len(sentences) or labels <= {"O"} or not labels <= set(self.labels):
            return []
        for message in messages:
            say(message)
        return sentences

    def has_labels(self, examples: Sequence[Sentence]) -> bool:
        """Returns True if the sentences of a test split have tags."""
        return all(sentence.tags is not None for sentence in examples)

    def input_settings(self) -> dict[str, Any]:
        """Returns the labels, whether documents are used, and, if they are not the default, scheme and classes."""
        scheme = {"tag_scheme": schemes.PLAIN} if self.is_plain else {}
        scheme |= {"tag_classes": list(self._classes)} if self._classes else {}
        return {"labels": list(self.labels), "use_documents": self.config.document_context, **scheme}

    def resume_settings(self) -> dict[str, Any]:
        """Returns `input_settings`, and the options of the loss that are set."""
        return self.input_settings() | self.config.loss.record

    def check_training_set(self, examples: Sequence[Sentence]) -> None:
        """Raises an InputError if there are no entities, or all plain tags are equal. Reports unusual classes."""
        source = example_rows.name_of(self.sources["train"])
        if not any(sentence.entities() for sentence in examples) or (self.is_plain and len(self.labels) < 2):
            raise InputError(f"{source}: every tag is {examples[0].tags[0]}. Add words with other tags.")
        kinds = (tag if self.is_plain else tag[2:] for sentence in examples for tag in sentence.tags)
        findings.report(unusual_classes(filter(None, kinds), source))
        if self.scheme == "iob2":
            findings.report(broken_entities((sentence.tags for sentence in examples), source))

    def featurize(self, examples: Sequence[Sentence], packer: TextPacker, num_workers: int = 1) -> TaggingFeatures:
        """Returns the features of sentences. A sentence has one window, or several if it is too long. See `windows`.

        Args:
          examples: the sentences.
          packer: has the tokenizer and the length of a window, including [CLS] and [SEP].
          num_workers: see `parallel.map_chunks`.
        """
        tokenizer = packer.tokenizer
        cls, sep, unk = (tokenizer.vocab[token] for token in (CLS, SEP, UNK))
        room = packer.max_seq_length - 2

        def encode(sentences: Sequence[Sentence]) -> list[list[list[int]]]:
            return [[tokenizer.encode(word) or [unk] for word in sentence.words] for sentence in sentences]

        chunks = parallel.map_chunks(encode, examples, num_workers, "tokenize", unit="sentence")
        encoded = itertools.chain.from_iterable(chunks)
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
        """Yields the sentences of each text. A text is a document or a single sentence."""
        for document, sentences in itertools.groupby(examples, key=lambda sentence: sentence.document):
            if document is None or not self.config.document_context:
                yield from ([sentence] for sentence in sentences)
            else:
                yield list(sentences)

    def _tag_ids(self, sentence: Sentence) -> list[int]:
        """Returns the ids of a sentence's tags. Without tags, all ids are 0."""
        if sentence.tags is None:
            return [0] * len(sentence.words)
        if self.is_plain:
            return [self._numbers[tag] for tag in sentence.tags]
        tags = schemes.tags_of(sentence.entities(), len(sentence.words), self._scheme_of_classes)
        if unknown := set(tags) - self._numbers.keys():
            raise InputError(f"{sentence.where}: the model has no class {unknown.pop()!r}. Train a new output layer.")
        return [self._numbers[tag] for tag in tags]

    def build_model(self, config: BertConfig, **options: Any) -> TokenModel:
        """Returns a model with one class per tag for each token."""
        loss = self.config.loss.record
        return TokenModel(config, len(self.tags), classes=self.tags, training_loss=loss, **options)

    def decode(
        self, examples: Sequence[Sentence], features: TaggingFeatures, outputs: ModelOutputs
    ) -> list[tuple[list[str], np.ndarray]]:
        """Returns for each sentence the tags of its words, and the probabilities of all tags [words, C]."""
        tags = features.by_sentence(np.array(self.tags)[features.at_words(outputs["tags"])])
        probabilities = features.by_sentence(features.at_words(outputs["tag_probabilities"]))
        return [(list(map(str, words)), rows) for words, rows in zip(tags, probabilities, strict=True)]

    def scores(self, outputs: ModelOutputs, features: TaggingFeatures) -> dict[str, float]:
        """Returns precision, recall and F1 of all entities and of each type, the accuracy of tags, and the mean loss.

        If the tags do not describe entities, such as parts of speech, only the accuracy and the loss are returned.
        """
        predicted, gold = features.at_words(outputs["tags"]), features.word_tag_ids()
        scores = {
            "accuracy": float(np.mean(predicted == gold)),
            "loss": float(np.sum(outputs["loss_sum"]) / len(gold)),
        }
        if not self.has_entities:
            return scores
        tags = np.array([f"I-{tag}" if self.is_plain and tag != "O" else schemes.as_bioes(tag) for tag in self.tags])
        rows = ([list(row) for row in features.by_sentence(tags[x])] for x in (predicted, gold))
        return metrics.entity_scores(*rows) | scores

    def explained(self, run: TrainedRun, split: SplitOutputs) -> Iterator[list[Explanation]]:
        """Yields an explanation of the tag of each word of each sentence, except O.

        The sentence is explained alone, without other sentences of its document, and truncated if it is too long.
        """
        decoded = self.decode(split.examples, split.features, split.outputs)
        for sentence, (tags, _) in zip(split.examples, decoded, strict=True):
            text = ExplainedText(run.data.packer, sentence.words)
            first_tokens = {int(word): place for place, word in reversed(list(enumerate(text.sequences[0][-1])))}
            yield [
                text.explained(
                    run.model, tag, lambda logits, at=(first_tokens[i], self._numbers[tag]): logits[:, at[0], at[1]], i
                )
                for i, tag in enumerate(tags)
                if tag != "O" and i in first_tokens
            ]

    def compared(self, split: SplitOutputs) -> list[dict[str, Any]]:
        """Returns a row for each wrong entity, the most confident first: words, types, and the lowest probability.

        Entities at the same words are in one row. The type is "" if there is no entity. `start` and `end` count words.
        """
        rows = []
        decoded = self.decode(split.examples, split.features, split.outputs)
        for sentence, (tags, probabilities) in zip(split.examples, decoded, strict=True):
            best, pairs = probabilities.max(axis=-1), (sentence.entities(), schemes.entities_of(tags, self.is_plain))
            for first, last in sorted({tuple(span) for _, *span in set(pairs[0]) ^ set(pairs[1])}):
                kinds = [next((kind for kind, *span in entities if span == [first, last]), "") for entities in pairs]
                row = {"text": " ".join(sentence.words), "entity": " ".join(sentence.words[first : last + 1])}
                row |= {"start": first, "end": last + 1, "label": kinds[0], "prediction": kinds[1]}
                rows.append(row | {"probability": round(float(best[first : last + 1].min()), 6)})
        return sorted(rows, key=lambda row: -row["probability"])

    def results(self, outputs: ModelOutputs, features: TaggingFeatures, batch_size: int) -> dict[str, float]:
        """Returns the scores with names as in the original eval_results.txt, such as `eval_accuracy` and `loss`."""
        scores = self.scores(outputs, features)
        return {f"eval_{name}": value for name, value in scores.items()} | {"loss": scores["loss"]}

    def confusion(self, outputs: ModelOutputs, features: TaggingFeatures) -> tuple[np.ndarray, Sequence[str]] | None:
        """Returns the counts of words by true type (row) and predicted type (column), and the types.

        The first type is O. Plain tags are in the order of the labels. Returns None for too many types.
        """
        names = self.labels if self.is_plain else ("O", *self.labels)
        types = np.array([names.index(tag if self.is_plain else tag[2:] or tag) for tag in self.tags])
        rows, columns = types[features.word_tag_ids()], types[features.at_words(outputs["tags"])]
        counts = metrics.confusion(rows, columns, len(names))
        return None if counts is None else (counts, names)

    def write_predictions(self, output_dir: str, split: SplitOutputs, original_format: bool = False) -> list[str]:
        """Writes a copy of the test file with the predicted tags. See `conll.write_predictions`."""
        predicted = [tags for tags, _ in self.decode(split.examples, split.features, split.outputs)]
        if not self.is_plain:
            predicted = [
                schemes.tags_of(schemes.entities_of(tags, is_plain=False), len(tags), self.scheme) for tags in predicted
            ]
        path = os.path.join(output_dir, f"{self.output_names.get(split.name, split.name)}_predictions.conll")
        conll.write_predictions(path, self._test_file, split.examples, predicted)
        return [path]
