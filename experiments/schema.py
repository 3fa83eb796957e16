"""The format of the files of tables and scales. Unknown keys and wrong types raise an InputError."""

import pathlib
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from bert_tf.runtime import json_files
from bert_tf.runtime.errors import InputError, check

FOLDER = pathlib.Path(__file__).parent
SCALES = ("smoke", "tiny", "paper")
NAMES = sorted(path.stem for path in FOLDER.glob("*.toml"))  # of all tables and figures

Flags = dict[str, bool | int | float | str]  # the values of a program's flags, or of a model's config, by name
_File = TypeVar("_File", bound=msgspec.Struct)


class Corpus(msgspec.Struct, forbid_unknown_fields=True):
    """The text for pre-training."""

    files: list[str]  # globs under --data_dir
    held_out: list[str]  # globs of the text on which pre-training is evaluated
    fetch: str  # the data to fetch; a message adds the path


class Task(msgspec.Struct, forbid_unknown_fields=True):
    """A data set, and the program that is fine-tuned on it."""

    program: str
    flags: Flags
    files: dict[str, list[str]]  # flag -> paths under --data_dir
    fetch: str
    label: str = ""  # the name of the data set, if it is not the name of the task


class Scale(msgspec.Struct, forbid_unknown_fields=True):
    """The size at which tables are run."""

    seeds: list[int]  # of fine-tuning
    corpus: Corpus
    vocabulary: Flags  # flags of build_vocab; or `file`, under --data_dir, and the data to `fetch`
    model: Flags  # values of BertConfig, and `size`, the released size to modify
    data: Flags  # flags of create_pretraining_data
    pretraining: Flags  # flags of run_pretraining
    tasks: dict[str, Task]
    second_data: Flags = {}  # changes to `data` in the second phase; without changes there is one phase
    instead: dict[str, str] = {}  # task of a table -> task that replaces it at this scale


class Column(msgspec.Struct, forbid_unknown_fields=True):
    """A score of a task."""

    task: str  # `pretraining`: the evaluation on held-out text
    metric: str  # as in eval_results.json; prefix `test_`: the test set, `mismatched_`: MNLI's second dev set
    percent: bool = True  # if true, the score is multiplied by 100
    finetuning: Flags = {}  # additional flags
    lower_is_better: bool = False
    skip: bool = False  # for `at`: omits the column at a scale


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
    tasks: dict[str, str] = {}  # task of a column -> task that replaces it in this row
    ensemble: bool = False  # the runs of all seeds answer together
    line: str = ""  # the line of a figure to which this row belongs
    skip: bool = False  # for `at`: omits the row at a scale


class Claim(msgspec.Struct, forbid_unknown_fields=True):
    """A claim that one row is better than another in a column. It is tested over the seeds."""

    text: str
    better: str
    worse: str
    column: str


class Experiment(msgspec.Struct, forbid_unknown_fields=True):
    """A table or a figure. In the file and in each of its objects, `at.SCALE` replaces keys at that scale."""

    title: str
    columns: dict[str, Column]
    rows: list[Row]
    claims: list[Claim] = []
    seeds: list[int] = []  # instead of the scale's
    note: str = ""  # printed under the table


def load_experiment(name: str, scale: str) -> Experiment:
    """Reads a table at a scale. `name` is the name of a file in this folder, or a path that ends in `.toml`.

    Raises:
      InputError: if there is no such file, or if its content is invalid.
    """
    path = pathlib.Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.exists():
        raise InputError(f"There is no experiment {name!r}. Use one of {', '.join(NAMES)}.")
    experiment = _read(path, Experiment, scale)
    columns, tasks = experiment.columns, {column.task for column in experiment.columns.values()}
    for row in experiment.rows:
        unknown = [*row.paper.keys() - columns.keys(), *row.tasks.keys() - tasks]
        if unknown or row.pretraining is True or [each.name for each in experiment.rows].count(row.name) > 1:
            wrong = (
                f"there is no column or task {unknown[0]!r}" if unknown else "a repeated name, or pretraining = true"
            )
            raise InputError(f"{path.name}: row {row.name!r}: {wrong}. Correct the file.")
    experiment.columns = {heading: column for heading, column in columns.items() if not column.skip}
    experiment.rows = [row for row in experiment.rows if not row.skip]
    return experiment


def load_scale(name: str) -> Scale:
    """Reads a scale."""
    return _read(FOLDER / "scales" / f"{name}.toml", Scale, name)


def _read(path: pathlib.Path, kind: type[_File], scale: str) -> _File:
    values = json_files.read_toml(str(path), path.name)
    return check(_at_scale(values, scale, path.name), kind, path.name)


def _at_scale(values: Any, scale: str, where: str) -> Any:
    """Replaces keys by their values in `at.SCALE`, in every object."""
    if isinstance(values, list):
        return [_at_scale(value, scale, where) for value in values]
    if not isinstance(values, dict):
        return values
    changes = json_files.checked(values.pop("at", {}), dict[Literal[SCALES], dict[str, Any]], f"{where}: at")
    return {key: _at_scale(value, scale, where) for key, value in (values | changes.get(scale, {})).items()}
