"""Tests the comparison with other libraries: the checks at the start, and the description of the machine."""

import json
import os

import pytest
import tensorflow as tf

from benchmarks import machine
from tests import programs

PEERS = {"torch": "2.13.0", "transformers": "5.24.0", "GPU": "no GPU"}


@pytest.mark.parametrize(
    ("tasks", "place", "word"),
    [("codah,rte", "--tasks", "rte"), ("codah,vectors", "--compare_python", "sentence-transformers")],
)
def test_tasks_that_cannot_run_end_it(write, tasks, place, word):
    python = write("python", f"#!/bin/sh\necho '{json.dumps(PEERS)}'\n")
    os.chmod(python, 0o755)
    command = ["-m", "benchmarks.side_by_side", "--model=/nowhere", f"--compare_python={python}", f"--tasks={tasks}"]
    shown = programs.run(*command, expect=1)
    assert place in shown and word in shown
    assert "Traceback" not in shown


def test_the_machine_is_one_line_with_versions():
    line = machine.describe(PEERS)
    assert f"tensorflow {tf.__version__} (" in line
    assert line.endswith("torch 2.13.0 (no GPU), transformers 5.24.0")
    assert " cores, " in line and " GiB, " in line and "\n" not in line
