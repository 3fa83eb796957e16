"""Ends a job at each of its writes. A second run must complete the job."""

import builtins
import hashlib
import json
import os
import pathlib
import random
import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable

import numpy as np

from bert_tf import checkpoints
from bert_tf.checkpoints import saver
from bert_tf.finetuning.finetune import finetune
from bert_tf.finetuning.finetuning_config import FinetuningConfig
from bert_tf.runtime import files
from bert_tf.serving import line_predictions
from bert_tf.tasks.data_config import DataConfig
from bert_tf.tasks.registry import build_task
from bert_tf.tasks.sentences.similarity import SimilarityExample
from bert_tf.text import FullTokenizer
from bert_tf.training.log import MetricsLog, read_metrics
from bert_tf.training.settings import TrainingConfig
from data_prep import one_machine
from data_prep.corpus import files as corpus_files
from tests.conftest import eagerly, tiny_config
from tests.data_prep import corpora

KILLED = 137
_KILLS, _KILLS_IN_TRAINING = 60, 6  # largest number of kills per job
_OPERATIONS = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.symlink")
# Files that a killed job leaves.
_NOT_COMPARED = re.compile(r"^work|/events\.out|\.(lock|incomplete)$")


class Operations:
    """Counts the file operations of this process, and ends the process at one of them, like SIGKILL.

    Args:
      at: Number of the operation, from 1; 0 for none. A write stops half-way.
    """

    def __init__(self, at: int) -> None:
        self.count, self._at, self._open = 0, at, builtins.open
        builtins.open = self._opened
        sys.addaudithook(lambda event, arguments: self.reach() if event in _OPERATIONS else None)

    def reach(self) -> None:
        self.count += 1
        if self.count == self._at:
            os._exit(KILLED)

    def _opened(self, path, mode="r", *arguments, **options):
        file = self._open(path, mode, *arguments, **options)
        return _Writer(file, self) if set(mode) & set("wax+") else file


class _Writer:
    def __init__(self, file, operations: Operations) -> None:
        self._file, self._operations = file, operations

    def write(self, data):
        half = len(data) // 2
        self._file.write(data[:half])
        self._file.flush()
        self._operations.reach()
        return half + self._file.write(data[half:])

    def writelines(self, lines) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        self._file.close()


def in_child(function: Callable[[], str]) -> tuple[int, str]:
    """Runs a function in a child process. Returns the exit status and the text that the function returns."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, function()[-60000:].encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        text = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


def run(job: Callable[[pathlib.Path], None], directory: pathlib.Path, at: int = 0) -> tuple[int, str]:
    """Runs a job with a kill at an operation; returns the exit status, and the number of operations or the error."""

    def work() -> str:
        operations = Operations(at)
        try:
            job(directory)
        except BaseException:
            return traceback.format_exc()
        return str(operations.count)

    return in_child(work)


def replace_json(directory: pathlib.Path) -> None:
    for value in range(3):
        if (directory / "x.json").exists():
            json.loads((directory / "x.json").read_text())
        files.write_json(str(directory / "x.json"), [value] * 500)


def log_metrics(directory: pathlib.Path) -> None:
    """Writes metrics. A second run continues after the last complete line."""
    done = max((line["step"] for line in read_metrics(str(directory))), default=0)
    log = MetricsLog(str(directory), done)
    for step in range(done + 1, 6):
        log.write("train", step, {"loss": step / 4})
    assert [line["step"] for line in read_metrics(str(directory))] == [1, 2, 3, 4, 5]


def save_checkpoints(directory: pathlib.Path) -> None:
    newest = saver.latest_checkpoint(str(directory))
    done = int(checkpoints.open_checkpoint(newest).read("step")) if newest else 0
    assert newest is None or newest.endswith(f"-{done}")
    with saver.CheckpointSaver(str(directory), 2) as writer:
        for step in range(min(done, 3) + 1, 5):  # repeats the last save, which removes leftovers
            writer.save(step, {"step": np.int64(step), "x": np.full(50, step, np.float32)})
            assert saver.latest_checkpoint(str(directory)).endswith(f"-{step}")


def answer_lines(directory: pathlib.Path) -> None:
    with line_predictions.answers_file(str(directory / "answers.jsonl")) as writer:
        writer.writelines(f"{number}\n" for number in range(9))


def prepare_data(directory: pathlib.Path) -> None:
    """Prepares data in many parts. A second run reuses the finished parts."""
    corpus_files._SPLIT_BYTES = (700, 700)
    one_machine._RANGE_EXAMPLES = (60, 60)
    corpora.make(directory, directory / "text.txt", num_shards=2)
    assert corpora.preparation_config(directory, directory / "text.txt", num_shards=2).shards.are_finished()


def replace_directory(directory: pathlib.Path) -> None:
    if not (directory / "model").exists():
        with files.replacing_directory(str(directory / "model")) as inside:
            for name in ("config.json", "vocab.txt"):
                with open(os.path.join(inside, name), "w") as writer:
                    writer.write(name)


@eagerly()
def train_vectors(directory: pathlib.Path) -> None:
    """Trains sentence vectors with two passes over each batch. A second run resumes at the newest checkpoint."""
    os.chdir(directory)  # run.json has the path of the run
    tokenizer = FullTokenizer("vocab.txt", do_lower_case=True)
    examples = [SimilarityExample(str(i), word, f"{word} {word}") for i, word in enumerate(corpora.SYLLABLES)]
    task = build_task(DataConfig("similarity"), "", do_train=True, examples={"train": examples})
    steps = {"gradient_accumulation_steps": 2, "save_checkpoints_steps": 1, "log_steps": 1}
    training = TrainingConfig("run", train_batch_size=4, **steps)
    settings = FinetuningConfig(training=training, do_train=True, num_train_steps=3, max_seq_length=8)
    config = tiny_config(vocab_size=len(tokenizer.vocab), num_hidden_layers=1)
    finetune(task, settings, (config, tokenizer))


def make_inputs(directory: pathlib.Path) -> None:
    corpora.write_corpus(directory / "text.txt", documents=4)
    corpora.write_vocab(directory)


JOBS = [replace_json, log_metrics, save_checkpoints, answer_lines, prepare_data, replace_directory, train_vectors]
# Jobs whose outputs are always complete or absent.
_ATOMIC = [prepare_data, replace_directory]


def content(directory: pathlib.Path) -> dict[str, str]:
    """Returns the checksums of a directory's files, except files with times and leftovers of a killed job."""
    names = {str(path.relative_to(directory)): path for path in sorted(directory.rglob("*")) if path.is_file()}
    found = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in names.items()}
    return {name: found[name] * ("metrics.jsonl" not in name) for name in found if not _NOT_COMPARED.search(name)}


def trial(directory: str, rng: random.Random, number: int, counts: Counter) -> None:
    """Kills a job at its operations. A second run must write the same files as a job that was not killed."""
    job, places, expected = JOBS[number % len(JOBS)], [0], None
    for at in places:
        inside = pathlib.Path(directory) / str(at)
        inside.mkdir()
        make_inputs(inside)
        status, text = run(job, inside, at)
        assert status == (KILLED if at else 0), text
        if at and job in _ATOMIC:
            found = content(inside)
            assert {name: found[name] for name in found.keys() & expected.keys()}.items() <= expected.items(), at
        _, text = run(job, inside) if at else (0, text)
        assert text.isdigit(), text
        if not at:
            expected = content(inside)
            count = _KILLS_IN_TRAINING if job is train_vectors else min(_KILLS, int(text))
            places += rng.sample(range(1, int(text) + 1), count)
        assert content(inside) == expected, (at, content(inside), expected)
        counts["kills"] += bool(at)
