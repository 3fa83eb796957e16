"""Reproduces a table or a figure of the paper at a chosen scale, and compares the scores with the paper's.

    python -m experiments table5 --scale=tiny --data_dir=DATA [--list | --report]

Finished runs are skipped, so you can repeat the command after an interruption. The tables are in
WORK_DIR/tables.
"""

import os
import re

from absl import flags

from bert_tf.runtime import program
from bert_tf.runtime.files import InputError
from experiments import report, runner, schema
from experiments.assembly import Assembly
from experiments.runs import check_data

_SCALE = flags.DEFINE_enum("scale", "smoke", schema.SCALES, "smoke: minutes; tiny: hours; paper: as published.")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "Directory of the data. Default for smoke: this repository.")
_WORK_DIR = flags.DEFINE_string("work_dir", "build/experiments", "Directory of all runs and tables.")
_INIT_CHECKPOINT = flags.DEFINE_string(
    "init_checkpoint", "", "Pre-trained model for rows that do not change pre-training."
)
_ONLY = flags.DEFINE_list("only", [], "Rows and columns to include. Their names become part of the file names.")
_LIST = flags.DEFINE_bool("list", False, "Print each run, its state and its command, without running any.")
_REPORT = flags.DEFINE_bool("report", False, "Write the table of the finished runs, without running any.")
_DEVICE_FLAGS = flags.DEFINE_list("device_flags", [], "Flags that select the training devices, such as --use_tpu.")


def main(*names: str) -> None:
    """Lists, runs or reports tables."""
    if not names:
        raise InputError(f"No table or figure is given. Pass one of {', '.join(schema.NAMES)}.")
    scale, data_dir = schema.load_scale(_SCALE.value), _DATA_DIR.value
    if data_dir is None and _SCALE.value != "smoke":
        raise InputError(
            f"--scale={_SCALE.value} trains on {scale.corpus.fetch}. Pass the directory of this data as --data_dir."
        )
    programs = runner.Runner(_WORK_DIR.value, _DEVICE_FLAGS.value)
    arguments = data_dir or str(schema.DIRECTORY.parent), _WORK_DIR.value, _INIT_CHECKPOINT.value, _ONLY.value
    tables = {name: Assembly(schema.load_experiment(name, _SCALE.value), scale, *arguments) for name in names}
    runs = [run for table in tables.values() for run in table.runs]
    if _LIST.value:  # works without the data
        print(programs.listing(runs))
        return
    check_data(runs)
    if not _REPORT.value:
        programs.check(runs)
    failed = "" if _REPORT.value else programs.run(runs)
    suffix = "".join(f".{re.sub(r'[^-+.A-Za-z0-9]+', '_', name)}" for name in _ONLY.value)
    for name, table in tables.items():
        file = f"{os.path.basename(name).removesuffix('.toml')}.{_SCALE.value}{suffix}"
        path = os.path.join(_WORK_DIR.value, "tables", file)
        print(report.Table(table.experiment, table.cells, programs).write(path, table.left_out))
    if failed:
        raise InputError(failed)


if __name__ == "__main__":
    program.run(main, takes_names=True)
