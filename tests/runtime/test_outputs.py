import os
import socket
import subprocess
import sys

import pytest
import tensorflow as tf

from bert_tf.runtime import files, outputs
from bert_tf.runtime.files import InputError


def write(path):
    with files.replacing(str(path)) as writer:
        writer.write("new")


def test_a_link_is_followed_and_its_target_replaced_in_its_own_folder(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "target", tmp_path / "link"
    link.symlink_to(target)
    for _ in range(2):  # the target is made, and then replaced
        write(link)
        assert link.is_symlink() and target.read_text() == "new"
        target.write_text("old")
    assert os.listdir(tmp_path / "elsewhere") == ["target"]


def make_socket(path):
    socket.socket(socket.AF_UNIX).bind(str(path))


@pytest.mark.parametrize(
    ("make", "kind"),
    [(os.mkdir, "a folder"), (os.mkfifo, "a pipe"), (make_socket, "a socket")],
    ids=["folder", "pipe", "socket"],
)
def test_what_is_no_regular_file_is_never_replaced(tmp_path, make, kind):
    make(tmp_path / "x")
    before = os.lstat(tmp_path / "x").st_mode
    (tmp_path / "link").symlink_to(tmp_path / "x")
    (tmp_path / "source").write_text("source")
    for name in ("x", "link"):
        path = str(tmp_path / name)
        with pytest.raises(InputError, match=f"--output_file: {path} is {kind}"):
            files.check_output_files([path], "--output_file")
        for replace in (write, lambda path: files.move(str(tmp_path / "source"), path)):
            with pytest.raises(InputError, match=f"{path} is {kind}.*, but the name of a regular file"):
                replace(path)
    assert os.lstat(tmp_path / "x").st_mode == before
    with pytest.raises(InputError, match="/dev/null is a device"):
        files.check_output_files(["/dev/null"], "--output_file")


def test_an_input_is_not_replaced(tmp_path):
    source = tmp_path / "source"
    source.write_text("source")
    os.link(source, tmp_path / "hard")
    (tmp_path / "soft").symlink_to(source)
    read = {"--vocab_file": [], "--input_file": [str(tmp_path / "other"), str(source)]}
    for name in ("source", "hard", "soft"):
        with pytest.raises(InputError, match=f"{name} is also the input {source} of --input_file, which would be lost"):
            files.check_output_files([str(tmp_path / "new"), str(tmp_path / name)], "--output_file", read)
    files.check_output_files([str(tmp_path / "new")], "--output_file", read)


def test_what_can_not_be_written_is_known_before_work_begins(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file is a file, but a folder is expected"):
        files.check_output_files([str(tmp_path / "file" / "x" / "y")], "--output_file")
    path = str(tmp_path / "not" / "yet" / "x")
    files.check_output_files([path], "--output_file")
    outputs._check_folder.cache_clear()
    monkeypatch.setattr(outputs.shutil, "disk_usage", lambda folder: outputs.shutil._ntuple_diskusage(9, 9, 0))
    with pytest.raises(InputError, match=f"x can't be written: the disk of {tmp_path} is full"):
        files.check_output_files([path], "--output_file")
    outputs._check_folder.cache_clear()
    monkeypatch.setattr(outputs.os, "access", lambda folder, mode: False)
    with pytest.raises(InputError, match="no permission to make files"):
        files.check_output_files([path], "--output_file")


LEAVE = """
import sys
from bert_tf.runtime import files
path = files.temporary_name(sys.argv[1])
open(path, "w")
print(path)
"""


def test_the_next_program_removes_what_a_killed_one_has_left(tmp_path):
    def leave():
        command = [sys.executable, "-c", LEAVE, tmp_path / "out"]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()

    left = leave()
    assert os.path.exists(left)
    foreign = left[:-8] + f"{int(left[-8:-4], 16) ^ 1:04x}" + left[-4:]  # of another machine
    mine = files.temporary_name(str(tmp_path / "mine"))
    for path in (foreign, mine):
        open(path, "w").close()
    last = leave()
    assert sorted(os.listdir(tmp_path)) == sorted(map(os.path.basename, (foreign, mine, last)))
    os.utime(foreign, (0, 0))
    outputs._remove_leftovers.cache_clear()
    with files.replacing_folder(str(tmp_path / "folder")) as folder:
        os.mkdir(folder)
    assert sorted(os.listdir(tmp_path)) == ["folder", os.path.basename(mine)]


def test_urls_that_cannot_be_opened_are_named(monkeypatch):
    for look in (files.exists, files.make_folder, lambda path: files.expand_patterns(path, "--input_file")):
        with pytest.raises(InputError, match=r"kaggle://a\S* can't be opened here: TensorFlow knows file://, gs://"):
            look("kaggle://a/b")

    def unreachable(path):
        raise tf.errors.FailedPreconditionError(None, None, "could not resolve host\n when reading gs://a")

    monkeypatch.setattr(tf.io.gfile, "exists", unreachable)
    with pytest.raises(InputError, match=r"gs://a can't be reached \(could not resolve host\)"):
        files.exists("gs://a")


def test_the_room_of_a_disk_is_checked(tmp_path, monkeypatch):
    monkeypatch.setattr(outputs.shutil, "disk_usage", lambda folder: outputs.shutil._ntuple_diskusage(9e9, 7e9, 2e9))
    files.check_room(str(tmp_path), 2e9, "--output_dir: the model")
    with pytest.raises(
        InputError,
        match=f"--output_dir: the model: the disk of {tmp_path} is full: 2.50 GB are needed, but 2.00 GB are",
    ):
        files.check_room(str(tmp_path), 2.5e9, "--output_dir: the model")


def test_the_bytes_in_a_folder_are_those_of_all_its_files(tmp_path, monkeypatch):
    assert files.bytes_in(str(tmp_path / "none")) == 0
    (tmp_path / "inside").mkdir()
    (tmp_path / "a").write_bytes(b"123")
    (tmp_path / "inside" / "b").write_bytes(b"12345")
    assert files.bytes_in(str(tmp_path)) == 8
    (tmp_path / "inside" / "gone").symlink_to("nowhere")  # counts as itself
    assert files.bytes_in(str(tmp_path)) == 8 + len("nowhere")
    monkeypatch.setattr(outputs.os, "walk", lambda folder: [(folder, [], ["a", "removed"])])
    assert files.bytes_in(str(tmp_path)) == 3
