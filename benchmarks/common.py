"""Functions shared by the benchmarks: data, alternating measurements, and processes of other programs."""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from bert_tf.runtime import json_files
from bert_tf.runtime.errors import InputError

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PEERS = os.path.join(ROOT, "benchmarks", "peers")

# Default paths of the data, in the directory of shared data.
SHARED = os.path.join(ROOT, "..", "shared")
VOCAB_FILE = f"{SHARED}/golden/tokenization/vocab.txt"  # the vocabulary of an uncased model
QNLI_DIRECTORY = f"{SHARED}/data/glue/QNLI"
WNLI_DIRECTORY = f"{SHARED}/data/glue/WNLI"
SQUAD_FILE = f"{SHARED}/data/squad/dev-v1.1.json"
BOOKS_DIRECTORY = f"{SHARED}/data/pretrain"
CODAH_DIRECTORY = f"{SHARED}/data/codah"
WNUT_DIRECTORY = f"{SHARED}/data/ner/wnut17"

# The sizes of the 6-layer checkpoint. Most benchmarks use random weights, because speed does not depend on them.
MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}


def write_split(directory: str, into: str, rows: int | None = None) -> str:
    """Copies the dev set and the first `rows` training examples (all if None). The file has a random order."""
    os.makedirs(into, exist_ok=True)
    for name, count in (("train.tsv", rows), ("dev.tsv", None)):
        with (
            open(os.path.join(directory, name), encoding="utf-8") as reader,
            open(os.path.join(into, name), "w", encoding="utf-8") as writer,
        ):
            writer.writelines(line for i, line in enumerate(reader) if count is None or i <= count)
    return into


def write_pairs(directory: str, into: str) -> str:
    """Writes the questions of QNLI with the sentences that answer them, as training and dev set."""
    os.makedirs(into, exist_ok=True)
    for split in ("train", "dev"):
        with (
            open(os.path.join(directory, f"{split}.tsv"), encoding="utf-8") as reader,
            open(os.path.join(into, f"{split}.jsonl"), "w", encoding="utf-8") as writer,
        ):
            for _, question, sentence, label in (line.rstrip("\n").split("\t") for line in reader):
                if label == "entailment":
                    writer.write(json.dumps({"anchor": question, "positive": sentence}) + "\n")
    return into


def seconds(function: Callable[..., object], *arguments: Any, clock: Callable[[], float] = time.perf_counter) -> float:
    """Calls a function and returns the seconds that it takes, as measured by `clock`."""
    start = clock()
    function(*arguments)
    return clock() - start


def medians(contenders: Mapping[Any, Callable[[], Any]], rounds: int) -> dict[Any, Any]:
    """Calls contenders alternately, so that other load on the machine affects all of them equally.

    Args:
      contenders: name -> function that returns one measured number or a list.
      rounds: number of calls of each function.

    Returns:
      name -> the median, or the list of medians.
    """
    measured: dict[Any, list[Any]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            measured[name].append(contender())
    return {name: np.median(values, axis=0).tolist() for name, values in measured.items()}


def command(*program: str, **options: object) -> list[str]:
    """Returns the command that runs a Python program with flags."""
    return [sys.executable, *program, *(f"--{name}={value}" for name, value in options.items())]


def finetune(model: str, data: str, output: str, **options: object) -> tuple[float, dict[str, float]]:
    """Runs run_classifier.py with the config and the vocabulary of a model.

    Returns:
      The elapsed time in seconds, and the results of the evaluation.
    """
    paths = {"vocab_file": os.path.join(model, "vocab.txt"), "bert_config_file": os.path.join(model, "config.json")}
    options = {**paths, "data_dir": data, "output_dir": output, "evaluate_every": "end", **options}
    program = command("run_classifier.py", "--do_train", "--do_eval", **options)
    start = time.perf_counter()
    subprocess.run(program, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    taken = time.perf_counter() - start
    return taken, json_files.read(os.path.join(output, "eval_results.json"), "--output_dir")


class Peer:
    """A process that writes a line of JSON when it is ready, and then answers each line of JSON with another line.

    Args:
      command: the program and its arguments.
      **options: for `subprocess.Popen`.
    """

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        self._name = shlex.join(command[:2])
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, cwd=ROOT, text=True, **pipes, **options)

    def read(self) -> Any:
        """Returns the next line.

        Raises:
          InputError: if the process has ended.
        """
        line = self.process.stdout.readline()
        if not line:
            raise InputError(f"{self._name} ended with status {self.process.wait()}. See its messages above.")
        return json.loads(line)

    def ask(self, request: object) -> Any:
        """Sends a request and returns the answer."""
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return self.read()

    def close(self) -> None:
        """Ends the process."""
        self.process.stdin.close()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def answer(command: Sequence[str]) -> Any:
    """Runs a command and returns the last line that it prints, which is JSON."""
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])
