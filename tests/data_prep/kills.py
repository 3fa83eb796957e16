"""Kills a preparation at each operation on files, and lets the next run go on.

    python -m tests.data_prep.kills FOLDER

Prints the number of kills. A killed run leaves no incomplete output, and the next run completes the files.
"""

import itertools
import os
import pathlib
import shutil
import sys

from data_prep import local
from data_prep.corpus import files
from tests.data_prep.corpora import make, preparation_config, write_corpus, write_vocab

_KILLED = 137
_OPERATIONS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree")


def run(folder: pathlib.Path, text: str, kill_at: int = 0) -> int:
    """Prepares a text in a child process, which may be killed; returns its exit status."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    count = 0

    def look(event: str, arguments: tuple) -> None:
        nonlocal count
        is_write = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if is_write or event in _OPERATIONS:
            count += 1
            if count == kill_at:
                os._exit(_KILLED)

    sys.addaudithook(look)
    make(folder, text, num_shards=2)
    os._exit(0)


def main(folder: pathlib.Path) -> None:
    """Kills until a run ends before the kill."""
    files._SPLIT_BYTES = (700, 700)
    local._RANGE_EXAMPLES = (60, 60)
    write_vocab(folder)
    text = write_corpus(folder / "text.txt", documents=12)
    paths, _ = make(folder, text, num_shards=2)
    expected = [pathlib.Path(path).read_bytes() for path in paths]
    names = sorted(os.listdir(folder))
    for number in itertools.count(1):
        for name in {*os.listdir(folder)} - {"text.txt", "vocab.txt"}:
            shutil.rmtree(folder / name) if name == "work" else os.remove(folder / name)
        status = run(folder, text, number)
        for path, content in zip(paths, expected, strict=True):
            assert not os.path.exists(path) or pathlib.Path(path).read_bytes() == content, number
        if status == 0:
            break
        assert status == _KILLED and run(folder, text) == 0, number
        assert [pathlib.Path(path).read_bytes() for path in paths] == expected, number
        assert preparation_config(folder, text, num_shards=2).shards.are_finished(), number
        assert sorted(os.listdir(folder)) == names, number
    print(number - 1)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
