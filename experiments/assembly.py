"""A table at a scale: for each cell and seed, the piece whose score it shows."""

import dataclasses
import functools
import os
from collections.abc import Collection, Sequence
from typing import Any

from bert_tf.config import BertConfig
from bert_tf.runtime.files import InputError
from experiments.pieces import Output, Piece, Source
from experiments.schema import Column, Experiment, Flags, Row, Scale, Task

_VOCAB, _CONFIG, _RECORDS = "vocab.txt", "bert_config.json", "data.tfrecord"
_BYTES_OF_A_WEIGHT = 12.0  # in a checkpoint: the weight, and both means of Adam
_LENGTHS = ("max_seq_length", "max_predictions_per_seq")
# What a run of `run_squad` is given for training only, and so an ensemble is not.
_FOR_TRAINING = {"do_train", "train_file", "init_checkpoint", "bert_config_file", "vocab_file", "output_dir"}
_FOR_TRAINING |= {"random_seed", "learning_rate", "train_batch_size", "num_train_epochs", "keep_checkpoint_max"}


@dataclasses.dataclass(frozen=True)
class Cell:
    """A score of one run; `seed` is None where there is one run for all seeds."""

    row: Row
    in_file: str  # the column's heading in the table's file
    heading: str  # the same, with the data set that the scale has
    column: Column
    seed: int | None
    piece: Piece

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"row {self.row.name!r}, column {self.heading!r}" + (f", seed {self.seed}" if self.seed else "")


class Assembly:
    """Finds the pieces of a table.

    Args:
      experiment: the table.
      scale: the scale.
      data_dir: the folder of the data.
      init_checkpoint: the folder of a finished model, which takes the place of pre-training in the rows that change
        nothing of it; empty for none.
      only: the rows and the columns that are wanted; where no row or no column is named, all.

    Attributes:
      experiment: the table.
      cells: all cells, row by row.
      left_out: what the scale has no data for.

    Raises:
      InputError: if the scale has data for no column, or something is wanted that isn't there.
    """

    def __init__(
        self, experiment: Experiment, scale: Scale, data_dir: str, init_checkpoint: str = "", only: Collection[str] = ()
    ) -> None:
        self.experiment, self._scale, self._init_checkpoint = experiment, scale, init_checkpoint
        # Kept, because what a file holds is read once for each object.
        self._source = functools.cache(lambda name, fetch: Source(os.path.join(data_dir, name), name, fetch))
        self.left_out: list[str] = []
        self.cells: list[Cell] = []
        self._seeds = experiment.seeds or scale.seeds
        columns = self._columns(experiment.columns)
        for row in experiment.rows:
            for in_file, (heading, task) in columns.items():
                self.cells += self._cells(row, in_file, heading, experiment.columns[in_file], task)
        if init_checkpoint and not os.path.isdir(init_checkpoint):
            raise InputError(f"--init_checkpoint: there is no folder {init_checkpoint!r}, in which a model would be.")
        if not self.cells:
            lacks = f"data for {', '.join(self.left_out)}" if self.left_out else "row or no column of it"
            raise InputError(f"{experiment.title}: this scale has no {lacks}.")
        self._select(set(only))

    @property
    def pieces(self) -> list[Piece]:
        """The piece of each cell."""
        return [cell.piece for cell in self.cells]

    def _select(self, only: set[str]) -> None:
        """Keeps the cells of the rows and of the columns that are named."""
        rows = dict.fromkeys(cell.row.name for cell in self.cells)
        columns = dict.fromkeys(cell.in_file for cell in self.cells)
        if unknown := only - rows.keys() - columns.keys():
            raise InputError(
                f"--only: {self.experiment.title}: there is no row and no column {min(unknown)!r} at this scale; "
                f"the columns are {', '.join(columns)}, and the rows are {'; '.join(rows)}."
            )
        for names in filter(None, (only & rows.keys(), only & columns.keys())):
            self.cells = [cell for cell in self.cells if names & {cell.row.name, cell.in_file}]

    def _columns(self, columns: dict[str, Column]) -> dict[str, tuple[str, str]]:
        """Heading in the file -> heading here, and task. A task takes the place of one other only."""
        found, tasks = {}, self._scale.tasks
        replaced = {column.task: column.task for column in columns.values()}
        for heading, column in columns.items():
            task = column.task if column.task in (*tasks, "pretraining") else self._scale.instead.get(column.task, "")
            if not task or replaced.setdefault(task, column.task) != column.task:
                self.left_out.append(heading)
                continue
            label = (tasks[task].label if task in tasks else "") or (task if task != column.task else "")
            found[heading] = f"{heading} ({label})" if label else heading, task
        return found

    def _cells(self, row: Row, in_file: str, heading: str, column: Column, name: str) -> list[Cell]:
        task = self._scale.tasks.get(row.tasks.get(column.task, name))
        # Features of random weights are features of no model.
        is_of_no_model = row.pretraining is False and "feature_layers" in {**row.finetuning, **column.finetuning}
        if name == "pretraining":
            runs: dict[int | None, Any] = {None: self._pretraining(row)}
        elif task is None or is_of_no_model:
            self.left_out.append(f"{row.name}, {heading}")
            return []
        else:
            runs = {seed: self._finetuning(row, column, task, seed) for seed in self._seeds}
            runs = {None: self._ensemble(list(runs.values()), task)} if row.ensemble else runs
        return [Cell(row, in_file, heading, column, seed, run) for seed, run in runs.items() if isinstance(run, Piece)]

    @functools.cached_property
    def _vocabulary(self) -> Source | Output:
        vocabulary, corpus = self._scale.vocabulary, self._scale.corpus
        if "file" in vocabulary:
            return self._source(vocabulary["file"], vocabulary["fetch"])
        flags = {"input_file": [self._source(name, corpus.fetch) for name in corpus.files], **vocabulary}
        flags["output_file"] = Output(_VOCAB)
        return Output(_VOCAB, Piece("vocabulary", "data_prep.build_vocab", flags, corpus.megabytes * 1e6, 1e6))

    def _records(self, names: Sequence[str], flags: Flags) -> Output:
        corpus = self._scale.corpus
        given = {"input_file": [self._source(name, corpus.fetch) for name in names], "vocab_file": self._vocabulary}
        size = corpus.megabytes * 1e6 * flags.get("dupe_factor", 10)
        given |= {**flags, "output_file": Output(_RECORDS)}
        piece = Piece("data", "data_prep.create_pretraining_data", given, size, 3 * size)
        return Output(f"{_RECORDS}-*" if flags.get("num_shards") else _RECORDS, piece)

    def _pretraining(self, row: Row) -> Piece | Source | None:
        """The pre-training of a row: a piece, a finished model, or None."""
        if row.pretraining is False:
            return None
        if self._init_checkpoint and not (row.model or row.data or row.second_data or row.pretraining):
            return self._of_checkpoint("")
        scale, first = self._scale, {**self._scale.data, **row.data}
        flags: Flags = {"do_train": True, "vocab_file": self._vocabulary, "bert_config_file": Output(_CONFIG)}
        # Losses can be compared if all rows read the same sequences, with the same masks if there are any.
        held_out = {**scale.data, **scale.second_data, "dupe_factor": 1}
        held_out |= {name: value for name, value in row.data.items() if name == "objective"}
        sets = [("", scale.corpus.files, first), ("eval_", scale.corpus.held_out, held_out)]
        if changes := {**scale.second_data, **row.second_data}:
            sets.insert(1, ("second_", scale.corpus.files, {**first, **changes}))
        for prefix, names, data in sets:
            flags[f"{prefix}input_file"] = self._records(names, data)
            flags |= {f"{prefix}{name}": data[name] for name in _LENGTHS}
        flags |= {**scale.pretraining, **(row.pretraining or {}), "output_dir": Output("")}
        model = {**scale.model, **row.model}
        config, sequences = self._config(model), flags["num_train_steps"] * flags["train_batch_size"]
        work = 3 * sequences * config.flops(*(first[name] for name in _LENGTHS))
        kept = flags.get("keep_checkpoint_max", 5) or flags["num_train_steps"] / flags["save_checkpoints_steps"]
        disk = kept * _BYTES_OF_A_WEIGHT * config.num_parameters
        return Piece("pretraining", "run_pretraining", flags, work, disk, model)

    def _finetuning(self, row: Row, column: Column, task: Task, seed: int) -> Piece:
        flags: Flags = {flag: [self._source(name, task.fetch) for name in names] for flag, names in task.files.items()}
        flags = {flag: sources if len(sources) > 1 else sources[0] for flag, sources in flags.items()}
        flags |= {"do_train": True, **task.flags, **row.finetuning, **column.finetuning, "random_seed": seed}
        pretrained, sizes, model = self._pretraining(row), {**self._scale.model, **row.model}, None
        if pretrained is not None:
            is_run = isinstance(pretrained, Piece)
            flags["init_checkpoint"] = self._checkpoint(row, pretrained) if is_run else pretrained
        elif self._init_checkpoint:
            is_released = os.path.exists(os.path.join(self._init_checkpoint, _CONFIG))
            flags["vocab_file"] = self._of_checkpoint(_VOCAB)
            flags["bert_config_file"] = self._of_checkpoint(_CONFIG if is_released else "config.json")
        else:
            flags |= {"vocab_file": self._vocabulary, "bert_config_file": Output(_CONFIG)}
            model = sizes
        flags["output_dir"] = Output("")
        epochs = 1 / 3 if "feature_layers" in flags else flags.get("num_train_epochs", 3)
        config = self._config(sizes)
        work = 3 * epochs * task.examples * config.flops(flags["max_seq_length"])
        disk = flags.get("keep_checkpoint_max", 5) * _BYTES_OF_A_WEIGHT * config.num_parameters
        return Piece("finetuning", task.program, flags, work, disk, model)

    def _config(self, model: Flags) -> BertConfig:
        """The config for the plan, before a vocabulary is there."""
        return bert_config(model, self._scale.vocabulary.get("vocab_size", 30522))

    def _ensemble(self, runs: list[Piece], task: Task) -> Piece:
        flags = {name: value for name, value in runs[0].flags.items() if name not in _FOR_TRAINING}
        flags |= {"ensemble_dirs": [Output("", run) for run in runs], "output_dir": Output("")}
        return Piece("ensemble", task.program, flags, len(runs) * runs[0].work / 10, 1e7)

    def _of_checkpoint(self, name: str) -> Source:
        folder = os.path.normpath(self._init_checkpoint)
        return Source(os.path.join(folder, name).rstrip("/"), os.path.join(os.path.basename(folder), name).rstrip("/"))

    def _checkpoint(self, row: Row, run: Piece) -> Output:
        """The weights that a row takes of its pre-training run."""
        step, every = round(row.checkpoint * run.flags["num_train_steps"]), run.flags["save_checkpoints_steps"]
        if row.checkpoint != 1 and (step % every or run.flags.get("keep_checkpoint_max", 5)):
            raise InputError(
                f"{self.experiment.title}: row {row.name!r} needs the checkpoint of step {step}. In the scale's file, "
                f"that must be a multiple of save_checkpoints_steps (it is {every}), and keep_checkpoint_max must be 0."
            )
        name = f"model.ckpt-{step}"
        return Output("", run, name) if row.checkpoint == 1 else Output(name, run)


def bert_config(values: Flags, vocab_size: int) -> BertConfig:
    """The config of a model: a released `size` (base without one), changed by other values of `BertConfig`."""
    changes = {name: value for name, value in values.items() if name != "size"}
    return BertConfig.named(values.get("size", "base"), vocab_size, **changes)
