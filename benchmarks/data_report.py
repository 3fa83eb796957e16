"""Measures the share of a program's processor time that the checks of its data take.

    python -m benchmarks.data_report data_prep.create_pretraining_data --input_file=TEXT --output_file=RECORDS ...
    python -m benchmarks.data_report run_classifier --do_train --dry_run ...

The arguments are a module and its flags. The program runs in this process. Pass --num_workers=1, so that no other
process works for it.
"""

import functools
import importlib
import runpy
import sys
import time
from typing import Any

# The functions that look at the data, as the modules that call them know them.
_CHECKS = {
    "data_prep.create_pretraining_data": {
        "data_prep.examples.records": ["count_examples"],
        "data_prep.create_pretraining_data": ["report_sample"],
    },
    "run_classifier": {
        "bert_tf.data_report.splits": ["report_split"],
        "bert_tf.finetuning.finetune": ["shared_rows"],
        "bert_tf.tasks.sentences.own_files": ["unusual_classes", "contradictions", "unusual_scores"],
    },
}
_CHECKS["run_squad"] = _CHECKS["run_classifier"]


def timed(function, times: list[float]):
    """Returns a function that adds its processor time to a list. It returns lists instead of generators."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        start = time.process_time()
        result = function(*arguments, **options)
        result = list(result) if hasattr(result, "__next__") else result
        times.append(time.process_time() - start)
        return result

    return call


def main() -> None:
    """Runs the program, and prints a line for each check."""
    name, times = sys.argv[1], {}
    for module_name, checks in _CHECKS[name].items():
        module = importlib.import_module(module_name)
        for check in checks:
            setattr(module, check, timed(getattr(module, check), times.setdefault(check, [])))
    sys.argv = sys.argv[1:]
    try:
        if name in sys.modules:  # the checks of this module are timed
            sys.modules[name].cli()
        else:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
    finally:
        total = time.process_time()  # since the start of the process
        for check, values in times.items():
            spent = sum(values)
            print(f"{check}: {len(values)} calls, {spent * 1e3:.1f} ms, {spent / total:.2%} of {total:.1f} s")


if __name__ == "__main__":
    main()
