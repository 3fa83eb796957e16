"""A part of what the torture chamber does, and that it tells what is not held."""

import collections
import random

import pytest

from tests import programs
from tests.torture import damage, faults, fuzz, jobs


def test_kills_damage_full_disks_strange_names_and_several_writers_are_held():
    output = programs.run("-m", "tests.torture", "--seed=7", "--trial=1", "--only=kills,damage,disk,names,workers")
    assert "5 trials of kills,damage,disk,names,workers: 0 not held." in output


@pytest.mark.parametrize("examine", [fuzz.table, fuzz.json_text, fuzz.packed], ids=lambda examine: examine.__name__)
def test_properties_hold(examine, tmp_path):
    tools = fuzz.Tools(str(tmp_path), None, None, random.Random(5), collections.Counter())
    fuzz.examine(examine, tools, seed=5)
    assert sum(tools.counts.values())


def test_what_is_not_held_is_told_with_the_command_that_repeats_it():
    program = """
import json, sys
from tests.torture import __main__, jobs

def write_in_place(folder):
    path = folder / "x.json"
    if path.exists():
        json.loads(path.read_text())
    with open(path, "w") as writer:
        writer.write("[1, 2]")

jobs.JOBS = {"careless": (lambda folder: None, write_in_place)}
sys.argv[1:] = ["--only=kills", "--seed=3", "--trials=1"]
sys.exit(__main__.main())
"""
    output = programs.run("-c", program, expect=1)
    assert "Again: python -m tests.torture --only=kills --seed=3 --trial=0" in output
    assert "1 trials of kills: 1 not held." in output


def test_every_operation_is_counted(tmp_path):
    operations = faults.Operations()
    with faults.under(operations):
        jobs.answer_lines(tmp_path)
    assert operations.count >= 4  # it is opened, written, flushed to the disk and renamed
    for at in (1, 3, 4, 9):
        with pytest.raises(OSError, match="Input/output error"), faults.under(faults.Operations(at, faults.failing(5))):
            jobs.answer_lines(tmp_path)
    assert (tmp_path / "answers.jsonl").read_text() == "".join(f"{number}\n" for number in range(9))


def test_damage_changes_files():
    rng = random.Random(1)
    changed = [damage.changed(b'{"a": [1, 2]}\n' * 9, rng) for _ in range(99)]
    assert len(set(changed)) > 80
