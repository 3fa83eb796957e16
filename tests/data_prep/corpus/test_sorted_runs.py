import numpy as np
import pytest

from data_prep.corpus.sorted_runs import RunWriter, cut_keys, gather, merge, runs_of

RECORD = np.dtype([("number", "<i8"), ("odd", "u1")])


@pytest.fixture
def runs(tmp_path):
    """The runs of three writers, with 200 records each, of which many have equal keys."""
    keys = np.random.default_rng(0).integers(0, 40, 600).astype(np.uint64) * np.uint64((1 << 64) // 40)
    records = np.zeros(600, RECORD)
    records["number"] = np.arange(600)
    found = []
    for writer_number in range(3):
        stem = str(tmp_path / f"part-{writer_number}")
        writer = RunWriter(stem, RECORD, 50)
        for first in range(writer_number * 200, writer_number * 200 + 200, 30):
            own = slice(first, min(first + 30, writer_number * 200 + 200))
            writer.add(keys[own], records[own])
        writer.finish()
        found += runs_of(stem, writer.runs)
    order = np.argsort(keys, kind="stable")
    return found, keys[order], records[order]


def test_ranges_of_keys_are_gathered_in_order(runs):
    found, keys, records = runs
    assert len(found) == 12 and sum(run.records for run in found) == 600
    for count in (1, 7):
        gathered = [gather(found, first, end, RECORD) for first, end in cut_keys(count)]
        for expected, column in zip((keys, records), zip(*gathered, strict=True), strict=True):
            np.testing.assert_array_equal(np.concatenate(column), expected)
    assert [len(column) for column in gather([], 0, 1 << 64, RECORD)] == [0, 0]


@pytest.mark.parametrize("at_a_time", [10, 10_000])
def test_merged_runs_are_one_run(runs, tmp_path, at_a_time):
    found, keys, records = runs
    merged = merge(found, str(tmp_path / "merged"), RECORD, at_a_time)
    assert merged.records == 600
    for expected, column in zip((keys, records), merged.between(0, 1 << 64, RECORD), strict=True):
        np.testing.assert_array_equal(column, expected)
