"""Finds differences between old and new settings, between workers, and between files."""

import hashlib
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

from bert_tf.runtime import files

# An error message lists at most this many changed settings, and counts the others.
_MAX_LISTED = 20
_FINGERPRINT_BYTES = 1 << 24


def between(*values: Any, name: str = "") -> list[tuple[str, tuple]]:
    """Finds the differences between several values of a setting. Mappings and lists are compared entry by entry.

    Args:
      *values: the values, or mappings of all settings.
      name: the setting's name.

    Returns:
      The name of each entry that differs, and its values; None where the entry is missing.
    """
    if all(isinstance(value, Mapping) for value in values):
        keys = dict.fromkeys(key for value in values for key in value)
        entries = [(f"{name}: {key}" if name else key, [value.get(key) for value in values]) for key in keys]
    elif all(isinstance(value, list) for value in values):
        entries = [(f"{name} {i + 1}", elements) for i, elements in enumerate(itertools.zip_longest(*values))]
    else:
        return [] if all(value == values[0] for value in values) else [(name, values)]
    return [difference for entry_name, elements in entries for difference in between(*elements, name=entry_name)]


def fingerprint(pattern: str) -> str:
    """Returns a short text that changes if the names, sizes or first 16 MiB of files change.

    Args:
      pattern: a file, a directory (all its files), or a glob pattern of files and directories.
    """
    digest = hashlib.sha256()
    for path in files.find(pattern):
        inside = files.find(os.path.join(path, "*")) or [path]
        for name in itertools.filterfalse(files.is_directory, inside):
            with files.open_file(name, "rb") as reader:
                start = hashlib.sha256(reader.read(_FINGERPRINT_BYTES)).digest()
            digest.update(f"{os.path.basename(name)} {files.size(name)} ".encode() + start)
    return digest.hexdigest()[:12]


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns a sentence for each changed value."""
    return [f"{name} was {old!r}, and is {new!r} now" for name, (old, new) in between(before, now)]


def listed(changes: Sequence[str]) -> str:
    """Joins the lines of a list for an error message; a long list is shortened."""
    more = [f"and {len(changes) - _MAX_LISTED} more"] if len(changes) > _MAX_LISTED else []
    return "\n  ".join([*changes[:_MAX_LISTED], *more])
