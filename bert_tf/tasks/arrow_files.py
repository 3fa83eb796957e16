"""Reads the rows of Parquet and Arrow files, and the names of classes that the datasets library stores in them."""

from collections.abc import Mapping
from typing import Any

import msgspec

from bert_tf.runtime import files, lazy_imports
from bert_tf.runtime.errors import InputError


def read(path: str, format_name: str) -> list[dict[str, Any]]:
    """Returns the rows of a file. If the file has names for integer classes, the rows contain the names.

    An integer without a name, such as -1 in the datasets library, is a missing label.

    Args:
      path: the file.
      format_name: "Parquet", "Arrow" or "Arrow stream".

    Raises:
      InputError: if PyArrow is not installed, the file is damaged, or columns have the same name.
    """
    purpose = f"{path}: {format_name} data"
    arrow, parquet, ipc = (lazy_imports.require(f"pyarrow{part}", purpose) for part in ("", ".parquet", ".ipc"))
    data = arrow.BufferReader(files.read_bytes(path, "--data_dir"))
    opened = {"Arrow": ipc.open_file, "Arrow stream": ipc.open_stream}
    try:
        table = parquet.read_table(data) if format_name == "Parquet" else opened[format_name](data).read_all()
        rows = table.to_pylist()
    except (arrow.ArrowException, OSError, ValueError) as error:
        problem = str(error).partition("\n")[0]
        raise InputError(f"{path} can't be read as {format_name} ({problem}). Download it again.") from None
    if len(set(table.column_names)) < len(table.column_names):
        raise InputError(f"{path}: several columns have the same name. Rename or remove them.")
    if "binary" in str(table.schema):
        rows = _decoded(rows)
    names_of = _class_names((table.schema.metadata or {}).get(b"huggingface", b""))
    for values in rows:
        for column in names_of.keys() & values.keys():
            values[column] = _named(values[column], names_of[column])
    return rows


class _Features(msgspec.Struct):
    """The descriptions of the columns. Other fields are ignored."""

    features: dict[str, Any] | None = None


class _Description(msgspec.Struct):
    """The metadata that the datasets library writes. Other fields, such as `fingerprint`, are ignored."""

    info: _Features | None = None


def _class_names(description: bytes) -> dict[str, dict[int, str]]:
    """Returns the names of integer classes by column. Descriptions of other columns are ignored."""
    try:
        info = msgspec.json.decode(description, type=_Description).info
    except msgspec.DecodeError:
        return {}
    names_of: dict[str, dict[int, str]] = {}
    for column, kind in ((info and info.features) or {}).items():
        # A list is described as [entry] or {"feature": entry}.
        entry = kind[0] if isinstance(kind, list) and kind else kind
        entry = entry.get("feature", entry) if isinstance(entry, dict) else None
        names = entry.get("names") if isinstance(entry, dict) else None
        if names and isinstance(names, list) and all(isinstance(name, str) for name in names):
            names_of[column] = dict(enumerate(names))
    return names_of


def _decoded(value: Any) -> Any:
    """Returns a value with all bytes in it decoded from UTF-8. Other bytes, such as images, are unchanged."""
    if isinstance(value, list):
        return list(map(_decoded, value))
    if isinstance(value, dict):
        return {name: _decoded(part) for name, part in value.items()}
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value


def _named(cell: Any, names: Mapping[float, str]) -> Any:
    """Returns the names of integers in a cell; None for an integer without a name. Other values are unchanged."""
    if isinstance(cell, list):
        return [_named(entry, names) for entry in cell]
    return names.get(cell) if isinstance(cell, int | float) else cell
