"""Training of sentence vectors: pairs of similar texts, triplets with a negative, or pairs with a score.

The columns of a table are `anchor`, `positive` and optionally `negative`, or `sentence1` and `sentence2`. A column
`score` or `label` has the score of a pair, and may not be used together with negatives.

Axis letters: N examples, C texts of an example, W values of a vector.
"""

import dataclasses
import functools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import tensorflow as tf

from bert_tf import sentence_vectors
from bert_tf.checkpoints import class_names
from bert_tf.config import BertConfig
from bert_tf.finetuning.feature_sets import FeatureSet
from bert_tf.finetuning.finetuning_config import FinetuningConfig
from bert_tf.finetuning.similarity_model import SimilarityModel, batch_loss
from bert_tf.finetuning.task import ModelOutputs, SplitOutputs, Task
from bert_tf.runtime import files, parallel
from bert_tf.runtime.errors import InputError, first_of
from bert_tf.runtime.messages import say
from bert_tf.sentence_vectors import VectorConfig
from bert_tf.sequences.packing import Packed
from bert_tf.sequences.text_packer import TextPacker
from bert_tf.tasks import example_rows, metrics, tables
from bert_tf.tasks.data_config import DataConfig
from bert_tf.tasks.example_rows import Source
from bert_tf.tasks.sentences.examples import ExampleReader, InputExample, is_number
from bert_tf.tasks.setup import Setup
from bert_tf.tasks.tables import Row
from bert_tf.tasks.task_names import SIMILARITY

TEXT_COLUMNS = (("anchor", "positive", "negative"), ("sentence1", "sentence2"))
SCORE_COLUMNS = ("score", "label")
# Names of other columns that have negatives or scores.
_SIMILAR_NAMES = re.compile(r"negative|(similarity|scores?|labels?|similarity[ _-]?scores?)$", re.IGNORECASE)
# The loss of a dev set of pairs is the mean over batches of this size.
_DEV_BATCH = 64


@dataclasses.dataclass(frozen=True)
class SimilarityExample(InputExample):
    """Two similar texts, or two texts with a score in `label`.

    Attributes:
      negative: a text that is not similar to the first one; None if there is none.
    """

    negative: str | None = None

    @property
    def texts(self) -> list[str]:
        """The texts: anchor, positive and, if there is one, negative."""
        return [text for text in (self.text_a, self.text_b, self.negative) if text is not None]


def example_of(cells: Mapping[str, Any], guid: str, where: str) -> SimilarityExample:
    """Returns the example in a row of a table.

    Args:
      cells: maps names of columns to values. Other columns are ignored.
      guid: the id of the example.
      where: file and line, for messages.

    Raises:
      InputError: if the texts have other names, there are several scores, or a column of negatives or scores is unused.
    """
    names = next((names for names in TEXT_COLUMNS if set(names[:2]) <= cells.keys()), ())
    scores = [name for name in SCORE_COLUMNS if name in cells]
    if not names:
        found = first_of(map(repr, cells))
        raise InputError(f"{where}: the columns are {found}. Name the texts 'anchor' and 'positive'.")
    if len(scores) > 1:
        raise InputError(f"{where} has the columns 'score' and 'label'. Remove one of them.")
    unused = [x for x in cells if x not in (*names, *scores) and _SIMILAR_NAMES.match(str(x))]
    if unused:
        raise InputError(f"{where}: the column {unused[0]!r} is not used. Name it 'negative' or 'score', or remove it.")
    texts = [cells[name] for name in names if name in cells]
    return SimilarityExample(guid, texts[0], texts[1], cells[scores[0]] if scores else None, *texts[2:])


class SimilarityReader(ExampleReader):
    """Reads and checks the examples.

    Args:
      sources: maps splits ("train", "dev", "test") to files, or to examples in memory.
      config: how to read the files, and the largest score.
    """

    def __init__(self, sources: Mapping[str, Source], config: DataConfig) -> None:
        super().__init__(sources, config.on_bad_row)
        self._delimiter, self._max_score = config.delimiter, config.similarity.max_score

    def examples(self, split: str) -> list[SimilarityExample]:
        """Returns the examples of a split, all of the same form. See `ExampleReader.examples`."""
        first, *others = examples = super().examples(split)
        for example in others:
            if form_of(example) != form_of(first):
                source, rows = example_rows.name_of(self.sources[split]), f"the rows {first.guid} and {example.guid}"
                raise InputError(f"{source}: one of {rows} has no score or no negative. Add it, or remove the column.")
        return examples

    def rows(self, split: str) -> Iterable[Row]:
        """Returns the rows of a split."""
        return tables.read_table(self.sources[split], (), self._delimiter)

    def example(self, row: Row, split: str) -> SimilarityExample:
        """Returns the example in a row."""
        cells = {name: row[name] for name in row.columns}
        return self.checked(example_of(cells, str(row.line), row.where), row.where, split)

    def checked(self, example: SimilarityExample, where: str, split: str) -> SimilarityExample:
        """Checks an example, and returns it with its score divided by the largest score. See `ExampleReader.checked`.

        In a test set, the score may be missing.
        """
        texts = {"anchor": example.text_a, "positive": example.text_b}
        texts |= {} if example.negative is None else {"negative": example.negative}
        for name, text in texts.items():
            if not isinstance(text, str) or not text.strip():
                raise InputError(f"{where}: the {name} is empty or not a text. Add it, or remove the row.")
        score = example.label
        if score is None or (score == "" and split == "test"):
            return dataclasses.replace(example, label=None)
        if example.negative is not None:
            raise InputError(f"{where}: there are a negative and a score. Remove one of these columns.")
        if not is_number(score):
            raise InputError(f"{where}: the score is {score!r}. Use a number.")
        if abs(float(score)) > self._max_score:
            advice = f"Use a number from -{self._max_score:g} to {self._max_score:g}, or pass the largest score with"
            raise InputError(f"{where}: the score is {score!r}. {advice} --max_score.")
        return dataclasses.replace(example, label=float(score) / self._max_score)


def form_of(example: SimilarityExample) -> tuple[int, bool]:
    """Returns the number of texts of an example, and whether it has a score."""
    return len(example.texts), example.label is not None


def text_ids_of(examples: Sequence[SimilarityExample]) -> tuple[np.ndarray, list[str]]:
    """Returns the index of each text in the list of all different texts [N, C], int32, and this list."""
    numbers: dict[str, int] = {}
    text_ids = [[numbers.setdefault(text, len(numbers)) for text in example.texts] for example in examples]
    return np.array(text_ids, np.int32), list(numbers)


def scores_of(vectors: np.ndarray, text_ids: np.ndarray, scores: np.ndarray | None) -> dict[str, float]:
    """Returns the correlations of cosine similarities with the scores of pairs or, without scores, recall@1.

    Recall@1 is the fraction of anchors whose most similar text, among all positives and negatives, is a positive of the
    anchor.

    Args:
      vectors: [N, C, W].
      text_ids: [N, C], equal for equal texts.
      scores: [N], or None.
    """
    if scores is not None:
        return metrics.pearson_and_spearman(cosines_of(vectors), scores)
    ids, first = np.unique(text_ids[:, 1:], return_index=True)
    candidates = vectors[:, 1:].reshape(-1, vectors.shape[-1])[first]
    best = ids[sentence_vectors.search(vectors[:, 0], candidates, k=2)[0]]
    best = np.where(best[:, 0] == text_ids[:, 0], best[:, -1], best[:, 0])  # an anchor may be another row's positive
    pairs = set(map(tuple, text_ids[:, :2].tolist()))
    is_found = [pair in pairs for pair in zip(text_ids[:, 0].tolist(), best.tolist(), strict=True)]
    return {"recall_at_1": float(np.mean(is_found))}


def cosines_of(vectors: np.ndarray) -> np.ndarray:
    """Returns the cosine similarity [N] of the first two texts of each example, for vectors [N, C, W]."""
    first, second = np.moveaxis(sentence_vectors.unit_vectors(vectors[:, :2], "vectors"), 1, 0)
    return np.sum(first * second, axis=-1)


def from_model(config: FinetuningConfig, data: DataConfig) -> tuple[FinetuningConfig, DataConfig]:
    """Returns the settings of a training that starts with the vectors of --init_checkpoint, if there is such a model.

    Raises:
      InputError: if the model is a sentence encoder with modules that are not supported.
    """
    if not (config.do_train and config.model.init_checkpoint):
        return config, data
    start = sentence_vectors.find(config.model.init_checkpoint, "--init_checkpoint")
    model = config.model.replace(init_checkpoint=start.path)
    return config.replace(model=model), data.replace(vectors=start.config)


class SimilarityTask(Task):
    """Learns vectors whose cosine similarity is high for similar texts.

    Args:
      config: the settings.
      sources: maps splits ("train", "dev", "test") to files, or to examples in memory.
      vectors: how to compute the vectors.

    Raises:
      InputError: if the vectors are not computed from the last layer, or not from all tokens.
    """

    name = SIMILARITY
    architecture = class_names.ENCODER
    output_weights = ""
    holds_out_by_class = False

    def __init__(self, config: DataConfig, sources: Mapping[str, Source], vectors: VectorConfig) -> None:
        if vectors.layers != (-1,) or (vectors.prompt and not vectors.include_prompt):
            raise InputError("only the last layer, including the prompt, can be trained. Change the settings.")
        self.config, self._sources = config.similarity, sources
        self._reader = SimilarityReader(sources, config)
        self.vectors: VectorConfig = vectors.with_given(pooling=config.similarity.pooling)

    @classmethod
    def build(cls, setup: Setup) -> Self:
        """See `Task.build`."""
        directory = setup.trained_in
        is_trained = directory and files.exists(directory)
        vectors = sentence_vectors.find(directory, "--output_dir").config if is_trained else setup.config.vectors
        return cls(setup.config, setup.sources(example_rows.FILE_NAMES), vectors or VectorConfig())

    def examples(self, split: str) -> list[SimilarityExample]:
        """Reads the examples of a split. See `SimilarityReader`."""
        return self._reader.examples(split)

    @functools.cached_property
    def metric_names(self) -> tuple[str, ...]:
        """The scores of the dev set or, without one, of the training set: "recall_at_1", or correlations."""
        split = next(name for name in ("dev", *self._sources) if name in self._sources)
        return ("spearman", "pearson") if form_of(self.split(split)[0])[1] else ("recall_at_1",)

    @property
    def selection_metric(self) -> str:
        """The score that selects models by default."""
        return self.metric_names[0]

    def min_batch_size(self, examples: Sequence[SimilarityExample]) -> int:
        """Returns 2 for pairs without scores, whose negatives are the other examples of a batch."""
        return 2 if form_of(examples[0]) == (2, False) else 1

    def check_training_set(self, examples: Sequence[SimilarityExample]) -> None:
        """Raises an InputError if no pair has a negative, or if all scores are equal."""
        source = example_rows.name_of(self._sources["train"])
        if same := sum(example.negative in (example.text_a, example.text_b) for example in examples):
            say(f"Warning: {source}: {same} negatives are equal to the anchor or the positive. Remove these rows.")
        count, has_scores = form_of(examples[0])
        values = {example.label if has_scores else example.text_b for example in examples}
        if len(values) == 1 and (has_scores or count == 2):
            kind = "score" if has_scores else "positive"
            raise InputError(f"{source}: every {kind} is the same. Add other rows.")

    def input_settings(self) -> dict[str, Any]:
        """Returns how vectors are computed."""
        return {name: getattr(self.vectors, name) for name in ("pooling", "normalize", "prompt", "truncate_dim")}

    def resume_settings(self) -> dict[str, Any]:
        """Returns the settings of the vectors and of the loss."""
        return self.config.flag_values() | self.input_settings()

    def write_settings(self, directory: str, config: BertConfig, max_seq_length: int) -> None:
        """Writes the settings of the vectors in the format of sentence-transformers."""
        sentence_vectors.write_settings(directory, self.vectors, config.hidden_size, max_seq_length)

    def featurize(self, examples: Sequence[SimilarityExample], packer: TextPacker, num_workers: int = 1) -> FeatureSet:
        """Returns the features, with `text_ids` [N, C] and, for pairs with a score, `scores` [N]."""

        def pack(chunk: Sequence[SimilarityExample]) -> FeatureSet:
            return FeatureSet.from_sequences([sequence for example in chunk for sequence in packed(example)])

        def packed(example: SimilarityExample) -> list[Packed]:
            return [packer.pack(self.vectors.prompt + text) for text in example.texts]

        choices, has_scores = form_of(examples[0])
        features = FeatureSet.joined(parallel.map_chunks(pack, examples, num_workers, "tokenize"), choices)
        values = {"text_ids": text_ids_of(examples)[0]}
        values |= {"scores": np.array([example.label for example in examples], np.float32)} if has_scores else {}
        return features.with_values(**values)

    def build_model(self, config: BertConfig, **options: Any) -> SimilarityModel:
        """Returns an encoder that computes vectors of texts."""
        return SimilarityModel(config, self.vectors, self.config.scale, self.config.symmetric, **options)

    def decode(self, examples: Sequence[SimilarityExample], features: FeatureSet, outputs: ModelOutputs) -> np.ndarray:
        """Returns the cosine similarity of the first two texts of each example [N]."""
        return cosines_of(outputs["vectors"])

    def scores(self, outputs: ModelOutputs, features: FeatureSet) -> dict[str, float]:
        """Returns `scores_of` and the mean loss. The loss of pairs is the mean over batches of 64."""
        rows = {"vectors": outputs["vectors"], **features.per_example, "exists": np.ones(len(features), np.float32)}
        losses = [
            len(part["exists"]) * float(batch_loss(part, self.config.scale, self.config.symmetric))
            for start in range(0, len(features), _DEV_BATCH)
            for part in [{name: tf.constant(values[start : start + _DEV_BATCH]) for name, values in rows.items()}]
        ]
        scores = scores_of(outputs["vectors"], features.per_example["text_ids"], features.per_example.get("scores"))
        return scores | {"loss": sum(losses) / len(features)}

    def write_predictions(self, output_dir: str, split: SplitOutputs, original_format: bool = False) -> list[str]:
        """Writes test_results.tsv with the cosine similarity of each pair."""
        path = os.path.join(output_dir, f"{self.output_names.get(split.name, split.name)}_results.tsv")
        with files.replacing(path) as writer:
            writer.write("" if original_format else "score\n")
            writer.writelines(f"{cosine}\n" for cosine in cosines_of(split.outputs["vectors"]))
        return [path]
