"""Multiple choice: SWAG (paper, section 4.4), CODAH, and your own files with prompts and endings.

Each ending and its prompt form a sequence, [CLS] prompt [SEP] ending [SEP]. The model computes one score per sequence.
A softmax over the scores of an example gives the probabilities of the endings. If an example has fewer endings than
others, it is padded with empty sequences, which have probability 0 and do not change the loss.
"""

import contextlib
import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from bert_tf.checkpoints import class_names
from bert_tf.config import BertConfig
from bert_tf.finetuning.models import ClassifierModel
from bert_tf.runtime import files
from bert_tf.runtime.errors import InputError, first_of
from bert_tf.runtime.messages import say
from bert_tf.sequences.packing import Packed
from bert_tf.sequences.text_packer import TextPacker
from bert_tf.tasks import example_rows, tables
from bert_tf.tasks.data_config import DataConfig
from bert_tf.tasks.example_rows import Source
from bert_tf.tasks.sentences.examples import ExampleReader, whole_number
from bert_tf.tasks.sentences.sentence_task import SentenceTask
from bert_tf.tasks.setup import Setup
from bert_tf.tasks.tables import Row

# The file names of each data set.
FILE_NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "swag": {"train": ("train.csv",), "dev": ("val.csv", "dev.csv"), "test": ("test.csv",)},
    "codah": {"train": ("train.tsv",), "dev": ("dev.tsv",), "test": ("test.tsv",)},
    "multiple_choice": example_rows.FILE_NAMES,
}
# The number of rows from which a missing label 0 is unusual.
_MANY = 50
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


class ChoiceReader(ExampleReader):
    """Reads and checks the examples of a multiple-choice task.

    - "swag" reads SWAG's CSV files, in which each ending continues the fragment `sent2`.
    - "codah" reads CODAH's TSV files without a header: category, prompt, four endings, label.
    - "multiple_choice" reads TSV, CSV or JSON lines with the columns `prompt`, `ending0`, `ending1`... (or, in JSON, a
      list `endings`), `label`, and optionally `id`. Empty cells after the last ending of a row are ignored.

    Args:
      name: "swag", "codah" or "multiple_choice".
      sources: maps splits ("train", "dev", "test") to files, or to examples in memory.
      on_bad_row: see `ExampleReader`.
      delimiter: the cell delimiter of your own tables; see `tables.read_table`.
    """

    def __init__(
        self, name: str, sources: Mapping[str, Source], on_bad_row: str = "error", delimiter: str = tables.AUTO
    ) -> None:
        super().__init__(sources, on_bad_row)
        self.name = name
        self.file_names: dict[str, tuple[str, ...]] = FILE_NAMES[name]
        self._delimiter = delimiter

    def most_endings(self, split: str) -> int:
        """Returns the largest number of endings in an example of a split. Rows that can't be used are ignored."""
        count, source = 0, self.sources[split]
        if not isinstance(source, str):
            return max(len(example.endings) for example in source)
        with contextlib.suppress(InputError):
            for row in self.rows(split):
                with contextlib.suppress(InputError):
                    count = max(count, len(self._endings(row)))
                    if self.name != "multiple_choice":  # in SWAG and CODAH, all rows have the same number of endings
                        break
        return count

    def rows(self, split: str) -> Iterator[Row]:
        """Returns the rows of a split, after checking the columns."""
        if self.name == "codah":
            return tables.read_tsv(self.sources[split], has_header=False, same_width=True)
        prompt = ("sent1", "sent2") if self.name == "swag" else ("prompt",)
        needed = (*prompt, *(() if split == "test" else ("label",)))
        return tables.read_table(self.sources[split], needed, self._delimiter)

    def example(self, row: Row, split: str) -> ChoiceExample:
        """Returns the example in a row. A test example has no label if its label is not valid."""
        endings = self._endings(row)
        if self.name == "codah":
            prompt, label_column = row[1], 6
        else:
            prompt, label_column = row["sent1" if self.name == "swag" else "prompt"], "label"
        has_label = split != "test" or label_column in (row.columns or range(len(row.cells)))
        label = row[label_column] if has_label else None
        label = whole_number(label.strip()) if isinstance(label, str) else label
        if split == "test" and label not in indices(len(endings)):
            label = None
        guid = (row["id"] if "id" in row.columns else "") or str(row.line)
        example = self.checked(ChoiceExample(guid, prompt, endings, label), row.where, split)
        if self.name != "swag":
            return example
        return dataclasses.replace(example, endings=tuple(f"{row['sent2']} {ending}" for ending in endings))

    def checked(self, example: ChoiceExample, where: str, split: str) -> ChoiceExample:
        """Checks an example. In a JSON file, values may have types other than text. See `ExampleReader.checked`.

        In a test set, texts may be blank, as in an exported model, where an empty ending is padding.
        """
        if len(example.endings) < 2:
            raise InputError(
                f"{where}: there are fewer than two endings. Use columns ending0, ending1... or a list 'endings'."
            )
        for name, text in (("prompt", example.prompt), *((f"ending {i}", x) for i, x in enumerate(example.endings))):
            if isinstance(text, tuple | dict):
                raise InputError(f"{where}: the {name} is not a text. Use text.")
            if text is None or not (text.strip() or (split == "test" and (text or name == "prompt"))):
                raise InputError(f"{where}: the {name} is empty. Add it.")
        numbers = indices(len(example.endings))
        if example.label is not None and example.label not in numbers:
            raise InputError(f"{where}: the label {example.label!r} is not an ending. Use 0 to {numbers[-1]}.")
        return example

    def _endings(self, row: Row) -> tuple[str, ...]:
        if self.name == "codah":
            return tuple(row[i] for i in range(2, 6))
        if "endings" in row.columns:
            if not isinstance(row["endings"], tuple):
                raise InputError(f"{row.where}: 'endings' is not a list. Use a list of texts.")
            return row["endings"]
        names = sorted(filter(_ENDING_COLUMN.fullmatch, row.columns), key=_ending_number)
        if [_ending_number(name) for name in names] != list(range(len(names))):
            raise InputError(f"{row.where}: the columns {first_of(names)} have a gap. Use ending0, ending1...")
        endings = [row[name] for name in names]
        while self.name == "multiple_choice" and endings and endings[-1] in ("", None):
            endings.pop()
        return tuple(endings)


class MultipleChoiceTask(SentenceTask):
    """Selects one of several endings of a prompt. The labels are the indices of the endings.

    Args:
      name: "swag", "codah" or "multiple_choice".
      config: the settings.
      sources: maps splits ("train", "dev", "test") to files, or to examples in memory.
    """

    architecture = class_names.CHOICE
    explains = False

    def __init__(self, name: str, config: DataConfig, sources: Mapping[str, Source]) -> None:
        self._reader = ChoiceReader(name, sources, config.on_bad_row, config.delimiter)
        super().__init__(name, None)

    @classmethod
    def build(cls, setup: Setup) -> Self:
        """See `Task.build`."""
        name = setup.config.task_name
        return cls(name, setup.config, setup.sources(FILE_NAMES[name]))

    def examples(self, split: str) -> list[ChoiceExample]:
        """Reads the examples of a split. See `ChoiceReader`."""
        return self._reader.examples(split)

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """The indices of the endings, up to the largest number of endings in any existing split."""
        sources = self._reader.sources.items()
        existing = [split for split, source in sources if not isinstance(source, str) or files.exists(source)]
        return indices(max(map(self._reader.most_endings, existing), default=0))

    def input_settings(self) -> dict[str, Any]:
        """Returns no settings, because a model accepts any number of endings."""
        return {}

    def resume_settings(self) -> dict[str, Any]:
        """Returns the indices of the endings, which determine the shapes of batches."""
        return super().input_settings()

    @property
    def choices(self) -> int:
        """The number of sequences in an example, including empty sequences for missing endings."""
        return len(self.labels)

    def sequences(self, example: ChoiceExample, packer: TextPacker) -> list[Packed]:
        """Returns the sequences of an example, one for each ending. The sequence of a missing ending is empty."""
        packed = [packer.pack(example.prompt, ending) for ending in example.endings]
        return packed + [Packed([], [], is_truncated=False)] * (self.choices - len(packed))

    def texts(self, example: ChoiceExample) -> dict[str, Any]:
        """See `SentenceTask.texts`."""
        endings = (*example.endings, *[""] * (self.choices - len(example.endings)))
        return {"prompt": example.prompt} | {f"ending{number}": ending for number, ending in enumerate(endings)}

    def check_training_set(self, examples: Sequence[ChoiceExample]) -> None:
        """Reports labels that count from 1. Even if all labels are equal, the model can learn from the texts."""
        if len(examples) >= _MANY and all(example.label != "0" for example in examples):
            source = example_rows.name_of(self._reader.sources["train"])
            say(f"Warning: {source}: no row has the label 0. If the labels count from 1, subtract 1.")

    def build_model(self, config: BertConfig, **options: Any) -> ClassifierModel:
        """Returns a model with one score for each ending."""
        return ClassifierModel(config, 1, choices=self.choices, **options)


def indices(count: int) -> tuple[str, ...]:
    """Returns the labels of a number of endings."""
    return tuple(map(str, range(count)))


def _ending_number(column: str) -> int:
    return int(column.removeprefix("ending"))
