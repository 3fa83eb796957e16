"""Multiple choice: SWAG (paper, section 4.4), CODAH, and your own files with prompts and endings.

Each ending forms a sequence with its prompt, [CLS] prompt [SEP] ending [SEP]. The model computes one score per
sequence, and a softmax over the scores of an example gives the probabilities of its endings.
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
from bert_tf.tasks.sentence_task import SentenceTask
from bert_tf.tasks.tables import Row, Source
from bert_tf.tokenization import FullTokenizer

# The file names of each data set.
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
    """A prompt with its possible endings.

    Attributes:
      guid: a unique id.
      prompt: the first text of every sequence.
      endings: the second texts.
      label: the index of the correct ending, as text; None for test examples.
    """

    guid: str
    prompt: str
    endings: tuple[str, ...]
    label: str | None


class MultipleChoiceTask(SentenceTask):
    """Selects one of several endings of a prompt.

    - "swag" reads SWAG's CSV files, in which each ending continues the fragment `sent2`.
    - "codah" reads CODAH's TSV files without a header: category, prompt, four endings, label.
    - "multiple_choice" reads TSV, CSV or JSON lines with the columns `prompt`, `ending0`, `ending1`... (or, in JSON, a
      list `endings`), `label`, and optionally `id`.

    Args:
      name: "swag", "codah" or "multiple_choice".
      paths: maps splits ("train", "dev", "test") to files, or to examples in memory with their values by column.
      on_bad_row: "error" stops at a row that can't be used; "skip" skips and counts it.
      delimiter: the cell delimiter of your own tables; see `tables.read_table`.
    """

    def __init__(
        self, name: str, paths: Mapping[str, Source], on_bad_row: str = "error", *, delimiter: str = tables.AUTO
    ) -> None:
        super().__init__(name, None)
        self.paths = dict(paths)
        self.file_names = FILE_NAMES[name]
        self.on_bad_row = on_bad_row
        self._delimiter = delimiter

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """The indices of the endings, counted in the first valid row of the first existing split."""
        existing = (split for split, path in self.paths.items() if not isinstance(path, str) or files.exists(path))
        split = next(existing, "train")
        for row in self.rows(split):
            try:
                return tuple(map(str, range(self._count_endings(row))))
            except InputError:
                if self.on_bad_row != "skip":
                    raise
        raise InputError(f"{tables.name_of(self.paths[split])}: there are no usable rows. Add some.")

    def rows(self, split: str) -> Iterator[Row]:
        """Returns the rows of a split, after checking the columns."""
        if self.name == "codah":
            return tables.read_tsv(self.path(split), has_header=False, same_width=True)
        prompt = ("sent1", "sent2") if self.name == "swag" else ("prompt",)
        needed = (*prompt, *(() if split == "test" else ("label",)))
        return tables.read_table(self.path(split), needed, self._delimiter)

    def example(self, row: Row, split: str) -> ChoiceExample:
        """Returns the example in a row. A test example has no label if its label is not valid."""
        endings = self._endings(row)
        if len(endings) != len(self.labels):
            raise InputError(
                f"{row.where}: there are {len(endings)} endings. Use {len(self.labels)}, as in other rows."
            )
        if self.name == "codah":
            prompt, label_column = row[1], 6
        else:
            prompt, label_column = row["sent1" if self.name == "swag" else "prompt"], "label"
        has_label = split != "test" or label_column in (row.columns or range(len(row.cells)))
        label = row[label_column] if has_label else None
        label = label.strip() if isinstance(label, str) else label
        if split == "test" and label not in self.labels:
            label = None
        for name, text in (("prompt", prompt), *((f"ending {i}", ending) for i, ending in enumerate(endings))):
            # Prediction accepts blank texts, as in an exported model, where an empty ending is padding.
            may_be_blank = split == "test" and (text or name == "prompt")
            if not isinstance(text, str) or not (text.strip() or may_be_blank):
                raise InputError(f"{row.where}: the {name} is empty. Add it.")
        if label is not None and label not in self.labels:
            raise InputError(f"{row.where}: the label {label!r} is not an ending. Use 0 to {len(self.labels) - 1}.")
        if self.name == "swag":
            endings = tuple(f"{row['sent2']} {ending}" for ending in endings)
        guid = (row["id"] if "id" in row.columns else "") or str(row.line)
        return ChoiceExample(guid, prompt, endings, label)

    def _count_endings(self, row: Row) -> int:
        if row.problem:
            raise InputError(f"{row.where}: {row.problem}")
        count = len(self._endings(row))
        if count < 2:
            raise InputError(f"{row.where}: there are no endings. Use columns ending0, ending1... or a list 'endings'.")
        return count

    def _endings(self, row: Row) -> tuple[str, ...]:
        if self.name == "codah":
            return tuple(row[i] for i in range(2, 6))
        if "endings" in row.columns:
            if not isinstance(row["endings"], tuple):
                raise InputError(f"{row.where}: 'endings' is not a list. Use a list of texts.")
            return row["endings"]
        names = sorted(filter(_ENDING_COLUMN.fullmatch, row.columns), key=_ending_number)
        if [_ending_number(name) for name in names] != list(range(len(names))):
            raise InputError(f"{row.where}: the columns {', '.join(names)} have a gap. Use ending0, ending1...")
        return tuple(row[name] for name in names)

    def featurize(
        self, examples: Sequence[ChoiceExample], tokenizer: FullTokenizer, max_seq_length: int, num_workers: int = 1
    ) -> FeatureSet:
        """Returns the features, with one sequence per ending of each example."""

        def pack(example: ChoiceExample) -> list[tuple[list[int], list[int], bool]]:
            return [tokenizer.pack(example.prompt, ending, max_seq_length) for ending in example.endings]

        label_ids = np.array([int(example.label or 0) for example in examples], np.int32)
        return sentence_features.pack_data_set(examples, pack, label_ids, num_workers, choices=len(self.labels))

    def check_training_set(self, examples: Sequence[ChoiceExample]) -> None:
        """Accepts every training set: even if all labels are equal, the model can learn from the texts."""

    def build_model(self, config: BertConfig, **options) -> ClassifierModel:
        """Returns a model with one score for each ending."""
        return ClassifierModel(config, 1, choices=len(self.labels), **options)


def _ending_number(column: str) -> int:
    return int(column.removeprefix("ending"))
