"""The devices that a dry run assumes. A dry run neither connects to a TPU nor waits for other workers."""

import tensorflow as tf

from bert_tf.distribution import cluster
from bert_tf.distribution.devices import DistributionConfig


class AssumedDevices(tf.distribute.OneDeviceStrategy):
    """A strategy that replaces all devices of a run by one CPU device. It can trace the step of one replica.

    GPUs are hidden from TensorFlow, because another program may use them.

    Args:
      config: the devices of the run.

    Attributes:
      kind: the type of the assumed devices: "CPU", "GPU" or "TPU".
      is_local: whether all devices belong to this machine. False with several workers or a TPU of another machine.
      description: the devices, for messages.
      context: determines the part of each batch that this process would provide.
    """

    def __init__(self, config: DistributionConfig) -> None:
        gpus = len(tf.config.list_physical_devices("GPU"))
        tf.config.set_visible_devices([], "GPU")
        super().__init__("/cpu:0")
        devices_per_worker, workers, number = 1, 1, 0
        self.kind = "GPU" if gpus else "CPU"
        self.is_local = config.distribution_strategy != "multi_worker"
        if config.distribution_strategy == "tpu":
            self.kind, self.is_local, devices_per_worker = "TPU", config.tpu_name == "local", config.num_tpu_cores or 1
        elif config.distribution_strategy != "one_device":
            devices_per_worker = gpus or len(tf.config.list_logical_devices("CPU"))
        if config.distribution_strategy == "multi_worker":
            members, name = cluster.read_tf_config()
            names = cluster.names(members)
            workers, number = len(names), names.index(name)
        name = "TPU core" if self.kind == "TPU" else self.kind
        self.description = f"{workers * devices_per_worker} {name}{'s' if workers * devices_per_worker > 1 else ''}"
        if workers > 1:
            self.description += f" ({workers} workers; each is assumed to be like this one)"
        if self.kind == "TPU" and not config.num_tpu_cores:
            self.description += " (--num_tpu_cores is not given)"
        self.extended.num_hosts = workers
        self.context = tf.distribute.InputContext(workers, number, workers * devices_per_worker)

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas of the run."""
        return self.context.num_replicas_in_sync
