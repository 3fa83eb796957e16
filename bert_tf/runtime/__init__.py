"""The lowest layer: files, messages, processes and devices. It imports no other folder; every folder may import it.

Only `distribution` always imports TensorFlow; `files` imports it when it first gets a remote path.

- `files`: reads and writes local and remote files, and defines `InputError`.
- `program`: starts and ends a program: flags, messages, exit codes, signals.
- `reporting`: progress bars, tables and results.
- `parallel`: runs a function on many items in several processes.
- `distribution`: builds the `tf.distribute` strategy, and answers questions about devices, replicas and workers.
"""
