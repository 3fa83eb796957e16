import errno
import os
import threading
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import checkpoints
from bert_tf.checkpoints import saver
from bert_tf.checkpoints.saver import CheckpointSaver, latest_checkpoint
from bert_tf.runtime.files import InputError
from tests.conftest import assert_refused


def save(directory, *steps, keep=0):
    """Saves checkpoints in which x is the step. Returns the number of files written for each checkpoint."""
    with CheckpointSaver(str(directory), keep) as writer:
        for step in steps:
            writer.save(step, {"x": tf.fill([100], float(step))})


def value_in(directory):
    return checkpoints.open_checkpoint(str(directory)).read("x")[0]


def names_in(directory, pattern="*"):
    return sorted(path.name for path in directory.glob(pattern))


def test_the_newest_are_kept_and_read_again_only_after_a_change(tmp_path):
    save(tmp_path, 1, 2, 3, keep=2)
    kept = {f"model.ckpt-{step}{suffix}" for step in (2, 3) for suffix in saver._SUFFIXES}
    assert set(names_in(tmp_path)) == {"checkpoint", *kept}
    for read in (latest_checkpoint, tf.train.latest_checkpoint):
        assert read(str(tmp_path)) == str(tmp_path / "model.ckpt-3")
    reads = saver._damage.cache_info().misses
    assert latest_checkpoint(str(tmp_path)) and saver._damage.cache_info().misses == reads  # unchanged files
    for changes, suffix in enumerate(saver._SUFFIXES, 1):
        os.utime(tmp_path / f"model.ckpt-3{suffix}")
        assert latest_checkpoint(str(tmp_path)) and saver._damage.cache_info().misses == reads + changes
    assert latest_checkpoint(str(tmp_path / "nowhere")) is None


def damage(path, kind):
    """Changes or removes a file."""
    data = path.read_bytes()
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    changed = {"flipped": flipped, "cut": data[:-1], "empty": b""}
    path.write_bytes(changed[kind]) if kind in changed else path.unlink()


@pytest.mark.parametrize("suffix", saver._SUFFIXES)
@pytest.mark.parametrize("kind", ["flipped", "cut", "empty", "removed"])
def test_the_newest_complete_checkpoint_is_taken(tmp_path, capsys, kind, suffix):
    save(tmp_path, 1, 2, 3)
    (tmp_path / "model.ckpt-3.checksums.json").write_text("{}")  # a file of an earlier version, which is not read
    assert value_in(tmp_path) == 3
    assert capsys.readouterr().err == ""
    damage(tmp_path / f"model.ckpt-3{suffix}", kind)
    for _ in range(2):
        assert value_in(tmp_path) == 2
    (warning,) = capsys.readouterr().err.splitlines()  # a single warning
    assert f"model.ckpt-2 is used, because newer ones are damaged. {tmp_path}/model.ckpt-3" in warning
    for step in (1, 2):
        damage(tmp_path / f"model.ckpt-{step}{suffix}", kind)
    with pytest.raises(InputError, match=rf"{tmp_path}: no complete checkpoint(.|\n)*model.ckpt-3(.|\n)*model.ckpt-1"):
        latest_checkpoint(str(tmp_path))
    os.remove(tmp_path / "checkpoint")
    assert latest_checkpoint(str(tmp_path)) is None


def test_a_damaged_checkpoint_is_overwritten_and_others_behind_it_go(tmp_path):
    save(tmp_path, 10, 20, 30)
    for step in (20, 30):
        (tmp_path / f"model.ckpt-{step}.index").write_bytes(b"")
    save(tmp_path, 20)
    assert names_in(tmp_path, "*.index") == ["model.ckpt-10.index", "model.ckpt-20.index"]
    assert value_in(tmp_path) == 20
    assert saver._recorded_checkpoints(str(tmp_path)) == [f"{tmp_path}/model.ckpt-{step}" for step in (10, 20)]


def test_a_reader_beside_a_running_program_takes_what_has_replaced_the_listed_one(tmp_path, monkeypatch):
    save(tmp_path, 1)
    damage = saver.damage

    def replaced_meanwhile(prefix):
        if prefix.endswith("-1"):
            save(tmp_path, 2, keep=1)
        return damage(prefix)

    monkeypatch.setattr(saver, "damage", replaced_meanwhile)
    assert latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-2")


class Killed(BaseException):
    pass


def killed_after(write, remaining):
    def wrapped(*args, **kwargs):
        if not remaining:
            raise Killed
        remaining.pop()
        return write(*args, **kwargs)

    return wrapped


@pytest.mark.parametrize("first", [1, 2])  # the step whose save fails: a new step, or one with a checkpoint
def test_a_kill_between_two_writes_leaves_a_whole_checkpoint(tmp_path, monkeypatch, first):
    listed_after, is_whole, writes = None, False, 0
    while not is_whole:
        directory = tmp_path / str(writes)
        save(directory, first)
        remaining = [None] * writes
        for module, name in ((tf.raw_ops, "SaveV2"), (os, "fsync"), (os, "replace"), (os, "remove")):
            monkeypatch.setattr(module, name, killed_after(getattr(module, name), remaining))
        try:
            save(directory, 2, keep=1)
            is_whole = True
        except Killed:
            pass
        monkeypatch.undo()
        found = value_in(directory)
        if found == 2.0 and listed_after is None:
            listed_after = writes
        assert found == (first if listed_after is None else 2.0)
        save(directory, 2, keep=1)  # the run resumes and reaches the same step again
        assert value_in(directory) == 2.0
        assert names_in(directory, "model.*") == ["model.ckpt-2.data-00000-of-00001", "model.ckpt-2.index"]
        writes += 1
    assert listed_after < writes


def test_nothing_is_named_before_it_is_on_the_disk(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: events.append(os.readlink(f"/proc/self/fd/{fd}")) or fsync(fd))
    monkeypatch.setattr(os, "replace", lambda a, b: events.append(b) or replace(a, b))
    save(tmp_path / "run", 5)
    found = [os.path.basename(event).partition(".tmp-")[0] for event in events]
    written = ["model.ckpt-5.index", "model.ckpt-5.data-00000-of-00001"]
    assert found == [*written, "run", "checkpoint", "checkpoint", "run"]
    assert ".tmp-" in events[3] and ".tmp-" not in events[4]


def test_leftovers_of_a_killed_process_are_removed_and_nothing_else(tmp_path):
    save(tmp_path, 2, 4)
    leftovers = [
        "model.ckpt-6.data-00000-of-00001.tempstate1234567",
        "model.ckpt-6.index.tempstate89",
        "model.ckpt-6.data-00000-of-00001",
        "model.ckpt-8.index",
        "checkpoint.tmp-0",
    ]
    others = ["model.ckpt-3.index", "other.ckpt-6.index", "model.ckpt-6.txt", "notes.tmp", "x.tmp-0/y", "best/z"]
    for name in leftovers + others:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    before = names_in(tmp_path)
    save(tmp_path, 5)
    assert not [name for name in leftovers if (tmp_path / name).exists()]
    assert [name for name in others if (tmp_path / name).exists()] == others
    kept = set(before) - {name.partition("/")[0] for name in leftovers}
    assert set(names_in(tmp_path)) == kept | set(names_in(tmp_path, "model.ckpt-5.*"))


def test_without_a_list_no_checkpoint_is_a_leftover(tmp_path):
    save(tmp_path, 8)
    os.remove(tmp_path / "checkpoint")
    save(tmp_path, 2)
    assert names_in(tmp_path, "*.index") == ["model.ckpt-2.index", "model.ckpt-8.index"]


@pytest.mark.parametrize(
    "text",
    [
        # TensorFlow 1 writes complete paths, and non-ASCII bytes as octal numbers.
        r"""
        model_checkpoint_path: "/m\303\244rz/model.ckpt-2"
        all_model_checkpoint_paths: "/m\303\244rz/model.ckpt-1"
        all_model_checkpoint_paths: "/m\303\244rz/model.ckpt-2"
        """,
        'model_checkpoint_path: "model.ckpt-2"',
        'model_checkpoint_path: "model.ckpt-2"\nall_model_checkpoint_paths: "model.ckpt-2"\n'
        'all_model_checkpoint_paths: "model.ckpt-3"\nlast_preserved_timestamp: 1.5\n',
    ],
)
def test_lists_of_other_programs_are_read(tmp_path, text):
    directory = tmp_path / "m\u00e4rz"
    save(directory, 1, 2, 3)
    (directory / "checkpoint").write_text(text)
    assert value_in(directory) == 2


@pytest.mark.parametrize("content", [b"", b"model_checkpoint_path: ", b"\xff\xfe", b"{}", b"\0" * 9])
def test_a_damaged_list_is_an_error_and_not_a_new_beginning(tmp_path, content):
    save(tmp_path, 1)
    path = tmp_path / "checkpoint"
    path.write_bytes(content)
    for read in (lambda: latest_checkpoint(str(tmp_path)), lambda: save(tmp_path, 2)):
        assert_refused(f"^{path}: no checkpoint is listed", read)
    assert path.read_bytes() == content


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    may_write, save_v2 = threading.Semaphore(0), tf.raw_ops.SaveV2

    def wait_and_write(**options):
        assert may_write.acquire(timeout=20)
        return save_v2(**options)

    monkeypatch.setattr(tf.raw_ops, "SaveV2", wait_and_write)
    x, number = tf.Variable(tf.fill([100], 1.0)), np.int64(7)
    with CheckpointSaver(str(tmp_path), keep_checkpoint_max=0) as writer:
        writer.begin(1, {"x": x, "number": number})
        tf.raw_ops.ResourceApplyGradientDescent(var=x.handle, alpha=1.0, delta=tf.fill([100], -1.0))  # in place
        writer.check()
        assert latest_checkpoint(str(tmp_path)) is None
        threading.Timer(0.1, may_write.release).start()
        writer.begin(2, {"x": x, "number": number})  # waits for the first save
        assert latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-1")
        may_write.release()
    assert value_in(tmp_path) == 2
    source = checkpoints.open_checkpoint(str(tmp_path / "model.ckpt-1"))
    assert source.read("x").tolist() == [1.0] * 100 and source.read("number") == 7


FULL = "No space left on device"


@pytest.mark.parametrize(
    ("module", "name", "error"),
    [
        (tf.raw_ops, "SaveV2", tf.errors.ResourceExhaustedError(None, None, FULL)),
        (os, "fsync", OSError(errno.ENOSPC, FULL)),
    ],
    ids=["TensorFlow", "Python"],
)
def test_a_failed_save_keeps_the_earlier_checkpoint_and_is_raised(tmp_path, monkeypatch, module, name, error):
    message = r"step 2 can't be written.*No space left"
    save(tmp_path, 1)
    tensors = {"x": tf.fill([100], 2.0)}
    monkeypatch.setattr(module, name, mock.Mock(side_effect=error))
    writer = CheckpointSaver(str(tmp_path), keep_checkpoint_max=1)
    writer.begin(2, tensors)
    with pytest.raises(InputError, match=message):
        while True:
            writer.check()
    with pytest.raises(InputError, match=message), writer:
        writer.begin(2, tensors)
    with pytest.raises(KeyError), writer:
        writer.begin(2, tensors)
        raise KeyError
    monkeypatch.undo()
    assert value_in(tmp_path) == 1
    writer.save(2, tensors)
    assert value_in(tmp_path) == 2
    assert names_in(tmp_path, "*.index") == ["model.ckpt-2.index"]
