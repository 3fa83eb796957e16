import dataclasses
import multiprocessing
import os
import pathlib
import random
import shutil
import signal
import threading
import time

import pytest

from bert_tf.runtime.files import InputError
from data_prep.corpus.cleaning import CleaningOptions
from data_prep.jobs import claims as claiming
from data_prep.jobs.claims import FinishedByOthers, OtherTaskFailed, SharedClaims, SharedWork
from data_prep.jobs.preparation import Resources, prepare
from tests.data_prep.corpora import make, preparation_config, write_corpus, write_vocab
from tests.data_prep.jobs import sharing_task

TIMEOUT = 0.3


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.setattr(claiming, "_CHECK_SECONDS", 0.0)
    settings = {"seed": 1, "corpus": {"language": "en"}, "inputs": [[5, "a"], [7, "b"]]}
    return SharedWork(
        name="out",
        settings=settings,
        inputs=["one.txt", "two.txt"],
        work_folder=str(tmp_path / "examples"),
        tasks_folder=str(tmp_path / "tasks"),
        finished_file=str(tmp_path / "examples.finished.json"),
    )


def kill(task):
    """Makes a task look as if it had been killed."""
    task._ended.set()
    task._heart.join()
    task._held.clear()


def until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_job_belongs_to_one_task_until_that_is_gone(work, tmp_path):
    job, other_job = str(tmp_path / "job.claim"), str(tmp_path / "other.claim")
    with SharedClaims(work, TIMEOUT) as first, SharedClaims(work, TIMEOUT) as second:
        assert first.take(job) and first.take(job) and not second.take(job)
        until(lambda: second.is_alive(first.name))
        first.release(job)
        assert second.take(job) and not first.take(job)
        assert first.take(other_job)
        time.sleep(2 * TIMEOUT)
        assert not second.take(other_job)
        kill(first)
        until(lambda: second.take(other_job))
        assert not first.is_mine(other_job) and second.is_mine(other_job)
        first.release(other_job)  # it was only slow: the claim stays with the other one
        assert second.is_mine(other_job)
    assert not os.path.exists(job) and not os.path.exists(other_job)


def test_one_of_many_takes_a_job(work, tmp_path):
    path = str(tmp_path / "job.claim")
    tasks = [SharedClaims(work, TIMEOUT) for _ in range(8)]
    start, taken = threading.Barrier(len(tasks)), []

    def race(task):
        start.wait()
        taken.append(task.take(path))

    threads = [threading.Thread(target=race, args=[task]) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [False] * 7 + [True]


def test_tasks_with_other_text_or_flags_are_refused_with_the_difference(work):
    settings = {"seed": 2, "corpus": {"language": "de"}, "inputs": [[5, "a"], [8, "c"]], "new": True}
    other = dataclasses.replace(work, settings=settings)
    same_size = dataclasses.replace(work, settings={**work.settings, "inputs": [[5, "x"], [7, "b"]]})
    with SharedClaims(work, TIMEOUT) as first:
        with pytest.raises(InputError) as raised:
            SharedClaims(other, TIMEOUT).__enter__()
        assert (
            "out from other text or with other flags: corpus.language is en there, de here; new is None there, True "
            "here; seed is 1 there, 2 here; two.txt: 7 bytes there, 8 here. Give all tasks the same"
        ) in str(raised.value)
        with pytest.raises(InputError, match=r"one\.txt: the same size, but other content"):
            SharedClaims(same_size, TIMEOUT).__enter__()
        with SharedClaims(work, TIMEOUT):  # these refusals end no other task
            first.check()
        kill(first)
        with SharedClaims(other, TIMEOUT):  # the first one is gone, and what it made is given up
            pass


def test_a_task_that_fails_ends_the_others_with_its_message(work):
    with SharedClaims(work, TIMEOUT) as first:
        with pytest.raises(InputError), SharedClaims(work, TIMEOUT):
            raise InputError("line 5 is bad")
        with pytest.raises(OtherTaskFailed, match=r"another task \(.*\) failed: line 5 is bad"):
            first.check()
        with SharedClaims(work, TIMEOUT) as later:  # an old failure is no reason not to begin again
            later.check()
            with pytest.raises(KeyboardInterrupt), SharedClaims(work, TIMEOUT):
                raise KeyboardInterrupt
            later.check()  # nor is an interruption of another task
        pathlib.Path(work.finished_file).write_text("{}")
        with pytest.raises(FinishedByOthers):
            first.check()
    assert os.listdir(work.tasks_folder) == []


@pytest.fixture
def text(tmp_path):
    write_vocab(tmp_path)
    return write_corpus(tmp_path / "text.txt")


@pytest.fixture
def expected(text, tmp_path):
    paths, _ = make(tmp_path, text, output="expected", num_shards=3)
    return [pathlib.Path(path).read_bytes() for path in paths]


def found(folder):
    return [path.read_bytes() for path in sorted(folder.glob("out.tfrecord-*-of-00003"))]


def test_a_task_finishes_alone_when_the_others_are_missing(text, tmp_path, expected):
    config = preparation_config(tmp_path, text, num_shards=3)
    prepare(config, Resources(str(tmp_path / "work"), 1, 400, task_index=5, num_tasks=8))
    assert found(tmp_path) == expected
    (tokens,) = (tmp_path / "work").glob("tokens-*")
    left = {path.name for path in (tmp_path / "work").iterdir()} - {tokens.name}
    assert {name.partition("-")[0] for name in left} == {"tasks", "examples"}
    assert all(name.endswith(".finished.json") for name in left if name != "tasks")
    assert not list(tokens.glob("*.claim"))


class Tasks:
    """Tasks in processes of their own, each with a copy of the text under another name and of another age."""

    def __init__(self, folder, text, count, **options):
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([sharing_task.__name__])
        self._folder, self._text, self._count, self._options = folder, text, count, options
        self.all, self.running = [], {}
        for _ in range(count):
            self.start()

    def start(self, **options):
        index = len(self.all)
        copy = self._folder / f"copy-{index % self._count}" / "text.txt"
        if not copy.exists():
            copy.parent.mkdir()
            shutil.copyfile(self._text, copy)
            os.utime(copy, (index, index))
        arguments = (str(self._folder), str(copy), index, max(2, self._count))
        process = self._context.Process(target=sharing_task.run, args=arguments, kwargs=self._options | options)
        process.start()
        self.all.append(process)
        self.running[index] = process

    def kill_one(self, rng):
        self.running = {index: process for index, process in self.running.items() if process.is_alive()}
        if not self.running:
            return False
        process = self.running.pop(rng.choice(list(self.running)))
        os.kill(process.pid, signal.SIGKILL)
        return True

    def join(self, seconds=100):
        for process in self.running.values():
            process.join(seconds)
        return [process.exitcode for process in self.running.values()]


def share_and_kill(folder, text, count, kills, pause, **options):
    """Kills tasks at random and starts others in their place; returns the exit codes of those that are left."""
    rng = random.Random(kills)
    tasks = Tasks(folder, text, count, **options)
    killed = 0
    while killed < kills:
        time.sleep(rng.uniform(0, pause))
        if not tasks.kill_one(rng):
            break
        killed += 1
        tasks.start()
    return killed, tasks.join()


def test_tasks_that_are_killed_at_random_make_the_same_bytes(text, tmp_path, expected):
    repeated = tmp_path / "repeated.txt"
    repeated.write_text("\n\n".join([pathlib.Path(text).read_text()] * 2))
    options = {"seconds": 0.1, "cleaning": CleaningOptions("exact")}
    killed, codes = share_and_kill(tmp_path, repeated, 3, kills=3, pause=0.5, **options)
    assert found(tmp_path) == expected and killed == 3 and set(codes) == {0}


@pytest.mark.slow  # 2 minutes
@pytest.mark.parametrize("num_workers", [1, 2])
def test_eight_tasks_and_fifty_kills(tmp_path, num_workers):
    write_vocab(tmp_path)
    text = write_corpus(tmp_path / "text.txt", documents=300)
    paths, _ = make(tmp_path, text, output="expected", num_shards=3)
    options = {"seconds": 0.5, "num_workers": num_workers}
    killed, codes = share_and_kill(tmp_path, text, 8, kills=50, pause=1.0, **options)
    assert found(tmp_path) == [pathlib.Path(path).read_bytes() for path in paths]
    assert killed == 50 and set(codes) == {0}


def test_one_task_with_other_flags_is_refused_and_the_others_finish(text, tmp_path, expected):
    tasks = Tasks(tmp_path, text, 1, seconds=0.3)
    until(lambda: list((tmp_path / "work").glob("tasks/*/manifest.json")))
    tasks.start(random_seed=8)
    assert tasks.join() == [0, 1]
    assert "rules is SegmentRules" in (tmp_path / "error-1").read_text()
    assert found(tmp_path) == expected
