"""The devices that a program asks for, and how a batch is divided among them."""

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from bert_tf.distribution import cluster
from bert_tf.runtime.errors import InputError, require_whole
from bert_tf.runtime.settings import Settings, about

if TYPE_CHECKING:
    import tensorflow as tf


class DistributionConfig(Settings, frozen=True):
    """The devices.

    Attributes:
      tpu_name: the TPU's name or address (`grpc://...`), or "local" on a TPU VM.
      allow_tf32: TensorFloat-32 rounds the factors of float32 products to 10 bits.
      deterministic: sums of gradients into the embedding tables have a nondeterministic order on GPUs otherwise. CPUs
        have no such operations.
    """

    distribution_strategy: Annotated[
        Literal["one_device", "mirrored", "multi_worker", "tpu"], about("The devices to run on.", group="Devices")
    ] = "one_device"
    tpu_name: Annotated[str | None, about("The TPU's name or address, or 'local' on a TPU VM.")] = None
    tpu_zone: Annotated[str, about("The TPU's zone, if it can't be detected.")] = ""
    gcp_project: Annotated[str, about("The TPU's project, if it can't be detected.")] = ""
    num_tpu_cores: Annotated[int, about("Number of cores the TPU must have; 0 for any.", ge=0)] = 0
    worker_timeout: Annotated[
        int, about("With several workers, seconds without a heartbeat after which a worker is lost.", ge=1)
    ] = 60
    allow_tf32: Annotated[bool, about("Let GPUs multiply float32 numbers as TensorFloat-32.")] = False
    deterministic: Annotated[
        bool, about("Compute the same numbers in each run on GPUs too, which is slower there.")
    ] = False
    use_tpu: Annotated[bool, about("Run on a TPU, like --distribution_strategy=tpu.")] = False
    master: Annotated[str | None, about("The TPU's grpc:// address, if --tpu_name is not given.")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        # The original's flags are other names of these settings.
        strategy = "tpu" if self.use_tpu else self.distribution_strategy
        values = {"distribution_strategy": strategy, "tpu_name": self.tpu_name or self.master or None}
        for name, value in (values | {"use_tpu": False, "master": None}).items():
            msgspec.structs.force_setattr(self, name, value)

    def check_tf_config(self) -> None:
        """Checks that TF_CONFIG fits the strategy, without TensorFlow, whose import takes seconds.

        Raises:
          InputError: if the strategy needs TF_CONFIG, and it can't be used; or if it has several workers, and the
            strategy has one.
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
        count = sum(map(len, workers.values()))
        if count > 1 and not is_worker:
            raise InputError(
                f"--distribution_strategy is {self.distribution_strategy}, but TF_CONFIG, an environment variable, "
                f"makes this process {name} of {count} workers, and the others would wait for it. Give "
                "--distribution_strategy=multi_worker to work with them, or unset TF_CONFIG to work alone."
            )

    def check_one_worker(self, *needed_by: str) -> None:
        """Checks that outputs of a model can be collected, which several workers can't do.

        Args:
          needed_by: the flags that need this.

        Raises:
          InputError: if there are such flags, and several workers.
        """
        if needed_by and self.distribution_strategy == "multi_worker":
            raise InputError(
                "--distribution_strategy=multi_worker: several workers can train, but not evaluate or predict, as "
                f"{', '.join(needed_by)} would have to. Train first; then evaluate or predict on one machine."
            )


def per_replica_batch_size(global_batch_size: int, strategy: "tf.distribute.Strategy", flag_name: str) -> int:
    """The number of examples of a batch that each replica gets.

    Raises:
      InputError: if the batch can't be split evenly.
    """
    require_whole(flag_name, global_batch_size, 1)
    replicas = strategy.num_replicas_in_sync
    if global_batch_size % replicas:
        raise InputError(f"{flag_name} is {global_batch_size}, but a multiple of the {replicas} replicas is expected.")
    return global_batch_size // replicas
