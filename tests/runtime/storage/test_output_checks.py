import errno
import os
import socket
from pathlib import Path
from unittest import mock

import pytest
import tensorflow as tf

from bert_tf.runtime import errors, files, path_checks
from bert_tf.runtime.files import InputError
from bert_tf.runtime.storage import output_checks
from tests.conftest import assert_refused
from tests.torture import kills


def write(path):
    with files.replacing(str(path)) as writer:
        writer.write("new")


def test_a_link_is_followed_and_its_target_replaced_in_its_own_directory(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "target", tmp_path / "link"
    link.symlink_to(target)
    for _ in range(2):  # the target is created, and then replaced
        write(link)
        assert link.is_symlink() and target.read_text() == "new"
        target.write_text("old")
    assert os.listdir(tmp_path / "elsewhere") == ["target"]


@pytest.mark.parametrize("exists", [False, True])
def test_a_link_to_a_directory_is_followed(tmp_path, exists):
    directory, link = tmp_path / "elsewhere" / "directory", tmp_path / "link"
    (directory if exists else directory.parent).mkdir(parents=True)
    link.symlink_to(directory)
    with files.replacing_directory(str(link)) as temporary:
        write(f"{temporary}/file")
    assert link.is_symlink() and os.listdir(directory) == ["file"] and os.listdir(directory.parent) == ["directory"]


def make_socket(path):
    socket.socket(socket.AF_UNIX).bind(str(path))


@pytest.mark.parametrize(
    ("make", "kind"),
    [(os.mkdir, "a directory"), (os.mkfifo, "a pipe or a socket"), (make_socket, "a pipe or a socket")],
    ids=["directory", "pipe", "socket"],
)
def test_what_is_no_regular_file_is_never_replaced(tmp_path, make, kind):
    make(tmp_path / "x")
    before = os.lstat(tmp_path / "x").st_mode
    (tmp_path / "link").symlink_to(tmp_path / "x")
    (tmp_path / "source").write_text("source")
    for name in ("x", "link"):
        path = str(tmp_path / name)
        assert_refused(f"--output_file: {path} is .*{kind}", path_checks.check_output_files, [path], "--output_file")
        for replace in (write, lambda path: files.move(str(tmp_path / "source"), path)):
            assert_refused(f"{path} is .*{kind}", replace, path)
    assert os.lstat(tmp_path / "x").st_mode == before
    assert_refused("/dev/null is a device", path_checks.check_output_files, ["/dev/null"], "--output_file")


def test_a_home_directory_that_no_shell_expanded_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.chdir(tmp_path)
    for make in (write, files.make_directory, lambda path: path_checks.check_output_files([path], "--output_file")):
        assert_refused(
            "~/runs/x: ~ is not replaced by the home directory here. Write /home/ada/runs/x", make, "~/runs/x"
        )
    assert not list(tmp_path.iterdir())


def test_an_input_is_not_replaced(tmp_path):
    source = tmp_path / "source"
    source.write_text("source")
    os.link(source, tmp_path / "hard")
    (tmp_path / "soft").symlink_to(source)
    read = {"--vocab_file": [], "--input_file": [str(tmp_path / "other"), str(source)]}
    for name in ("source", "hard", "soft"):
        with pytest.raises(InputError, match=f"{name} is also the input {source} of --input_file, which would be lost"):
            path_checks.check_output_files([str(tmp_path / "new"), str(tmp_path / name)], "--output_file", read)
    path_checks.check_output_files([str(tmp_path / "new")], "--output_file", read)


def test_what_can_not_be_written_is_known_before_work_begins(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file is not a directory"):
        path_checks.check_output_files([str(tmp_path / "file" / "x" / "y")], "--output_file")
    path = str(tmp_path / "not" / "yet" / "x")
    path_checks.check_output_files([path], "--output_file")
    output_checks._check_directory.cache_clear()
    with pytest.raises(InputError, match=r"^--output_file: /proc: no files can be created \(No such file"):
        path_checks.check_output_files(["/proc/x"], "--output_file")
    denied = PermissionError(errno.EACCES, "Permission denied")
    monkeypatch.setattr(output_checks.tempfile, "mkdtemp", mock.Mock(side_effect=denied))
    check = path_checks.check_output_files
    assert_refused(r"no files can be created \(Permission denied\)", check, [path], "--output_file")


@pytest.mark.parametrize("name", ["x.keras", "x.h5", "x.onnx", "x.safetensors", "bert_model.ckpt"])
def test_a_directory_has_no_name_of_a_file(tmp_path, name):
    with pytest.raises(InputError, match=rf"save\(\): the output is a directory, but .*{name} is .* Omit [.]"):
        path_checks.check_new_directory(str(tmp_path / name), "save()")


def test_errors_while_a_directory_is_written_are_explained(tmp_path):
    path, elsewhere = str(tmp_path / "export"), str(tmp_path / "other")
    message = f"^{path}: another program has just created this directory. Use another"
    with (
        pytest.raises(InputError, match=message),
        files.replacing_directory(path) as first,
        files.replacing_directory(path) as second,
    ):
        for directory in (first, second):
            (Path(directory) / "file").touch()
    assert os.listdir(tmp_path) == ["export"]
    full = tf.errors.ResourceExhaustedError(None, None, f"{{{{node x}}}} {elsewhere}/x; No space left on device [Op:Y]")
    message = f"^{elsewhere}/x: No space left on device .while writing {elsewhere}.[.] "
    with pytest.raises(InputError, match=message), files.replacing_directory(elsewhere):
        raise full
    assert os.listdir(tmp_path) == ["export"]


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_what_a_killed_program_leaves_is_used_again_unless_another_is_writing(tmp_path, kind):
    replace = files.replacing if kind == "file" else files.replacing_directory

    def write_half():
        with replace(str(tmp_path / "out")) as output:
            if kind == "file":
                output.write("half" * 100)
                output.flush()
            else:
                (Path(output) / "half").touch()
                (Path(output) / "x").mkdir()
            os._exit(9)

    def kill():
        return kills.in_child(write_half)[0]

    for _ in range(2):
        assert kill() == 9 and os.listdir(tmp_path) == ["out.tmp-0"]
    with replace(str(tmp_path / "out")) as output:
        assert kill() == 9 and sorted(os.listdir(tmp_path)) == ["out.tmp-0", "out.tmp-1"]
        if kind == "file":
            output.write("whole")
    assert sorted(os.listdir(tmp_path)) == ["out", "out.tmp-1"]
    assert (tmp_path / "out").read_text() == "whole" if kind == "file" else not os.listdir(tmp_path / "out")


def test_an_error_leaves_the_old_content_and_says_what_was_written(tmp_path):
    path = tmp_path / "out"
    path.write_text("old")
    with pytest.raises(OSError) as raised, files.replacing(str(path)) as writer:
        writer.write("new")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["out"]
    assert str(path) in errors.explanation(raised.value)


def test_urls_that_cannot_be_opened_are_named(monkeypatch):
    for look in (files.exists, files.make_directory, lambda path: path_checks.expand_patterns(path, "--input_file")):
        assert_refused(r"^kaggle://a\S*: .*scheme 'kaggle' not implemented", look, "kaggle://a/b")

    def unreachable(path):
        raise tf.errors.FailedPreconditionError(None, None, "could not resolve host\n when reading gs://a")

    monkeypatch.setattr(tf.io.gfile, "exists", unreachable)
    assert_refused(r"^gs://a: could not resolve host", files.exists, "gs://a")
