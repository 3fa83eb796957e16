"""Finds and tells what differs: settings of before and of now, those of several workers, and what files hold."""

import hashlib
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

from bert_tf.runtime import files

# An error message lists at most this number of changed settings, and counts the others.
_MAX_LISTED = 20
_FINGERPRINT_BYTES = 1 << 24


def between(*values: Any, name: str = "") -> list[tuple[str, tuple]]:
    """Finds the differences between several values of a setting; nested values are compared part by part.

    Args:
      *values: its values, or mappings of all settings.
      name: the setting's name.

    Returns:
      The name of each part that is not the same in all values, and its values; None where the part is missing.
    """
    if all(isinstance(value, Mapping) for value in values):
        keys = dict.fromkeys(key for value in values for key in value)
        parts = [(f"{name}: {key}" if name else key, [value.get(key) for value in values]) for key in keys]
    elif all(isinstance(value, list) for value in values):
        parts = [(f"{name} {i + 1}", part) for i, part in enumerate(itertools.zip_longest(*values))]
    else:
        return [] if all(value == values[0] for value in values) else [(name, values)]
    return [difference for part_name, part in parts for difference in between(*part, name=part_name)]


def fingerprint(pattern: str) -> str:
    """A short text that differs if files differ in their names, their sizes or their first 16 MiB.

    Args:
      pattern: a file, a folder, whose files are meant then, or a glob of files and folders.
    """
    digest = hashlib.sha256()
    for path in files.find(pattern):
        inside = files.find(os.path.join(path, "*")) or [path]
        for name in itertools.filterfalse(files.is_folder, inside):
            with files.open_file(name, "rb") as reader:
                start = hashlib.sha256(reader.read(_FINGERPRINT_BYTES)).digest()
            digest.update(f"{os.path.basename(name)} {files.size(name)} ".encode() + start)
    return digest.hexdigest()[:12]


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What has changed in settings, a text for each part."""
    return [f"{name} was {old!r}, and is {new!r} now" for name, (old, new) in between(before, now)]


def listed(changes: Sequence[str]) -> str:
    """The lines of a list in an error message; a long list is cut."""
    more = [f"and {len(changes) - _MAX_LISTED} more"] if len(changes) > _MAX_LISTED else []
    return "\n  ".join([*changes[:_MAX_LISTED], *more])
