"""Processes on several machines that train one model together.

TensorFlow's coordination service tells each of them when another one has failed or no longer answers, and then ends all
sums over the workers with an error. This module makes a message of it.
"""

import contextlib
import functools
import itertools
import re
import time

import numpy as np
import tensorflow as tf

from bert_tf.distribution import cluster
from bert_tf.runtime import program
from bert_tf.runtime.files import InputError

# Encloses what one worker tells the others, which TensorFlow surrounds with text of its own.
_REPORT = "<worker>{}</worker>"
# How long the worker that runs the coordination service lives on after an error, so that the others can hear of it.
_SECONDS_TO_REPORT = 2.0
_LONGEST_REPORT = 1000
# How many times as long as without a sign of life, once it is there, a worker may take until it is there.
_START_TIMEOUTS = 10
# Gradients are added up in parts of about this size: each is sent as soon as the backward pass has computed it. Putting
# them all into one tensor of hundreds of megabytes first takes longer than sending them.
_BYTES_PER_SUM = 4 << 20
_TASK = re.compile(r"/job:(chief|worker)/(?:replica:0/)?task:(\d+)")


class WorkersError(InputError):
    """The workers can't go on together.

    Args:
      reason: the reason, in the same words for all workers.
      advice: what else the message says on this one.
    """

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(f"{reason} {advice}".strip())
        self.reason = reason


def connect(worker_timeout: int) -> tf.distribute.Strategy:
    """Waits for the other workers of TF_CONFIG, and builds the strategy with which they train.

    From then on, an error that ends the program ends all workers, with a message that says which of them had it; see
    `program.on_failure`.

    Args:
      worker_timeout: the seconds without a sign of life after which a worker is taken for dead.

    Raises:
      InputError: if TF_CONFIG is missing or malformed, or the workers don't find each other; see
        `cluster.wait_for_all`.
    """
    # The functions of TensorFlow for this have no public names. The strategy keeps what is configured before it is
    # built, and otherwise waits ten seconds, which is short for a busy machine.
    from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
    from tensorflow.python.eager import context

    members, name = cluster.read_tf_config()
    program.on_failure(functools.partial(_end_all, name))
    if context.context().coordination_service is None:
        context.context().configure_coordination_service(
            service_type="standalone",
            service_leader=f"/job:{cluster.leader(members).replace(' ', '/replica:0/task:')}",
            coordinated_jobs=[
                coordination_config_pb2.CoordinatedJob(name=job, num_tasks=len(tasks)) for job, tasks in members.items()
            ],
            heartbeat_timeout_in_ms=1000 * worker_timeout,
            cluster_register_timeout_in_ms=1000 * worker_timeout,
        )
    count = sum(map(len, members.values()))
    program.say(f"{name} waits until all {count} workers of TF_CONFIG have started.")
    cluster.wait_for_all(members, name, _START_TIMEOUTS * worker_timeout)
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=_BYTES_PER_SUM)
    try:
        strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
        context.context().set_config_key_value(name, "connected")
        return strategy
    except tf.errors.OpError as error:
        raise InputError(
            f"TF_CONFIG: {name} can't find the other workers ({error.message}). Start the same program on each of "
            f"these machines, with TF_CONFIG set: {', '.join(itertools.chain(*members.values()))}."
        ) from None


def name_of(strategy: tf.distribute.Strategy) -> str:
    """The name of this worker in messages, for example "worker 1"."""
    return f"{strategy.cluster_resolver.task_type} {strategy.cluster_resolver.task_id}"


def wait(strategy: tf.distribute.Strategy) -> None:
    """Waits until all workers have called this function."""
    strategy.run(_barrier)


@tf.function(autograph=False)
def _barrier() -> tf.Tensor:
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, 1.0)


def gather(strategy: tf.distribute.Strategy, text: str) -> dict[str, str]:
    """Returns the text of each worker by its name. All workers must call this function.

    It sums over the workers as training does, so the loss of a worker ends it in the same way.
    """
    as_bytes = f"{name_of(strategy)}\0{text}\0".encode()
    sent = np.frombuffer(as_bytes, np.uint8).astype(np.int32)  # TensorFlow gathers no single bytes

    @tf.function(autograph=False)
    def gathered() -> tf.Tensor:
        return strategy.run(lambda: tf.distribute.get_replica_context().all_gather(tf.constant(sent), axis=0))

    received = strategy.experimental_local_results(gathered())[0].numpy().astype(np.uint8).tobytes()
    names_and_texts = received.decode().split("\0")[:-1]
    return dict(zip(names_and_texts[::2], names_and_texts[1::2], strict=True))


def explain(error: BaseException) -> str | None:
    """What an error of TensorFlow says about other workers, as a sentence; None if it says nothing about them."""
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
        return "the workers do not compute the same, as happens with other flags or another version on one of them."
    # If only the coordination service does not answer, no worker is named. This one, which lives, may be.
    members, own = cluster.read_tf_config()
    lost = {f"{job} {index}" for job, index in _TASK.findall(error.message)} - {own} or {cluster.leader(members)}
    return f"{' or '.join(sorted(lost))} has ended, or has not answered within --worker_timeout."


def _end_all(name: str, error: BaseException) -> str | None:
    """Tells all workers why this one ends. Returns the reason if it lies with another one."""
    from tensorflow.python.eager import context

    if context.context()._context_handle is None:
        return None
    cause = explain(error)
    told = cause or f"{name} has ended: {str(error)[:_LONGEST_REPORT] or type(error).__name__}"
    with contextlib.suppress(tf.errors.OpError):  # the service may be what has failed
        # A report to a service that hangs would hang too. This, which was set before, does so only for a limited time.
        context.context().get_config_key_value(name, timeout_in_ms=int(1000 * _SECONDS_TO_REPORT))
        context.context().report_error_to_cluster(tf.errors.UNAVAILABLE, _REPORT.format(told))
        if name == cluster.leader(cluster.read_tf_config()[0]):
            time.sleep(_SECONDS_TO_REPORT)
    return cause
