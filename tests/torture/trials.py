"""The trials of each part. A trial raises an error if something was not held, and counts what it has tried."""

import errno
import json
import math
import os
import pathlib
import random
import signal
import subprocess
import time
from collections import Counter

import tensorflow as tf

from bert_tf import checkpoints
from bert_tf.checkpoints import saver
from bert_tf.runtime import claims, errors, files
from bert_tf.runtime.files import InputError
from tests.torture import damage, faults, fuzz, jobs, names, serve

_ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EFBIG)
_UNFINISHED = ".tmp-", ".tempstate"
# A busy machine needs some of them until a process has seen that it may not write.
_SECONDS_TO_REFUSE = 60


def _in_child(job, folder: pathlib.Path, operations: faults.Operations) -> tuple[int, int, str]:
    """Runs a job under faults; returns its exit status, the number of operations, and the error that ended it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        told = ""
        try:
            with faults.under(operations):
                job(folder)
        except Exception as error:
            told = errors.explanation(error) or f"unexplained: {error!r}"
        with open(writer, "w") as pipe:
            pipe.write(f"{operations.count} {told}")
        os._exit(1 if told else 0)
    os.close(writer)
    with open(reader) as pipe:
        count, _, told = pipe.read().partition(" ")
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), int(count or 0), told


def _check_completed(job, folder: pathlib.Path, expected: dict[str, str]) -> None:
    """Checks that a second run makes what an undisturbed one has made, and removes what the first has left."""
    status, _, told = _in_child(job, folder, faults.Operations())
    assert status == 0, told
    found = jobs.content(folder)
    assert found == expected, (found, expected)
    assert not [name for name in found if any(mark in name for mark in _UNFINISHED)], found


def _new_folder(parent: pathlib.Path, name: str, prepare) -> pathlib.Path:
    folder = parent / name
    folder.mkdir(parents=True)
    assert _in_child(prepare, folder, faults.Operations())[0] == 0
    return folder


def kills(folder: str, rng: random.Random, number: int, counts: Counter) -> None:
    """Kills a job at each of its operations, one after the other; every second round at a random time."""
    parent, name = pathlib.Path(folder), list(jobs.JOBS)[number % len(jobs.JOBS)]
    prepare, job = jobs.JOBS[name]
    whole = _new_folder(parent, "whole", prepare)
    status, operations, told = _in_child(job, whole, faults.Operations())
    assert status == 0 and operations, told
    expected = jobs.content(whole)
    places = range(1, operations + 1)
    for at in places if operations <= 60 else rng.sample(places, 60):
        disturbed = _new_folder(parent, f"killed-{at}", prepare)
        status, *_ = _in_child(job, disturbed, faults.Operations(at, faults.kill))
        assert status == faults.KILLED, (at, status)
        counts["kills"] += 1
        _check_completed(job, disturbed, expected)
    disturbed = _new_folder(parent, "signalled", prepare)
    child = os.fork()
    if child == 0:
        job(disturbed)
        os._exit(0)
    time.sleep(rng.uniform(0, 0.1))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    counts["kills"] += 1
    _check_completed(job, disturbed, expected)


def disk(folder: str, rng: random.Random, number: int, counts: Counter) -> None:
    """Lets operations fail with errors of the system, and fills a small disk where the user may mount one."""
    parent, name = pathlib.Path(folder), list(jobs.JOBS)[number % len(jobs.JOBS)]
    prepare, job = jobs.JOBS[name]
    whole = _new_folder(parent, "whole", prepare)
    _, operations, _ = _in_child(job, whole, faults.Operations())
    expected = jobs.content(whole)
    for at in rng.sample(range(1, operations + 1), min(6, operations)):
        disturbed = _new_folder(parent, f"failed-{at}", prepare)
        _, _, told = _in_child(job, disturbed, faults.Operations(at, faults.failing(rng.choice(_ERRORS))))
        assert "unexplained" not in told and "\n" not in told, (at, told)
        counts["disk faults"] += 1
        _check_completed(job, disturbed, expected)
    if os.geteuid() == 0:
        _fill(parent, prepare, job, expected, counts, rng)


def _fill(parent: pathlib.Path, prepare, job, expected, counts: Counter, rng: random.Random) -> None:
    small = parent / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(small)]
    if subprocess.run(mount, capture_output=True).returncode:
        return
    try:
        inside = _new_folder(small, "folder", prepare)
        filler = small / "filler"
        free = os.statvfs(small).f_bavail * os.statvfs(small).f_frsize
        filler.write_bytes(b"x" * (free - 4096 * rng.randint(0, 12)))
        status, _, told = _in_child(job, inside, faults.Operations())
        assert "unexplained" not in told, told
        counts["full disks"] += status != 0
        counts["disk faults"] += 1
        filler.unlink()
        _check_completed(job, inside, expected)
    finally:
        subprocess.run(["umount", str(small)], check=True)


def damaged(folder: str, rng: random.Random, number: int, counts: Counter) -> None:
    """Reads damaged files of each format: the answer is an explained error, or nothing was lost."""
    name = list(damage.FORMATS)[number % len(damage.FORMATS)]
    make, read, is_exact = damage.FORMATS[name]
    path = pathlib.Path(folder) / "files"
    path.mkdir()
    make(path)
    original = repr(read(path))
    targets = sorted(p for p in path.rglob("*") if p.is_file())
    for _ in range(120):
        target = rng.choice(targets)
        before = target.read_bytes()
        target.write_bytes(damage.changed(before, rng))
        try:
            found = repr(read(path))
            assert not is_exact or found == original or target.read_bytes() == before, f"{target} is taken as it is"
        except Exception as error:
            if errors.explanation(error) is None:
                (pathlib.Path(folder) / "shown").write_bytes(target.read_bytes()[:2000])
                raise AssertionError(f"{name}: {target.name} {target.read_bytes()[:300]!r}") from error
        target.write_bytes(before)
        counts["damaged inputs"] += 1


def workers(folder: str, rng: random.Random, number: int, counts: Counter) -> None:
    """Several processes in one folder: only one has the claim, a killed owner's is taken over; files stay whole."""
    path, children = os.path.join(folder, "x.json"), []
    reader, writer = os.pipe()
    for value in range(4):
        child = os.fork()
        if child == 0:
            try:
                with claims.claimed(folder, "--output_dir"):
                    os.write(writer, b".")
                    while True:
                        files.write_json(path, [value] * rng.randint(1, 9))
            finally:
                os._exit(1)
        children.append(child)
    os.read(reader, 1)
    for _ in range(200):
        if os.path.exists(path):
            assert len(set(json.loads(pathlib.Path(path).read_text()))) == 1
    living, end = children, time.monotonic() + _SECONDS_TO_REFUSE
    while len(living) > 1 and time.monotonic() < end:
        time.sleep(0.01)
        living = [child for child in living if os.waitpid(child, os.WNOHANG) == (0, 0)]
    assert len(living) == 1, living
    try:
        claims.require_free(folder, "--output_dir")
        raise AssertionError("claimed twice")
    except InputError as error:
        assert f"process {living[0]} on" in str(error), error
    os.kill(living[0], signal.SIGKILL)
    os.waitpid(living[0], 0)
    claims.require_free(folder, "--output_dir")
    counts["writers"] += 4


def clock(folder: str) -> None:
    """Checkpoints are known by what they hold, not by the time of their files, which may jump."""
    for step in (1, 2, 3):
        with saver.CheckpointSaver(folder, 0) as writer:
            writer.save(step, {"x": tf.constant(float(step))})
        for name in os.listdir(folder):
            os.utime(os.path.join(folder, name), (9e8 - step * 1e6,) * 2)
    assert checkpoints.open_checkpoint(folder).read("x") == math.prod((3.0, 1.0))


def workers_and_clock(folder: str, rng: random.Random, number: int, counts: Counter) -> None:
    """`workers`, and files whose times go backwards."""
    workers(folder, rng, number, counts)
    clock(os.path.join(folder, "clock"))
    counts["clock jumps"] += 3


PARTS = {
    "kills": kills,
    "damage": damaged,
    "disk": disk,
    "fuzz": fuzz.trial,
    "names": names.trial,
    "serve": serve.trial,
    "workers": workers_and_clock,
}
