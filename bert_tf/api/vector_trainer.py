"""Trains the encoder of a `SentenceEncoder` with similar texts in memory."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Self

from bert_tf.api import in_memory
from bert_tf.api.arguments import PathLike
from bert_tf.api.base import Estimator
from bert_tf.checkpoints.pretrained import LoadedBert
from bert_tf.finetuning.finetuning_config import FinetuningConfig
from bert_tf.runtime.errors import InputError
from bert_tf.sentence_vectors import VectorConfig
from bert_tf.tasks import hf_names
from bert_tf.tasks.data_config import DataConfig, SimilarityConfig
from bert_tf.tasks.sentences.similarity import (
    SCORE_COLUMNS,
    TEXT_COLUMNS,
    SimilarityExample,
    SimilarityReader,
    example_of,
)
from bert_tf.tasks.task_names import SIMILARITY
from bert_tf.training.settings import TrainingConfig


class VectorTrainer(Estimator):
    """The runs of a `SentenceEncoder`. Its `fit` takes the results of `with_scores`."""

    _ARCHITECTURE = hf_names.ENCODER
    _OPTIONS = SimilarityConfig
    _vectors: VectorConfig

    @classmethod
    def of(cls, bert: LoadedBert, output_dir: PathLike | None) -> Self:
        """Returns a trainer that starts from a loaded model. `output_dir` is the run directory."""
        config = FinetuningConfig(training=TrainingConfig(dtype=bert.encoder.compute_dtype))
        return cls(output_dir, bert.source.path, (bert.config, bert.tokenizer), None, config, SimilarityConfig())

    def prepare(self, max_seq_length: int, vectors: VectorConfig, options: SimilarityConfig) -> None:
        """Changes the settings for the next `fit`."""
        self._settings = self._settings.replace(max_seq_length=max_seq_length)
        self._vectors, self._options = vectors, options

    @property
    def model_directory(self) -> str:
        """The directory of the newest run."""
        return self._directory

    def _examples(self, values: Sequence[Any], labels: Sequence[Any] | None) -> list[SimilarityExample]:
        return examples_of(values, labels)

    def _data_config(self, examples: Mapping[str, Sequence[Any]]) -> DataConfig:
        return DataConfig(SIMILARITY, similarity=self._options, vectors=self._vectors)


VectorTrainer.__name__ = "SentenceEncoder"  # in messages, because users call its `fit`


def with_scores(x: Any, y: Any, name: str) -> tuple[list[Any], list[Any]]:
    """Returns examples and their scores, which are None for examples without scores.

    Args:
      x: the examples; see `SentenceEncoder.fit`.
      y: the scores; None if they are a column of a table, or the second part of the elements of a data set.
      name: name of the data in messages.
    """
    values = in_memory.as_list(x, name)
    if y is not None:
        return values, in_memory.as_list(y, "y")
    if all(isinstance(value, tuple) and isinstance(value[0], tuple | list) for value in values):
        return [example for example, _ in values], [score for _, score in values]
    rows = [value if isinstance(value, dict) else {} for value in values]
    return values, [next((row.pop(column) for column in SCORE_COLUMNS if column in row), None) for row in rows]


def examples_of(values: Sequence[Any], labels: Sequence[Any]) -> list[SimilarityExample]:
    """Returns an example for each pair or triplet of texts, or row of a table.

    Raises:
      InputError: if an example is something else.
    """
    examples = []
    for number, (value, label) in enumerate(zip(values, labels, strict=True)):
        where, names = f"example {number}", TEXT_COLUMNS[0]
        if isinstance(value, list | tuple) and 2 <= len(value) <= 3:
            value = {name: in_memory.text(text, where) for name, text in zip(names, value, strict=False)}
        if not isinstance(value, Mapping):
            raise InputError(f"{where} is {str(value)[:60]!r}. Use a pair or a triplet of texts.")
        examples.append(example_of({**value, "score": label} if label is not None else value, str(number + 1), where))
    return examples


def checked_examples(values: Sequence[Any], labels: Sequence[Any]) -> list[SimilarityExample]:
    """Returns `examples_of`, after the checks of `SimilarityReader`. Scores may have any range."""
    values, labels, _ = in_memory.labelled(values, labels, "x")
    config = DataConfig(SIMILARITY, similarity=SimilarityConfig(max_score=sys.float_info.max))
    return SimilarityReader({"dev": examples_of(values, labels)}, config).examples("dev")
