import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import pytest

from bert_tf.runtime.files import InputError
from data_prep.jobs.workers import Workers
from tests.conftest import ROOT
from tests.data_prep.jobs.small_stages import Stage, StageOfTheDying


def run(stage, num_workers, advanced):
    with Workers(num_workers) as pool:
        return dict(pool.run(stage, advanced.append))


@pytest.mark.parametrize("num_workers", [1, 2])
def test_jobs_are_done_once_and_their_progress_is_told(tmp_path, num_workers):
    stage, advanced = Stage(str(tmp_path), (3, 1, 4, 1, 5, 9)), []
    expected = {job: {"amount": amount} for job, amount in enumerate(stage.amounts)}
    assert run(stage, num_workers, advanced) == expected
    assert sum(advanced) == sum(stage.amounts)
    advanced.clear()
    assert run(stage, num_workers, advanced) == expected
    assert advanced == []


def test_an_interruption_ends_the_jobs_that_run(tmp_path):
    stage = Stage(str(tmp_path), (1, 1, 1, 1), seconds=15)

    def interrupt(amount):
        if amount:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Workers(2) as pool:
        list(pool.run(stage, interrupt))
    assert os.listdir(tmp_path) == []


def test_a_worker_that_is_killed_is_told_of(tmp_path):
    with pytest.raises(InputError, match="--num_workers: a worker process was killed"):
        run(StageOfTheDying(str(tmp_path), (1, 1, 1)), 2, [])


def test_a_worker_that_starts_while_another_is_killed_ends_too(tmp_path, monkeypatch):
    spawn = ProcessPoolExecutor._spawn_process

    def spawn_late(pool):
        time.sleep(0.5 if pool._processes else 0)
        spawn(pool)

    monkeypatch.setattr(ProcessPoolExecutor, "_spawn_process", spawn_late)
    before = set(multiprocessing.active_children())
    with pytest.raises(InputError, match="a worker process was killed"):
        run(StageOfTheDying(str(tmp_path), (1, 1, 1)), 2, [])
    for process in set(multiprocessing.active_children()) - before:
        process.join(5)
        assert process.exitcode is not None


# The owner is killed before its workers have imported their modules.
DYING_OWNER = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
if __name__ == "__mp_main__":
    (folder / f"worker-{os.getpid()}").touch()
    time.sleep(1)
else:
    from data_prep.jobs.workers import Workers
    from tests.data_prep.jobs.small_stages import Stage
    def advance(amount):
        if len(list(folder.glob("worker-*"))) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
    with Workers(2) as pool:
        list(pool.run(Stage(str(folder), (1, 1, 1), seconds=30), advance))
"""


def test_workers_go_when_their_owner_is_killed(tmp_path):
    script = tmp_path / "owner.py"
    script.write_text(DYING_OWNER)
    ended = subprocess.run(
        [sys.executable, script, tmp_path],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=100,
    )
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
