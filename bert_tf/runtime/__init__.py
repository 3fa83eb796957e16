"""The lowest layer: files, messages and processes. It imports no other folder; every folder may import it.

No module needs TensorFlow; `remote` imports it when it first gets a URL.

- `errors`: `InputError`, the check of a value, and the line that a program prints for errors of the operating system.
- `settings`: the base of all settings, whose fields give type, bounds, help and flag.
- `remote`: opens URLs such as `gs://bucket/name`.
- `outputs`: what an output may be.
- `files`: reads and writes local and remote files.
- `first_bytes`: what the first bytes of a file tell: compression, or the encoding of text.
- `json_files`: reads JSON and TOML files, and checks their types.
- `claims`: keeps a second process from doing the same work in a folder.
- `program`: starts and ends a program: flags, messages, exit codes, signals.
- `reporting`: progress bars, tables and results.
- `parallel`: runs a function on many items in several processes.
- `differences`: names the settings that differ between runs or workers.
- `extras`: imports optional packages, and names that a package offers, when they are first used.
"""
