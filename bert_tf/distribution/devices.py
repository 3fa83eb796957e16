"""The requested devices, and how a batch is divided among them."""

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from bert_tf.distribution import cluster
from bert_tf.runtime.errors import InputError, require_whole
from bert_tf.runtime.settings import PROGRAMS, Settings, about

if TYPE_CHECKING:
    import tensorflow as tf


class DistributionConfig(Settings, frozen=True):
    """The requested devices.

    Attributes:
      tpu_name: the name or address (`grpc://...`) of the TPU, or "local" on a TPU VM.
      allow_tf32: whether GPUs may use TensorFloat-32, which rounds the factors of float32 multiplications to 10 bits.
      deterministic: if False, GPUs sum the gradients of embedding tables in a nondeterministic order. CPU operations
        are always deterministic.
    """

    distribution_strategy: Annotated[
        Literal["one_device", "mirrored", "multi_worker", "tpu"], about("The devices to run on.", group="Devices")
    ] = "one_device"
    tpu_name: Annotated[str | None, about("The TPU's name or address, or 'local' on a TPU VM.")] = None
    tpu_zone: Annotated[str, about("The TPU's zone, if it is not detected.")] = ""
    gcp_project: Annotated[str, about("The TPU's project, if it is not detected.")] = ""
    num_tpu_cores: Annotated[int, about("Number of cores the TPU must have; 0 for any.", ge=0)] = 0
    worker_timeout: Annotated[int, about("Seconds without a heartbeat after which a worker counts as lost.", ge=1)] = 60
    allow_tf32: Annotated[bool, about("Let GPUs multiply float32 numbers as TensorFloat-32.")] = False
    deterministic: Annotated[bool, about("Use deterministic operations on GPUs, which are slower.")] = False
    use_tpu: Annotated[bool, about("Run on a TPU, like --distribution_strategy=tpu."), PROGRAMS] = False
    master: Annotated[str | None, about("The TPU's grpc:// address, if --tpu_name is not given."), PROGRAMS] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        # The original flags are aliases of these settings.
        strategy = "tpu" if self.use_tpu else self.distribution_strategy
        values = {"distribution_strategy": strategy, "tpu_name": self.tpu_name or self.master or None}
        if values["tpu_name"] and strategy != "tpu":
            flag = "--tpu_name" if self.tpu_name else "--master"
            raise InputError(f"{flag} is used only with --use_tpu. Pass --use_tpu too, or omit {flag}.")
        for name, value in (values | {"use_tpu": False, "master": None}).items():
            msgspec.structs.force_setattr(self, name, value)
        if strategy == "tpu" and not self.tpu_name:
            raise InputError("--tpu_name: missing. Pass local on a TPU VM, or the TPU's name or grpc:// address.")

    def check_tf_config(self) -> None:
        """Checks that TF_CONFIG matches the strategy, without importing TensorFlow, which takes seconds.

        Raises:
          InputError: if the strategy needs a valid TF_CONFIG, or if TF_CONFIG has several workers but the strategy
            uses one.
        """
        if self.distribution_strategy == "tpu":
            return
        is_worker = self.distribution_strategy == "multi_worker"
        try:
            workers, name = cluster.read_tf_config()
        except InputError:
            if is_worker:
                raise
            return
        if is_worker:
            cluster.check_jobs(workers)
        count = sum(map(len, workers.values()))
        if count > 1 and not is_worker:
            raise InputError(
                f"--distribution_strategy is {self.distribution_strategy}, but according to the environment variable "
                f"TF_CONFIG, this process is {name} of {count} workers. Pass --distribution_strategy=multi_worker to "
                "train together, or unset TF_CONFIG to train alone."
            )

    def check_one_worker(self, *needed_by: str) -> None:
        """Checks that there is a single worker, which is required to collect the outputs of a model.

        Args:
          needed_by: the given flags that require a single worker.

        Raises:
          InputError: if there are such flags and several workers.
        """
        if needed_by and self.distribution_strategy == "multi_worker":
            raise InputError(
                f"--distribution_strategy=multi_worker: {', '.join(needed_by)} can't be used with several workers. "
                "Train first, then evaluate or predict on one machine."
            )


def part_of_batch(global_batch_size: int, context: "tf.distribute.InputContext | None") -> tuple[slice, int]:
    """Returns the slice of a global batch that an input pipeline provides, and the number of its replicas.

    Each replica gets an equal part of the slice, in order. Without a context, one replica gets the complete batch.
    """
    if context is None:
        return slice(0, global_batch_size), 1
    replicas = context.num_replicas_in_sync // context.num_input_pipelines
    size = context.get_per_replica_batch_size(global_batch_size) * replicas
    return slice(context.input_pipeline_id * size, (context.input_pipeline_id + 1) * size), replicas


def per_replica_batch_size(global_batch_size: int, strategy: "tf.distribute.Strategy", flag_name: str) -> int:
    """Returns the number of examples of a batch for each replica.

    Raises:
      InputError: if the batch can't be split evenly.
    """
    require_whole(flag_name, global_batch_size, 1)
    replicas = strategy.num_replicas_in_sync
    if global_batch_size % replicas:
        raise InputError(f"{flag_name} is {global_batch_size}. Use a multiple of the {replicas} replicas.")
    return global_batch_size // replicas
