"""The lowest layer: files, messages and processes. It imports no other package of `bert_tf`; all others may import it.

No module needs TensorFlow; `remote` imports it when it first gets a URL.

- `errors`: `InputError`, the type check of a value, and the messages for errors of the operating system.
- `settings`: the base class of all settings; its fields define type, bounds, help and flag.
- `remote`: opens URLs such as `gs://bucket/name`.
- `output_checks`: checks output paths.
- `dry_run`: dry runs, which end at their first output.
- `files`: reads and writes local and remote files.
- `first_bytes`: detects compression and text encoding from the first bytes of a file.
- `json_files`: reads JSON and TOML files, and checks their types.
- `locks`: prevents two processes from doing the same work in a directory.
- `messages`: messages for the user, on standard error.
- `signals`: SIGTERM and Ctrl-C, and programs that are called.
- `program`: starts and ends a program: flags, help, exit status.
- `reporting`: progress bars, tables and results.
- `parallel`: runs a function on many items in several processes.
- `differences`: lists the settings that differ between runs or workers.
- `lazy_imports`: imports optional packages on first use, and prepares the import of TensorFlow.
"""

__version__ = "1.0.0b1"
