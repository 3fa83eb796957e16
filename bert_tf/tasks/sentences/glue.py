"""GLUE's nine tasks and XNLI, read from the published files. The table `DEFINITIONS` defines the tasks.

For CoLA, MNLI, MRPC and XNLI, texts, labels and guids are the same as in the original processors.
"""

import dataclasses
import functools
import os
from collections.abc import Iterable, Sequence
from typing import Self

from bert_tf.runtime import files
from bert_tf.runtime.files import InputError
from bert_tf.runtime.messages import say
from bert_tf.tasks import example_rows, metrics, tables
from bert_tf.tasks.example_rows import SkippedRow
from bert_tf.tasks.sentences.examples import ExampleReader, InputExample, check_label, check_texts
from bert_tf.tasks.sentences.sentence_task import Metric, SentenceTask
from bert_tf.tasks.setup import Setup
from bert_tf.tasks.tables import Row

BINARY = ("0", "1")
INFERENCE = ("entailment", "not_entailment")
NLI = ("contradiction", "entailment", "neutral")  # in the original order


@dataclasses.dataclass(frozen=True)
class GlueDefinition:
    """The files, columns and metric of a task.

    Attributes:
      directory: GLUE's name for the task, and the name of its directory in the zip file.
      labels: the classes in the order of their ids; None for regression.
      metric: the function that computes the scores.
      selection_metric: the score in the paper's Table 1.
      text_a: the column of the first text: a name in the header, or an index in a file without a header.
      text_b: the column of the second text; None for single sentences.
      label: the column of the label.
      files: tuples of a split and its possible file names; the first existing file is used. The first dev split selects
        models.
      has_header: whether train and dev files have a header; test files always have one.
      test_text_a: the column of the first text in test files, if it differs from `text_a`.
      has_incomplete_rows: whether the published files have rows without a text or a column. Such rows are skipped.
    """

    directory: str
    labels: tuple[str, ...] | None = BINARY
    metric: Metric = metrics.accuracy
    selection_metric: str = "accuracy"
    text_a: str | int = "sentence"
    text_b: str | None = None
    label: str | int = "label"
    files: tuple[tuple[str, ...], ...] = (("train", "train.tsv"), ("dev", "dev.tsv"), ("test", "test.tsv"))
    has_header: bool = True
    test_text_a: str | None = None
    has_incomplete_rows: bool = False


_MNLI_FILES = (
    ("train", "train.tsv"),
    ("dev_matched", "dev_matched.tsv"),
    ("dev_mismatched", "dev_mismatched.tsv"),
    ("test", "test_matched.tsv"),
    ("test_mismatched", "test_mismatched.tsv"),
    ("test_diagnostic", "../diagnostic/diagnostic.tsv", "../AX/AX.tsv"),
)
_XNLI_FILES = (("train", "multinli/multinli.train.{language}.tsv"), ("dev", "xnli.dev.tsv"), ("test", "xnli.test.tsv"))

_PAIR = {"text_a": "sentence1", "text_b": "sentence2"}
_ACCURACY_AND_F1 = {"metric": metrics.accuracy_and_f1, "selection_metric": "f1"}
_NLI = {**_PAIR, "labels": NLI, "label": "gold_label"}

DEFINITIONS: dict[str, GlueDefinition] = {
    "cola": GlueDefinition(
        "CoLA",
        metric=metrics.matthews_correlation,
        selection_metric="matthews_correlation",
        text_a=3,
        label=1,
        has_header=False,
        test_text_a="sentence",
    ),
    "sst-2": GlueDefinition("SST-2"),
    "mrpc": GlueDefinition("MRPC", **_ACCURACY_AND_F1, text_a="#1 String", text_b="#2 String", label="Quality"),
    "sts-b": GlueDefinition("STS-B", None, metrics.pearson_and_spearman, "spearman", **_PAIR, label="score"),
    "qqp": GlueDefinition(
        "QQP",
        **_ACCURACY_AND_F1,
        text_a="question1",
        text_b="question2",
        label="is_duplicate",
        has_incomplete_rows=True,
    ),
    "mnli": GlueDefinition("MNLI", **_NLI, files=_MNLI_FILES),
    "qnli": GlueDefinition("QNLI", INFERENCE, text_a="question", text_b="sentence"),
    "rte": GlueDefinition("RTE", INFERENCE, **_PAIR),
    "wnli": GlueDefinition("WNLI", **_PAIR),
    "xnli": GlueDefinition("XNLI", **_NLI, files=_XNLI_FILES),
}

# The label of a pair for which the annotators did not agree.
_NO_CONSENSUS = "-"
# Usual names of GLUE's list of the MRPC pairs in the dev set. Each row has the ids of two texts.
_MRPC_DEV_PAIRS = ("mrpc_dev_ids.tsv", "dev_ids.tsv")


class GlueReader(ExampleReader):
    """Reads the files of a task of `DEFINITIONS`.

    Args:
      name: a key of `DEFINITIONS`.
      data_dir: the directory with the files of this task, as in the original code.
      on_bad_row: see `ExampleReader`.
      language: the language of XNLI.
    """

    for_server = True

    def __init__(self, name: str, data_dir: str, on_bad_row: str = "error", language: str = "zh") -> None:
        self.definition: GlueDefinition = DEFINITIONS[name]
        self._data_dir = data_dir
        self._language = language
        super().__init__({split: self._existing(names) for split, *names in self.definition.files}, on_bad_row)

    def _existing(self, names: Sequence[str]) -> str:
        """Returns the first existing file or, if none exists, the first name."""
        paths = [os.path.join(self._data_dir, name.format(language=self._language)) for name in names]
        return next(filter(files.exists, paths), paths[0])

    def splits(self, kind: str) -> list[str]:
        """Returns the first dev or test split, and other splits with existing files."""
        first, *others = [split for split in self.sources if split.startswith(kind)]
        return [first, *(split for split in others if files.exists(self.sources[split]))]

    def test_indices(self, split: str) -> list[str]:
        """Returns the GLUE server's index of each row of a test split."""
        ids = example_rows.UniqueIds()
        return [
            ids.check(row["index"] if "index" in row.columns else str(number), row)
            for number, row in enumerate(self.rows(split))
        ]

    def rows(self, split: str) -> Iterable[Row]:
        """Returns the rows of a split, after checking the columns."""
        path = self.sources[split]
        if self.definition.directory == "MRPC" and not files.exists(path):
            raw = self._raw_mrpc(split)
            if raw is not None:
                return raw
        has_header = self.definition.has_header or split.startswith("test")
        columns = (*self._columns(split), "language" if self._has_languages(split) else None)
        needed = tuple(column for column in columns if isinstance(column, str)) if has_header else ()
        return tables.read_tsv(path, has_header, needed)

    def _has_languages(self, split: str) -> bool:
        """Returns whether the rows of a split are in several languages."""
        return self.definition.directory == "XNLI" and split != "train"

    def _columns(self, split: str) -> tuple[str | int, str | None, str | int | None]:
        """Returns the columns of the texts and of the label; None for a missing column."""
        definition, is_test = self.definition, split.startswith("test")
        if definition.directory == "XNLI" and split == "train":
            return "premise", "hypo", "label"
        text_a = definition.test_text_a if is_test and definition.test_text_a else definition.text_a
        return text_a, definition.text_b, None if is_test and definition.directory != "XNLI" else definition.label

    def _raw_mrpc(self, split: str) -> list[Row] | None:
        """Reads MRPC's original files: a training file, which also contains GLUE's dev pairs, and a test file.

        If the list of the dev pairs is missing, all pairs of the training file are used for training, and the pairs of
        the labelled test file are the dev set. Returns None if the file of the split is missing.
        """
        directory = functools.partial(os.path.join, self._data_dir)
        dev_list = next(filter(files.exists, map(directory, _MRPC_DEV_PAIRS)), None)
        if split == "dev" and dev_list is None:
            say(f"{self._data_dir} has none of {', '.join(_MRPC_DEV_PAIRS)}. Using MRPC's labelled test pairs for dev.")
        from_test = split == "test" or (split == "dev" and dev_list is None)
        path = directory(f"msr_paraphrase_{'test' if from_test else 'train'}.txt")
        if not files.exists(path):
            return None
        rows = list(tables.read_tsv(path, True, ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")))
        if from_test or dev_list is None:
            return rows
        dev_pairs = {tuple(row.cells[:2]) for row in tables.read_tsv(dev_list, has_header=False)}
        return [row for row in rows if ((row["#1 ID"], row["#2 ID"]) in dev_pairs) == (split == "dev")]

    def example(self, row: Row, split: str) -> InputExample | None:
        """Returns the example in a row; None for an XNLI row in another language."""
        definition = self.definition
        if self._has_languages(split) and row["language"] != self._language:
            return None
        if definition.has_incomplete_rows and len(row.cells) < len(row.columns):
            if not split.startswith("test"):
                raise SkippedRow("columns are missing in the published file")
            row = dataclasses.replace(row, cells=[*row.cells, *[""] * (len(row.columns) - len(row.cells))])
        guid = f"{split}-{row['index'] if definition.directory == 'MNLI' else row.line - 1}"
        text_a, text_b, label = (None if column is None else row[column] for column in self._columns(split))
        # As in the original code, the label of a test row is the first class. Rows without a text are kept, because
        # each row needs a prediction.
        if label is None:
            return InputExample(guid, text_a, text_b, definition.labels[0] if definition.labels else "0")
        if definition.has_incomplete_rows and not (text_a.strip() and text_b.strip()):
            raise SkippedRow("a text is missing in the published file")
        if label == _NO_CONSENSUS:
            raise SkippedRow("no gold label")
        if definition.directory == "XNLI" and label == "contradictory":
            label = "contradiction"
        return self.checked(InputExample(guid, text_a, text_b, label), row.where, split)

    def checked(self, example: InputExample, where: str, split: str) -> InputExample:
        """See `ExampleReader.checked`."""
        check_texts(example, where)
        check_label(example, where, self.definition.labels)
        return example


class GlueTask(SentenceTask):
    """One of the tasks of `DEFINITIONS`.

    Args:
      name: a key of `DEFINITIONS`, in upper or lower case.
      data_dir: see `GlueReader`.
      reading: other arguments of `GlueReader`.

    Attributes:
      reader: the reader of the files.
      dev_splits: the splits for evaluation. The first one selects models; the others have existing files.
      test_splits: the splits to predict: the first one, and others with existing files.

    Raises:
      InputError: if there is no such task.
    """

    dev_splits: list[str]
    test_splits: list[str]

    def __init__(self, name: str, data_dir: str, **reading: str) -> None:
        key = name.lower()
        if key not in DEFINITIONS:
            raise InputError(f"--task_name is {name!r}. Use one of {', '.join(DEFINITIONS)}.")
        definition = DEFINITIONS[key]
        self.reader: GlueReader = GlueReader(key, data_dir, **reading)
        self.dev_splits, self.test_splits = map(self.reader.splits, ("dev", "test"))
        problem = "classification" if definition.labels else "regression"
        super().__init__(key, definition.labels, problem, definition.metric, definition.selection_metric)

    @classmethod
    def build(cls, setup: Setup) -> Self:
        """See `Task.build`."""
        config = setup.config
        if not config.data_dir:
            raise InputError("--data_dir is required. Pass the directory of the task's files.")
        return cls(config.task_name, config.data_dir, on_bad_row=config.on_bad_row, language=config.xnli_language)

    def examples(self, split: str) -> list[InputExample]:
        """Reads the examples of a split."""
        return self.reader.examples(split)

    def has_labels(self, examples: Sequence[InputExample]) -> bool:
        """Returns True if a test split has labels. Only XNLI has. In other tasks, all labels are the first class."""
        return self.name == "xnli"
