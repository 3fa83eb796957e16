import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import pytest

from data_prep.workers import Workers
from tests.conftest import ROOT, assert_refused
from tests.data_prep.small_jobs import dying_job, job


def run(function, num_workers, directory, amounts, seconds=0.0):
    with Workers(num_workers) as workers:
        jobs = [(amount, seconds) for amount in amounts]
        return list(workers.map("jobs", function, str(directory / "jobs"), jobs, sum(amounts), "unit"))


@pytest.mark.parametrize("num_workers", [1, 2])
def test_jobs_are_done_once_and_their_progress_is_shown(tmp_path, num_workers, capsys):
    amounts = (3, 1, 4, 1, 5, 9)
    expected = [(str(tmp_path / "jobs" / f"{number:06d}"), {"amount": amount}) for number, amount in enumerate(amounts)]
    assert run(job, num_workers, tmp_path, amounts) == expected
    assert "23/23" in capsys.readouterr().err
    (tmp_path / "jobs" / "000002.json").unlink()
    assert run(job, num_workers, tmp_path, amounts) == expected
    assert sorted((tmp_path / "done").read_text().split()) == ["1", "1", "3", "4", "4", "5", "9"]


def test_an_interruption_ends_the_jobs_that_run(tmp_path, monkeypatch):
    def interrupt(pool, pending, advance):
        raise KeyboardInterrupt

    monkeypatch.setattr(Workers, "_wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(job, 2, tmp_path, (1, 1, 1, 1), seconds=15)
    assert os.listdir(tmp_path) == ["jobs"] and os.listdir(tmp_path / "jobs") == []


def test_a_worker_that_is_killed_is_reported(tmp_path):
    assert_refused("--num_workers: a worker process was killed", run, dying_job, 2, tmp_path, (1, 1, 1))


def test_a_worker_that_starts_while_another_is_killed_ends_too(tmp_path, monkeypatch):
    spawn = ProcessPoolExecutor._spawn_process

    def spawn_late(pool):
        time.sleep(0.5 if pool._processes else 0)
        spawn(pool)

    monkeypatch.setattr(ProcessPoolExecutor, "_spawn_process", spawn_late)
    before = set(multiprocessing.active_children())
    assert_refused("a worker process was killed", run, dying_job, 2, tmp_path, (1, 1, 1))
    for process in set(multiprocessing.active_children()) - before:
        process.join(5)
        assert process.exitcode is not None


# The main process is killed before the workers have imported their modules.
DYING_OWNER = """
import os, pathlib, signal, sys, time
directory = pathlib.Path(sys.argv[1])
if __name__ == "__mp_main__":
    (directory / f"worker-{os.getpid()}").touch()
    time.sleep(1)
else:
    import threading
    from data_prep.workers import Workers
    from tests.data_prep.small_jobs import job
    def end_when_they_start():
        while len(list(directory.glob("worker-*"))) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Thread(target=end_when_they_start).start()
    with Workers(2) as workers:
        list(workers.map("jobs", job, str(directory / "jobs"), [(1, 30)] * 3, 3, "unit"))
"""


def test_workers_go_when_their_owner_is_killed(tmp_path):
    script = tmp_path / "owner.py"
    script.write_text(DYING_OWNER)
    options = {"env": {**os.environ, "PYTHONPATH": str(ROOT)}, "stdout": subprocess.DEVNULL, "timeout": 100}
    ended = subprocess.run([sys.executable, script, tmp_path], stderr=subprocess.STDOUT, **options)
    assert ended.returncode == -signal.SIGKILL
    started = [int(path.name.split("-")[1]) for path in tmp_path.glob("worker-*")]
    assert len(started) == 2
    deadline = time.monotonic() + 20
    while any(map(is_alive, started)) and time.monotonic() < deadline:
        time.sleep(0.1)
    left = [pid for pid in started if is_alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def is_alive(pid):
    try:
        state = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0]  # noqa: SIM115
    except FileNotFoundError:
        return False
    return state != "Z"
