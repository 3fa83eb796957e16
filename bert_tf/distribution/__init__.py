"""The devices and processes that train together.

- `devices`: the requested devices, and how a batch is divided among them.
- `strategies`: builds the `tf.distribute` strategy, and reports devices, replicas and workers.
- `assumed_devices`: the devices of a dry run.
- `hardware`: the types and instructions of this process's devices, and whether XLA can compile for them.
- `cluster`: reads TF_CONFIG and waits until all workers have started.
- `workers`: connects workers, exchanges texts between them, and reports lost workers.
- `tensorflow_internals`: all private names of TensorFlow that the package uses.

`devices` and `cluster` do not import TensorFlow.
"""
