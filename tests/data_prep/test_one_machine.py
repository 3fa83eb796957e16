import collections
import dataclasses
import errno
import itertools
import json
import os
import pathlib
import re
from unittest import mock

import pytest

from bert_tf.pretraining import record_shards
from bert_tf.runtime import files
from bert_tf.runtime.storage import locks
from data_prep import one_machine
from data_prep.corpus import files as corpus_files, tokens
from data_prep.examples import instances
from tests import programs
from tests.conftest import assert_refused
from tests.data_prep.corpora import PIECES, features, make, preparation_config, records, write_corpus, write_vocab


def run_program(directory, output, *more, text="text.txt", expect=0):
    """Runs the program with a text and a vocabulary in a directory; returns the output."""
    files = {"input": text, "vocab": "vocab.txt", "output": output}
    flags = [f"--{name}_file={directory / path}" for name, path in files.items()]
    flags += ["--max_seq_length=24", "--max_predictions_per_seq=4", "--num_workers=1", "--dupe_factor=1"]
    return programs.run("-m", "data_prep.create_pretraining_data", *flags, *more, expect=expect)


@pytest.fixture
def text(tmp_path):
    write_vocab(tmp_path)
    return write_corpus(tmp_path / "text.txt")


@pytest.fixture
def small_pieces(monkeypatch):
    """Divides a small corpus into many jobs, and reads few sentences at a time."""
    monkeypatch.setattr(corpus_files, "_SPLIT_BYTES", (300, 300))
    monkeypatch.setattr(one_machine, "_RANGE_EXAMPLES", (20, 20))
    monkeypatch.setattr(one_machine, "_SORTED_EXAMPLES", (50, 50))
    monkeypatch.setattr(instances, "_FEW_SENTENCES", 2)


def contents(paths):
    return [pathlib.Path(path).read_bytes() for path in paths]


def test_output_does_not_depend_on_how_the_work_is_divided(text, tmp_path, small_pieces, monkeypatch):
    def made(num_workers=1, work="", **options):
        paths, counts = make(tmp_path, text, num_workers=num_workers, work_dir=f"work-{num_workers}{work}", **options)
        return paths, [contents(paths), contents(f"{path}.meta.json" for path in paths), counts]

    paths, divided = made(num_shards=3)
    assert divided[-1]["records"] == sum(len(list(records(path))) for path in paths)
    for num_workers in (2, 7):
        assert made(num_workers, num_shards=3)[1] == divided
    monkeypatch.undo()
    assert made(work="-whole", num_shards=3)[1][0] == divided[0]
    assert made(work="-seed", num_shards=3, random_seed=8)[1][0] != divided[0]
    assert made(work="-one", output="one.tfrecord")[1][0] == [b"".join(divided[0])]


def test_a_store_larger_than_the_memory_and_windows_without_examples_give_the_same_output(
    text, tmp_path, small_pieces, monkeypatch
):
    expected = contents(make(tmp_path, text, output="expected", num_shards=3, dupe_factor=1)[0])
    announced = []
    monkeypatch.setattr(tokens, "available_memory", lambda: 100)
    monkeypatch.setattr(tokens, "_ANNOUNCED_SPANS", 3)
    monkeypatch.setattr(os, "posix_fadvise", lambda *span: announced.append(span))
    monkeypatch.setattr(one_machine, "_BATCH", 5)
    for module, name, value in (
        (one_machine, "_READ_TOGETHER", 7),
        (one_machine, "_SORTED_EXAMPLES", (1, 1)),  # at the end of a part, there may be nothing to sort
        (instances, "_SENTENCES_AT_A_TIME", 1),  # a chunk may cover complete windows
    ):
        monkeypatch.setattr(module, name, value)
        paths, _ = make(tmp_path, text, output="small", num_shards=3, dupe_factor=1, work_dir=f"work-{len(announced)}")
        assert contents(paths) == expected
    assert len(announced) > 300 and all(count > 0 for _, _, count, _ in announced)


def test_random_segments_come_from_other_documents(tmp_path):
    write_vocab(tmp_path)
    text = write_corpus(tmp_path / "text.txt", documents=9, marks=True)
    unchanged = {"mask": 0.0, "same": 1.0, "random": 0.0}
    paths, _ = make(tmp_path, text, dupe_factor=20, max_seq_length=96, short_seq_prob=0.0, **unchanged)
    labels = collections.Counter()
    for record in records(paths[0]):
        example = features(record)
        separator = example["input_ids"].index(PIECES.index("[SEP]"))
        # Sentences begin with the mark of their document and end with a full stop. The front of a segment may be cut.
        sides = example["input_ids"][1:separator], example["input_ids"][separator + 1 :]
        stop = PIECES.index(".")
        marks = [{b for a, b in itertools.pairwise(side) if a == stop and b >= 6} for side in sides]
        if marks[0] and marks[1]:
            labels[example["next_sentence_labels"][0], marks[0] == marks[1]] += 1
            assert len(marks[0]) == len(marks[1]) == 1
    assert set(labels) == {(0, True), (1, False)}
    assert min(labels.values()) > 10


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("one.txt", "ba co.\nfu di.\n", "a single document"),
        ("none.txt", "\n\n \n", "no text"),
        ("x.jsonl", '{"body": "a"}\n' * 2, r"files contain no text\. Add text\. Skipped 2 lines .*x\.jsonl line 1"),
    ],
)
def test_a_corpus_without_two_documents_is_refused(tmp_path, write, name, text, found):
    write_vocab(tmp_path)
    assert_refused(found, make, tmp_path, write(name, text))


def test_another_program_that_makes_the_same_files_is_named(text, tmp_path):
    with locks.claimed(f"{tmp_path}/out.work", "--work_dir", "work"):
        refused = run_program(tmp_path, "out", expect=1)
    assert re.search(r"error: --work_dir: process .* prepares data in .*out\.work", refused)
    refused = run_program(tmp_path, "out", "--work_dir=/proc/x", expect=1)
    assert "error: --work_dir: /proc: no files can be created" in refused
    run_program(tmp_path, "out")
    assert sorted(os.listdir(tmp_path)) == ["out", "out.meta.json", "text.txt", "vocab.txt"]


def test_a_preparation_that_is_killed_at_any_operation_goes_on(monkeypatch):
    """Runs trial 4 of `torture.kills`, `prepare_data`, with fewer kills."""
    if os.path.isdir("/dev/shm"):  # there are many kills, and waiting for the disk takes long
        monkeypatch.setenv("TMPDIR", "/dev/shm")
    program = "import sys; from tests.torture import __main__, kills; kills._KILLS = 30; sys.exit(__main__.main())"
    printed = programs.run("-c", program, "--trial=4", "--only=kills")
    assert "30 kills" in printed and "0 not held" in printed


def test_lost_files_are_named(text, tmp_path, small_pieces, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(files, "move", mock.Mock(side_effect=KeyboardInterrupt))
        make(tmp_path, text)
    (growing,) = tmp_path.glob("work/examples-*/shard-00000")
    os.truncate(growing, growing.stat().st_size - 1)
    assert_refused(r"--work_dir: .*shard-00000 is incomplete.* Remove .*examples-", make, tmp_path, text)


@pytest.mark.parametrize("exists", [True, False])
def test_links_are_followed(text, tmp_path, exists):
    """Links are followed even if the files are made again, or if the metadata file is a link."""
    expected = contents(make(tmp_path, text, output="expected")[0])
    for directory in ("data", "more"):
        (tmp_path / directory).mkdir()
    links = {"out": "data/records", "out.meta.json": "more/metadata"}
    for link, target in links.items():
        (tmp_path / link).symlink_to(tmp_path / target)
        if exists:
            (tmp_path / target).write_text("older")
    for _ in range(2):
        (path,), _ = make(tmp_path, text, output="out")
        assert contents([path]) == contents([tmp_path / "data" / "records"]) == expected
        assert all((tmp_path / link).is_symlink() for link in links)
        assert preparation_config(tmp_path, text, output="out").shards.are_finished()
    assert os.listdir(tmp_path / "data") == ["records"] and os.listdir(tmp_path / "more") == ["metadata"]


def test_a_finished_set_stays_until_its_successor_is_complete(text, tmp_path, monkeypatch):
    paths, _ = make(tmp_path, text, num_shards=3)
    older = preparation_config(tmp_path, text, num_shards=3)
    config = preparation_config(tmp_path, text, num_shards=3, random_seed=8)
    move = files.move

    def fill_the_disk(source, target):
        if "00002" in target:
            raise OSError(errno.ENOSPC, "No space left on device")
        move(source, target)

    monkeypatch.setattr(files, "move", fill_the_disk)
    with pytest.raises(OSError, match="No space"):
        one_machine.prepare(config, str(tmp_path / "work"), 1, 400)
    assert older.shards.are_finished()
    assert [shard.path for shard in record_shards.find_shards(f"{tmp_path}/out*", 24, 4, len(PIECES))] == list(paths)
    monkeypatch.undo()
    one_machine.prepare(config, str(tmp_path / "work"), 1, 400)
    assert config.shards.are_finished() and not older.shards.are_finished()
    assert not list(tmp_path.glob(".out*"))


@pytest.mark.parametrize("change", ["cut", "grown", "other"])
def test_text_that_changes_while_it_is_read_is_refused(text, tmp_path, change):
    config = preparation_config(tmp_path, text)
    content = pathlib.Path(text).read_bytes()
    changed = {"cut": content[:-9], "grown": content + b"ba.\n", "other": content.replace(b"ba", b"co")}[change]
    pathlib.Path(text).write_bytes(changed)
    message = r"text\.txt was changed while it was read"
    assert_refused(message, one_machine.prepare, config, str(tmp_path / "work"), 1, 400)
    assert not os.path.exists(config.shards.paths[0])


def test_too_many_random_next_sentences_are_reported(tmp_path):
    write_vocab(tmp_path)
    document = json.dumps({"text": "ba co di fu. " * 12 + "\n" + "ga hi. " * 20})
    (tmp_path / "text.txt").write_text(f"{document}\n" * 9)
    flags = ["--max_seq_length=48", "--max_predictions_per_seq=8"]
    printed = run_program(tmp_path, "paragraphs", *flags)
    assert "Warning: 100% of the examples have a random next sentence" in printed and "--split_sentences" in printed
    assert "Warning" not in run_program(tmp_path, "sentences", "--split_sentences", *flags)


def test_a_directory_of_text_may_hold_the_outputs(tmp_path):
    """Files of a killed or an earlier run are not read as text by the next run."""
    write_vocab(tmp_path)
    (tmp_path / "text.txt").write_text("ba co.\ndi.\n\nfu ga.\nhi.\n")
    (tmp_path / "z-00000-of-00020.tmp-1").write_text("half of a shard")
    made = []
    for name in ("x", "y"):
        (tmp_path / f"{name}-00000-of-00020.work").mkdir()
        (tmp_path / f"{name}-00000-of-00020.work" / "work.lock").touch()
        printed = run_program(tmp_path, name, "--num_shards=20", text="")
        made.append(contents(sorted(tmp_path.glob(f"{name}-*-of-00020"))))
        assert f"{made[-1].count(b'')} of the 20 files are empty" in printed
    assert made[0] == made[1] and len(made[0]) == 20


def test_a_large_text_that_was_written_later_is_reported(tmp_path):
    """A large text is identified by its size and samples, so a change of other bytes is not detected."""
    write_vocab(tmp_path)
    text = tmp_path / "text.txt"
    text.write_text("ba co.\ndi.\n\nfu ga.\nhi.\n" + " " * 300_000)
    run_program(tmp_path, "out")
    assert "Warning" not in run_program(tmp_path, "out")
    os.utime(text, ns=(0, (tmp_path / "out").stat().st_mtime_ns + 1))
    printed = run_program(tmp_path, "out")
    assert "already exist" in printed and f"Warning: {text} was modified after {tmp_path / 'out'} was made" in printed


def test_odd_documents_are_counted(tmp_path):
    write_vocab(tmp_path)
    text = tmp_path / "text.txt"
    text.write_text("ba co.\n\n" + "fu di. " * 40 + "\nga.\n\u0301\n\n\u0301\n\nla.\nmi.\n")
    _, counts = make(tmp_path, text)
    expected = {"documents": 3, "sentences": 5, "documents_of_one_sentence": 1, "empty_documents": 1}
    expected |= {"long_sentences": 1, "lines_without_tokens": 2}
    assert {name: counts[name] for name in expected} == expected
    of_records = {"corpus_tokens", "records", "tokens", "random_next", "predictions", "unknown", "bad_lines"}
    assert set(counts) == {*expected, *of_records}


def test_bad_lines_are_counted_and_the_first_ones_named(tmp_path, small_pieces):
    write_vocab(tmp_path)
    text = tmp_path / "text.txt"
    text.write_bytes(b"ba co.\n\xff\n\nfu\x07 di.\n\n" * 20)
    for num_workers in (1, 2):
        _, counts = make(tmp_path, text, num_workers=num_workers, work_dir=f"work-{num_workers}", num_shards=2)
        assert counts["bad_lines"] == [
            f"{what}: {', '.join(f'{text} line {5 * i + line}' for i in range(5))}, ..."
            for what, line in (("skipped 20 lines (not UTF-8)", 2), ("cleaned 20 lines (a control character)", 4))
        ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dupe_factor": 0}, "--dupe_factor is 0"),
        ({"short_seq_prob": 1.5}, "--short_seq_prob is 1.5"),
        ({"max_seq_length": 4}, "--max_seq_length is 4"),
        ({"max_seq_length": 70000}, "--max_seq_length is 70000"),
        ({"max_predictions_per_seq": 0}, "--max_predictions_per_seq is 0"),
    ],
)
def test_numbers_out_of_range_are_named(text, tmp_path, options, message):
    assert_refused(message, preparation_config, tmp_path, text, **options)


def test_too_little_memory_is_named(text, tmp_path):
    config = preparation_config(tmp_path, text)
    assert_refused("--memory_budget_mb is 400", one_machine.prepare, config, str(tmp_path / "work"), 4, 400)


def test_shards_are_those_of_the_ranges():
    for num_shards in (1, 3, 7):
        ranges = one_machine.key_ranges(5 * num_shards)
        assert ranges[0][0] == 0 and ranges[-1][1] == 1 << 64
        for number, (first_key, end_key) in enumerate(ranges):
            assert {one_machine.shard_of(key, num_shards) for key in (first_key, end_key - 1)} == {number // 5}


def test_shards_are_put_where_a_url_says(text, tmp_path):
    config = preparation_config(tmp_path, text, num_shards=2)
    urls = tuple(f"ram://{tmp_path.name}/shard-{i}" for i in range(2))
    config = dataclasses.replace(config, shards=dataclasses.replace(config.shards, paths=urls))
    one_machine.prepare(config, str(tmp_path / "work"), 1, 400)
    assert config.shards.are_finished()
    expected = contents(make(tmp_path, text, output="local", num_shards=2)[0])
    assert [files.open_file(url, "rb").read() for url in urls] == expected
