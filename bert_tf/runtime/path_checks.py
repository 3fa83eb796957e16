"""Checks and expands the paths that flags name, before any work is done."""

import os
import re

from bert_tf.runtime import files
from bert_tf.runtime.errors import InputError, require_utf8
from bert_tf.runtime.storage import remote
from bert_tf.runtime.storage.output_checks import check_output_files as check_output_files

# Endings of files in which other libraries store a model.
_FILE_ENDING = re.compile(r"\.(keras|h5|hdf5|weights|safetensors|tflite|onnx|pb|bin|pt|pth|ckpt|pkl|zip)$")


def check_new_directory(path: str, flag_name: str) -> None:
    """Checks that a directory can be created and filled. Call it before any work is done.

    Args:
      path: the directory.
      flag_name: the flag or function that gave the path, for messages; for example `--export_dir`.

    Raises:
      InputError: if the path is missing, is a file or a directory with content, or can't be created.
    """
    check_output_directory(path, flag_name)
    if files.exists(path) and files.list_directory(path):
        raise InputError(f"{flag_name}: {path} already exists. Choose another directory, or remove this one.")
    if ending := _FILE_ENDING.search(path):
        raise InputError(f"{flag_name}: the output is a directory, but {path} is the name of a file. Omit {ending[0]}.")


def check_output_directory(path: str, flag_name: str) -> None:
    """Checks that files can be created in a directory, which may not exist yet. Call it before any work is done.

    Raises:
      InputError: if the path is missing or a file, or files can't be created in it.
    """
    if not path:
        raise InputError(f"{flag_name} is required. Pass it.")
    check_output_files([os.path.join(path, "file")], flag_name)
    if files.is_remote(path):
        remote.check_directory(path, flag_name)


def expand_patterns(patterns: str | list[str], flag_name: str) -> list[str]:
    """Finds the files that match a comma-separated list of names and glob patterns.

    Matches are listed in the order of the patterns, as in the original code. Matches of one pattern are also sorted,
    so the result does not depend on the file system.

    Args:
      patterns: the flag's value, or a list of names and patterns.
      flag_name: the flag, for messages; for example `--input_file`.

    Raises:
      InputError: if nothing is given, or a pattern matches no file.
    """
    pattern_list = patterns.split(",") if isinstance(patterns, str) else list(patterns)
    pattern_list = [pattern.strip() for pattern in pattern_list if pattern.strip()]
    if not pattern_list:
        raise InputError(f"{flag_name} is required. Pass it.")
    paths: list[str] = []
    for pattern in pattern_list:
        matches = files.find(pattern)
        if not matches:
            raise InputError(f"{flag_name}: {pattern!r} matches no file. Check the path, and quote globs in the shell.")
        for name in matches:
            require_utf8(name, f"{flag_name}: the file")
        paths.extend(matches)
    return paths
