"""Where the reference data lies, and what several tests share.

The golden data are outputs of the original code. `tests/golden` holds a small cut of them; a larger set of the same
layout is used instead where the environment variable BERT_GOLDEN names one, or where it lies beside the checkout.
"""

import gzip
import json
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"


def _golden_folder() -> pathlib.Path:
    if "BERT_GOLDEN" in os.environ:
        return pathlib.Path(os.environ["BERT_GOLDEN"])
    beside = SHARED / "golden"
    return beside if beside.is_dir() else ROOT / "tests" / "golden"


GOLDEN = _golden_folder()


def golden_path(name: str) -> pathlib.Path:
    """A file or folder of the golden set in use; the test is skipped where the small cut lacks it."""
    path = GOLDEN / name
    if not path.exists():
        pytest.skip(f"{GOLDEN} has no {name}")
    return path


def golden_json(name: str):
    """A JSON file of the golden set, gzipped or not."""
    path = golden_path(name)
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as reader:
        return json.load(reader)


def golden_lines(name: str) -> list:
    """A JSON-lines file of the golden set, gzipped or not."""
    path = golden_path(name)
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as reader:
        return [json.loads(line) for line in reader]


def data_path(name: str) -> pathlib.Path:
    """A file or folder of the real data sets beside the checkout; the test is skipped where there are none."""
    path = SHARED / "data" / name
    if not path.exists():
        pytest.skip(f"the real data sets are not beside this checkout ({path})")
    return path


@pytest.fixture
def write(tmp_path):
    """Writes a text file and returns its path."""

    def write_file(name: str, text: str | bytes) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return str(path)

    return write_file
