"""Runs training steps of transformers in another process, on a model and examples that are written for it."""

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from bert_tf.config import BertConfig

_SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers", "transformers_training.py")
_EXAMPLES_FILE = "examples.jsonl"


def write(folder: str, config: BertConfig, architecture: str, examples: Iterable[Mapping[str, Any]]) -> None:
    """Writes the model's config and the examples, each with the arguments of the model's call."""
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as writer:
        json.dump({**config.to_hf_dict(architecture), "num_labels": 2}, writer)
    with open(os.path.join(folder, _EXAMPLES_FILE), "w", encoding="utf-8") as writer:
        writer.writelines(json.dumps(example) + "\n" for example in examples)


@contextlib.contextmanager
def steps(python: str, folder: str, dtype: str, batch_size: int) -> Iterator[Callable[[int], float]]:
    """Starts the other process. Yields a function that trains for a number of steps and returns the seconds.

    Args:
      python: the interpreter of an environment with torch and transformers.
      folder: the folder of the model's config and the examples, see `write`.
      dtype: "float32" or "bfloat16".
      batch_size: number of examples per step.
    """
    threads = len(os.sched_getaffinity(0))
    command = [python, _SCRIPT, folder, os.path.join(folder, _EXAMPLES_FILE), dtype, str(batch_size), str(threads)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdout.readline().strip() != "ready":
            raise SystemExit(f"{python} could not run {_SCRIPT}. See the messages above.")

        def train(count: int) -> float:
            process.stdin.write(f"{count}\n")
            process.stdin.flush()
            return float(process.stdout.readline())

        yield train
