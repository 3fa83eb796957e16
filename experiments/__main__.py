"""Runs a table or a figure of the paper at a size that you can afford, and writes it beside the paper's.

    python -m experiments table5 --scale=tiny --data_dir=DATA [--plan | --list | --report]

Start it again after any interruption, and it goes on. Start it on several machines that share --work_dir, and they
share the work. The tables are in WORK_DIR/tables.
"""

import os

from absl import flags

from bert_tf.runtime import program
from bert_tf.runtime.files import InputError
from experiments import report, runner, schema
from experiments.assembly import Assembly
from experiments.pieces import check_data

_SCALE = flags.DEFINE_enum("scale", "smoke", schema.SCALES, "smoke: minutes; tiny: hours; paper: as published.")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "The folder of the data; for smoke, by default this repository.")
_WORK_DIR = flags.DEFINE_string("work_dir", "build/experiments", "The folder of all runs and tables.")
_INIT_CHECKPOINT = flags.DEFINE_string(
    "init_checkpoint", "", "A finished model's folder, instead of pre-training, for rows that change nothing of it."
)
_ONLY = flags.DEFINE_list("only", [], "Only these rows and these columns of the table.")
_PLAN = flags.DEFINE_bool("plan", False, "Print what is finished, what is left, and its expected cost; run nothing.")
_LIST = flags.DEFINE_bool("list", False, "Print each run, its state and its command; run nothing.")
_REPORT = flags.DEFINE_bool("report", False, "Write the table of what is finished; run nothing.")
_ALLOW_CHANGES = flags.DEFINE_bool("allow_changes", False, "Run an experiment that has changed since its runs began.")
_DEVICE_FLAGS = flags.DEFINE_list("device_flags", [], "Flags that say where training runs, such as --use_tpu.")


def main(*names: str) -> None:
    """Plans, runs or reports the tables that are named."""
    if not names:
        raise InputError(f"Name a table or a figure: {', '.join(schema.experiment_names())}.")
    scale, data_dir = schema.load_scale(_SCALE.value), _DATA_DIR.value
    if data_dir is None and _SCALE.value != "smoke":
        raise InputError(f"--data_dir is needed. --scale={_SCALE.value} trains on {scale.corpus.fetch}.")
    runs = runner.Runner(_WORK_DIR.value, _DEVICE_FLAGS.value)
    only = set(_ONLY.value)
    for name in names:
        experiment = schema.load_experiment(name, _SCALE.value)
        assembly = Assembly(experiment, scale, data_dir or str(schema.FOLDER.parent), _INIT_CHECKPOINT.value)
        cells = assembly.cells
        for named in ({cell.row.name for cell in cells} & only, {cell.in_file for cell in cells} & only):
            cells = [cell for cell in cells if not named or named & {cell.row.name, cell.in_file}]
        if unknown := only - {x for cell in cells for x in (cell.row.name, cell.in_file)}:
            raise InputError(f"--only: {name} has no row and no column {min(unknown)!r} at this scale.")
        pieces = [cell.piece for cell in cells]
        if _PLAN.value or _LIST.value:
            print(report.plan(pieces, runs, scale) if _PLAN.value else report.listing(pieces, runs))
            continue
        path = os.path.join(_WORK_DIR.value, "tables", f"{os.path.basename(name).removesuffix('.toml')}.{_SCALE.value}")
        if not _REPORT.value:
            check_data(pieces)
            runner.record_beginning(f"{path}.json", cells, _ALLOW_CHANGES.value)
            runs.run(pieces)
        print(report.Table(experiment, cells, runs).write(path, assembly.left_out))


if __name__ == "__main__":
    program.run(main, takes_names=True)
