"""Names of folders that shells, patterns and formats could take for something else, and headers that lie."""

import json
import os
import pathlib
import random
import struct
from collections import Counter
from collections.abc import Callable

import google_crc32c
import numpy as np

from bert_tf.runtime import errors
from bert_tf.sequences.example_format import masked_checksums
from tests.torture import damage, jobs

_NAMES = (
    *("a b", " edge ", "a\nb", "a\tb\r", "100%s %d{x}", "天地é", "e\u0301\u202e", "-rf", "--flag=x"),
    *("a'b\"c", "[1]", "x\\y", "*?", "~", "$HOME", "`id`", "a;b|c&d", "#", "model.ckpt-7", "x.tfrecord.meta.json"),
    "n" * 200,
)  # fmt: skip
_SIZES = (0, 1, 1 << 31, 1 << 40, 1 << 62, 1 << 63, (1 << 64) - 1)


def _lie_about_a_record(path: pathlib.Path, size: int) -> None:
    """Gives the first record another length, with the right checksum of this length."""
    length = struct.pack("<Q", size)
    checksum = masked_checksums(np.array([google_crc32c.value(length)], np.uint64))
    path.write_bytes(length + struct.pack("<I", int(checksum[0])) + path.read_bytes()[12:])


def _lie_about_records(path: pathlib.Path, size: int) -> None:
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {"records": size}))


def _lie_about_a_header(path: pathlib.Path, size: int) -> None:
    path.write_bytes(struct.pack("<Q", size) + path.read_bytes()[8:])


def _lie_about_a_tensor(path: pathlib.Path, size: int) -> None:
    name = "bert.pooler.dense.bias"
    header = json.dumps({name: {"dtype": "F32", "shape": [size], "data_offsets": [0, 4 * size]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))


_LIES: tuple[tuple[str, str, Callable[[pathlib.Path, int], None]], ...] = (
    ("records", "x.tfrecord", _lie_about_a_record),
    ("records", "x.tfrecord.meta.json", _lie_about_records),
    ("safetensors", "model.safetensors", _lie_about_a_header),
    ("safetensors", "model.safetensors", _lie_about_a_tensor),
)


def trial(folder: str, rng: random.Random, number: int, counts: Counter) -> None:
    """Work in a folder with a strange name gives what it gives elsewhere; every lie is an explained error."""
    name = _NAMES[number % len(_NAMES)]
    for kind, (prepare, job) in jobs.JOBS.items():
        found = []
        for parent in ("plain", name):
            inside = pathlib.Path(folder) / kind / parent
            inside.mkdir(parents=True)
            prepare(inside)
            job(inside)
            found.append(jobs.content(inside))
        assert found[0] == found[1], (kind, name, found)
        counts["strange names"] += 1
    for kind, (make, read, _) in damage.FORMATS.items():
        inside = pathlib.Path(folder) / "formats" / kind / name
        inside.mkdir(parents=True)
        make(inside)
        read(inside)
        counts["strange names"] += 1
    for kind, file, lie in _LIES:
        make, read, _ = damage.FORMATS[kind]
        for size in (*_SIZES, rng.getrandbits(rng.randint(4, 63))):
            inside = pathlib.Path(folder) / "lies" / f"{file} {lie.__name__} {size}"
            os.makedirs(inside)
            make(inside)
            lie(inside / file, size)
            try:
                read(inside)
                raise AssertionError(f"{file} was believed: {lie.__name__} {size}")
            except Exception as error:
                if errors.explanation(error) is None:
                    raise
            counts["lying headers"] += 1
