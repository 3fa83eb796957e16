"""Fine-tunes with this project and with transformers, from start to scores, and makes one table.

    python -m benchmarks.side_by_side --model=FOLDER --compare_python=PATH [--tasks=qnli-1000,codah,wnut17]
        [--dtypes=float32,bfloat16] [--sizes=given] [--rounds=1] [--results=build/side_by_side.csv]

FOLDER is a checkpoint in Hugging Face's layout. `--sizes=base` trains BERT_BASE from random weights instead. PATH is
the interpreter of an environment with torch and transformers. Both sides train on the same examples in the same batches
and order, and evaluate on the same examples. They run one after the other, each in a separate process on all cores
that the command may use. `seconds` is the time from start to scores. `training` is the time of the training loop,
including the tracing of graphs. The ratios divide our time by transformers' time: less than 1 is faster.

With MiniLM's size, a task takes one to three minutes per side on two cores.
"""

import csv
import dataclasses
import os
import shutil
import statistics
import tempfile
import time
from typing import Any

from absl import app, flags

from benchmarks.common import CODAH_FOLDER, PEERS, QNLI_FOLDER, WNUT_FOLDER, answer, finetune, write_split
from bert_tf.config import BertConfig
from bert_tf.finetuning.finetuning_config import FinetuningConfig
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.optimization import OptimizerConfig
from bert_tf.runtime import files, reporting
from bert_tf.tasks import registry
from bert_tf.tasks.data_config import DataConfig
from bert_tf.tokenization import FullTokenizer
from bert_tf.training.log import read_metrics
from bert_tf.training.settings import TrainingConfig

_LEARNING_RATE, _SEED = 5e-5, 1


@dataclasses.dataclass(frozen=True)
class Job:
    """A training run.

    Attributes:
      kind: the type of the examples for the peer.
      task_name: the value of --task_name.
      folder: the folder of the data.
      rows: number of training examples to use; None for all.
      epochs: number of passes over them.
      batch: examples per step.
    """

    kind: str
    task_name: str
    folder: str
    rows: int | None
    epochs: int
    batch: int = 32


JOBS = {
    "qnli-1000": Job("pairs", "qnli", QNLI_FOLDER, 1000, 3),
    "qnli": Job("pairs", "qnli", QNLI_FOLDER, None, 1),
    "codah": Job("choices", "codah", CODAH_FOLDER, None, 1, 16),
    "wnut17": Job("tags", "ner", WNUT_FOLDER, None, 1),
}

_MODEL = flags.DEFINE_string("model", None, "Folder of a checkpoint in Hugging Face's layout.", required=True)
_COMPARE_PYTHON = flags.DEFINE_string("compare_python", None, "Interpreter with torch and transformers.", required=True)
_TASKS = flags.DEFINE_list("tasks", ["qnli-1000", "codah", "wnut17"], f"Tasks to run, some of {', '.join(JOBS)}.")
_DTYPES = flags.DEFINE_list("dtypes", ["float32", "bfloat16"], "Data types of matrix multiplications.")
_SIZES = flags.DEFINE_list("sizes", ["given"], "given: --model; base: BERT_BASE with random weights.")
_ROUNDS = flags.DEFINE_integer("rounds", 1, "Runs of each side; the table shows medians.", lower_bound=1)
_LENGTH = flags.DEFINE_integer("max_seq_length", 128, "Longer sequences are truncated.")
_RESULTS = flags.DEFINE_string("results", os.path.join("build", "side_by_side.csv"), "CSV file for the table.")


def ours(job: Job, folder: str, data: str, model: str, has_weights: bool, dtype: str) -> dict[str, float]:
    """Runs run_classifier.py, and returns its seconds and its accuracy."""
    output = os.path.join(folder, "output")
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
    accuracy = scores.get("eval_accuracy", scores.get("accuracy"))
    return {"training": training, "seconds": seconds, "accuracy": accuracy}


def theirs(job: dict[str, Any], folder: str) -> dict[str, float]:
    """Runs transformers, and returns its seconds and its accuracy."""
    path = os.path.join(folder, "job.json")
    files.write_json(path, job)
    start = time.perf_counter()
    found = answer([_COMPARE_PYTHON.value, os.path.join(PEERS, "transformers_finetuning.py"), path])
    return {**found, "seconds": time.perf_counter() - start}


def peer_job(job: Job, data: str, model: str, has_weights: bool, dtype: str) -> dict[str, Any]:
    """Returns the examples and batches of a job as used by this project."""
    training = TrainingConfig(tempfile.gettempdir(), OptimizerConfig(_LEARNING_RATE), job.batch, seed=_SEED)
    settings = FinetuningConfig(max_seq_length=_LENGTH.value, training=training, num_train_epochs=job.epochs)
    config = BertConfig.from_json_file(os.path.join(model, "config.json"))
    tokenizer = FullTokenizer(os.path.join(model, "vocab.txt"), do_lower_case=True)
    task = registry.build_task(DataConfig(job.task_name, data), training.output_dir, True)
    run = FinetuningRun(task, settings, (config, tokenizer))
    sampler = run.batch_sampler(run.features("train"))
    steps = len(run.examples("train")) * job.epochs // job.batch
    names = () if job.kind == "choices" else task.labels
    if job.kind == "tags":  # the peer has no use for labels of parts of words and padding
        names = sorted({tag for split in ("train", "dev") for row in run.examples(split) for tag in row.tags})
    labels = {label: number for number, label in enumerate(names)}

    def example(row: Any) -> dict[str, Any]:
        if job.kind == "tags":
            return {"words": row.words, "tags": [labels[tag] for tag in row.tags]}
        if job.kind == "choices":
            return {"first": row.prompt, "second": row.endings, "label": int(row.label)}
        return {"first": row.text_a, "second": row.text_b, "label": labels[row.label]}

    if len(run.features("train")) != len(run.examples("train")):
        raise SystemExit(f"{data}: some examples are longer than --max_seq_length. Set a larger one.")
    return {
        "kind": job.kind,
        "model": model,
        "has_weights": has_weights,
        "classes": len(labels),
        "train": [example(row) for row in run.examples("train")],
        "dev": [example(row) for row in run.examples("dev")],
        "batches": [sampler.examples(step).tolist() for step in range(steps)],
        "grouped": sampler.group_by_length,
        "length": _LENGTH.value,
        "learning_rate": _LEARNING_RATE,
        "seed": _SEED,
        "dtype": dtype,
        "threads": len(os.sched_getaffinity(0)),
    }


def base_model(folder: str) -> str:
    """Returns a folder with the config of BERT_BASE, and the vocabulary of the given model."""
    os.makedirs(folder)
    for name in os.listdir(_MODEL.value):
        if name == "vocab.txt" or name.startswith("tokenizer"):
            shutil.copy(os.path.join(_MODEL.value, name), folder)
    with open(os.path.join(folder, "vocab.txt"), encoding="utf-8") as reader:
        config = BertConfig.named("base", vocab_size=sum(1 for _ in reader))
    files.write_json(os.path.join(folder, "config.json"), config.to_hf_dict("BertForPreTraining"))
    return folder


def main(_) -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        models = {"given": os.path.abspath(_MODEL.value)}
        if "base" in _SIZES.value:
            models["base"] = base_model(os.path.join(folder, "base"))
        for name in _TASKS.value:
            job = JOBS[name]
            data = write_split(job.folder, os.path.join(folder, name), job.rows) if job.rows else job.folder
            for size in _SIZES.value:
                for dtype in _DTYPES.value:
                    peer = peer_job(job, data, models[size], size == "given", dtype)
                    given = job, folder, data, models[size], size == "given", dtype
                    pairs = [(ours(*given), theirs(peer, folder)) for _ in range(_ROUNDS.value)]
                    rows.append({"task": name, "size": size, "dtype": dtype} | compared(pairs, peer["grouped"]))
                    print(reporting.table(rows[-1:]), flush=True)
    os.makedirs(os.path.dirname(os.path.abspath(_RESULTS.value)), exist_ok=True)
    with files.replacing(_RESULTS.value) as writer:
        table = csv.DictWriter(writer, rows[0])
        table.writeheader()
        table.writerows(rows)
    print(reporting.table(rows))


def compared(pairs: list[tuple[dict[str, float], dict[str, float]]], grouped: bool) -> dict[str, Any]:
    """Returns the columns of a table row: medians, and ratios to transformers."""
    row: dict[str, Any] = {"grouped by length": "yes" if grouped else "no"}
    for column in ("training", "seconds"):
        mine, other = (statistics.median(pair[side][column] for pair in pairs) for side in (0, 1))
        ratio = statistics.median(ours[column] / peer[column] for ours, peer in pairs)
        row |= {column: mine, f"{column}, transformers": other, f"{column}, ratio": ratio}
    mine, other = (statistics.mean(pair[side]["accuracy"] for pair in pairs) for side in (0, 1))
    return row | {"accuracy": mine, "accuracy, transformers": other}


if __name__ == "__main__":
    app.run(main)
