"""The lowest layer: files, messages and processes. It imports no other package of `bert_tf`; all others may import it.

No module needs TensorFlow; `remote` imports it when it first gets a URL.

- `errors`: `InputError`, the type check of a value, and the messages for errors of the operating system.
- `settings`: the base class of all settings; its fields define type, bounds, help and flag.
- `dry_run`: dry runs, which end at their first output.
- `files`: reads and writes local and remote files.
- `storage`: URLs, locks, output paths and types of files (a directory).
- `json_files`: reads JSON and TOML files, and checks their types.
- `messages`: messages for the user, on standard error.
- `signals`: SIGTERM and Ctrl-C, and programs that are called.
- `program`: starts and ends a program: flags, help, exit status.
- `reporting`: progress bars, tables and results.
- `parallel`: runs a function on many items in several processes.
- `differences`: lists the settings that differ between runs or workers.
- `lazy_imports`: imports optional packages on first use, and prepares the import of TensorFlow.
- `moved`: old names of modules that moved.
"""

__version__ = "1.0.0b1"
