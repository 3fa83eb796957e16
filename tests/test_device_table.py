"""Tests the search for the largest batch of a device. The compilers are not needed."""

import json

import pytest

from benchmarks.device_table import Estimate, extrapolated, first_batch, largest_batch, scaled_to
from tests import programs

# A step that needs 4 GiB of memory, and 0.5 GiB more for each sequence.
WEIGHTS, FIXED, EACH = 3.0, 4.0, 0.5


def estimate(batch):
    return Estimate(WEIGHTS, FIXED + EACH * batch, 2.0 * batch)


def test_further_layers_continue_the_straight_line():
    assert extrapolated(Estimate(1.0, 2.0, 10.0), Estimate(2.0, 5.0, 16.0), 12) == Estimate(6.0, 17.0, 40.0)


@pytest.mark.parametrize("first", [1, 8, 64])
@pytest.mark.parametrize(("limit", "batch"), [(4.2, 0), (4.5, 1), (8.0, 8), (11.9, 8), (12.0, 16)])
def test_the_largest_batch_fits_and_twice_as_many_do_not(limit, batch, first):
    found, cell = largest_batch(estimate, limit, first)
    assert found == batch
    assert cell == (estimate(batch) if batch else None)
    if batch:
        assert first_batch(estimate(first), first, limit) == batch


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_memory_that_grows_with_the_batch_is_scaled(batch):
    assert scaled_to(estimate, 8, batch) == estimate(batch)._replace(milliseconds=None)


def test_a_batch_that_is_clearly_too_large_is_not_compiled():
    compiled = []
    largest_batch(lambda batch: compiled.append(batch) or estimate(batch), 8.0, 8)
    assert compiled == [8]


def test_finished_cells_are_printed_and_not_made_again(tmp_path):
    cells = [("v5e", 128, 256, "libtpu==0.0.31"), ("gpu16", 128, 256, "xla"), ("v2", 512, 0, "libtpu==0.0.31")]
    lines = [
        {"device": device, "size": "base", "length": length, "recompute": "no", "compiler": compiler, "batch": batch}
        | {"milliseconds": 301.44 if batch else None, "estimate": [1.23, 11.98, 301.44] if batch else None}
        for device, length, batch, compiler in cells
    ]
    (tmp_path / "cells").write_text("".join(json.dumps(line) + "\n" for line in lines))
    flags = [f"--results={tmp_path}/cells", "--devices=v5e", "--sizes=base", "--max_seq_lengths=128"]
    flags += ["--recomputes=no"]
    printed = programs.run("-m", "benchmarks.device_table", *flags, "--python=/nowhere").splitlines()
    assert [line.split() for line in printed[2:]] == [
        ["v5e", "base", "128", "no", "libtpu==0.0.31", "256", "301.4", "12.0", "14.0"],
        ["gpu16", "base", "128", "no", "xla", "256", "301.4", "12.0", "14.0"],
        ["v2", "base", "512", "no", "libtpu==0.0.31", "0", "-", "-", "-"],
    ]
