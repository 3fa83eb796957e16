import pathlib
import sys

import pytest

from benchmarks import watched_process
from benchmarks.watched_process import limited_memory, run_watched

WRITE_AND_WAIT = """
import sys, time
with open(sys.argv[1] + "/a", "wb") as writer:
    writer.write(bytes(10_000))
text = bytearray(30 << 20)
time.sleep(1)
"""


def test_what_a_command_needs_is_watched(tmp_path):
    needs = run_watched([sys.executable, "-c", WRITE_AND_WAIT, str(tmp_path)], directory=str(tmp_path))
    assert needs.seconds > 1 and needs.processes == 1 and needs.calls > 10
    assert needs.directory == 10_000 and 30 << 20 < needs.memory < 200 << 20
    with pytest.raises(RuntimeError, match="nothing to see"):
        run_watched([sys.executable, "-c", "raise ValueError('nothing to see')"])


def test_memory_that_cannot_be_limited_is_told(tmp_path, monkeypatch):
    groups = [(str(tmp_path / "nowhere"), True), (str(tmp_path), False)]
    monkeypatch.setattr(watched_process.parallel, "control_groups", lambda _: iter(groups))
    with pytest.raises(SystemExit, match="control group with limited memory"), limited_memory(1 << 30):
        pass
    assert not list(tmp_path.iterdir())


def test_memory_is_limited(tmp_path, monkeypatch):
    """A group of the second version, played by a directory."""
    mkdir = watched_process.os.mkdir

    def make_group(path):
        mkdir(path)
        (tmp_path / "group.max").rename(f"{path}/memory.max")

    (tmp_path / "group.max").write_text("max")
    monkeypatch.setattr(watched_process.os, "mkdir", make_group)
    monkeypatch.setattr(watched_process.os, "rmdir", lambda path: None)  # its files go with a true one
    monkeypatch.setattr(watched_process.parallel, "control_groups", lambda _: iter([(str(tmp_path), False)]))
    with limited_memory(1 << 30) as group:
        run_watched([sys.executable, "-c", "pass"], group=group)
        assert pathlib.Path(group, "memory.max").read_text() == str(1 << 30)
        assert int(pathlib.Path(group, "cgroup.procs").read_text()) > 1
