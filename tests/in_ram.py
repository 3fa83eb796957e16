"""Runs a program on URLs: copies a directory to `ram://files`, and copies the program's outputs back.

    python tests/in_ram.py DIRECTORY PROGRAM [FLAGS]     PROGRAM is a file, or the name of a module

`ram://` is TensorFlow's file system in the memory of a process, used here instead of `gs://`.
"""

import os
import runpy
import sys

import tensorflow as tf

URL = "ram://files"


def is_listed(url: str) -> bool:
    """Returns True if a name exists. `ram://` itself also reports the beginnings of names as directories."""
    directory, _, name = url.rstrip("/").rpartition("/")
    return name in ("", "files") or name in (x.rstrip("/") for x in tf.io.gfile.listdir(directory))


def answers_for_listed_names(function):
    """Wraps a function about a URL, so that it raises or returns False for names that do not exist."""

    def answer(url):
        url = os.fspath(url)
        return function(url) and (not url.startswith("ram://") or is_listed(url))

    return answer


def copy(source: str, target: str) -> None:
    """Copies the files of a directory."""
    for directory, _, names in tf.io.gfile.walk(source):
        inside = target + directory.rstrip("/").removeprefix(source)
        tf.io.gfile.makedirs(inside)
        for name in names:
            path = f"{directory.rstrip('/')}/{name}"
            if tf.io.gfile.exists(path):
                with tf.io.gfile.GFile(path, "rb") as reader, tf.io.gfile.GFile(f"{inside}/{name}", "wb") as writer:
                    writer.write(reader.read())


def main(directory: str, program: str, *arguments: str) -> None:
    for name in ("exists", "isdir"):
        setattr(tf.io.gfile, name, answers_for_listed_names(getattr(tf.io.gfile, name)))
    copy(directory, URL)
    sys.argv = [program, *arguments]
    sys.path[0] = os.getcwd()  # instead of the directory of this file
    try:
        if program.endswith(".py"):
            runpy.run_path(program, run_name="__main__")
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    finally:
        copy(URL, directory)


main(*sys.argv[1:])
