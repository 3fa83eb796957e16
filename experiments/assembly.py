"""Assembles a table at a scale: finds the run for each cell and seed."""

import functools
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from bert_tf.runtime import differences
from bert_tf.runtime.files import InputError, exists
from experiments.runs import THIS, File, Run
from experiments.schema import Experiment, Row, Scale, Task

_VOCAB, _CONFIG, _RECORDS = "vocab.txt", "bert_config.json", "data.tfrecord"
_LENGTHS = ("max_seq_length", "max_predictions_per_seq")
# Flags of `run_squad` for training. They are removed for an ensemble, which is not trained.
_FOR_TRAINING = {"do_train", "train_file", "init_checkpoint", "bert_config_file", "vocab_file", "output_dir"}
_FOR_TRAINING |= {"random_seed", "learning_rate", "train_batch_size", "num_train_epochs", "keep_checkpoint_max"}


class Cell(NamedTuple):
    """A score of one run."""

    row: Row
    in_file: str  # the column's heading in the table's file
    heading: str  # the heading at this scale, with the data set if the scale replaces it
    seed: int | None  # None if there is one run for all seeds
    run: Run


class Assembly:
    """Finds the runs of a table.

    Args:
      experiment: The table.
      scale: The scale.
      data_dir: The directory of the data.
      work_dir: The directory of the runs.
      init_checkpoint: The directory of a finished model. It replaces pre-training in the rows that do not change it.
      only: The rows and columns to include. Without a row, all rows are included; likewise for columns.

    Attributes:
      experiment: The table.
      cells: The cells, row by row.
      runs: The run of each cell.
      left_out: Columns and cells for which the scale has no data.

    Raises:
      InputError: if a name in `only` does not exist, or no cell is left.
    """

    def __init__(
        self,
        experiment: Experiment,
        scale: Scale,
        data_dir: str,
        work_dir: str,
        init_checkpoint: str = "",
        only: Collection[str] = (),
    ) -> None:
        self.experiment, self._scale, self._data_dir = experiment, scale, data_dir
        self._work_dir, self._init_checkpoint = work_dir, init_checkpoint.rstrip("/")
        self._source = functools.cache(self._new_source)  # each file is read only once
        self.left_out: list[str] = []
        columns = self._columns()
        cells = [cell for row in experiment.rows for column in columns for cell in self._cells(row, *column)]
        names = [{cell.row.name for cell in cells}, {cell.in_file for cell in cells}]
        rows, headings = (names_of_kind.intersection(only) or names_of_kind for names_of_kind in names)
        self.cells = [cell for cell in cells if cell.row.name in rows and cell.in_file in headings]
        self.runs = [cell.run for cell in self.cells]
        if not cells or not set(only) <= set.union(*names):
            has = f"the rows {sorted(names[0])} and the columns {sorted(names[1])}"
            raise InputError(f"--only: {experiment.title} has {has} at this scale. Pass only these names.")

    def _new_source(self, name: str, fetch: str, directory: str | None = None) -> File:
        path = os.path.join(self._data_dir if directory is None else directory, name)
        return File(f"{name} ({differences.fingerprint(path)})", path, fetch=fetch)

    def _output(self, run: Run, name: str, file: str = "") -> File:
        """Returns a file or directory that a run writes. `file` is not in the settings of the run that reads it."""
        return File(f"{run.name}/{name}", os.path.join(self._work_dir, "runs", run.name, name + file), run)

    def _columns(self) -> list[tuple[str, str, str]]:
        """Returns (heading in the file, heading at this scale, task) per column. A task replaces at most one."""
        included, tasks, columns = [], self._scale.tasks, self.experiment.columns
        replaced = {column.task: column.task for column in columns.values()}
        for in_file, column in columns.items():
            task = column.task if column.task in (*tasks, "pretraining") else self._scale.instead.get(column.task, "")
            if task and replaced.setdefault(task, column.task) == column.task:
                label = (tasks[task].label if task in tasks else "") or (task if task != column.task else "")
                included.append((in_file, f"{in_file} ({label})" if label else in_file, task))
            else:
                self.left_out.append(in_file)
        return included

    def _cells(self, row: Row, in_file: str, heading: str, name: str) -> list[Cell]:
        column = self.experiment.columns[in_file]
        task, flags = self._scale.tasks.get(row.tasks.get(column.task, name)), {**row.finetuning, **column.finetuning}
        by_seed: dict[int | None, Any] = {None: self._pretraining(row)} if name == "pretraining" else {}
        # Features of random weights are excluded, because there is no model to compute them.
        if name != "pretraining" and (task is None or (row.pretraining is False and "feature_layers" in flags)):
            self.left_out.append(f"{row.name}, {heading}")
        elif name != "pretraining":
            seeds = self.experiment.seeds or self._scale.seeds
            by_seed = {seed: self._finetuning(row, task, flags, seed, heading) for seed in seeds}
            by_seed = {None: self._ensemble([*by_seed.values()], task)} if row.ensemble else by_seed
        return [Cell(row, in_file, heading, seed, run) for seed, run in by_seed.items() if isinstance(run, Run)]

    @functools.cached_property
    def _vocabulary(self) -> File:
        vocabulary, corpus = self._scale.vocabulary, self._scale.corpus
        if "file" in vocabulary:
            return self._source(vocabulary["file"], vocabulary["fetch"])
        names = [self._source(name, corpus.fetch) for name in corpus.files]
        flags = {"input_file": names, **vocabulary, "output_file": _of_this(_VOCAB)}
        return self._output(Run("vocabulary", "data_prep.build_vocab", flags), _VOCAB)

    def _records(self, names: Sequence[str], flags: Mapping[str, Any]) -> File:
        texts = [self._source(name, self._scale.corpus.fetch) for name in names]
        # With --masking=dynamic, tokens are masked during training.
        flags = {x: y for x, y in flags.items() if x != "max_predictions_per_seq" or flags.get("masking") != "dynamic"}
        all_flags = {"input_file": texts, "vocab_file": self._vocabulary, **flags, "output_file": _of_this(_RECORDS)}
        run = Run("data", "data_prep.create_pretraining_data", all_flags)
        return self._output(run, f"{_RECORDS}-*" if flags.get("num_shards") else _RECORDS)

    def _pretraining(self, row: Row) -> Run | None:
        """Returns the pre-training run of a row; None if the row has none, or if a finished model replaces it."""
        is_replaced = self._init_checkpoint and not (row.model or row.data or row.second_data or row.pretraining)
        if row.pretraining is False or is_replaced:
            return None
        scale, first = self._scale, {**self._scale.data, **row.data}
        flags = {"do_train": True, "vocab_file": self._vocabulary, "bert_config_file": _of_this(_CONFIG)}
        # Losses are comparable only if all rows read the same sequences, with the same masks if the data is masked.
        held_out = {**scale.data, **scale.second_data, "dupe_factor": 1}
        held_out |= {name: value for name, value in row.data.items() if name == "objective"}
        sets = [("", scale.corpus.files, first), ("eval_", scale.corpus.held_out, held_out)]
        if changes := {**scale.second_data, **row.second_data}:
            sets.insert(1, ("second_", scale.corpus.files, {**first, **changes}))
        for prefix, names, data in sets:
            flags |= {f"{prefix}input_file": self._records(names, data), **{f"{prefix}{x}": data[x] for x in _LENGTHS}}
        flags |= {**scale.pretraining, **row.pretraining, "output_dir": _of_this("")}
        return Run("pretraining", "run_pretraining", flags, {**scale.model, **row.model}, row.name)

    def _finetuning(self, row: Row, task: Task, changes: Mapping[str, Any], seed: int, heading: str) -> Run:
        flags = {flag: [self._source(name, task.fetch) for name in names] for flag, names in task.files.items()}
        flags = {flag: sources if len(sources) > 1 else sources[0] for flag, sources in flags.items()}
        flags |= {"do_train": True, **task.flags, **changes, "random_seed": seed, **self._first_weights(row)}
        if not {"feature_layers", "bilstm_layers"} & flags.keys():
            flags.pop("bilstm_units", None)  # a flag of the task that only rows with a BiLSTM use
        model = {**self._scale.model, **row.model} if flags.get("bert_config_file") == _of_this(_CONFIG) else None
        flags["output_dir"] = _of_this("")
        return Run("finetuning", task.program, flags, model, f"{row.name}, {heading}, seed {seed}")

    def _first_weights(self, row: Row) -> dict[str, File]:
        """Returns the flags that set the initial weights of fine-tuning."""
        if run := self._pretraining(row):
            file = f"model.ckpt-{round(row.checkpoint * run.flags['num_train_steps'])}"
            return {"init_checkpoint": self._output(run, *(("", file) if row.checkpoint == 1 else (file,)))}
        if not self._init_checkpoint:
            return {"vocab_file": self._vocabulary, "bert_config_file": _of_this(_CONFIG)}
        directory, name = os.path.split(self._init_checkpoint)
        fetch = "a finished model (--init_checkpoint)"
        if row.pretraining is not False:
            return {"init_checkpoint": self._new_source(name, fetch, directory)}
        config = _CONFIG if exists(os.path.join(self._init_checkpoint, _CONFIG)) else "config.json"
        files = {"vocab_file": _VOCAB, "bert_config_file": config}
        return {flag: self._new_source(os.path.join(name, file), fetch, directory) for flag, file in files.items()}

    def _ensemble(self, runs: list[Run], task: Task) -> Run:
        flags = {name: value for name, value in runs[0].flags.items() if name not in _FOR_TRAINING}
        flags |= {"ensemble_dirs": [self._output(run, "") for run in runs], "output_dir": _of_this("")}
        return Run("ensemble", task.program, flags, used_for=runs[0].used_for.rpartition(",")[0])


def _of_this(name: str) -> File:
    return File(f"this/{name}", os.path.join(THIS, name))
