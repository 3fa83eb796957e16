"""Reads the cluster of workers, and waits until all workers have started.

TensorFlow also waits, but for an hour. It does not react to signals, and does not report missing or duplicate workers.
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
from bert_tf.runtime.errors import InputError, first_of

# Maps jobs to the addresses of their workers.
Cluster = Mapping[str, Sequence[str]]

# The jobs of processes that train. "master" is the name of "chief" in TensorFlow 1.
_JOBS = ("chief", "worker", "master")

# Seconds to wait for the first message of a connection. Programs other than workers may connect to the port.
_SECONDS_TO_GREET = 5.0
_POLL_SECONDS = 0.2


def read_tf_config() -> tuple[Cluster, str]:
    """Reads the environment variable TF_CONFIG, which describes a cluster.

    Returns:
      The addresses of the workers by job, and the name of this worker, for example "worker 1".

    Raises:
      InputError: if TF_CONFIG is missing or malformed, or this process is not one of the workers.
    """
    tf_config = os.environ.get("TF_CONFIG", "")
    example = '{"cluster": {"worker": ["host1:port", "host2:port"]}, "task": {"type": "worker", "index": 0}}'
    try:
        parsed = json_files.parse(tf_config)
        job, index = parsed["task"]["type"], int(parsed["task"]["index"])
        cluster = {name: list(tasks) for name, tasks in parsed["cluster"].items() if name in _JOBS and tasks}
        tasks = cluster[job] if job in _JOBS else None
    except (AttributeError, ValueError, KeyError, TypeError):
        raise InputError(
            "--distribution_strategy=multi_worker: requires the cluster in the environment variable TF_CONFIG, "
            f"which is {tf_config!r}. Set it to something like {example}, with a different index for each worker."
        ) from None
    if tasks is None:
        raise InputError(f"TF_CONFIG: the task's type is {job!r}. Use 'worker' or 'chief'.")
    if not 0 <= index < len(tasks):
        raise InputError(
            f"TF_CONFIG: task index {index} is not one of the {len(tasks)} tasks of type {job}. Count from 0."
        )
    addresses = [str(address) for tasks in cluster.values() for address in tasks]
    if len(set(addresses)) < len(addresses) or not all(map(_is_address, addresses)):
        raise InputError(
            f"TF_CONFIG: the addresses of the workers are {first_of(addresses)}. Give each worker a different "
            "address of the form host:port."
        )
    return cluster, f"{job} {index}"


def check_jobs(cluster: Cluster) -> None:
    """Raises an InputError if TensorFlow does not support the name of a job."""
    if "master" in cluster:
        raise InputError("TF_CONFIG: the job 'master' is not supported. Rename it to 'chief' on all workers.")


def _is_address(text: str) -> bool:
    match = re.fullmatch(r"\S+:(\d+)", text)
    return match is not None and int(match.group(1)) < 1 << 16


def names(cluster: Cluster) -> list[str]:
    """Returns the names of all workers, such as "worker 1"."""
    return [f"{job} {index}" for job, tasks in cluster.items() for index in range(len(tasks))]


def leader(cluster: Cluster) -> str:
    """Returns the name of the leader, which other workers connect to and which runs the coordination service."""
    return "chief 0" if "chief" in cluster else "worker 0"


def wait_for_all(cluster: Cluster, name: str, seconds: float) -> None:
    """Waits until all workers have called this function.

    The leader listens at its address until all other workers have sent their names and clusters.

    Args:
      cluster: the workers; must be the same on all workers.
      name: the name of this worker.
      seconds: the longest time to wait.

    Raises:
      InputError: if two workers have the same name, if clusters differ, if a worker is missing after `seconds`, or if
        the leader can't listen. The error is raised on all workers.
    """
    others = set(names(cluster)) - {leader(cluster)}
    job, index = leader(cluster).split()
    host, port = cluster[job][int(index)].rsplit(":", 1)
    if name != leader(cluster):
        # Wait longer than the leader, which reports missing workers.
        reason = _greet(cluster, name, (host.strip("[]"), int(port)), seconds + _SECONDS_TO_GREET)
        if reason is None:
            reason = (
                f"TF_CONFIG: {name} waited {seconds:g} seconds (ten times --worker_timeout) for {leader(cluster)} at "
                f"{host}:{port}. Start all workers, each with its own index, and check that this address is reachable."
            )
    else:
        try:
            with _listen(int(port)) as listener:
                reason = _gather(cluster, name, others, listener, seconds)
        except OSError as error:
            # If another process with the same name is already listening, report to it, so that both processes stop.
            reason = _greet(cluster, name, ("localhost", int(port)), 2 * _SECONDS_TO_GREET) or (
                f"TF_CONFIG: {name} can't listen on port {port} ({os.strerror(error.errno)}). Stop the program that "
                "uses it, or change this worker's address on all workers."
            )
    if reason:
        raise InputError(reason)


def _listen(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _greet(cluster: Cluster, name: str, address: tuple[str, int], seconds: float) -> str | None:
    """Sends this worker's name to the leader. Returns the answer (see `_gather`), or None if there is none in time."""
    deadline = time.monotonic() + seconds
    while (remaining := deadline - time.monotonic()) > 0:
        with (
            contextlib.suppress(OSError, ValueError),
            socket.create_connection(address, min(remaining, _SECONDS_TO_GREET)) as connection,
        ):
            connection.settimeout(remaining)
            connection.sendall(json.dumps([name, cluster]).encode() + b"\n")
            answer = connection.makefile(encoding="utf-8").readline()
            if answer:  # otherwise, the leader has ended and may restart
                return json.loads(answer)
        time.sleep(_POLL_SECONDS)
    return None


def _gather(cluster: Cluster, name: str, others: set[str], listener: socket.socket, seconds: float) -> str:
    """Waits for all other workers. Sends them the reason why they can't begin, or "", and returns this reason."""
    deadline = time.monotonic() + seconds
    listener.settimeout(_POLL_SECONDS)
    greeted: list[tuple[str, socket.socket]] = []
    reason = ""
    while {other for other, _ in greeted} != others and time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError, TypeError):  # no connection, or not from a worker
            connection, _ = listener.accept()
            connection.settimeout(_SECONDS_TO_GREET)
            other, its_cluster = json.loads(connection.makefile(encoding="utf-8").readline())
            problem = ""
            if its_cluster != cluster:
                problem = (
                    f"TF_CONFIG: the cluster is {json.dumps(cluster)} on {name}, but {json.dumps(its_cluster)} on "
                    f"{other}. Give all workers the same cluster."
                )
            elif other == name or any(other == before and not _has_ended(waits) for before, waits in greeted):
                problem = f"TF_CONFIG: two processes are {other}. Give each worker a different index."
            greeted.append((other, connection))
            if problem and not reason:  # wait a little longer, so that workers that connect later get the reason too
                reason, deadline = problem, time.monotonic() + _SECONDS_TO_GREET
        # Remove workers that have ended, because they may be restarted.
        greeted = [(other, connection) for other, connection in greeted if not _has_ended(connection)]
    missing = others - {other for other, _ in greeted}
    if missing and not reason:
        reason = (
            f"TF_CONFIG: {first_of(sorted(missing))} has not started within {seconds:g} seconds (ten times "
            "--worker_timeout). Start all workers, each with its own index and --distribution_strategy=multi_worker."
        )
    for _, connection in greeted:
        with contextlib.suppress(OSError), connection:
            connection.sendall(json.dumps(reason).encode() + b"\n")
    return reason


def _has_ended(connection: socket.socket) -> bool:
    """Returns True if the other process has closed an idle connection."""
    return bool(select.select([connection], [], [], 0)[0])
