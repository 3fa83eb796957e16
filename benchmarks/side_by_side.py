"""Compares this project with other libraries in one session, and writes a table as text and CSV.

    python -m benchmarks.side_by_side --model=DIRECTORY --compare_python=PATH
        [--tasks=qnli-1000,codah,wnut17,similarity,vectors] [--dtypes=float32,bfloat16] [--sizes=given] [--epochs=3]
        [--rounds=1] [--results=build/side_by_side.csv]

DIRECTORY is a checkpoint in Hugging Face's layout; `vectors` needs a directory of sentence-transformers. PATH is the
interpreter of an environment with torch and transformers, and with sentence-transformers for `similarity` and
`vectors`. The contenders run one after the other in separate processes, on all cores that the command may use. Each row
has a ratio: the seconds of this project divided by the seconds of the other library. If it is less than 1, this project
is faster. For each contender, the table shows the padding of batches and whether sequences are grouped by length. The
entry for this project is first. "to the longest" means the longest sequence of the batch. On a CPU without bfloat16
instructions, both contenders emulate these instructions. Each row of the CSV file has the description of the machine.

qnli-1000, qnli, codah, wnut17: fine-tuning against transformers. `--sizes=base` trains BERT_BASE from random weights
instead of DIRECTORY. Both sides train on the same examples in the same batches and order, and evaluate on the same
examples. "training" is the time of the training loop, including the tracing of graphs. "start to scores" is the time of
the complete program. The score is the accuracy on the dev set.

similarity: training of sentence vectors on QNLI's questions and the sentences that answer them, against
sentence-transformers with `MultipleNegativesRankingLoss`, on the same batches. The score is recall@1 on the dev set.

vectors: the vectors of 3,000 sentences, compared with sentence-transformers. "encoding" is the time after the first
batch. "start to end" includes loading the model. The score is the largest difference from sentence-transformers'
float32 vectors.

With the size of MiniLM, fine-tuning on two cores takes each contender one to three minutes per task.
"""

import csv
import dataclasses
import itertools
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import app, flags

from benchmarks import machine, sentence_vectors
from benchmarks.common import (
    CODAH_DIRECTORY,
    PEERS,
    QNLI_DIRECTORY,
    WNUT_DIRECTORY,
    answer,
    finetune,
    write_pairs,
    write_split,
)
from bert_tf.config import BertConfig
from bert_tf.finetuning import training_batches
from bert_tf.finetuning.finetuning_config import FinetuningConfig
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.optimization import OptimizerConfig
from bert_tf.runtime import files, reporting
from bert_tf.tasks import registry
from bert_tf.tasks.data_config import DataConfig
from bert_tf.text import Tokenizer
from bert_tf.training.log import read_metrics
from bert_tf.training.settings import TrainingConfig

_LEARNING_RATE, _SEED = 5e-5, 1


@dataclasses.dataclass(frozen=True)
class Job:
    """A training run.

    Attributes:
      kind: the type of the examples for the peer.
      task_name: the value of --task_name.
      directory: the directory of the data.
      rows: number of training examples to use; None for all.
      epochs: number of passes over these examples.
      batch: examples per step.
    """

    kind: str
    task_name: str
    directory: str
    rows: int | None
    epochs: int
    batch: int = 32


JOBS = {
    "qnli-1000": Job("pairs", "qnli", QNLI_DIRECTORY, 1000, 3),
    "qnli": Job("pairs", "qnli", QNLI_DIRECTORY, None, 1),
    "codah": Job("choices", "codah", CODAH_DIRECTORY, None, 1, 16),
    "wnut17": Job("tags", "ner", WNUT_DIRECTORY, None, 1),
    "similarity": Job("texts", "similarity", QNLI_DIRECTORY, None, 1, 64),
}
TASKS = (*JOBS, "vectors")

_MODEL = flags.DEFINE_string("model", None, "Directory of a checkpoint in Hugging Face's layout.", required=True)
_COMPARE_PYTHON = flags.DEFINE_string("compare_python", None, "Python with the other libraries.", required=True)
_TASKS = flags.DEFINE_list("tasks", [task for task in TASKS if task != "qnli"], f"Names from {', '.join(TASKS)}.")
_DTYPES = flags.DEFINE_list("dtypes", ["float32", "bfloat16"], "Data types of matrix multiplications.")
_SIZES = flags.DEFINE_list("sizes", ["given"], "given: --model; base: random BERT-Base.")
_EPOCHS = flags.DEFINE_integer(
    "epochs", None, "Epochs of fine-tuning. Default: 3 for qnli-1000, otherwise 1.", lower_bound=1
)
_ROUNDS = flags.DEFINE_integer("rounds", 1, "Runs of each contender; the table shows medians.", lower_bound=1)
_LENGTH = flags.DEFINE_integer("max_seq_length", 128, "Longest sequence in tokens; longer ones are truncated.")
_RESULTS = flags.DEFINE_string("results", os.path.join("build", "side_by_side.csv"), "CSV file for the table.")


def ours(job: Job, directory: str, data: str, model: str, has_weights: bool, dtype: str) -> dict[str, float]:
    """Runs run_classifier.py, and returns the seconds and the accuracy."""
    output = os.path.join(directory, "output")
    shutil.rmtree(output, ignore_errors=True)
    arguments = {
        "task_name": job.task_name,
        "do_lower_case": True,
        "max_seq_length": _LENGTH.value,
        "train_batch_size": job.batch,
        "num_train_epochs": job.epochs,
        "learning_rate": _LEARNING_RATE,
        "random_seed": _SEED,
        "dtype": dtype,
    } | ({"init_checkpoint": model} if has_weights else {})
    seconds, scores = finetune(model, data, output, **arguments)
    training = step = 0
    for line in read_metrics(output):
        if line["kind"] == "train":
            training += (line["step"] - step) * job.batch / line["sequences_per_second"]
            step = line["step"]
    names = ("eval_accuracy", "accuracy", "eval_recall_at_1")
    accuracy = next(scores[name] for name in names if name in scores)
    return {"training": training, "start to scores": seconds, "accuracy": accuracy}


def theirs(job: dict[str, Any], directory: str) -> dict[str, float]:
    """Runs transformers, and returns the seconds and the accuracy."""
    path = os.path.join(directory, "job.json")
    files.write_json(path, job)
    start = time.perf_counter()
    found = answer([_COMPARE_PYTHON.value, os.path.join(PEERS, "transformers_finetuning.py"), path])
    return {**found, "start to scores": time.perf_counter() - start}


def peer_job(job: Job, data: str, model: str, has_weights: bool, dtype: str) -> dict[str, Any]:
    """Returns the same examples and batches as this project uses."""
    training = TrainingConfig(tempfile.gettempdir(), OptimizerConfig(_LEARNING_RATE), job.batch, seed=_SEED)
    settings = FinetuningConfig(max_seq_length=_LENGTH.value, training=training, num_train_epochs=job.epochs)
    config = BertConfig.from_json_file(os.path.join(model, "config.json"))
    tokenizer = Tokenizer(os.path.join(model, "vocab.txt"), do_lower_case=True)
    task = registry.build_task(DataConfig(job.task_name, data), training.output_dir, True)
    run = FinetuningRun(task, settings, (config, tokenizer))
    sampler = training_batches.batch_sampler(run, run.data.features("train"))
    steps = len(run.task.split("train")) * job.epochs // job.batch
    names = () if job.kind in ("choices", "texts") else task.labels
    if job.kind == "tags":  # the peer does not use labels of parts of words and padding
        names = sorted({tag for split in ("train", "dev") for row in run.task.split(split) for tag in row.tags})
    labels = {label: number for number, label in enumerate(names)}

    def example(row: Any) -> dict[str, Any]:
        if job.kind == "tags":
            return {"words": row.words, "tags": [labels[tag] for tag in row.tags]}
        if job.kind == "choices":
            return {"first": row.prompt, "second": row.endings, "label": int(row.label)}
        if job.kind == "texts":
            return {"first": row.text_a, "second": row.text_b}
        return {"first": row.text_a, "second": row.text_b, "label": labels[row.label]}

    if len(run.data.features("train")) != len(run.task.split("train")):
        raise SystemExit(f"{data}: some examples are longer than --max_seq_length. Raise it.")
    return {
        "kind": job.kind,
        "model": model,
        "has_weights": has_weights,
        "classes": len(labels),
        "train": [example(row) for row in run.task.split("train")],
        "dev": [example(row) for row in run.task.split("dev")],
        "batches": [sampler.examples(step).tolist() for step in range(steps)],
        "length": _LENGTH.value,
        "learning_rate": _LEARNING_RATE,
        "seed": _SEED,
        "dtype": dtype,
        "threads": len(os.sched_getaffinity(0)),
    }


def size_of(model: str) -> str:
    """Returns the number of layers and the hidden size of a model."""
    config = BertConfig.from_json_file(os.path.join(model, "config.json"))
    return f"{config.num_hidden_layers} x {config.hidden_size}"


def base_model(directory: str) -> str:
    """Returns a directory with the config of BERT_BASE, and the vocabulary of the given model."""
    os.makedirs(directory, exist_ok=True)
    for name in os.listdir(_MODEL.value):
        if name == "vocab.txt" or name.startswith("tokenizer"):
            shutil.copy(os.path.join(_MODEL.value, name), directory)
    with open(os.path.join(directory, "vocab.txt"), encoding="utf-8") as reader:
        config = BertConfig.named("base", vocab_size=sum(1 for _ in reader))
    files.write_json(os.path.join(directory, "config.json"), config.to_hf_dict("BertForPreTraining"))
    return directory


def finetuning(name: str, size: str, dtype: str, peer: str, directory: str) -> Iterator[dict[str, Any]]:
    """Fine-tunes with both contenders, and yields table rows."""
    job = dataclasses.replace(JOBS[name], epochs=_EPOCHS.value or JOBS[name].epochs)
    data = write_split(job.directory, os.path.join(directory, name), job.rows) if job.rows else job.directory
    if job.kind == "texts":
        data = write_pairs(job.directory, os.path.join(directory, name))
    model = os.path.abspath(_MODEL.value) if size == "given" else base_model(os.path.join(directory, size))
    given = data, model, size == "given", dtype
    at_peer = peer_job(job, *given)
    training = "packed rows / to the longest", "no / no"
    total = "packed rows, dev to a multiple of 8 / to the longest", "no, dev yes / no, dev no"
    labels = {"task": name, "size": size_of(model), "dtype": dtype, "peer": peer}
    measures = {"training": training, "start to scores": total}
    return compared(labels, measures, lambda: (ours(job, directory, *given), theirs(at_peer, directory)), "accuracy")


def vectors(dtype: str, peer: str) -> Iterator[dict[str, Any]]:
    """Computes sentence vectors with both contenders, and yields table rows."""
    model, python = os.path.abspath(_MODEL.value), _COMPARE_PYTHON.value

    def run() -> list[dict[str, float]]:
        measured = [sentence_vectors.measure(each, model, dtype) for each in (None, python)]
        exact = measured[1] if dtype == "float32" else sentence_vectors.measure(python, model, "float32")
        return [seconds | {"difference": float(np.abs(found - exact[1]).max())} for seconds, found in measured]

    labels = {"task": "vectors", "size": size_of(model), "dtype": dtype, "peer": peer}
    measures = dict.fromkeys(("encoding", "start to end"), ("in attention only / to the longest", "yes / yes"))
    return compared(labels, measures, run, "difference")


def compared(
    labels: dict[str, str],
    measures: dict[str, tuple[str, str]],
    run: Callable[[], Sequence[dict[str, float]]],
    score: str,
) -> Iterator[dict[str, Any]]:
    """Runs both contenders alternately, and yields a table row with medians for each measure.

    Args:
      labels: the first columns.
      measures: measure -> the padding of both contenders, and whether they group by length.
      run: runs this project, then the other contender. Returns the seconds of each measure and the score for both.
      score: the name of the score.
    """
    rounds = [run() for _ in range(_ROUNDS.value)]
    scores = [statistics.mean(side[score] for side in sides) for sides in zip(*rounds, strict=True)]
    for measure, (padding, grouped) in measures.items():
        mine, other = ([side[measure] for side in sides] for sides in zip(*rounds, strict=True))
        yield {
            **labels,
            "measure": measure,
            "ours, s": statistics.median(mine),
            "theirs, s": statistics.median(other),
            "ratio": statistics.median(our / their for our, their in zip(mine, other, strict=True)),
            "padding": padding,
            "grouped by length": grouped,
            "score": score,
            "score, ours": scores[0],
            "score, theirs": scores[1],
        }


def rows(peers: dict[str, str], directory: str) -> Iterator[dict[str, Any]]:
    """Runs the tasks, and yields the table rows."""
    for name, dtype in itertools.product(_TASKS.value, _DTYPES.value):
        if name == "vectors":
            yield from vectors(dtype, f"sentence-transformers {peers['sentence-transformers']}")
        else:
            library = "sentence-transformers" if name == "similarity" else "transformers"
            for size in _SIZES.value:
                yield from finetuning(name, size, dtype, f"{library} {peers[library]}", directory)


def main(_) -> None:
    peers = machine.peer_versions(_COMPARE_PYTHON.value)
    if unknown := set(_TASKS.value) - set(TASKS):
        raise SystemExit(f"--tasks: {', '.join(unknown)} is unknown. Use some of {', '.join(TASKS)}.")
    if {"similarity", "vectors"} & set(_TASKS.value) and "sentence-transformers" not in peers:
        raise SystemExit(
            "--compare_python: sentence-transformers is missing. Install it, or omit similarity and vectors in --tasks."
        )
    description, table = machine.describe(peers), []
    tf.config.set_visible_devices([], "GPU")  # this process leaves the memory to the contenders
    os.makedirs(os.path.dirname(os.path.abspath(_RESULTS.value)), exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        for row in rows(peers, directory):
            print(reporting.table([row]), flush=True)
            table.append(row)
            with files.replacing(_RESULTS.value) as writer:
                lines = csv.DictWriter(writer, [*row, "machine"])
                lines.writeheader()
                lines.writerows(each | {"machine": description} for each in table)
    print(f"{description}\n{reporting.table(table)}")


if __name__ == "__main__":
    app.run(main)
