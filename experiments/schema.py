"""What the files of tables and scales may hold. Unknown keys, and values of another type, raise."""

import pathlib
from collections.abc import Collection, Iterable
from typing import Any, Literal, TypedDict

import msgspec

from bert_tf.runtime import json_files
from bert_tf.runtime.files import InputError

FOLDER = pathlib.Path(__file__).parent
SCALES = ("smoke", "tiny", "paper")
NAMES = sorted(path.stem for path in FOLDER.glob("*.toml"))  # of all tables and figures


# The values of a program's flags, or of a model's config, by name; the harness itself counts with these.
_COUNTS = ("num_train_steps", "train_batch_size", "max_seq_length", "max_predictions_per_seq", "dupe_factor")
_COUNTS += ("save_checkpoints_steps", "keep_checkpoint_max", "vocab_size")
_Counts = TypedDict("_Counts", {"num_train_epochs": float, **dict.fromkeys(_COUNTS, int)}, total=False)
Flags = dict[str, Any]


class Corpus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The text for pre-training."""

    files: list[str]  # globs under --data_dir
    held_out: list[str]  # those of the text on which pre-training is evaluated
    megabytes: float  # the size of `files`, for the plan
    fetch: str  # what to fetch; a message says where to put it


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A data set, and the program that is fine-tuned on it."""

    program: str
    flags: Flags
    files: dict[str, list[str]]  # flag -> paths under --data_dir
    examples: int  # to train on, for the plan
    fetch: str
    label: str = ""  # the data set's name, if it is not the task's


class Scale(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The size at which tables are run."""

    device: str  # what `speed` is of
    devices: int  # how many of them train together
    speed: dict[str, float]  # kind of piece -> units of its work in a second, until some are finished
    seeds: list[int]  # of fine-tuning
    corpus: Corpus
    vocabulary: Flags  # flags of build_vocab; or `file`, under --data_dir, and what to `fetch`
    model: Flags  # values of BertConfig, and `size`, the released size that they change
    data: Flags  # flags of create_pretraining_data
    pretraining: Flags  # flags of run_pretraining
    tasks: dict[str, Task]
    second_data: Flags = {}  # what differs in the second phase; without any there is one phase
    instead: dict[str, str] = {}  # task of a table -> task that takes its place here


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A score of a task."""

    task: str  # `pretraining`: the evaluation on held-out text
    metric: str  # as in eval_results.json; of the test set with `test_`, of MNLI's second one with `mismatched_`
    percent: bool = True  # false if the score is not to be multiplied by 100
    finetuning: Flags = {}  # further flags
    lower_is_better: bool = False
    skip: bool = False  # for `at`: leaves the column out at a scale


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model: what it changes in the scale's settings, and the paper's scores."""

    name: str
    paper: dict[str, float] = {}  # column -> score
    model: Flags = {}
    data: Flags = {}
    second_data: Flags = {}
    pretraining: Flags | bool = {}  # false: none
    checkpoint: float = 1.0  # the share of the steps after which the weights are taken
    finetuning: Flags = {}
    tasks: dict[str, str] = {}  # task of a column -> task that this row takes instead
    ensemble: bool = False  # the runs of all seeds answer together
    line: str = ""  # the line of a figure that this row is a point of
    skip: bool = False  # for `at`: leaves the row out at a scale


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """That a row is better than another in a column, which is tested over the seeds."""

    text: str
    better: str
    worse: str
    column: str


class Experiment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table or a figure. In the file, a column or a row, `at.SCALE` holds the keys that are others at a scale."""

    title: str
    columns: dict[str, Column]
    rows: list[Row]
    claims: list[Claim] = []
    seeds: list[int] = []  # instead of the scale's
    note: str = ""  # stands under the table


def load_experiment(name: str, scale: str) -> Experiment:
    """Reads a table with what it says of a scale; `name` is that of a file beside this module, or a path.

    Raises:
      InputError: if there is no such file, or if something in it can't be used.
    """
    path = pathlib.Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.exists():
        raise InputError(f"There is no experiment {name!r}. There are {', '.join(NAMES)}.")
    values = json_files.read_toml(str(path), path.name)
    variants = {name: _variant(values, name, path.name) for name in SCALES}
    at_scales = {name: json_files.build(each, Experiment, path.name) for name, each in variants.items()}
    experiment = at_scales[scale]
    _check(experiment, {row.name for each in at_scales.values() for row in each.rows}, path.name)
    rows = [row for row in experiment.rows if not row.skip]
    names = [row.name for row in rows]
    if len(set(names)) != len(names):
        raise InputError(f"{path.name}: rows: two rows have the same name.")
    columns = {heading: column for heading, column in experiment.columns.items() if not column.skip}
    claims = [claim for claim in experiment.claims if {claim.better, claim.worse} <= set(names)]
    return msgspec.structs.replace(experiment, columns=columns, rows=rows, claims=claims)


def _variant(values: Any, scale: str, where: str) -> Any:
    """The values at a scale. In any of its objects, `at.SCALE` may contain the keys that are others at a scale.

    Raises:
      InputError: if an `at` has another type; names the location.
    """
    if isinstance(values, list):
        return [_variant(value, scale, f"{where}[{i}]") for i, value in enumerate(values)]
    if not isinstance(values, dict):
        return values
    at = json_files.checked(values.get("at", {}), dict[Literal[SCALES], dict[str, Any]], f"{where}: at")
    kept = {key: value for key, value in (values | at.get(scale, {})).items() if key != "at"}
    return {key: _variant(value, scale, f"{where}: {key}") for key, value in kept.items()}


def _check(experiment: Experiment, rows: Collection[str], where: str) -> None:
    """Refuses names that nothing has, and values that mean nothing.

    Args:
      experiment: the table at a scale.
      rows: the names that its rows have at any scale.
      where: the file, for messages.
    """
    columns, scales = experiment.columns, map(load_scale, SCALES)
    tasks = {"pretraining", *(task for scale in scales for task in (*scale.tasks, *scale.instead))}

    def check(place: str, kind: str, names: Iterable[str], known: Collection[str]) -> None:
        if unknown := set(names) - set(known):
            raise InputError(f"{where}: {place}: no {kind} {min(unknown)!r}. There are {', '.join(sorted(known))}.")

    for heading, column in columns.items():
        check(heading, "task", [column.task], tasks)
    for row in experiment.rows:
        check(row.name, "column", row.paper, columns)
        check(row.name, "column of the task", row.tasks, {column.task for column in columns.values()})
        check(row.name, "task", row.tasks.values(), tasks)
        for values in (row.model, row.data, row.second_data, row.pretraining, row.finetuning):
            json_files.checked(values, _Counts | bool, f"{where}: {row.name}")
        if row.pretraining is not False and (row.pretraining is True or not 0 < row.checkpoint <= 1):
            raise InputError(f"{where}: {row.name}: pretraining is true, or checkpoint not in (0, 1]. Correct it.")
    for claim in experiment.claims:
        check(claim.text, "column", [claim.column], columns)
        check(claim.text, "row", [claim.better, claim.worse], rows)


def load_scale(name: str) -> Scale:
    """Reads a scale.

    Raises:
      InputError: if something in its file can't be used.
    """
    where = f"scales/{name}.toml"
    return json_files.build(json_files.read_toml(str(FOLDER / where), where), Scale, where)
