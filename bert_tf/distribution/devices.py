"""The devices that a program asks for, and how a batch is divided among them."""

import dataclasses
from typing import TYPE_CHECKING

from bert_tf.distribution import cluster
from bert_tf.runtime.errors import InputError, require_choice

if TYPE_CHECKING:
    import tensorflow as tf

STRATEGIES = ("one_device", "mirrored", "multi_worker", "tpu")


@dataclasses.dataclass(frozen=True)
class DistributionConfig:
    """The flags that choose the devices.

    Attributes:
      distribution_strategy: one of `STRATEGIES`.
      tpu_name: the TPU's name or address (`grpc://...`), or "local" on a TPU VM.
      tpu_zone: the TPU's zone; if empty, TensorFlow looks it up.
      gcp_project: the TPU's project; if empty, TensorFlow looks it up.
      num_tpu_cores: how many cores the TPU must have; 0 for any number.
      worker_timeout: with several workers, the seconds without a sign of life after which one is taken for dead.
      allow_tf32: whether GPUs may round the factors of float32 products to 10 bits (TensorFloat-32).
      deterministic: whether only operations are used that give the same numbers in each run. CPUs have no others that
        matter here; on GPUs, sums of gradients into the embedding tables are added in an order of chance otherwise.
    """

    distribution_strategy: str = "one_device"
    tpu_name: str = ""
    tpu_zone: str = ""
    gcp_project: str = ""
    num_tpu_cores: int = 0
    worker_timeout: int = 60
    allow_tf32: bool = False
    deterministic: bool = False

    def __post_init__(self) -> None:
        require_choice("--distribution_strategy", self.distribution_strategy, STRATEGIES)

    def check_tf_config(self) -> None:
        """Checks that TF_CONFIG fits the strategy, without TensorFlow, whose import takes seconds.

        Raises:
          InputError: if the strategy needs TF_CONFIG, and it can't be used; or if it makes this process one of several
            workers, of which the strategy knows nothing.
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
    replicas = strategy.num_replicas_in_sync
    if global_batch_size < 1 or global_batch_size % replicas:
        raise InputError(f"{flag_name} is {global_batch_size}, but a multiple of the {replicas} replicas is expected.")
    return global_batch_size // replicas
