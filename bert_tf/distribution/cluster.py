"""Reads who trains together, and lets these processes wait for each other.

TensorFlow would wait itself, but for an hour, deaf to signals, and without a word on who is missing or doubled.
"""

import contextlib
import json
import os
import re
import select
import socket
import time
from collections.abc import Mapping, Sequence

from bert_tf.runtime import json_files
from bert_tf.runtime.errors import InputError

# The addresses of the workers by job.
Cluster = Mapping[str, Sequence[str]]

# How long a connection may take until it says who it is. Others than workers may look whether somebody listens.
_SECONDS_TO_GREET = 5.0
_SECONDS_BETWEEN_LOOKS = 0.2


def read_tf_config() -> tuple[Cluster, str]:
    """Reads the environment variable TF_CONFIG, which says who takes part in a cluster.

    Returns:
      The addresses of the workers by job, and the name of this one, for example "worker 1".

    Raises:
      InputError: if it is missing or malformed, or if this process is not one of the workers.
    """
    tf_config = os.environ.get("TF_CONFIG", "")
    example = '{"cluster": {"worker": ["host1:port", "host2:port"]}, "task": {"type": "worker", "index": 0}}'
    try:
        parsed = json_files.parse(tf_config)
        job, index = parsed["task"]["type"], int(parsed["task"]["index"])
        cluster = {
            name: list(tasks) for name, tasks in parsed["cluster"].items() if name in ("chief", "worker") and tasks
        }
        tasks = cluster[job] if job in ("chief", "worker") else None
    except (AttributeError, ValueError, KeyError, TypeError):
        raise InputError(
            "--distribution_strategy=multi_worker reads the cluster from TF_CONFIG, an environment variable, "
            f"which is {tf_config!r}. Set it to something like {example}; each worker needs its own index."
        ) from None
    if tasks is None:
        raise InputError(f"TF_CONFIG: the task's type is {job!r}, but 'worker' or 'chief' is expected.")
    if not 0 <= index < len(tasks):
        raise InputError(f"TF_CONFIG: task index {index} is not one of the {len(tasks)} tasks of type {job}.")
    addresses = [str(address) for tasks in cluster.values() for address in tasks]
    if len(set(addresses)) < len(addresses) or not all(re.fullmatch(r"\S+:\d+", address) for address in addresses):
        raise InputError(
            f"TF_CONFIG: the addresses of the workers are {', '.join(addresses)}, but each worker needs one of its "
            "own, like host:port."
        )
    return cluster, f"{job} {index}"


def leader(cluster: Cluster) -> str:
    """The name of the worker that the others wait for, and that runs the coordination service."""
    return "chief 0" if "chief" in cluster else "worker 0"


def wait_for_all(cluster: Cluster, name: str, seconds: float) -> None:
    """Waits until all workers have called this function, each at about the same time.

    The leader listens at its address until each of the others has told it its name and its cluster.

    Args:
      cluster: the workers, which must be the same for all of them.
      name: the name of this one.
      seconds: how long to wait.

    Raises:
      InputError: on all workers, if two have the same name or their clusters differ; if one is missing after `seconds`;
        or if the leader can't listen.
    """
    others = {f"{job} {index}" for job, tasks in cluster.items() for index in range(len(tasks))} - {leader(cluster)}
    job, index = leader(cluster).split()
    host, port = cluster[job][int(index)].rsplit(":", 1)
    if name != leader(cluster):
        # Longer than the leader, which knows who is missing.
        reason = _greet(cluster, name, (host.strip("[]"), int(port)), seconds + _SECONDS_TO_GREET)
        if reason is None:
            reason = (
                f"TF_CONFIG: {name} has waited {seconds:g} seconds (ten times --worker_timeout) for {leader(cluster)} "
                f"at {host}:{port}. Start all workers, each with its own index, and see that it can be reached there."
            )
    else:
        try:
            with _listen(int(port)) as listener:
                reason = _gather(cluster, name, others, listener, seconds)
        except OSError as error:
            # If two processes are the leader, this ends both.
            reason = _greet(cluster, name, ("localhost", int(port)), 2 * _SECONDS_TO_GREET) or (
                f"TF_CONFIG: {name} can't listen at port {port} ({os.strerror(error.errno)}). End the program that "
                "uses it, or give this worker another address, on all of them."
            )
    if reason:
        raise InputError(reason)


def _listen(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _greet(cluster: Cluster, name: str, address: tuple[str, int], seconds: float) -> str | None:
    """Tells the leader that this worker is there. Returns its answer, see `_gather`; None if there is none in time."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        with (
            contextlib.suppress(OSError, ValueError),
            socket.create_connection(address, min(left, _SECONDS_TO_GREET)) as connection,
        ):
            connection.settimeout(left)
            connection.sendall(json.dumps([name, cluster]).encode() + b"\n")
            answer = connection.makefile(encoding="utf-8").readline()
            if answer:  # otherwise the leader has ended, and may be started again
                return json.loads(answer)
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    return None


def _gather(cluster: Cluster, name: str, others: set[str], listener: socket.socket, seconds: float) -> str:
    """Waits until all others have greeted, and gives all the same answer: why they can't begin, or "" if they can."""
    deadline = time.monotonic() + seconds
    listener.settimeout(_SECONDS_BETWEEN_LOOKS)
    greeted: list[tuple[str, socket.socket]] = []
    reason = ""
    while {other for other, _ in greeted} != others and time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError, TypeError):  # nobody came, or no worker
            connection, _ = listener.accept()
            connection.settimeout(_SECONDS_TO_GREET)
            other, its_cluster = json.loads(connection.makefile(encoding="utf-8").readline())
            found = ""
            if its_cluster != cluster:
                found = (
                    f"TF_CONFIG: the cluster is {json.dumps(cluster)} on {name}, but {json.dumps(its_cluster)} on "
                    f"{other}. Give all workers the same cluster."
                )
            elif other == name or any(other == before and not _has_ended(waits) for before, waits in greeted):
                found = f"TF_CONFIG: two processes are {other}. Each worker needs an index of its own."
            greeted.append((other, connection))
            if found and not reason:  # those that are not yet there shall hear of it too
                reason, deadline = found, time.monotonic() + _SECONDS_TO_GREET
        # One that has ended may be started again. It counts no more, even if it ended after it was counted.
        greeted = [(other, connection) for other, connection in greeted if not _has_ended(connection)]
    missing = others - {other for other, _ in greeted}
    if missing and not reason:
        reason = (
            f"TF_CONFIG: {', '.join(sorted(missing))} has not started within {seconds:g} seconds (ten times "
            "--worker_timeout). Start all workers, each with its own index and --distribution_strategy=multi_worker."
        )
    for _, connection in greeted:
        with contextlib.suppress(OSError), connection:
            connection.sendall(json.dumps(reason).encode() + b"\n")
    return reason


def _has_ended(connection: socket.socket) -> bool:
    """Whether the other side has closed a connection on which it says nothing."""
    return bool(select.select([connection], [], [], 0)[0])
