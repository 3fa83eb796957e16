"""Runs a table or a figure of the paper at a size that you can afford, and writes it beside the paper's.

    python -m experiments table5 --scale=tiny --data_dir=DATA [--plan | --list | --report]

Start it again after any interruption, and it goes on. Start it on several machines that share --work_dir, and they
share the work. The tables are in WORK_DIR/tables.
"""

import os
import re

from absl import flags

from bert_tf.runtime import program
from bert_tf.runtime.files import InputError
from experiments import report, runner, schema
from experiments.assembly import Assembly
from experiments.pieces import check_data

_SCALE = flags.DEFINE_enum("scale", "smoke", schema.SCALES, "smoke: minutes; tiny: hours; paper: as published.")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "The folder of the data; for smoke, by default this repository.")
_WORK_DIR = flags.DEFINE_string("work_dir", "build/experiments", "The folder of all runs and tables.")
_INIT_CHECKPOINT = flags.DEFINE_string("init_checkpoint", "", "A finished model, for rows that pre-train as the scale.")
_ONLY = flags.DEFINE_list("only", [], "Only these rows and these columns, in files that are named after them.")
_PLAN = flags.DEFINE_bool("plan", False, "Print what is finished, what is left, and its expected cost; run nothing.")
_LIST = flags.DEFINE_bool("list", False, "Print each run, its state and its command; run nothing.")
_REPORT = flags.DEFINE_bool("report", False, "Write the table of what is finished; run nothing.")
_ALLOW_CHANGES = flags.DEFINE_bool("allow_changes", False, "Run an experiment that has changed since its runs began.")
_DEVICE_FLAGS = flags.DEFINE_list("device_flags", [], "Flags that say where training runs, such as --use_tpu.")


def main(*names: str) -> None:
    """Plans, runs or reports the tables that are named."""
    if not names:
        raise InputError(f"Name a table or a figure: {', '.join(schema.NAMES)}.")
    scale, data_dir = schema.load_scale(_SCALE.value), _DATA_DIR.value
    if data_dir is None and _SCALE.value != "smoke":
        raise InputError(f"--data_dir is needed. --scale={_SCALE.value} trains on {scale.corpus.fetch}.")
    runs = runner.Runner(_WORK_DIR.value, _DEVICE_FLAGS.value)
    given = data_dir or str(schema.FOLDER.parent), _INIT_CHECKPOINT.value, _ONLY.value
    tables = {name: Assembly(schema.load_experiment(name, _SCALE.value), scale, *given) for name in names}
    if _PLAN.value or _LIST.value:  # which may be asked for before there are any data
        for table in tables.values():
            shown = report.plan(table.pieces, runs, scale) if _PLAN.value else report.listing(table.pieces, runs)
            print(f"{table.experiment.title}\n{shown}")
        return
    pieces = [piece for table in tables.values() for piece in table.pieces]
    check_data(pieces)
    if not _REPORT.value:
        runs.check(pieces)
        for name, table in tables.items():
            runner.record_beginning(f"{_path(name)}.json", table.cells, _ALLOW_CHANGES.value)
    # A part never replaces the whole.
    part, failed = "".join(f".{re.sub(r'[^-+.A-Za-z0-9]+', '_', name)}" for name in _ONLY.value), []
    for name, table in tables.items():
        try:
            runs.run([] if _REPORT.value else table.pieces)
        except InputError as error:
            failed.append(f"{name}: {error}")
        print(report.Table(table.experiment, table.cells, runs).write(_path(name) + part, table.left_out))
    if failed:
        raise InputError("\n".join(failed))


def _path(name: str) -> str:
    """Where a table is written, without the ending."""
    return os.path.join(_WORK_DIR.value, "tables", f"{os.path.basename(name).removesuffix('.toml')}.{_SCALE.value}")


if __name__ == "__main__":
    program.run(main, takes_names=True)
