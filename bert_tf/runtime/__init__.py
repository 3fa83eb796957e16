"""The lowest layer: files, messages and processes. It imports no other folder; every folder may import it.

No module needs TensorFlow; `files` imports it when it first gets a remote path.

- `errors`: `InputError`, and the line in which errors of the operating system end.
- `outputs`: what an output may be; names of unfinished outputs, and the removal of those that were left.
- `files`: reads and writes local and remote files.
- `json_files`: reads JSON and TOML files into objects, and names the keys that they may not have.
- `claims`: keeps a second process from doing the same work in a folder.
- `program`: starts and ends a program: flags, messages, exit codes, signals.
- `reporting`: progress bars, tables and results.
- `parallel`: runs a function on many items in several processes.
- `differences`: names the settings of a run that are others than they were.
- `extras`: says what to install where an optional package is missing.
- `importing`: lets a package import names when they are first used.
"""
