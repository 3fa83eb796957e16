"""Connects processes on several machines that train one model together, and reports lost workers.

TensorFlow's coordination service notifies each process when another one fails or stops responding. All collective
operations then fail with an error, which this module converts to a message.
"""

import contextlib
import functools
import itertools
import re
import time

import numpy as np
import tensorflow as tf

from bert_tf.distribution import cluster, tensorflow_internals
from bert_tf.runtime import messages, program
from bert_tf.runtime.errors import InputError, first_of

# Marks the report of a worker within an error message of TensorFlow.
_REPORT = "<worker>{}</worker>"
# Seconds that the leader keeps running after an error, so that other workers receive the report.
_SECONDS_TO_REPORT = 2.0
_LONGEST_REPORT = 1000
# The longest time that a worker waits until another worker has received a sum.
_SECONDS_TO_LEAVE = 10.0
# Numbers the calls of `wait`, which all workers make in the same order.
_waits = itertools.count()
# The longest time to wait for a worker to start, as a multiple of the time to wait for its heartbeat.
_START_TIMEOUTS = 10
# Gradients are summed in parts of about this size. Each part is sent as soon as the backward pass has computed it.
# Joining all gradients into one tensor of hundreds of megabytes takes longer than sending them.
_BYTES_PER_SUM = 4 << 20
_TASK = re.compile(r"/job:(chief|worker)/(?:replica:0/)?task:(\d+)")


class WorkersError(InputError):
    """Raised if the workers can't continue together.

    Args:
      reason: the reason; the same text on all workers.
      advice: an additional text on this worker.
    """

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(f"{reason} {advice}".strip())
        self.reason = reason


@functools.cache  # all runs of a process share the connection
def connect(worker_timeout: int) -> tf.distribute.Strategy:
    """Waits for the other workers in TF_CONFIG, and builds the strategy for training.

    After this call, an error that ends this program ends all workers, with a message that names the failed worker. See
    `program.on_failure`.

    Args:
      worker_timeout: seconds without a heartbeat after which a worker is considered lost.

    Raises:
      InputError: if TF_CONFIG is missing or malformed, or the workers can't connect; see `cluster.wait_for_all`.
    """
    members, name = cluster.read_tf_config()
    cluster.check_jobs(members)
    program.on_failure(functools.partial(_end_all, name))
    leader = f"/job:{cluster.leader(members).replace(' ', '/replica:0/task:')}"
    jobs = {job: len(tasks) for job, tasks in members.items()}
    tensorflow_internals.configure_coordination(leader, jobs, worker_timeout)
    count = sum(map(len, members.values()))
    messages.say(f"{name}: waiting for all {count} workers in TF_CONFIG to start.")
    cluster.wait_for_all(members, name, _START_TIMEOUTS * worker_timeout)
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=_BYTES_PER_SUM)
    try:
        strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
        tensorflow_internals.set_shared_value(name, "connected")
        return strategy
    except tf.errors.OpError as error:
        raise InputError(
            f"TF_CONFIG: {name} can't connect to the other workers ({error.message}). Start the same program on each "
            f"of these machines, with TF_CONFIG set: {first_of(itertools.chain(*members.values()))}."
        ) from None


def name_of(strategy: tf.distribute.Strategy) -> str:
    """Returns the name of this worker for messages, for example "worker 1"."""
    return f"{strategy.cluster_resolver.task_type} {strategy.cluster_resolver.task_id}"


def wait(strategy: tf.distribute.Strategy) -> None:
    """Waits until all workers have called this function.

    Afterwards, a worker may end. A sum over the workers fails if a worker ends before the others have its last message.
    Therefore each worker waits until the others have the sum.
    """
    strategy.run(_barrier)
    members, this_name = cluster.read_tf_config()
    number = next(_waits)
    with contextlib.suppress(tf.errors.OpError):  # the first worker, which runs the service, may have ended
        tensorflow_internals.set_shared_value(f"{this_name} wait {number}", "done")
        for name in cluster.names(members):
            tensorflow_internals.wait_for_shared_value(f"{name} wait {number}", _SECONDS_TO_LEAVE)


@tf.function(autograph=False)
def _barrier() -> tf.Tensor:
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, 1.0)


def gather(strategy: tf.distribute.Strategy, text: str) -> dict[str, str]:
    """Collects texts: maps the name of each worker to the worker's text. All workers must call this function.

    If a worker is lost, this function fails like a training step, because both use collective operations.
    """
    as_bytes = f"{name_of(strategy)}\0{text}\0".encode()
    sent = np.frombuffer(as_bytes, np.uint8).astype(np.int32)  # TensorFlow can't gather single bytes

    @tf.function(autograph=False)
    def gathered() -> tf.Tensor:
        return strategy.run(lambda: tf.distribute.get_replica_context().all_gather(tf.constant(sent), axis=0))

    received = strategy.experimental_local_results(gathered())[0].numpy().astype(np.uint8).tobytes()
    names_and_texts = received.decode().split("\0")[:-1]
    return dict(zip(names_and_texts[::2], names_and_texts[1::2], strict=True))


def explain(error: BaseException) -> str | None:
    """Returns the reason of an error that is caused by workers, as a sentence; None for other errors."""
    if isinstance(error, WorkersError):
        return error.reason
    is_about_workers = isinstance(error, tf.errors.OpError) and re.search(
        "Collective ops is aborted by|CoordinationService|remote target /job:", error.message
    )
    if not is_about_workers:
        return None
    before, after = _REPORT.split("{}")
    if before in error.message:
        return error.message.partition(before)[2].partition(after)[0]
    if "Shape mismatch in the collective" in error.message:
        return "the workers run different computations. Use the same flags and the same version on all of them."
    # If the coordination service does not respond, the message names no worker, or only this worker.
    members, this_name = cluster.read_tf_config()
    lost = {f"{job} {index}" for job, index in _TASK.findall(error.message)} - {this_name} or {cluster.leader(members)}
    return f"{first_of(sorted(lost))} has ended, or has not answered within --worker_timeout."


def _end_all(name: str, error: BaseException) -> str | None:
    """Reports the end of this worker and the reason to all workers. Returns the reason if another worker caused it."""
    if not tensorflow_internals.is_initialised():
        return None
    cause = explain(error)
    report = cause or f"{name} has ended: {str(error)[:_LONGEST_REPORT] or type(error).__name__}"
    with contextlib.suppress(tf.errors.OpError):  # the service itself may have failed
        tensorflow_internals.report_to_workers(name, _REPORT.format(report), _SECONDS_TO_REPORT)
        if name == cluster.leader(cluster.read_tf_config()[0]):
            time.sleep(_SECONDS_TO_REPORT)
    return cause
