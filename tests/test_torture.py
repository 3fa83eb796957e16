"""Runs a few trials of `python -m tests.torture`, and checks that it reports broken promises."""

import pytest

from tests import programs
from tests.torture import damage, kills


def test_kills_damage_and_properties_are_held():
    output = programs.run("-m", "tests.torture", "--seed=7", "--trial=1", "--only=kills,damage,properties")
    assert "3 trials of kills,damage,properties: 0 not held." in output


@pytest.mark.parametrize("name", damage.FORMATS)
def test_every_format_is_read(tmp_path, name):
    write, read = damage.FORMATS[name]
    write(tmp_path)
    read(tmp_path)


def test_a_broken_promise_is_reported_with_the_command_that_repeats_it():
    program = """
import json, sys
from tests.torture import __main__, kills

def write_in_place(directory):
    path = directory / "x.json"
    if path.exists():
        json.loads(path.read_text())
    with open(path, "w") as writer:
        writer.write("[1, 2]")

kills.JOBS[:] = [write_in_place]
sys.argv[1:] = ["--only=kills", "--seed=3", "--minutes=0"]
sys.exit(__main__.main())
"""
    output = programs.run("-c", program, expect=1)
    assert "Again: python -m tests.torture --only=kills --seed=3 --trial=0" in output
    assert "1 trials of kills: 1 not held." in output


def test_every_operation_can_be_the_last(tmp_path):
    for at in (1, 2, 3, 4, 9):
        assert kills.run(kills.answer_lines, tmp_path, at) == (kills.KILLED, "")
    status, operations = kills.run(kills.answer_lines, tmp_path)
    assert status == 0 and int(operations) >= 9
    assert (tmp_path / "answers.jsonl").read_text() == "".join(f"{number}\n" for number in range(9))
