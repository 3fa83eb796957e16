"""One of several endings: SWAG (paper, section 4.4), and files with a prompt and its endings.

Each ending makes a sequence with its prompt, [CLS] prompt [SEP] ending [SEP]; the model gives each a score, and the
choice is a softmax over them.
"""

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from bert_tf.config import BertConfig
from bert_tf.finetuning.feature_sets import FeatureSet
from bert_tf.finetuning.models import ClassifierModel
from bert_tf.runtime import files
from bert_tf.runtime.files import InputError
from bert_tf.tasks import sentence_features, tables
from bert_tf.tasks.sentence_features import InputExample
from bert_tf.tasks.sentence_task import SentenceTask
from bert_tf.tasks.tables import Row
from bert_tf.tokenization import FullTokenizer

# Where each set has its files.
FILE_NAMES = {
    "swag": {"train": ("train.csv",), "dev": ("val.csv", "dev.csv"), "test": ("test.csv",)},
    "codah": {"train": ("train.tsv",), "dev": ("dev.tsv",), "test": ("test.tsv",)},
    "multiple_choice": {
        split: tuple(f"{split}{suffix}" for suffix in tables.SUFFIXES) for split in ("train", "dev", "test")
    },
}
_ENDING_COLUMN = re.compile(r"ending\d+")


@dataclasses.dataclass(frozen=True)
class ChoiceExample:
    """A question with its possible answers.

    Attributes:
      guid: unique id.
      prompt: the first text of every sequence.
      endings: the second texts.
      label: the number of the right one, as text; None for test examples.
    """

    guid: str
    prompt: str
    endings: tuple[str, ...]
    label: str | None


class MultipleChoiceTask(SentenceTask):
    """Choosing between endings.

    "swag" reads SWAG's CSV, where an ending goes on from the fragment `sent2`. "codah" reads CODAH's TSV without
    header: category, prompt, four endings, label. "multiple_choice" reads TSV, CSV or JSON lines with the columns
    `prompt`, `ending0`, `ending1`... (or, in JSON, a list `endings`), `label`, and `id` if there is one.

    Args:
      name: one of these.
      paths: split ("train", "dev", "test") -> file.
      on_bad_row: "error" stops at a row that can't be used; "skip" counts it.
    """

    def __init__(self, name: str, paths: Mapping[str, str], on_bad_row: str = "error") -> None:
        super().__init__(name, None)
        self.paths = dict(paths)
        self.on_bad_row = on_bad_row

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """The numbers of the endings, as many as the first file that is there has in its first row that can be used."""
        split = next((split for split, path in self.paths.items() if files.exists(path)), "train")
        for row in self._rows(split):
            try:
                return tuple(map(str, range(self._count_endings(row))))
            except InputError:
                if self.on_bad_row != "skip":
                    raise
        raise InputError(f"{self.paths[split]} has no rows{' that can be used' if self.on_bad_row == 'skip' else ''}.")

    def examples(self, split: str) -> list[ChoiceExample]:
        """The rows of a split; those of "test" without their labels, if they have any.

        Raises:
          InputError: if the file is missing or a row can't be used; names file and line.
        """
        ids = tables.UniqueIds()

        def convert(row: Row) -> ChoiceExample:
            example = self._example(row, split)
            ids.check(example.guid, row)
            return example

        return tables.convert_rows(self._rows(split), convert, tables.split_file(self.paths, split), self.on_bad_row)

    def _rows(self, split: str) -> Iterator[Row]:
        path = tables.split_file(self.paths, split)
        if self.name == "codah":
            return tables.read_tsv(path, has_header=False, same_width=True)
        prompt = ("sent1", "sent2") if self.name == "swag" else ("prompt",)
        return tables.read_table(path, (*prompt, *(() if split == "test" else ("label",))))

    def _example(self, row: Row, split: str) -> ChoiceExample:
        endings = self._endings(row)
        if len(endings) != len(self.labels):
            raise InputError(f"{row.where}: the row has {len(endings)} endings, but {len(self.labels)} are expected.")
        if self.name == "codah":
            prompt, label = row[1], None if split == "test" else row[6]
        else:
            prompt, label = row["sent1" if self.name == "swag" else "prompt"], None if split == "test" else row["label"]
        for name, text in (("prompt", prompt), *((f"ending {i}", ending) for i, ending in enumerate(endings))):
            if not isinstance(text, str) or not text.strip():
                raise InputError(f"{row.where}: the {name} is empty.")
        if label is not None and label not in self.labels:
            raise InputError(
                f"{row.where}: the label {label!r} is not the number of an ending; 0 to {len(self.labels) - 1} "
                "are expected."
            )
        if self.name == "swag":
            endings = tuple(f"{row['sent2']} {ending}" for ending in endings)
        return ChoiceExample(row["id"] if "id" in row.columns else str(row.line), prompt, endings, label)

    def _count_endings(self, row: Row) -> int:
        if row.problem:
            raise InputError(f"{row.where}: {row.problem}")
        count = len(self._endings(row))
        if count < 2:
            raise InputError(
                f"{row.where}: columns ending0 and ending1 (and more) are expected, or in JSON lines a list 'endings'."
            )
        return count

    def _endings(self, row: Row) -> tuple[str, ...]:
        if self.name == "codah":
            return tuple(row[i] for i in range(2, 6))
        if "endings" in row.columns:
            if not isinstance(row["endings"], tuple):
                raise InputError(f"{row.where}: 'endings' is not a list of texts.")
            return row["endings"]
        return tuple(row[name] for name in row.columns if _ENDING_COLUMN.fullmatch(name))

    def featurize(
        self, examples: Sequence[ChoiceExample], tokenizer: FullTokenizer, max_seq_length: int, num_workers: int = 1
    ) -> FeatureSet:
        """As many sequences for each example as there are endings."""

        def pack(example: ChoiceExample) -> list[tuple[list[int], list[int]]]:
            pairs = (InputExample(example.guid, example.prompt, ending) for ending in example.endings)
            return [sentence_features.pack_example(pair, max_seq_length, tokenizer) for pair in pairs]

        label_ids = np.array([int(example.label or 0) for example in examples], np.int32)
        return sentence_features.pack_data_set(examples, pack, label_ids, num_workers, choices=len(self.labels))

    def check_training_set(self, examples: Sequence[ChoiceExample]) -> None:
        """Any set will do: it is endings that differ, not their numbers."""

    def build_model(self, config: BertConfig, **options) -> ClassifierModel:
        """One score for each ending."""
        return ClassifierModel(config, 1, choices=len(self.labels), **options)
