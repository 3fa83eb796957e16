import os
import signal

import pytest

from bert_tf.runtime import parallel
from bert_tf.runtime.files import InputError
from tests.conftest import assert_refused


@pytest.mark.parametrize("workers", [1, 2])
def test_chunks_come_back_in_order(workers):
    base = 1000  # a lambda that refers to it can't be pickled
    chunks = parallel.map_chunks(lambda chunk: [base + x for x in chunk], range(23), workers, smallest_chunk=5)
    assert [x for chunk in chunks for x in chunk] == [1000 + x for x in range(23)]
    assert len(chunks) == (1 if workers == 1 else 5)


def test_few_items_are_computed_without_another_process():
    assert parallel.map_chunks(lambda chunk: os.getpid(), range(400), 4) == [os.getpid()]


def fail(chunk):
    raise InputError("file, line 3: bad")


def be_killed(chunk):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("function", "workers", "message"),
    [
        (fail, 2, "file, line 3: bad"),
        (be_killed, 2, "a process was killed, most likely because memory ran out"),
        (len, -1, "--num_workers is -1"),
    ],
)
def test_errors_of_processes_are_raised(function, workers, message):
    assert_refused(message, parallel.map_chunks, function, range(20), workers, smallest_chunk=5)


def test_cpu_quotas_of_containers_are_respected(tmp_path):
    def quotas(cgroup, **files):
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        for name, text in {"proc/self/cgroup": cgroup, **files}.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return parallel._cpu_quotas(str(root))

    assert quotas("0::/\n") == []
    assert quotas(
        "0::/a/b\n", **{"sys/fs/cgroup/a/cpu.max": "150000 100000\n", "sys/fs/cgroup/a/b/cpu.max": "max 1\n"}
    ) == [1.5]
    # In a container, the path often exists only on the host.
    assert quotas("0::/docker/x\n", **{"sys/fs/cgroup/cpu.max": "200000 100000\n"}) == [2.0]
    version_1 = {"sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "50000\n", "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n"}
    unlimited = {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}
    assert quotas("5:memory:/a\n4:cpu,cpuacct:/a\n", **version_1, **unlimited) == [0.5]


@pytest.mark.parametrize(("quotas", "expected"), [([], 4), ([1.5, 3.0], 2), ([0.1], 1), ([64.0], 4)])
def test_there_are_as_many_processes_as_cores_may_be_used(monkeypatch, quotas, expected):
    monkeypatch.setattr(parallel, "_cpu_quotas", lambda: quotas)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 5})
    assert parallel.available_cores() == expected


def test_memory_is_that_of_the_smallest_group_around_the_process(monkeypatch, tmp_path):
    for name, text in {"1/memory.max": "max\n", "2/memory.max": "5000\n", "3/memory.limit_in_bytes": "4000\n"}.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    machine = parallel.available_memory()
    assert 1 << 20 < machine <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    groups = [(str(tmp_path / name), name == "3") for name in "123"]
    monkeypatch.setattr(parallel, "control_groups", lambda _: groups[:2])
    assert parallel.available_memory() == 5000
    monkeypatch.setattr(parallel, "control_groups", lambda _: groups)
    assert parallel.available_memory() == 4000
