"""A table at a scale: for each cell and seed, the piece whose score it shows."""

import dataclasses
import functools
import math
import os
from collections.abc import Collection, Sequence
from typing import Any

from bert_tf.config import BertConfig
from bert_tf.runtime.files import InputError
from experiments.pieces import Output, Piece, Source
from experiments.schema import Experiment, Flags, Row, Scale, Task

_VOCAB, _CONFIG, _RECORDS = "vocab.txt", "bert_config.json", "data.tfrecord"
_BYTES_OF_A_WEIGHT = 12.0  # in a checkpoint: the weight, and both means of Adam
_LENGTHS = ("max_seq_length", "max_predictions_per_seq")
# What a run of `run_squad` is given for training only, and so an ensemble is not.
_FOR_TRAINING = {"do_train", "train_file", "init_checkpoint", "bert_config_file", "vocab_file", "output_dir"}
_FOR_TRAINING |= {"random_seed", "learning_rate", "train_batch_size", "num_train_epochs", "keep_checkpoint_max"}
# What `run_classifier --sweep` tries of its own accord.
_SWEEP = {"sweep_batch_sizes": "16,32", "sweep_learning_rates": "5e-5,3e-5,2e-5", "sweep_epochs": "2,3,4"}


@dataclasses.dataclass(frozen=True)
class Cell:
    """A score of one run; `seed` is None where there is one run for all seeds."""

    row: Row
    in_file: str  # the column's heading in the table's file
    heading: str  # the same, with the data set that the scale has
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
      pieces: the piece of each cell.
      left_out: what the scale has no data for.

    Raises:
      InputError: if the scale has data for no column, or something is wanted that isn't there.
    """

    def __init__(
        self, experiment: Experiment, scale: Scale, data_dir: str, init_checkpoint: str = "", only: Collection[str] = ()
    ) -> None:
        if init_checkpoint and not os.path.isdir(init_checkpoint):
            raise InputError(f"--init_checkpoint: there is no folder {init_checkpoint!r}, in which a model would be.")
        self.experiment, self._scale, self._init_checkpoint = experiment, scale, init_checkpoint
        # Kept, because what a file holds is read once for each object.
        self._source = functools.cache(lambda name, fetch: Source(os.path.join(data_dir, name), name, fetch))
        self.left_out: list[str] = []
        columns = self._columns()
        self.cells = [cell for row in experiment.rows for column in columns for cell in self._cells(row, *column)]
        if not self.cells:
            lacks = f"data for {', '.join(self.left_out)}" if self.left_out else "row or no column of it"
            raise InputError(f"{experiment.title}: this scale has no {lacks}.")
        self._select(set(only))
        self.pieces = [cell.piece for cell in self.cells]

    def _select(self, only: set[str]) -> None:
        """Keeps the cells of the rows and of the columns that are named."""
        rows = dict.fromkeys(cell.row.name for cell in self.cells)
        columns = dict.fromkeys(cell.in_file for cell in self.cells)
        if unknown := only - rows.keys() - columns.keys():
            has = f"{self.experiment.title} has the columns {', '.join(columns)}, and the rows {'; '.join(rows)}"
            raise InputError(f"--only: there is no row and no column {min(unknown)!r} at this scale; {has}.")
        for names in filter(None, (only & rows.keys(), only & columns.keys())):
            self.cells = [cell for cell in self.cells if names & {cell.row.name, cell.in_file}]

    def _columns(self) -> list[tuple[str, str, str]]:
        """Heading in the file, heading here, and task. A task takes the place of one other only."""
        found, tasks, columns = [], self._scale.tasks, self.experiment.columns
        replaced = {column.task: column.task for column in columns.values()}
        for in_file, column in columns.items():
            task = column.task if column.task in (*tasks, "pretraining") else self._scale.instead.get(column.task, "")
            if task and replaced.setdefault(task, column.task) == column.task:
                label = (tasks[task].label if task in tasks else "") or (task if task != column.task else "")
                found.append((in_file, f"{in_file} ({label})" if label else in_file, task))
            else:
                self.left_out.append(in_file)
        return found

    def _cells(self, row: Row, in_file: str, heading: str, name: str) -> list[Cell]:
        column = self.experiment.columns[in_file]
        task, flags = self._scale.tasks.get(row.tasks.get(column.task, name)), {**row.finetuning, **column.finetuning}
        if name == "pretraining":
            runs: dict[int | None, Any] = {None: self._pretraining(row)}
        # Features of random weights are features of no model.
        elif task is None or (row.pretraining is False and "feature_layers" in flags):
            self.left_out.append(f"{row.name}, {heading}")
            return []
        else:
            seeds = self.experiment.seeds or self._scale.seeds
            runs = {seed: self._finetuning(row, task, flags, seed, heading) for seed in seeds}
            runs = {None: self._ensemble(list(runs.values()), task)} if row.ensemble else runs
        return [Cell(row, in_file, heading, seed, run) for seed, run in runs.items() if isinstance(run, Piece)]

    @functools.cached_property
    def _vocabulary(self) -> Source | Output:
        vocabulary, corpus = self._scale.vocabulary, self._scale.corpus
        if "file" in vocabulary:
            return self._source(vocabulary["file"], vocabulary["fetch"])
        names = [self._source(name, corpus.fetch) for name in corpus.files]
        flags = {"input_file": names, **vocabulary, "output_file": Output(_VOCAB)}
        return Output(_VOCAB, Piece("vocabulary", "data_prep.build_vocab", flags, corpus.megabytes * 1e6, 1e6))

    def _records(self, names: Sequence[str], flags: Flags) -> Output:
        corpus = self._scale.corpus
        texts = [self._source(name, corpus.fetch) for name in names]
        # With --masking=dynamic, only training masks.
        flags = {x: y for x, y in flags.items() if x != "max_predictions_per_seq" or flags.get("masking") != "dynamic"}
        given = {"input_file": texts, "vocab_file": self._vocabulary, **flags, "output_file": Output(_RECORDS)}
        size = corpus.megabytes * 1e6 * flags.get("dupe_factor", 10)
        piece = Piece("data", "data_prep.create_pretraining_data", given, size, 3 * size)
        return Output(f"{_RECORDS}-*" if flags.get("num_shards") else _RECORDS, piece)

    def _pretraining(self, row: Row) -> Piece | Source | None:
        """The pre-training of a row: a piece, a finished model, or None."""
        if row.pretraining is False:
            return None
        if self._init_checkpoint and not (row.model or row.data or row.second_data or row.pretraining):
            return self._of_checkpoint()
        scale, first = self._scale, {**self._scale.data, **row.data}
        flags: Flags = {"do_train": True, "vocab_file": self._vocabulary, "bert_config_file": Output(_CONFIG)}
        # Losses can be compared if all rows read the same sequences, with the same masks if there are any.
        held_out = {**scale.data, **scale.second_data, "dupe_factor": 1}
        held_out |= {name: value for name, value in row.data.items() if name == "objective"}
        sets = [("", scale.corpus.files, first), ("eval_", scale.corpus.held_out, held_out)]
        if changes := {**scale.second_data, **row.second_data}:
            sets.insert(1, ("second_", scale.corpus.files, {**first, **changes}))
        for prefix, names, data in sets:
            flags |= {f"{prefix}input_file": self._records(names, data), **{f"{prefix}{x}": data[x] for x in _LENGTHS}}
        flags |= {**scale.pretraining, **(row.pretraining or {})}
        sequences = flags["num_train_steps"] * flags["train_batch_size"]
        return self._training("run_pretraining", flags, sequences, row, row.name)

    def _finetuning(self, row: Row, task: Task, changes: Flags, seed: int, heading: str) -> Piece:
        flags: Flags = {flag: [self._source(name, task.fetch) for name in names] for flag, names in task.files.items()}
        flags = {flag: sources if len(sources) > 1 else sources[0] for flag, sources in flags.items()}
        flags |= {"do_train": True, **task.flags, **changes, "random_seed": seed, **self._first_weights(row)}
        if not {"feature_layers", "bilstm_layers"} & flags.keys():
            flags.pop("bilstm_units", None)  # a task's flag, which only rows with a BiLSTM have a use for
        epochs = 1 / 3 if "feature_layers" in flags else flags.get("num_train_epochs", 3)
        return self._training(task.program, flags, epochs * task.examples, row, f"{row.name}, {heading}, seed {seed}")

    def _training(self, program: str, flags: Flags, sequences: float, row: Row, used_for: str) -> Piece:
        """The piece of a program that trains a row's model, with what it is expected to cost."""
        kind = "pretraining" if program == "run_pretraining" else "finetuning"
        model, is_new = {**self._scale.model, **row.model}, isinstance(flags.get("bert_config_file"), Output)
        config = BertConfig.named(**{"vocab_size": self._scale.vocabulary.get("vocab_size", 30522), **model})
        tried = [str(flags.get(name, values)).split(",") for name, values in _SWEEP.items() if flags.get("sweep")]
        trials = flags.get("num_restarts", 1) * math.prod(map(len, tried))
        saved = sequences / flags.get("train_batch_size", 32) / flags.get("save_checkpoints_steps", 1000)
        kept = (flags.get("keep_checkpoint_max", 5) or saved) * min(trials, 2)  # of the best trial and of this one
        work = 3 * sequences * trials * config.flops(*(flags[name] for name in _LENGTHS if name in flags))
        disk, flags = kept * _BYTES_OF_A_WEIGHT * config.num_parameters, {**flags, "output_dir": Output("")}
        return Piece(kind, program, flags, work, disk, model if is_new else None, used_for)

    def _first_weights(self, row: Row) -> Flags:
        """The flags that say with which weights fine-tuning begins."""
        if isinstance(weights := self._pretraining(row), Piece):
            given = weights.flags
            step, every = round(row.checkpoint * given["num_train_steps"]), given["save_checkpoints_steps"]
            if row.checkpoint != 1 and (step % every or given.get("keep_checkpoint_max", 5)):
                raise InputError(
                    f"{self.experiment.title}: row {row.name!r} needs the checkpoint of step {step}. In the scale's "
                    f"file, that must be a multiple of save_checkpoints_steps ({every}), and keep_checkpoint_max 0."
                )
            file = f"model.ckpt-{step}"
            weights = Output("", weights, file) if row.checkpoint == 1 else Output(file, weights)
        if weights is not None:
            return {"init_checkpoint": weights}
        if not self._init_checkpoint:
            return {"vocab_file": self._vocabulary, "bert_config_file": Output(_CONFIG)}
        config = self._of_checkpoint(_CONFIG)
        config = config if os.path.exists(config.path) else self._of_checkpoint("config.json")
        return {"vocab_file": self._of_checkpoint(_VOCAB), "bert_config_file": config}

    def _ensemble(self, runs: list[Piece], task: Task) -> Piece:
        flags = {name: value for name, value in runs[0].flags.items() if name not in _FOR_TRAINING}
        flags |= {"ensemble_dirs": [Output("", run) for run in runs], "output_dir": Output("")}
        work, used_for = len(runs) * runs[0].work / 10, runs[0].used_for.rpartition(",")[0]
        return Piece("ensemble", task.program, flags, work, 1e7, used_for=used_for)

    def _of_checkpoint(self, *name: str) -> Source:
        folder = os.path.normpath(self._init_checkpoint)
        return Source(os.path.join(folder, *name), os.path.join(os.path.basename(folder), *name))
