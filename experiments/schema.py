"""The format of the TOML files of tables and scales. Unknown keys and wrong values raise an InputError.

Keys in TOML tables of flags are settings of the programs, with the same types and bounds.
"""

import pathlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_origin

import msgspec

from bert_tf.config import RELEASED_SIZES, BertConfig
from bert_tf.finetuning.finetuning_config import FinetuningConfig
from bert_tf.pretraining.pretraining_config import PretrainingConfig
from bert_tf.runtime import json_files
from bert_tf.runtime.errors import InputError, check
from bert_tf.runtime.settings import Field, Settings, fields, flags_of
from bert_tf.tasks.data_config import DataConfig, FeatureConfig
from bert_tf.tasks.squad.rules import AnswerConfig, SquadConfig, SquadSteps
from data_prep.options import DataOptions, LocalOptions, VocabularyOptions

DIRECTORY = pathlib.Path(__file__).parent
SCALES = ("smoke", "tiny", "paper")
NAMES = sorted(path.stem for path in DIRECTORY.glob("*.toml"))  # the names of all tables and figures

Flags = dict[str, bool | int | float | str]  # the values of a program's flags, or of a model's config, by name


class Program:
    """The settings of a program.

    Args:
      name: its module.
      *kinds: classes of settings.
    """

    def __init__(self, name: str, *kinds: type[Settings]) -> None:
        self.name, self._kinds = name, kinds
        self.flags = flags_of(*kinds, program=name)

    def check(self, values: Mapping[str, Any], where: str) -> None:
        """Checks all flags of a command. See `parse`.

        Raises:
          InputError: if a flag can't be used, or flags contradict each other.
        """
        parsed = parse(self.flags, values, where)
        for kind in self._kinds:
            kind.from_flags(parsed)


_PROGRAMS = (
    Program("data_prep.build_vocab", VocabularyOptions),
    Program("data_prep.create_pretraining_data", DataOptions, LocalOptions),
    Program("run_pretraining", PretrainingConfig),
    Program("run_classifier", FinetuningConfig, DataConfig, FeatureConfig),
    Program("run_squad", FinetuningConfig, SquadConfig, AnswerConfig, SquadSteps),
)
PROGRAMS = {program.name: program for program in _PROGRAMS}


def parse(known: Mapping[str, Field], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns the values of flags. A value may be a string, as on the command line; commas separate list items.

    Args:
      known: the settings, by the names of their flags.
      values: maps the names of flags to values or strings.
      where: the location of the values, for messages.

    Raises:
      InputError: if a flag is unknown, or a value has the wrong type or is out of bounds.
    """
    if unknown := [name for name in values if name not in known]:
        raise InputError(f"{unknown[0]!r} is not accepted here. Correct or remove it.", where)
    texts = {name: str(value) for name, value in values.items()}
    lists = {name: text.split(",") for name, text in texts.items() if get_origin(known[name].plain_type) is tuple}
    return {
        name: check(text, known[name].type, f"{where}.{name}", strict=False) for name, text in (texts | lists).items()
    }


class Corpus(msgspec.Struct, forbid_unknown_fields=True):
    """The text for pre-training."""

    files: list[str]  # globs under --data_dir
    held_out: list[str]  # globs under --data_dir, of the text that evaluates pre-training
    fetch: str  # the data to fetch, for a message that contains the path


class Task(msgspec.Struct, forbid_unknown_fields=True):
    """A data set, and the program that is fine-tuned on it."""

    program: Literal["run_classifier", "run_squad"]
    flags: Flags
    files: dict[str, list[str]]  # flag -> paths under --data_dir
    fetch: str
    label: str = ""  # the name of the data set, if it is not the name of the task


class Scale(msgspec.Struct, forbid_unknown_fields=True):
    """The size at which tables are run."""

    seeds: list[int]  # seeds of fine-tuning
    corpus: Corpus
    vocabulary: Flags  # flags of build_vocab; or `file` (under --data_dir) and `fetch` (the data to fetch)
    model: Flags  # values of BertConfig, and `size`, the released size to modify
    data: Flags  # flags of create_pretraining_data
    pretraining: Flags  # flags of run_pretraining
    tasks: dict[str, Task]
    second_data: Flags = {}  # changes to `data` in the second phase; if empty, there is only one phase
    instead: dict[str, str] = {}  # task of a table -> its replacement at this scale


class Column(msgspec.Struct, forbid_unknown_fields=True):
    """A score of a task."""

    task: str  # `pretraining`: the evaluation on held-out text
    metric: str  # name in eval_results.json; prefix `test_` for the test set, `mismatched_` for MNLI-mm
    percent: bool = True  # if true, the score is multiplied by 100
    finetuning: Flags = {}  # additional flags of fine-tuning
    lower_is_better: bool = False
    skip: bool = False  # omits the column; for use in `at.SCALE`


class Row(msgspec.Struct, forbid_unknown_fields=True):
    """A model: its changes to the scale's settings, and the paper's scores."""

    name: str
    paper: dict[str, int | float] = {}  # column -> score
    model: Flags = {}
    data: Flags = {}
    second_data: Flags = {}
    pretraining: Flags | bool = {}  # false: no pre-training
    checkpoint: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0  # use the weights after this fraction of the steps
    finetuning: Flags = {}
    tasks: dict[str, str] = {}  # task of a column -> its replacement in this row
    ensemble: bool = False  # if true, the runs of all seeds form an ensemble
    line: str = ""  # the line of a figure to which this row belongs
    skip: bool = False  # omits the row; for use in `at.SCALE`


class Claim(msgspec.Struct, forbid_unknown_fields=True):
    """A claim that one row is better than another row in a column. A t-test over the seeds tests it."""

    text: str
    better: str
    worse: str
    column: str


class Experiment(msgspec.Struct, forbid_unknown_fields=True):
    """A table or a figure. In each object of the TOML file, `at.SCALE` replaces keys at that scale."""

    title: str
    columns: dict[str, Column]
    rows: list[Row]
    claims: list[Claim] = []
    seeds: list[int] = []  # replace the scale's seeds
    note: str = ""  # printed under the table


def load_experiment(name: str, scale: str) -> Experiment:
    """Reads a table at a scale, and checks it at all scales.

    Args:
      name: the name of a file in this directory, or a path that ends in `.toml`.
      scale: the scale.

    Raises:
      InputError: if there is no such file, or if its content is invalid.
    """
    path = pathlib.Path(name) if name.endswith(".toml") else DIRECTORY / f"{name}.toml"
    if not path.exists():
        raise InputError(f"There is no experiment {name!r}. Use one of {', '.join(NAMES)}.")
    values = json_files.read_toml(str(path), path.name)
    return {scale_name: _experiment(values, path.name, scale_name) for scale_name in SCALES}[scale]


def _experiment(values: dict[str, Any], file: str, scale: str) -> Experiment:
    experiment = check(_at_scale(values, scale, file), Experiment, file)
    columns, tasks = experiment.columns, {column.task for column in experiment.columns.values()}
    for row in experiment.rows:
        _check_tables(row, f"{file}, at row {row.name!r}")
        unknown = [*row.paper.keys() - columns.keys(), *row.tasks.keys() - tasks]
        if unknown or row.pretraining is True or [other.name for other in experiment.rows].count(row.name) > 1:
            wrong = (
                f"there is no column or task {unknown[0]!r}" if unknown else "a repeated name, or pretraining = true"
            )
            raise InputError(f"{file}: row {row.name!r}: {wrong}. Correct the file.")
    for heading, column in columns.items():
        _check_tables(column, f"{file}, at columns.{heading}")
    experiment.columns = {heading: column for heading, column in columns.items() if not column.skip}
    experiment.rows = [row for row in experiment.rows if not row.skip]
    return experiment


def load_scale(name: str) -> Scale:
    """Reads a scale."""
    path = DIRECTORY / "scales" / f"{name}.toml"
    values = json_files.read_toml(str(path), path.name)
    scale = check(_at_scale(values, name, path.name), Scale, path.name)
    _check_tables(scale, path.name)
    for task_name, task in scale.tasks.items():
        parse(PROGRAMS[task.program].flags, task.flags, f"{path.name}, at tasks.{task_name}.flags")
    return scale


class _Model(BertConfig, frozen=True, kw_only=True):
    """The config of a released size, with changes."""

    size: Literal[tuple(RELEASED_SIZES)]


# The keys of the tables of flags.
_TABLES = {
    "vocabulary": PROGRAMS["data_prep.build_vocab"].flags,
    "model": {field.name: field for field in fields(_Model)},
    "data": PROGRAMS["data_prep.create_pretraining_data"].flags,
    "second_data": PROGRAMS["data_prep.create_pretraining_data"].flags,
    "pretraining": PROGRAMS["run_pretraining"].flags,
    "finetuning": PROGRAMS["run_classifier"].flags | PROGRAMS["run_squad"].flags,
}


def _check_tables(item: Scale | Row | Column, where: str) -> None:
    """Checks the flags in an object of a TOML file. A vocabulary with the key `file` has no flags."""
    for name, known in _TABLES.items():
        values = getattr(item, name, None)
        if isinstance(values, dict) and "file" not in values:
            parse(known, values, f"{where}.{name}")


def _at_scale(values: Any, scale: str, where: str) -> Any:
    """Replaces keys by the values in `at.SCALE`, in every object."""
    if isinstance(values, list):
        return [_at_scale(value, scale, where) for value in values]
    if not isinstance(values, dict):
        return values
    changes = check(values.get("at", {}), dict[Literal[SCALES], dict[str, Any]], f"{where}: at")
    values_of_all = {key: value for key, value in values.items() if key != "at"}
    return {key: _at_scale(value, scale, where) for key, value in (values_of_all | changes.get(scale, {})).items()}
