"""The lowest layer: files, messages, processes and devices. It imports no other folder; every folder may import it.

Only `distribution` and `workers` always import TensorFlow; `files` imports it when it first gets a remote path.

- `errors`: `InputError`, and the line in which errors of the operating system end.
- `outputs`: what an output may be; names of unfinished outputs, and the removal of those that were left.
- `files`: reads and writes local and remote files.
- `claims`: keeps a second process from doing the same work in a folder.
- `program`: starts and ends a program: flags, messages, exit codes, signals.
- `reporting`: progress bars, tables and results.
- `parallel`: runs a function on many items in several processes.
- `importing`: lets a package import names when they are first used.
- `devices`: the devices that a program asks for, and how a batch is divided among them.
- `cluster`: says who trains together by TF_CONFIG, and lets these processes wait for each other.
- `workers`: connects processes that train together, exchanges texts, and says which of them was lost.
- `distribution`: builds the `tf.distribute` strategy, and answers questions about devices, replicas and workers.
"""
